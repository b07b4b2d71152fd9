package consumer_test

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

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func TestOperatorSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{fn: func(context.Context, *consumer.Work[*fakeTx], *message.Message) error {
		return consumer.Reject(errHandler)
	}})
	r.consume(msg(1))
	for _, reason := range []string{"", strings.Repeat("x", 1025), "a\x00b", "\xff"} {
		for doing, do := range map[string]func(context.Context, inbox.Filter, string) ([]uuid.UUID, error){
			"redrive": r.inbox.Redrive, "discard": r.inbox.Discard,
		} {
			ids, err := do(t.Context(), inbox.Filter{}, reason)
			if err == nil || len(ids) > 0 || !strings.Contains(err.Error(), doing+": a reason is required") {
				t.Errorf("%s with the reason %.9q: %v, %v", doing, reason, ids, err)
			}
		}
	}
	r.wantStates(inbox.Dead)
}

func TestSearchNeedsAStoreThatHasIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	if _, err := r.inbox.SearchMessages(t.Context(), inbox.Query{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("search: %v", err)
	}
	if _, err := r.inbox.MessageCauses(t.Context(), inbox.Filter{}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("causes: %v", err)
	}
}

// A handler rejected a message. When the cause is mended, an operator redrives what died of it, and
// says why; the consumer's own process handles it, without the broker.
func ExampleInbox_Redrive() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	in, err := consumer.New(store, consumer.Config{Service: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	catalogue := make(map[string]bool)
	reserve, err := in.Handle("reserve", func(_ context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) error {
		if !catalogue[string(msg.Payload)] {
			return consumer.Reject(errors.New("no such item"))
		}
		fmt.Printf("%s reserved\n", msg.Payload)
		return nil
	}, consumer.HandlerConfig{Topic: "order.placed"})
	if err != nil {
		log.Fatal(err)
	}
	order := transport.Event{ID: idgen.Of("shop", "order-42", 1, 0), Topic: "order.placed", Key: "order-42", Payload: []byte("lamp")}
	if err := reserve.Consume(order.Message()); err != nil {
		log.Fatal(err)
	}

	catalogue["lamp"] = true
	ids, err := in.Redrive(ctx, inbox.Filter{Consumer: reserve.Name(), Error: "no such item"}, "lamp is in the catalogue")
	if err != nil {
		log.Fatal(err)
	}
	if err := in.RunOnce(ctx); err != nil { // a service calls Run
		log.Fatal(err)
	}
	attempts, err := in.Attempts(ctx, ids[0], 0)
	if err != nil {
		log.Fatal(err)
	}
	for _, a := range attempts {
		fmt.Printf("%s: %s\n", a.Outcome, a.Error)
	}
	// Output:
	// lamp reserved
	// failed: rejected: no such item
	// redriven: lamp is in the catalogue
}
