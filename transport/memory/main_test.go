package memory_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// newBroker returns a broker that is closed when the test ends, soon: tests leave
// messages unanswered.
func newBroker(t testing.TB, cfg memory.Config) *memory.Broker {
	t.Helper()
	if cfg.CloseTimeout == 0 {
		cfg.CloseTimeout = 50 * time.Millisecond
	}
	b, err := memory.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func subscribe(t testing.TB, s *memory.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	return subscribeCtx(t, t.Context(), s, topic) // ends before the clean-ups
}

func subscribeCtx(t testing.TB, ctx context.Context, s *memory.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// keyed returns a new message of a key, or of none.
func keyed(key string) *message.Message {
	msg := message.NewMessage(uuid.NewString(), []byte("payload"))
	if key != "" {
		msg.Metadata.Set(transport.MetaKey, key)
	}
	return msg
}

// send starts to send msg and returns where its outcome will be.
func send(b *memory.Broker, topic string, msg *message.Message) <-chan transport.Result {
	return sendCtx(context.Background(), b, topic, msg)
}

func sendCtx(ctx context.Context, b *memory.Broker, topic string, msg *message.Message) <-chan transport.Result {
	results := make(chan transport.Result, 2) // a second one would be a bug to be seen
	b.Send(ctx, topic, msg, func(r transport.Result) { results <- r })
	return results
}

// receive returns the next value of ch and fails the test if there is none.
func receive[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v, open := <-ch:
		if !open {
			t.Fatal("channel is closed")
		}
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
	}
	panic("unreachable")
}

// waitClosed fails the test unless ch is closed without a further value.
func waitClosed[T any](t testing.TB, ch <-chan T) {
	t.Helper()
	select {
	case v, open := <-ch:
		if open {
			t.Fatalf("unexpected %v", v)
		}
	case <-time.After(patience):
		t.Fatal("channel is not closed")
	}
}

// empty fails the test if ch has a value.
func empty[T any](t testing.TB, ch <-chan T) {
	t.Helper()
	select {
	case v := <-ch:
		t.Fatalf("unexpected %v", v)
	default:
	}
}

func wantOutcome(t testing.TB, results <-chan transport.Result, want transport.Outcome) transport.Result {
	t.Helper()
	r := receive(t, results)
	if r.Outcome != want {
		t.Fatalf("outcome %v (%v), want %v", r.Outcome, r.Err, want)
	}
	if (r.Err == nil) != (want == transport.Confirmed) {
		t.Fatalf("outcome %v with error %v", r.Outcome, r.Err)
	}
	return r
}

// handle calls f for every message on a goroutine of its own, like a router,
// until the channel is closed.
func handle(t testing.TB, messages <-chan *message.Message, f func(*message.Message)) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for msg := range messages {
			wg.Go(func() { f(msg) })
		}
	})
	t.Cleanup(wg.Wait)
}
