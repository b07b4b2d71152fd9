package amqp

import (
	"net"
	"os"
	"sync"
	"time"
)

// bufferedConn is a net.Conn whose writes never wait for the network: they are
// collected and written by a goroutine of its own, together when more comes in
// than the network takes. amqp091 writes each message with a system call of
// its own while it holds its locks; with this in between, publishes share system
// calls, and a broker that has stopped reading holds up no lock.
//
// What is buffered is bounded by who writes: a publisher by its window.
type bufferedConn struct {
	net.Conn

	mu      sync.Mutex
	pending []byte
	spare   []byte // the buffer that was written last, to be used again
	err     error  // of the connection; all later writes get it
	closing bool

	wake chan struct{} // capacity 1: there is something to do
	done chan struct{} // closed when the writing goroutine has ended
}

const (
	// flushTimeout bounds how long Close tries to get rid of what is buffered.
	flushTimeout = 250 * time.Millisecond
	// keptBuffer is the largest buffer that is kept for later.
	keptBuffer = 1 << 20
)

func newBufferedConn(conn net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: conn, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go c.flush()
	return c
}

// Write takes p over and returns. An error means that the connection is
// broken; that it is not does not mean that p has been sent.
func (c *bufferedConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return 0, c.err
	}
	c.pending = append(c.pending, p...)
	c.mu.Unlock()
	c.wakeWriter()
	return len(p), nil
}

func (c *bufferedConn) wakeWriter() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *bufferedConn) flush() {
	defer close(c.done)
	for {
		c.mu.Lock()
		p, closing := c.pending, c.closing
		if len(p) > 0 {
			c.pending, c.spare = c.spare[:0], nil
		}
		c.mu.Unlock()
		switch {
		case len(p) > 0:
			if !c.write(p) {
				return
			}
		case closing:
			return
		default:
			<-c.wake
		}
	}
}

// write sends p and keeps its buffer for later. It tells whether the
// connection still works.
func (c *bufferedConn) write(p []byte) bool {
	_, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.err = err
		c.pending = nil
		_ = c.Conn.Close() // so that the reader notices
		return false
	}
	if cap(p) <= keptBuffer {
		c.spare = p[:0]
	}
	return true
}

// Close writes what is buffered, if that is quick, and closes the connection.
func (c *bufferedConn) Close() error {
	_ = c.SetWriteDeadline(time.Now().Add(flushTimeout))
	c.end(os.ErrClosed)
	<-c.done
	return c.Conn.Close()
}

// abort closes the connection and forgets what is buffered.
func (c *bufferedConn) abort() {
	c.end(os.ErrClosed)
	_ = c.Conn.Close()
}

func (c *bufferedConn) end(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.closing = true
	c.mu.Unlock()
	c.wakeWriter()
}
