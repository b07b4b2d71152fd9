package transporttest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// probe is one running case: a publisher with a line of its own.
type probe struct {
	*Target

	publisher message.Publisher
	line      *line // nil without Address
	closing   sync.Once
	closeErr  error
}

// errLate is the error for a call that has not returned in time.
var errLate = errors.New("did not return")

// newProbe opens a publisher. The caller must end the probe.
func newProbe(ctx context.Context, t *Target) (*probe, error) {
	p := &probe{Target: t}
	address := t.Address
	if address != "" {
		l, err := newLine(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("line: %w", err)
		}
		p.line, address = l, l.address()
	}
	publisher, err := t.Open(ctx, address)
	if err != nil {
		if p.line != nil {
			p.line.close()
		}
		return nil, fmt.Errorf("open: %w", err)
	}
	p.publisher = publisher
	return p, nil
}

// end closes the publisher and the line. A Close that hangs is ended by the line, or left behind.
func (p *probe) end() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.close() // another case checks Close
	}()
	if p.line == nil {
		wait(ended, p.Bound)
		return
	}
	wait(ended, time.Second)
	p.line.close()
	wait(ended, p.Bound)
}

func (p *probe) close() error {
	p.closing.Do(func() { p.closeErr = p.publisher.Close() })
	return p.closeErr
}

// wait waits for done, at most for the given duration, and tells whether done was closed.
func wait(done <-chan struct{}, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// topic prepares a new topic.
func (p *probe) topic(ctx context.Context) (string, error) {
	name := newTopic()
	if err := p.Prepare(ctx, name); err != nil {
		return "", fmt.Errorf("prepare: %w", err)
	}
	return name, nil
}

func newTopic() string { return "transporttest_" + strings.ToLower(rand.Text()) }

// publish calls Publish and waits for its return, for one second more than Bound.
func (p *probe) publish(topic string, messages ...*message.Message) error {
	returned := make(chan error, 1)
	go func() {
		defer func() {
			if v := recover(); v != nil {
				returned <- fmt.Errorf("panicked: %v", v)
			}
		}()
		returned <- p.publisher.Publish(topic, messages...)
	}()
	timer := time.NewTimer(p.Bound + time.Second)
	defer timer.Stop()
	select {
	case err := <-returned:
		return err
	case <-timer.C:
		return fmt.Errorf("%w within %v: Publish", errLate, p.Bound)
	}
}

// works publishes until it succeeds or Recovery has passed.
func (p *probe) works(ctx context.Context, topic string) (*message.Message, error) {
	begin := time.Now()
	for {
		msg := newMessage("recovers")
		err := p.publish(topic, msg)
		switch {
		case err == nil:
			return msg, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case time.Since(begin) > p.Recovery:
			return nil, fmt.Errorf("does not work %v after the fault: %w", p.Recovery, err)
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// kept waits until all messages are stored in topic, for at most Bound.
func (p *probe) kept(ctx context.Context, topic string, messages ...*message.Message) error {
	_, err := p.read(ctx, topic, messages)
	return err
}

// read waits like kept, and returns the stored messages.
func (p *probe) read(ctx context.Context, topic string, want []*message.Message) ([]*message.Message, error) {
	begin := time.Now()
	for every := 10 * time.Millisecond; ; every = min(2*every, 500*time.Millisecond) {
		stored, err := p.Stored(ctx, topic)
		there := make(map[string]bool, len(stored))
		for _, msg := range stored {
			there[msg.UUID] = true
		}
		missing := 0
		for _, msg := range want {
			if !there[msg.UUID] {
				missing++
			}
		}
		switch {
		case missing == 0 && err == nil:
			return stored, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && time.Since(begin) > p.Bound:
			return nil, fmt.Errorf("read what is stored: %w", err)
		case err != nil: // the broker may have been restarted
		case time.Since(begin) > min(p.Bound, maxSettle):
			return nil, fmt.Errorf("lost: %d of %d messages for which Publish returned nil are not there", missing, len(want))
		}
		pause(ctx, every)
	}
}

// maxSettle is how long a confirmed message may take to become readable.
const maxSettle = 20 * time.Second

// newMessage returns a message of a key, as a relay makes it. The payload is JSON, which every
// table and schema accepts, with spaces that only survive a transport which leaves payloads alone.
func newMessage(key string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte("{ \"b\": 1.0,\t\"a\": [] }\n"))
	msg.Metadata[transport.MetaKey] = key
	msg.Metadata[transport.MetaStamp] = "2026-01-31T12:00:00.000001Z"
	msg.Metadata["Customer-Id"] = "c 17: a/b=c;d"
	return msg
}

func newMessages(n int, key string) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = newMessage(key)
	}
	return messages
}

// differs names the part of the stored message that differs from the published message, or returns
// "". Additional metadata is no difference.
func differs(published, stored *message.Message) string {
	if string(published.Payload) != string(stored.Payload) {
		return "the payload"
	}
	for name, value := range published.Metadata {
		if got, found := stored.Metadata[name]; !found || got != value {
			return fmt.Sprintf("the metadata %q", name)
		}
	}
	return ""
}

func byID(messages []*message.Message) map[string]*message.Message {
	m := make(map[string]*message.Message, len(messages))
	for _, msg := range messages {
		m[msg.UUID] = msg
	}
	return m
}
