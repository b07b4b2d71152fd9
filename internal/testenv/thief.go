package testenv

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Thief stands between clients and a PostgreSQL. It swallows the answers to some commits, and hangs
// up. Its methods may be called from any goroutine.
type Thief struct {
	listener net.Listener
	server   string
	rob      func() bool
	stolen   atomic.Int64
	wg       sync.WaitGroup
}

// NewThief returns a thief and the URL of the database behind it, which it reaches without TLS,
// until the test ends. Of every COMMIT that a client sends it asks rob whether the answer is
// swallowed, from the goroutine of its connection.
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

// Stolen tells how many answers were swallowed.
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
			pass(server, client, func(sent []byte) bool {
				if bytes.Contains(bytes.ToLower(sent), []byte("commit\x00")) && th.rob() {
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

// pass copies from one to the other until one of them hangs up or look says no.
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
