package main

import (
	"context"
	"encoding/binary"
	"net"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire counts what goes to PostgreSQL over the connections of this process. Counting is
// adding to two atomic numbers, for the limits and the peers as for this library.
type wire struct {
	statements, roundTrips atomic.Int64
}

// count is a pgconn.AfterNetConnectFunc: it sees what is sent before it is encrypted.
func (w *wire) count(_ context.Context, _ *pgconn.Config, conn net.Conn) (net.Conn, error) {
	return &countingConn{Conn: conn, wire: w}, nil
}

// countingConn counts statements, which are messages Query and Execute of the protocol, and
// round trips, which are answers waited for after something was written.
type countingConn struct {
	net.Conn
	wire    *wire
	header  []byte      // of a message that is not whole yet
	rest    int         // of the current message
	waiting atomic.Bool // something was written, and nothing has come back
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

// count walks over the messages in b: a type, which the first message has not, four bytes of
// length that count themselves, the rest.
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
