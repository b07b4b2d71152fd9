package testenv

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// Thief is a proxy in front of a PostgreSQL server. It swallows the answers to some commits, and
// hangs up. Its methods may be called from any goroutine.
type Thief struct {
	listener net.Listener
	server   string
	rob      func() bool
	stolen   atomic.Int64
	wg       sync.WaitGroup
}

// NewThief returns a thief and the URL of the database through it, until the test ends. The thief
// reaches the database without TLS. For every COMMIT of a client, the goroutine of the connection
// calls rob, which decides whether the answer is swallowed.
func NewThief(t testing.TB, address string, rob func() bool) (*Thief, string) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal("the database's address is not a URL")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	th := &Thief{listener: listener, server: u.Host, rob: rob}
	query := u.Query()
	query.Set("sslmode", "disable")
	u.RawQuery, u.Host = query.Encode(), listener.Addr().String()
	th.wg.Go(th.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		th.wg.Wait()
	})
	return th, u.String()
}

// Stolen returns the number of swallowed answers.
func (th *Thief) Stolen() int { return int(th.stolen.Load()) }

func (th *Thief) serve() {
	for {
		client, err := th.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", th.server)
		if err != nil {
			_ = client.Close()
			continue
		}
		var robbed atomic.Bool
		th.wg.Go(func() {
			defer func() { _ = server.Close() }()
			var c commits
			pass(server, client, func(sent []byte) bool {
				if c.sent(sent) && th.rob() {
					robbed.Store(true)
				}
				return true
			})
		})
		th.wg.Go(func() {
			defer func() { _ = client.Close() }()
			pass(client, server, func([]byte) bool {
				if robbed.Load() { // the commit was answered, so it happened
					th.stolen.Add(1)
					return false
				}
				return true
			})
		})
	}
}

// commits recognizes the COMMITs of a client: by their text, or by the name of the statement that the
// client has prepared.
type commits struct{ prepared []byte }

func (c *commits) sent(data []byte) bool {
	const text = "commit\x00"
	at := bytes.Index(bytes.ToLower(data), []byte(text))
	if at <= 0 || data[at-1] != 0 { // a simple query, whose length precedes the text
		return at > 0 || c.prepared != nil && bytes.Contains(data, c.prepared)
	}
	// Parse: 'P', the length from here on, the name and the text with a zero behind each, and the number
	// of types, 0.
	for begin := at - 6; begin >= 0; begin-- {
		if data[begin] == 'P' && int(binary.BigEndian.Uint32(data[begin+1:])) == at-begin-1+len(text)+2 {
			name := data[begin+5 : at-1]
			if len(name) == 0 { // prepared and run in one message
				return true
			}
			c.prepared = slices.Concat([]byte{0}, name, []byte{0})
			break
		}
	}
	return c.prepared != nil && bytes.Contains(data[at+len(text):], c.prepared)
}

// pass copies from one connection to the other until either hangs up or look returns false.
func pass(to, from net.Conn, look func([]byte) bool) {
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil || !look(buf[:n]) {
			return
		}
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
	}
}
