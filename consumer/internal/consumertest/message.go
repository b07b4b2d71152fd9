package consumertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Number returns a dispatch ID that depends on n alone.
func Number(n int) uuid.UUID {
	var u uuid.UUID
	binary.BigEndian.PutUint64(u[8:], uint64(n+1))
	return u
}

// Event returns the n-th event of the tests.
func Event(n int) transport.Event {
	e := transport.Event{
		ID: Number(n), Topic: "orders", Payload: []byte("secret payload"), CorrelationID: "conversation",
		Stamp: time.Now(),
	}
	e.Digest = transport.ContentDigest(&e)
	return e
}

// Msg returns the n-th message of the tests.
func Msg(n int) *message.Message {
	e := Event(n)
	return e.Message()
}

// Keyed returns the n-th message with a key.
func Keyed(n int, key string) *message.Message {
	e := Event(n)
	e.Key = key
	e.Digest = transport.ContentDigest(&e)
	return e.Message()
}

// Again marks a message as delivered before.
func Again(m *message.Message) *message.Message {
	m.SetContext(transport.WithRedelivered(m.Context()))
	return m
}

// LogBuffer is a log for concurrent writing and reading.
type LogBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write appends to the log.
func (b *LogBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns the log.
func (b *LogBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// WaitFor waits until cond holds.
func WaitFor(t *testing.T, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(30 * time.Second)
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("waited for too long")
		}
	}
}

// RunOnce makes an inbox do all due work.
func RunOnce(t *testing.T, inbox interface{ RunOnce(context.Context) error }) {
	t.Helper()
	if err := inbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
}
