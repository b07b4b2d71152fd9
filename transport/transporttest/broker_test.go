package transporttest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// broker is a broker over TCP: a frame of JSON per message, a line per answer.
type broker struct {
	listener net.Listener
	tasks    sync.WaitGroup
	volatile bool // keeps what it confirms in memory only

	mu     sync.Mutex
	topics map[string][]*message.Message
	disk   map[string]int // how many of a topic survive a crash
	conns  map[net.Conn]bool
}

// frame is a message on the wire.
type frame struct {
	Topic    string
	UUID     string
	Payload  []byte
	Metadata map[string]string
}

const badPayload = "bad"

func newBroker(t *testing.T) *broker {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &broker{listener: listener, topics: make(map[string][]*message.Message), disk: make(map[string]int), conns: make(map[net.Conn]bool)}
	b.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.conns[conn] = true
			b.mu.Unlock()
			b.tasks.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		b.drop()
		b.tasks.Wait()
	})
	return b
}

// drop closes all connections.
func (b *broker) drop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for conn := range b.conns {
		_ = conn.Close()
	}
	clear(b.conns)
}

func (b *broker) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	decoder := json.NewDecoder(conn)
	for {
		var f frame
		if decoder.Decode(&f) != nil {
			return
		}
		if _, err := conn.Write([]byte(b.take(&f) + "\n")); err != nil {
			return
		}
	}
}

// take takes one message and returns the answer.
func (b *broker) take(f *frame) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	stored, found := b.topics[f.Topic]
	if !found {
		return "no topic"
	}
	if string(f.Payload) == badPayload {
		return "bad payload"
	}
	msg := message.NewMessage(f.UUID, f.Payload)
	msg.Metadata = f.Metadata
	b.topics[f.Topic] = append(stored, msg)
	if !b.volatile {
		b.disk[f.Topic] = len(b.topics[f.Topic])
	}
	return "ok"
}

// crash closes all connections and forgets what is not on disk.
func (b *broker) crash(context.Context) error {
	b.drop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for topic := range b.topics {
		b.topics[topic] = b.topics[topic][:b.disk[topic]]
	}
	return nil
}

// target is the broker with a publisher.
func (b *broker) target(open func(address string) message.Publisher) *Target {
	return &Target{
		Address: b.listener.Addr().String(),
		Open:    func(_ context.Context, address string) (message.Publisher, error) { return open(address), nil },
		Prepare: func(_ context.Context, topic string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.topics[topic] = []*message.Message{}
			return nil
		},
		Stored: func(_ context.Context, topic string) ([]*message.Message, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return append([]*message.Message(nil), b.topics[topic]...), nil
		},
		Remove: func(_ context.Context, topic string) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			delete(b.topics, topic)
			return nil
		},
		Bad:     func() *message.Message { return message.NewMessage("bad", []byte(badPayload)) },
		Restart: b.crash,
	}
}

// client is a publisher that is as it should be.
type client struct {
	address string
	noLimit bool // waits for an answer for as long as it takes

	mu     sync.Mutex
	conn   net.Conn
	reader *bufio.Reader
	closed bool
}

func (c *client) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := c.one(msg.Context(), topic, msg); err != nil {
			return err
		}
	}
	return nil
}

func (c *client) one(ctx context.Context, topic string, msg *message.Message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.write(topic, msg); err != nil {
		return err
	}
	if !c.noLimit {
		conn := c.conn
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		defer stop()
	}
	return c.answer()
}

// write writes a message; mu is locked.
func (c *client) write(topic string, msg *message.Message) error {
	if c.closed {
		return errors.New("closed")
	}
	if c.conn == nil {
		conn, err := net.Dial("tcp", c.address)
		if err != nil {
			return err
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	text, err := json.Marshal(frame{topic, msg.UUID, msg.Payload, msg.Metadata})
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(text); err != nil {
		c.hangUp()
		return err
	}
	return nil
}

func (c *client) answer() error {
	line, err := c.reader.ReadString('\n')
	if err != nil {
		c.hangUp()
		return err
	}
	if line != "ok\n" {
		return errors.New(line)
	}
	return nil
}

func (c *client) hangUp() {
	_ = c.conn.Close()
	c.conn = nil
}

func (c *client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		c.hangUp()
	}
	return nil
}
