package effects_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// An order is charged at a provider that remembers idempotency keys, outside any transaction. The
// first attempt gets no answer, though the provider has charged: the second one has the same key,
// and charges nothing.
func ExampleHandle() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	inbox, err := consumer.New(store, consumer.Config{Service: "payment"})
	if err != nil {
		log.Fatal(err)
	}

	charged := make(map[uuid.UUID]string) // at the provider
	requests := 0
	pay, err := effects.Handle(inbox, "pay", effects.Effect[*sql.Tx, string, string]{
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
	}, effects.Config{Idempotent: true, Handler: consumer.HandlerConfig{Topic: "order.placed"}})
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

// exampleStore returns a store in a file of its own, and what removes it.
func exampleStore(ctx context.Context) (*sqlite.Store, func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "payment.db"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		log.Fatal(err)
	}
	return store, func() {
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}
