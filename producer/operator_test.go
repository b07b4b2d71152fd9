package producer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestOperatorSaysWhy(t *testing.T) {
	t.Parallel()
	out := newOutbox(t, &fakeEvents{}, producer.Config{}) // whose operators' part panics
	for reason, want := range map[string]string{
		"":                        "reason is required",
		strings.Repeat("x", 1025): "reason: has 1025 bytes",
		"a\x00b":                  "reason: ",
		"\xff":                    "reason: ",
	} {
		for doing, do := range map[string]func(context.Context, outbox.Filter, string) ([]uuid.UUID, error){
			"redrive": out.Redrive, "discard": out.Discard,
		} {
			ids, err := do(t.Context(), outbox.Filter{}, reason)
			if err == nil || len(ids) > 0 || !strings.Contains(err.Error(), doing+": "+want) {
				t.Errorf("%s with the reason %.9q: %v, %v, want %q", doing, reason, ids, err, want)
			}
		}
	}
}

func TestSearchNeedsAStoreThatHasIt(t *testing.T) {
	t.Parallel()
	out := newOutbox(t, &fakeEvents{}, producer.Config{})
	if _, err := out.Search(t.Context(), outbox.Query{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("search: %v", err)
	}
	if _, err := out.Causes(t.Context(), outbox.Filter{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("causes: %v", err)
	}
}

// The broker takes messages up to a size, so an event that is larger is dead at once. When the
// limit has been raised, an operator redrives what died of it, and says why.
func ExampleOutbox_Redrive() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	out, relay, broker := exampleDead(ctx, store)

	broker.limit = 1 << 20
	ids, err := out.Redrive(ctx, outbox.Filter{Topic: "order.placed", Error: "too large"}, "limit is 1 MiB now")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := relay.RunOnce(ctx); err != nil { // a service calls Run
		log.Fatal(err)
	}

	attempts, err := out.Attempts(ctx, ids[0], 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attempts {
		fmt.Printf("%s: %s\n", a.Outcome, a.Error)
	}
	deliveries, err := out.Deliveries(ctx, ids[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d delivery\n", len(deliveries))
	// Output:
	// invalid: 18 bytes are too large
	// redriven: limit is 1 MiB now
	// 1 delivery
}

// An event that nobody wants any more is given up. It stays in the log with the reason, as long as
// the janitor's retention says.
func ExampleOutbox_Discard() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	out, _, _ := exampleDead(ctx, store)

	dead, err := out.ListParked(ctx, outbox.Filter{States: []outbox.State{outbox.Dead}})
	if err != nil {
		log.Fatal(err)
	}
	ids, err := out.Discard(ctx, outbox.Filter{IDs: []uuid.UUID{dead[0].ID}}, "order was a test")
	if err != nil {
		log.Fatal(err)
	}

	attempts, err := out.Attempts(ctx, ids[0], 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attempts {
		fmt.Printf("%s: %s\n", a.Outcome, a.Error)
	}
	deliveries, err := out.Deliveries(ctx, ids[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d deliveries\n", len(deliveries))
	// Output:
	// invalid: 18 bytes are too large
	// discarded: order was a test
	// 0 deliveries
}

// exampleDead writes an event that is too large for the broker, and has a relay find out.
func exampleDead(ctx context.Context, store outbox.Store[*sql.Tx]) (*producer.Outbox[*sql.Tx], *relay.Relay, *narrow) {
	outbox, err := producer.New(store, producer.Config{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		_, err := w.Write(ctx, producer.Event{
			Topic: "order.placed", Key: "42", Source: "order/42", Version: 1, Payload: []byte("lamp, lamp, candle"),
		})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	broker := &narrow{limit: 10}
	relay, err := relay.New(outbox, broker, relay.Config{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := relay.RunOnce(ctx); err != nil {
		log.Fatal(err)
	}
	return outbox, relay, broker
}

// narrow is a publisher of a broker that takes messages up to limit bytes.
type narrow struct{ limit int }

func (n *narrow) Publish(_ string, messages ...*message.Message) error {
	for _, m := range messages {
		if len(m.Payload) > n.limit {
			return tooLarge(len(m.Payload))
		}
	}
	return nil
}

func (n *narrow) Close() error { return nil }

// tooLarge is the size of a message that can never be sent.
type tooLarge int

func (n tooLarge) Error() string            { return fmt.Sprintf("%d bytes are too large", int(n)) }
func (tooLarge) Outcome() transport.Outcome { return transport.Invalid }
