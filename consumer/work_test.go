package consumer_test

import (
	"context"
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// withOutbox returns a fake database with an outbox on it.
func withOutbox(t *testing.T) (*fakeStore, *producer.Outbox[*fakeTx]) {
	t.Helper()
	store := newFake()
	outbox, err := producer.New(&fakeOutbox{fake: store}, producer.Config{Name: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	return store, outbox
}

func TestEventsOfAHandlerAreChildrenOfItsMessage(t *testing.T) {
	t.Parallel()
	store, outbox := withOutbox(t)
	published, err := outbox.Publisher(producer.PublisherConfig{NoKey: true})
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	r := newRig(t, setup{store: store, outbox: outbox, fn: func(ctx context.Context, w *work, _ *message.Message) error {
		if _, err := w.Write(ctx, producer.Event{Topic: "reserved"}); err != nil {
			return err
		}
		if _, err := w.Write(ctx, producer.Event{Topic: "counted"}); err != nil {
			return err
		}
		if err := published.Publish("published", message.NewMessageWithContext(ctx, "any", nil)); err != nil {
			return err
		}
		if _, err := w.Write(ctx, producer.Event{Topic: "last"}); err != nil {
			return err
		}
		if tries++; tries == 1 {
			return errHandler
		}
		return nil
	}})
	r.consume(msg(1))
	r.wantCalls(2)
	events := store.written()
	if len(events) != 4 {
		t.Fatalf("%d events", len(events))
	}
	for i, topic := range []string{"reserved", "counted", "published", "last"} {
		e := events[i]
		if e.Topic != topic || e.ID != idgen.Child("stock/reserve", number(1), i) || e.CorrelationID != "conversation" {
			t.Errorf("event %d: %s %s, correlation %q", i, e.Topic, e.ID, e.CorrelationID)
		}
	}
}

func TestHandlerThatWritesWithoutAnOutboxCannotCommit(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(context.Context, *work) error{
		"Write": func(ctx context.Context, w *work) error {
			_, err := w.Write(ctx, producer.Event{Topic: "reserved"})
			return err
		},
		"Queue": func(_ context.Context, w *work) error {
			_, err := w.Write(t.Context(), producer.Event{Topic: "reserved"})
			return err
		},
		"Writer": func(_ context.Context, w *work) error {
			_, err := w.Writer()
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, setup{
				handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}},
				fn: func(ctx context.Context, w *work, _ *message.Message) error {
					if err := write(ctx, w); !errors.Is(err, consumer.ErrNoOutbox) {
						t.Errorf("%s: %v", name, err)
					}
					return nil // swallowed
				},
			})
			r.consume(msg(1))
			r.wantDone(number(1), 0)
			r.wantStates(inbox.Retrying)
		})
	}
}

// TestHandlerThatPublishesToAnotherOutboxCannotCommit: the event would be lost if the handler
// ignored the error, and a transaction of its own would outlive a failed attempt.
func TestHandlerThatPublishesToAnotherOutboxCannotCommit(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]bool{"with an outbox": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup{handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}}}
			if with {
				s.store, s.outbox = withOutbox(t)
			}
			store, other := withOutbox(t)
			publisher, err := other.Publisher(producer.PublisherConfig{NoKey: true, MessageID: true, OwnTransaction: true})
			if err != nil {
				t.Fatal(err)
			}
			s.fn = func(_ context.Context, _ *work, msg *message.Message) error {
				if err := publisher.Publish("out", message.NewMessageWithContext(msg.Context(), "m", nil)); !errors.Is(err, producer.ErrNoTransaction) {
					t.Errorf("error %v", err)
				}
				return nil // swallowed
			}
			r := newRig(t, s)
			r.consume(msg(1))
			r.wantDone(number(1), 0)
			r.wantStates(inbox.Retrying)
			if n := len(store.written()); n > 0 {
				t.Errorf("%d events were written", n)
			}
		})
	}
}

func TestSavepointTakesEffectsAndEventsBack(t *testing.T) {
	t.Parallel()
	for name, with := range map[string]bool{"with an outbox": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := setup{}
			if with {
				s.store, s.outbox = withOutbox(t)
			}
			s.fn = func(ctx context.Context, w *work, _ *message.Message) error {
				outer := w.DB()
				err := w.Savepoint(ctx, func(ctx context.Context, w *work) error {
					w.DB().Do("undone")
					if with {
						if _, err := w.Write(ctx, producer.Event{Topic: "undone"}); err != nil {
							return err
						}
					}
					return errHandler
				})
				if !errors.Is(err, errHandler) {
					t.Errorf("Savepoint: %v", err)
				}
				if w.DB() != outer {
					t.Error("DB is not the outer transaction again")
				}
				return w.Savepoint(ctx, func(ctx context.Context, w *work) error {
					w.DB().Do("done")
					if !with {
						return nil
					}
					_, err := w.Write(ctx, producer.Event{Topic: "done"})
					return err
				})
			}
			r := newRig(t, s)
			r.consume(msg(1))
			if r.store.done("undone") != 0 || r.store.done("done") != 1 {
				t.Errorf("undone %d times, done %d times", r.store.done("undone"), r.store.done("done"))
			}
			if !with {
				return
			}
			events := r.store.written()
			if len(events) != 1 || events[0].ID != idgen.Child("stock/reserve", number(1), 0) {
				t.Errorf("events: %+v", events)
			}
		})
	}
}

func TestWorkTellsOfTheMessage(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{fn: func(_ context.Context, w *work, m *message.Message) error {
		if w.Message() != m || w.Event().Topic != "orders" || w.Event().CorrelationID != "conversation" || m.UUID != number(1).String() {
			t.Errorf("%+v, %s", w.Event(), m.UUID)
		}
		return nil
	}})
	r.consume(msg(1))
	r.wantCalls(1)
}

func TestParkedMessageIsHandedOutAsItArrived(t *testing.T) {
	t.Parallel()
	var seen []*message.Message
	var events []string
	r := newRig(t, setup{
		handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: 1}},
		fn: func(_ context.Context, w *work, m *message.Message) error {
			seen = append(seen, m)
			events = append(events, w.Event().Key+w.Event().Topic+w.Event().CorrelationID+w.Event().Digest.String())
			if len(seen) == 1 {
				return errHandler
			}
			return nil
		},
	})
	r.consume(keyed(1, "k"))
	if err := r.inbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 || !seen[0].Equals(seen[1]) || events[0] != events[1] {
		t.Errorf("first %v %v, then %v", events, seen[0], seen[1:])
	}
}
