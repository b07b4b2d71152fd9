// Package proxy puts toxiproxy between a program and a server, in this process.
//
//	p, err := proxy.New("127.0.0.1:5432")
//	defer p.Close()
//	err = p.Add(proxy.DropReplies(200))
//	…
//	err = p.Heal()
//
// A [Toxic] spoils the connections that are open and those that are opened later, until
// [Proxy.Heal].
package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strings"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	"github.com/rs/zerolog"
)

// Toxic is a fault of a connection, in toxiproxy's terms.
type Toxic struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Stream     string         `json:"stream"` // "downstream" is from the server to the client
	Toxicity   float32        `json:"toxicity"`
	Attributes map[string]any `json:"attributes"`
}

// Some toxics log to the global logger.
func init() { zerolog.SetGlobalLevel(zerolog.Disabled) }

func toxic(kind, stream string, attributes map[string]any) Toxic {
	return Toxic{Name: kind + "_" + stream, Type: kind, Stream: stream, Toxicity: 1, Attributes: attributes}
}

// DropReplies swallows the server's data and closes connections after ms milliseconds; with 0
// connections stay open.
func DropReplies(ms int) Toxic { return toxic("timeout", "downstream", map[string]any{"timeout": ms}) }

// DropRequests swallows the client's data, like DropReplies. With [DropReplies] and 0 the
// connection is half open: each side believes that the other side is alive.
func DropRequests(ms int) Toxic { return toxic("timeout", "upstream", map[string]any{"timeout": ms}) }

// Latency delays the server's data by ms milliseconds, plus or minus jitter.
func Latency(ms, jitter int) Toxic {
	return toxic("latency", "downstream", map[string]any{"latency": ms, "jitter": jitter})
}

// Slice cuts the client's data into pieces of about size bytes, with micros microseconds between
// them.
func Slice(size, micros int) Toxic {
	return toxic("slicer", "upstream", map[string]any{"average_size": size, "size_variation": size / 2, "delay": micros})
}

// SliceReplies is [Slice] for the server's data.
func SliceReplies(size, micros int) Toxic {
	return toxic("slicer", "downstream", map[string]any{"average_size": size, "size_variation": size / 2, "delay": micros})
}

// Reset resets connections after ms milliseconds.
func Reset(ms int) Toxic { return toxic("reset_peer", "downstream", map[string]any{"timeout": ms}) }

// Limit closes connections after n bytes of the client.
func Limit(n int) Toxic { return toxic("limit_data", "upstream", map[string]any{"bytes": n}) }

// LimitReplies closes connections after n bytes of the server.
func LimitReplies(n int) Toxic { return toxic("limit_data", "downstream", map[string]any{"bytes": n}) }

// Bandwidth limits the client's data to kilobytes per second.
func Bandwidth(kilobytes int) Toxic {
	return toxic("bandwidth", "upstream", map[string]any{"rate": kilobytes})
}

// Proxy is a proxy in front of one server. Its methods may be called concurrently.
type Proxy struct {
	server *toxiproxy.ApiServer
	proxy  *toxiproxy.Proxy
}

// New listens on a free loopback port and forwards all connections to a server. The caller must
// Close the proxy.
func New(upstream string) (*Proxy, error) {
	s := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(s, "proxy", "127.0.0.1:0", upstream)
	if err := s.Collection.Add(p, true); err != nil {
		return nil, fmt.Errorf("proxy before %s: %w", upstream, err)
	}
	return &Proxy{server: s, proxy: p}, nil
}

// Before returns a proxy in front of the server in a URL, and the URL through the proxy.
func Before(address string) (*Proxy, string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, "", fmt.Errorf("proxy: not a URL")
	}
	p, err := New(u.Host)
	if err != nil {
		return nil, "", err
	}
	u.Host = p.Addr()
	return p, u.String(), nil
}

// Addr returns the address of the proxy.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Add adds toxics to connections.
func (p *Proxy) Add(toxics ...Toxic) error {
	for _, t := range toxics {
		text, err := json.Marshal(t)
		if err != nil {
			return err
		}
		if _, err := p.proxy.Toxics.AddToxicJson(strings.NewReader(string(text))); err != nil {
			return fmt.Errorf("%s: %w", t.Name, err)
		}
	}
	return nil
}

// Heal removes all toxics. Connections with swallowed data are closed.
func (p *Proxy) Heal() { p.proxy.Toxics.ResetToxics(context.Background()) }

// Cut closes all connections; new connections can be opened at once. It removes all toxics. The
// listener stays open, since another process could take its port.
func (p *Proxy) Cut() error {
	err := p.Add(DropReplies(0), DropRequests(0))
	p.Heal() // closes connections with swallowed data
	return err
}

// Move makes the proxy forward to another server from now on, and closes all connections.
func (p *Proxy) Move(upstream string) error {
	p.proxy.Lock()
	p.proxy.Upstream = upstream
	p.proxy.Unlock()
	return p.Cut()
}

// Close closes the proxy and its connections.
func (p *Proxy) Close() error { return p.server.Collection.Clear() }
