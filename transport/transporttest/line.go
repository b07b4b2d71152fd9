package transporttest

import (
	"context"
	"io"
	"net"
	"sync"
)

// line is a TCP proxy before a broker. All methods are safe for concurrent use.
type line struct {
	upstream string
	listener net.Listener
	tasks    sync.WaitGroup

	mu    sync.Mutex
	open  map[net.Conn]struct{}
	state lineState
	ended chan struct{} // closed and replaced when a silence ends
}

type lineState uint8

const (
	passing lineState = iota
	down              // new connections are accepted and closed at once
	silent            // bytes of both sides are kept back for ever
	closed
)

// newLine listens on a free loopback port. The caller must close the line.
func newLine(ctx context.Context, upstream string) (*line, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &line{upstream: upstream, listener: listener, open: make(map[net.Conn]struct{}), ended: make(chan struct{})}
	l.tasks.Go(l.accept)
	return l, nil
}

func (l *line) address() string { return l.listener.Addr().String() }

// cut closes all connections, and new connections until heal.
func (l *line) cut() { l.set(down) }

// silence keeps back all bytes, on open and on new connections.
func (l *line) silence() { l.set(silent) }

// heal lets new connections pass. Connections that were silent are closed.
func (l *line) heal() { l.set(passing) }

// close closes the line and waits for its goroutines.
func (l *line) close() {
	l.set(closed)
	_ = l.listener.Close() // no data is lost
	l.tasks.Wait()
}

func (l *line) set(state lineState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == closed {
		return
	}
	if state != silent {
		for conn := range l.open {
			_ = conn.Close() // as a cut does
		}
		close(l.ended)
		l.ended = make(chan struct{})
	}
	l.state = state
}

// add registers an open connection, unless the line is cut or closed.
func (l *line) add(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == down || l.state == closed {
		return false
	}
	l.open[conn] = struct{}{}
	return true
}

func (l *line) remove(conns ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range conns {
		delete(l.open, conn)
		_ = conn.Close()
	}
}

// hold waits for the end of a silence, and tells whether there was a silence.
func (l *line) hold() bool {
	l.mu.Lock()
	state, ended := l.state, l.ended
	l.mu.Unlock()
	if state == silent {
		<-ended
		return true
	}
	return false
}

func (l *line) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		if !l.add(client) {
			_ = client.Close()
			continue
		}
		l.tasks.Go(func() { l.serve(client) })
	}
}

// serve passes on the bytes of one connection until either side closes it.
func (l *line) serve(client net.Conn) {
	if l.hold() {
		l.remove(client)
		return
	}
	server, err := net.Dial("tcp", l.upstream) //nolint:noctx // the client waits for it, and the loopback answers at once
	if err != nil {
		l.remove(client)
		return
	}
	if !l.add(server) {
		l.remove(client, server)
		return
	}
	l.tasks.Go(func() {
		l.pass(server, client)
		l.remove(client, server)
	})
	l.pass(client, server)
	l.remove(client, server)
}

func (l *line) pass(to io.Writer, from io.Reader) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if l.hold() {
			return // the bytes that were kept back are lost with the connection
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
