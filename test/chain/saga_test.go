package chain

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

const (
	correlation = "conversation-1"
	traceParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	traceState  = "vendor=value"
)

// saga is three services in a row on one database. Each service emits two events for each handled
// event, and fails the first time, after it has written them.
type saga[TX any] struct {
	db     *database[TX]
	outbox *producer.Outbox[TX]
	prefix string

	mu       sync.Mutex
	attempts map[string][]uuid.UUID // by consumer and dispatch: what was written, attempt by attempt
	odd      []transport.Event      // without the context of the first event
}

func (s *saga[TX]) handle(name, next string) consumer.HandlerFunc[TX] {
	return func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
		e := w.Event()
		if err := s.db.effect(ctx, w, name); err != nil {
			return err
		}
		var written []uuid.UUID
		if next != "" {
			for _, body := range []string{"left", "right"} {
				more, err := w.Write(ctx, producer.Event{Topic: s.prefix + next, Key: e.Key, Payload: []byte(body)})
				if err != nil {
					return err
				}
				written = append(written, more...)
			}
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.CorrelationID != correlation || e.TraceParent != traceParent || e.TraceState != traceState {
			s.odd = append(s.odd, e)
		}
		id := name + " " + e.ID.String()
		again := s.attempts[id] != nil
		s.attempts[id] = append(s.attempts[id], uuid.Nil)
		s.attempts[id] = append(s.attempts[id], written...)
		if !again {
			return errors.New("first attempt")
		}
		return nil
	}
}

func (s *saga[TX]) check(t *testing.T) {
	t.Helper()
	cause := []uuid.UUID{idgen.Of("shop", "aggregate/order", 1, 0)}
	for _, name := range []string{"stock", "payment", "shipping"} {
		s.db.wantEffects(t, name, len(cause))
		var children []uuid.UUID
		for _, id := range cause {
			left, right := idgen.Child(name+"/apply", id, 0), idgen.Child(name+"/apply", id, 1)
			want := []uuid.UUID{uuid.Nil, left, right, uuid.Nil, left, right}
			if name == "shipping" {
				want = []uuid.UUID{uuid.Nil, uuid.Nil}
			}
			s.mu.Lock()
			got := s.attempts[name+" "+id.String()]
			s.mu.Unlock()
			if len(got) != len(want) {
				t.Fatalf("%s, dispatch %s: wrote %v, want %v", name, id, got, want)
			}
			for i := range want {
				if got[i] != want[i] {
					t.Errorf("%s, dispatch %s: wrote %v, want %v", name, id, got, want)
					break
				}
			}
			children = append(children, left, right)
		}
		cause = children
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.odd) > 0 {
		t.Errorf("correlation or trace context was lost: %+v", s.odd)
	}
}

func runSaga[TX any](t *testing.T, db *database[TX], prefix string, publisher message.Publisher, subscriber func(name string) message.Subscriber) {
	t.Helper()
	s := &saga[TX]{db: db, outbox: outboxOf(t, db), prefix: prefix, attempts: map[string][]uuid.UUID{}}
	for _, hop := range []struct{ name, from, to string }{
		{"stock", "placed", "reserved"}, {"payment", "reserved", "paid"}, {"shipping", "paid", ""},
	} {
		startService(t, db, s.outbox, subscriber(hop.name), prefix+hop.from,
			consumer.Config{Service: hop.name}, consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickBackoff: 1}}, s.handle(hop.name, hop.to))
	}
	startRelay(t, s.outbox, publisher, relay.Config{})
	first := numbered(prefix+"placed", "order", 1)
	first.CorrelationID, first.TraceParent, first.TraceState = correlation, traceParent, traceState
	ok(t, s.outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[TX]) error {
		_, err := w.Write(ctx, first)
		return err
	}))
	s.check(t)
}

func TestSagaOfThreeHopsIsDeterministic(t *testing.T) {
	t.Parallel()
	t.Run("on PostgreSQL and RabbitMQ", func(t *testing.T) {
		t.Parallel()
		db, _ := newPostgres(t)
		prefix := newTopics(t, map[string]string{"placed": "stock", "reserved": "payment", "paid": "shipping"})
		runSaga(t, db, prefix, newPublisher(t), func(name string) message.Subscriber { return newSubscriber(t, name) })
	})
	t.Run("on SQLite within one process", func(t *testing.T) {
		t.Parallel()
		db := newSQLite(t)
		broker, err := memory.New(memory.Config{})
		ok(t, err)
		t.Cleanup(func() { _ = broker.Close() })
		runSaga(t, db, "", broker, func(name string) message.Subscriber { return broker.Subscriber(name) })
	})
}
