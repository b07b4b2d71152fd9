package amqp

import (
	"net"
	"os"
	"sync"
	"time"
)

// bufferedConn is a net.Conn whose writes never wait for the network. A separate goroutine writes
// the buffered bytes, many writes at once if the network is slower than the writers. Without the
// buffer, amqp091 would hold its locks during a system call for each message. With the buffer,
// publishes share system calls, and a broker that has stopped reading blocks no lock.
//
// The writers bound the buffer: a publisher by its window.
type bufferedConn struct {
	net.Conn

	mu      sync.Mutex
	pending []byte
	spare   []byte // the buffer that was written last, for reuse
	err     error  // of the connection; all later writes return it
	closing bool

	wake chan struct{} // capacity 1: the goroutine has to look
	done chan struct{} // closed when the writing goroutine has ended
}

const (
	// flushTimeout bounds how long Close tries to write the buffered bytes.
	flushTimeout = 250 * time.Millisecond
	// keptBuffer is the largest buffer that is kept for reuse.
	keptBuffer = 1 << 20
)

func newBufferedConn(conn net.Conn) *bufferedConn {
	c := &bufferedConn{Conn: conn, wake: make(chan struct{}, 1), done: make(chan struct{})}
	go c.flush()
	return c
}

// Write buffers p and returns. An error means that the connection is broken. No error does not mean
// that p was sent.
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

// write sends p and keeps its buffer for reuse. It tells whether the connection still works.
func (c *bufferedConn) write(p []byte) bool {
	_, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.err = err
		c.pending = nil
		_ = c.Conn.Close() // so that the reader notices the end
		return false
	}
	if cap(p) <= keptBuffer {
		c.spare = p[:0]
	}
	return true
}

// Close writes the buffered bytes, if that is quick, and closes the connection.
func (c *bufferedConn) Close() error {
	_ = c.SetWriteDeadline(time.Now().Add(flushTimeout))
	c.end(os.ErrClosed)
	<-c.done
	return c.Conn.Close()
}

// abort closes the connection and drops the buffered bytes.
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
