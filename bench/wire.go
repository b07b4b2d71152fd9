package main

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire counts the traffic of this process with PostgreSQL. Counting adds to two atomic numbers,
// alike for the limits, the peers and this library.
type wire struct {
	statements, roundTrips atomic.Int64
}

// count is a pgconn.AfterNetConnectFunc: it sees the data before encryption.
func (w *wire) count(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
	return &countingConn{Conn: conn, wire: w}, nil
}

// countingConn counts statements, which are the protocol's messages Query and Execute, and round
// trips, which are waits for an answer after a write.
type countingConn struct {
	net.Conn
	wire    *wire
	header  []byte      // of a message that is not whole yet
	rest    int         // of the current message
	waiting atomic.Bool // data was written, and no answer has arrived
}

func (c *countingConn) Write(b []byte) (int, error) {
	c.count(b)
	c.waiting.Store(true)
	return c.Conn.Write(b)
}

func (c *countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && c.waiting.CompareAndSwap(true, false) {
		c.wire.roundTrips.Add(1)
	}
	return n, err
}

// count parses the messages in b: a type (missing in the first message), four bytes of length that
// include themselves, and the body.
func (c *countingConn) count(b []byte) {
	for len(b) > 0 {
		if c.rest > 0 {
			n := min(c.rest, len(b))
			c.rest -= n
			b = b[n:]
			continue
		}
		size := 5
		if len(c.header) > 0 && c.header[0] == 0 || len(c.header) == 0 && b[0] == 0 { // no type is 0
			size = 4
		}
		n := min(size-len(c.header), len(b))
		c.header = append(c.header, b[:n]...)
		b = b[n:]
		if len(c.header) < size {
			return
		}
		c.rest = int(binary.BigEndian.Uint32(c.header[size-4:])) - 4
		if kind := c.header[0]; kind == 'Q' || kind == 'E' {
			c.wire.statements.Add(1)
		}
		c.header = c.header[:0]
	}
}
