package middleware_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
)

type stockReserved struct{ Order string }

func (e *stockReserved) EventKey() string { return e.Order }

// TestEventBusThatWasMadeOncePublishesInHandlers: handled alone and in a group, an event is a child
// of the message in whose context it is published.
func TestEventBusThatWasMadeOncePublishesInHandlers(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]consumer.HandlerConfig{
		"alone":      {Retry: consumer.RetryConfig{QuickAttempts: 2}},
		"in a group": {Retry: consumer.RetryConfig{QuickAttempts: 2}, Group: consumer.GroupConfig{Size: 2, Wait: time.Second}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			publisher, err := r.outbox.Publisher(producer.PublisherConfig{})
			if err != nil {
				t.Fatal(err)
			}
			bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
				GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
				Marshaler: cqrs.CommandEventMarshalerDecorator{
					CommandEventMarshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName}, DecorateFunc: producer.Describe,
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int64
			tries := make(chan string, 2)
			if cfg.Group.Size == 0 { // one member of a group that fails leaves the others alone
				tries <- number(1).String()
			}
			r.add(plainHandler{Name: "reserve", Handler: cfg}, func(msg *message.Message) ([]*message.Message, error) {
				runs.Add(1)
				if err := effect(msg); err != nil {
					return nil, err
				}
				if err := bus.Publish(msg.Context(), &stockReserved{msg.UUID}); err != nil {
					return nil, err
				}
				select {
				case fails := <-tries:
					if msg.UUID == fails {
						return nil, errHandler // and the event goes with the attempt
					}
					tries <- fails
				default:
				}
				return nil, nil
			})
			stop := r.run()
			var all sync.WaitGroup
			for _, n := range []int64{1, 2} {
				m := order(n)
				delete(m.Metadata, "boxpair-key") // otherwise the transport hands out messages one at a time
				delete(m.Metadata, "boxpair-digest")
				all.Go(func() { r.publish(m) })
			}
			all.Wait()
			r.waitFor(func() bool { return r.number(`SELECT count(*) FROM effects`) == 2 })
			stop()
			if n := runs.Load(); cfg.Group.Size > 0 && n != 2 {
				t.Errorf("the group was run one by one, after %d runs", n)
			}
			queued, err := r.store.Fetch(t.Context(), everything())
			if err != nil || len(queued) != 2 {
				t.Fatalf("%d events in the outbox, %v; want 2", len(queued), err)
			}
			for _, q := range queued {
				of := number(1)
				if q.Key != of.String() {
					of = number(2)
				}
				if q.ID != idgen.Child("stock/reserve", of, 0) || q.Key != of.String() || q.Topic != "stockReserved" {
					t.Errorf("event %s: topic %q, key %q", q.ID, q.Topic, q.Key)
				}
			}
		})
	}
}

// TestNotesOfAnotherMessageAreNotPassedOn: a bus that publishes to a broker, and not to an outbox,
// leaves its notes on the message.
func TestNotesOfAnotherMessageAreNotPassedOn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.add(plainHandler{Name: "pass", PublishTopic: "passed", Key: keyOf}, message.PassthroughHandler)
	stop := r.run()
	m := order(1)
	if err := producer.Describe(&stockReserved{"42"}, m); err != nil {
		t.Fatal(err)
	}
	delete(m.Metadata, "boxpair-digest")
	r.publish(m)
	stop()
	queued, err := r.store.Fetch(t.Context(), everything())
	if err != nil || len(queued) != 1 || queued[0].Key != "key-x" || queued[0].ID != idgen.Child("stock/pass", number(1), 0) {
		t.Errorf("events %+v, error %v", queued, err)
	}
}
