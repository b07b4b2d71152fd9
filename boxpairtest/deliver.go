package boxpairtest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// Messages returns the messages that a relay makes of events of the producer with the given name.
// The dispatch IDs are as if the events were written now, in one transaction. No database is used.
// An invalid event fails the test. Only a router gives a message its topic: handlers that read the
// topic need HandlerConfig.Topic.
func Messages(t testing.TB, producerName string, events ...producer.Event) []*message.Message {
	t.Helper()
	box, err := producer.New[struct{}](nowhere{}, producer.Config{Name: producerName})
	if err != nil {
		t.Fatalf("boxpairtest: %v", err)
	}
	var r Recorder
	err = box.Transact(r.Context(t.Context()), func(ctx context.Context, w *producer.Writer[struct{}]) error {
		_, err := w.Write(ctx, events...)
		return err
	})
	if err != nil {
		t.Fatalf("boxpairtest: %v", err)
	}
	now := time.Now()
	var msgs []*message.Message
	for _, e := range r.Events() {
		e.Stamp = now
		if e.DeliverAt.After(now) {
			e.Stamp = e.DeliverAt
		}
		e.ResendUntil = e.Stamp.Add(e.ResendFor)
		msg := e.Message()
		transport.SetOccurredAt(msg, e.OccurredAt, e.Stamp)
		msgs = append(msgs, msg)
	}
	return msgs
}

// nowhere is an outbox that keeps no events.
type nowhere struct{ outbox.Store[struct{}] }

// Transact implements [outbox.EventStore].
func (nowhere) Transact(ctx context.Context, fn func(context.Context, struct{}) error) error {
	return fn(ctx, struct{}{})
}

// Append implements [outbox.EventStore].
func (nowhere) Append(_ context.Context, _ struct{}, _ uuid.UUID, records []outbox.Record) ([]bool, error) {
	return make([]bool, len(records)), nil
}

// Retryable implements [outbox.EventStore].
func (nowhere) Retryable(error) bool { return false }

// Deliver hands messages to a handler, one after another in the given order, and returns the events
// that the handler has written. A message given twice is delivered twice. handle is the function that
// a router calls: the method Consume of a consumer.Handler, or the result of middleware.Wrap. The
// test fails if a message is neither handled nor a duplicate: the handler returned an error or
// panicked, or the inbox has set the message aside.
func Deliver(t testing.TB, handle message.NoPublishHandlerFunc, msgs ...*message.Message) *Recorder {
	t.Helper()
	r := &Recorder{}
	for i, msg := range msgs {
		if err := r.deliver(handle, msg); err != nil {
			t.Fatalf("boxpairtest: message %d (%s): %v", i, msg.UUID, err)
		}
	}
	return r
}

// RequireRejected delivers msg to a handler, and fails the test unless the handler rejects it: a
// message that can never be handled becomes a dead letter at once (consumer.Reject).
func RequireRejected(t testing.TB, handle message.NoPublishHandlerFunc, msg *message.Message) {
	t.Helper()
	r := &Recorder{}
	if err := r.deliver(handle, msg); !consumer.Rejected(err) {
		t.Fatalf("boxpairtest: message %s is not rejected: %v", msg.UUID, err)
	}
}

// deliver returns an error if a message is not handled.
func (r *Recorder) deliver(handle message.NoPublishHandlerFunc, msg *message.Message) error {
	r.mu.Lock()
	r.failed, r.parked = nil, ""
	r.mu.Unlock()
	err := handle(copyOf(r.Context(msg.Context()), msg))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failed == nil && r.parked != "" {
		err = errors.Join(errors.New(r.parked), err)
	}
	return errors.Join(r.failed, err)
}

// copyOf returns msg as the transport delivers it: a copy with ctx.
func copyOf(ctx context.Context, msg *message.Message) *message.Message {
	c := msg.Copy()
	c.SetContext(ctx)
	return c
}

// CrashPoint is where [Crash] ends the process.
type CrashPoint int

const (
	// BeforeCommit is after the handler has returned. Nothing is committed.
	BeforeCommit CrashPoint = iota
	// AfterCommit is before the message is acknowledged. The handler's effects are committed.
	AfterCommit
)

// Crash delivers msg and lets the process crash at a point: the message is not acknowledged, so a
// transport delivers the message again. The test fails if the handler is not run or returns an error,
// or if the COMMIT fails.
func Crash(t testing.TB, handle message.NoPublishHandlerFunc, at CrashPoint, msg *message.Message) {
	t.Helper()
	a := &attempt{crash: at == BeforeCommit, dies: at == AfterCommit}
	err := handle(copyOf(observe.Context(msg.Context(), a), msg))
	a.close()
	switch {
	case a.returned != nil:
		t.Fatalf("boxpairtest: message %s: %v", msg.UUID, a.returned)
	case !a.ran:
		t.Fatalf("boxpairtest: message %s was not handled: %v", msg.UUID, errors.Join(err, a.ended))
	case at == AfterCommit && !a.committed:
		t.Fatalf("boxpairtest: message %s: COMMIT fails: %v", msg.UUID, a.ended)
	}
}
