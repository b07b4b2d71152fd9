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

// Toxic is what is wrong with a connection, in toxiproxy's words.
type Toxic struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Stream     string         `json:"stream"` // "downstream" is from the server to the client
	Toxicity   float32        `json:"toxicity"`
	Attributes map[string]any `json:"attributes"`
}

// Some toxics log everything to the global logger.
func init() { zerolog.SetGlobalLevel(zerolog.Disabled) }

func toxic(kind, stream string, attributes map[string]any) Toxic {
	return Toxic{Name: kind + "_" + stream, Type: kind, Stream: stream, Toxicity: 1, Attributes: attributes}
}

// DropReplies swallows what the server says and closes connections after ms
// milliseconds; with 0 it never closes them.
func DropReplies(ms int) Toxic { return toxic("timeout", "downstream", map[string]any{"timeout": ms}) }

// DropRequests swallows what the client says, likewise. With [DropReplies] and 0 the connection is
// half open: both sides think that the other one is there.
func DropRequests(ms int) Toxic { return toxic("timeout", "upstream", map[string]any{"timeout": ms}) }

// Latency delays what the server says by ms milliseconds, give or take jitter.
func Latency(ms, jitter int) Toxic {
	return toxic("latency", "downstream", map[string]any{"latency": ms, "jitter": jitter})
}

// Slice cuts what the client says into pieces of about size bytes, with micros
// microseconds between them.
func Slice(size, micros int) Toxic {
	return toxic("slicer", "upstream", map[string]any{"average_size": size, "size_variation": size / 2, "delay": micros})
}

// SliceReplies is [Slice] for what the server says.
func SliceReplies(size, micros int) Toxic {
	return toxic("slicer", "downstream", map[string]any{"average_size": size, "size_variation": size / 2, "delay": micros})
}

// Reset resets connections after ms milliseconds.
func Reset(ms int) Toxic { return toxic("reset_peer", "downstream", map[string]any{"timeout": ms}) }

// Limit closes connections after the client has said n bytes.
func Limit(n int) Toxic { return toxic("limit_data", "upstream", map[string]any{"bytes": n}) }

// LimitReplies closes connections after the server has said n bytes.
func LimitReplies(n int) Toxic { return toxic("limit_data", "downstream", map[string]any{"bytes": n}) }

// Bandwidth limits what the client says to kilobytes per second.
func Bandwidth(kilobytes int) Toxic {
	return toxic("bandwidth", "upstream", map[string]any{"rate": kilobytes})
}

// Proxy stands before one server. Its methods may be called from several goroutines.
type Proxy struct {
	server *toxiproxy.ApiServer
	proxy  *toxiproxy.Proxy
}

// New listens on a free loopback port and passes everything on to a server.
// The caller must Close it.
func New(upstream string) (*Proxy, error) {
	s := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	p := toxiproxy.NewProxy(s, "proxy", "127.0.0.1:0", upstream)
	if err := s.Collection.Add(p, true); err != nil {
		return nil, fmt.Errorf("proxy before %s: %w", upstream, err)
	}
	return &Proxy{server: s, proxy: p}, nil
}

// Before returns a proxy before the server that a URL names, and the URL that goes
// through it.
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

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.proxy.Listen }

// Add spoils connections.
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

// Heal takes all toxics back. Connections from which something was swallowed are closed.
func (p *Proxy) Heal() { p.proxy.Toxics.ResetToxics(context.Background()) }

// Cut closes all connections; new ones can be opened at once. It takes back all toxics.
// The listener stays: its port could be taken by others before it is back.
func (p *Proxy) Cut() error {
	err := p.Add(DropReplies(0), DropRequests(0))
	p.Heal() // which closes what was swallowed from
	return err
}

// Move has the proxy pass on to another server from now on, and closes all connections.
func (p *Proxy) Move(upstream string) error {
	p.proxy.Lock()
	p.proxy.Upstream = upstream
	p.proxy.Unlock()
	return p.Cut()
}

// Close closes everything.
func (p *Proxy) Close() error { return p.server.Collection.Clear() }
