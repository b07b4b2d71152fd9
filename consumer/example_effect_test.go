package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/transport"
)

// An order is charged at a provider that remembers idempotency keys, outside any transaction. The
// first attempt gets no answer, though the provider has charged: the second one has the same key,
// and charges nothing.
func ExampleHandleEffect() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	inbox, err := consumer.New(store, nil, consumer.Config{Service: "payment"})
	if err != nil {
		log.Fatal(err)
	}

	charged := make(map[uuid.UUID]string) // at the provider
	requests := 0
	pay, err := consumer.HandleEffect(inbox, "pay", consumer.Effect[*sql.Tx, string, string]{
		Prepare: func(_ context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) (string, error) {
			return string(msg.Payload), nil
		},
		Do: func(_ context.Context, key uuid.UUID, order string) (string, error) {
			charged[key] = order
			if requests++; requests == 1 {
				return "", consumer.RetryAfter(0, fmt.Errorf("no answer"))
			}
			return "receipt of " + order, nil
		},
		Finish: func(ctx context.Context, w *consumer.Work[*sql.Tx], order, receipt string) error {
			fmt.Println(receipt) // a service writes it through w.DB(), and events through w
			return nil
		},
	}, consumer.EffectConfig{Idempotent: true, Handler: consumer.HandlerConfig{Topic: "order.placed"}})
	if err != nil {
		log.Fatal(err)
	}

	event := transport.Event{ID: idgen.Of("shop", "order-42", 1, 0), Topic: "order.placed", Payload: []byte("order-42")}
	for range 2 { // the second is a copy
		if err := pay.Consume(event.Message()); err != nil {
			log.Fatal(err)
		}
	}
	if err := inbox.RunOnce(ctx); err != nil { // a service calls Run
		log.Fatal(err)
	}
	fmt.Printf("%d requests, %d charge\n", requests, len(charged))
	// Output:
	// receipt of order-42
	// 2 requests, 1 charge
}
