package amqp_test

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// wire is the network between a client and the broker, to be held up and cut.
type wire struct {
	mu    sync.Mutex
	conns map[*wireConn]struct{}
	gate  chan struct{} // closed while answers pass
	dials int
	down  bool
	lost  int // bytes that a client has written and the broker has not been given
}

// wired has config connect through a wire.
func wired(config *wamqp.Config) *wire {
	w := &wire{conns: make(map[*wireConn]struct{}), gate: make(chan struct{})}
	close(w.gate)
	config.Connection.AmqpConfig = &amqp091.Config{Dial: w.dial, Heartbeat: 10 * time.Second}
	return w
}

func (w *wire) dial(network, addr string) (net.Conn, error) {
	w.mu.Lock()
	down := w.down
	w.dials++
	w.mu.Unlock()
	if down {
		return nil, errors.New("network is down")
	}
	inner, err := net.DialTimeout(network, addr, publishCall)
	if err != nil {
		return nil, err
	}
	conn := &wireConn{Conn: inner, wire: w, closed: make(chan struct{})}
	w.mu.Lock()
	w.conns[conn] = struct{}{}
	w.mu.Unlock()
	return conn, nil
}

// hold keeps the broker's answers back until pass is called.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gate = make(chan struct{})
}

func (w *wire) pass() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.gate)
}

// lose gives the broker nothing more of what is written to the connections that there are.
func (w *wire) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		conn.loses = true
	}
}

// losses tells how many bytes were lost.
func (w *wire) losses() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// cut breaks all connections.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		_ = conn.Conn.Close()
	}
}

// fall breaks all connections and lets no new one come to be.
func (w *wire) fall() {
	w.mu.Lock()
	w.down = true
	w.mu.Unlock()
	w.cut()
}

// dialled tells how often a client has tried to connect.
func (w *wire) dialled() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dials
}

type wireConn struct {
	net.Conn
	wire   *wire
	once   sync.Once
	closed chan struct{}
	loses  bool // guarded by the mutex of wire
}

func (c *wireConn) Write(p []byte) (int, error) {
	c.wire.mu.Lock()
	loses := c.loses
	if loses {
		c.wire.lost += len(p)
	}
	c.wire.mu.Unlock()
	if loses {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

func (c *wireConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.wire.mu.Lock()
	gate := c.wire.gate
	c.wire.mu.Unlock()
	select {
	case <-gate:
		return n, err
	case <-c.closed:
		return 0, net.ErrClosed
	}
}

func (c *wireConn) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.wire.mu.Lock()
		delete(c.wire.conns, c)
		c.wire.mu.Unlock()
	})
	return c.Conn.Close()
}

// edited has config connect through a wire on which edit changes the frames that the broker sends.
func edited(config *wamqp.Config, edit func(frame []byte)) {
	config.Connection.AmqpConfig = &amqp091.Config{Dial: func(network, addr string) (net.Conn, error) {
		conn, err := net.DialTimeout(network, addr, publishCall)
		return &editedConn{Conn: conn, edit: edit}, err
	}}
}

type editedConn struct {
	net.Conn
	edit  func(frame []byte)
	frame []byte // what is left of it
}

func (c *editedConn) Read(p []byte) (int, error) {
	if len(c.frame) == 0 {
		head := make([]byte, 7)
		if _, err := io.ReadFull(c.Conn, head); err != nil {
			return 0, err
		}
		c.frame = append(head, make([]byte, binary.BigEndian.Uint32(head[3:])+1)...)
		if _, err := io.ReadFull(c.Conn, c.frame[7:]); err != nil {
			return 0, err
		}
		c.edit(c.frame)
	}
	n := copy(p, c.frame)
	c.frame = c.frame[n:]
	return n, nil
}

// culprits is a publisher with a queue for good messages. The broker ends its channel for each that
// goes to missing.
type culprits struct {
	*testing.T
	url, good, missing string
	w                  *wire
	p                  *amqp.Publisher
}

// newCulprits publishes batches of so many messages; of 1 none.
func newCulprits(t *testing.T, batch int) *culprits {
	t.Helper()
	name := topic(t)
	k := &culprits{T: t, url: testenv.AMQPURL(t), good: name + "-good", missing: name + "-missing"}
	config := amqp.DurablePubSub(k.url, "")
	k.w = wired(&config)
	newSubscriberQueue(t, k.url, k.good)
	k.p = newPublisher(t, amqp.PublisherConfig{AMQP: config, Topology: amqp.NoTopology, Envelope: batch > 1, BatchSize: batch})
	return k
}

// wantReceived looks whether the good messages have come in their order, and nothing is left to be
// confirmed.
func (k *culprits) wantReceived(want []string) {
	k.Helper()
	if n := k.p.Health().Unconfirmed; n != 0 {
		k.Errorf("%d unconfirmed", n)
	}
	messages := subscribe(k.T, newSubscriber(k.T, amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(k.url, "consumer")}), k.good)
	var h history
	for h.len() < len(want) {
		h.handle(receive(k.T, messages))
	}
	if found := strings.Join(h.byKey["key"], " "); found != strings.Join(want, " ") {
		k.Errorf("out of order: %s", found)
	}
}
