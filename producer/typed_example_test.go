package producer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/schema"
)

// A type says what its events have in common; whoever writes one brings its identity and its value.
// A value that is not valid is never written.
func ExampleTyped() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	outbox := exampleOutbox(store)

	type OrderPlaced struct {
		Order string   `json:"order"`
		Items []string `json:"items"`
	}
	placed, err := schema.New(schema.Config[OrderPlaced]{
		Name:    "order.placed",
		Version: 2,
		Key:     func(o OrderPlaced) string { return o.Order },
		Validate: func(o OrderPlaced) error {
			if len(o.Items) == 0 {
				return errors.New("no items")
			}
			return nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	write := func(order OrderPlaced) error {
		return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			event, err := producer.Typed(placed, producer.Event{Source: "order/" + order.Order, Version: 1}, order)
			if err != nil {
				return err
			}
			_, err = w.Write(ctx, event)
			return err
		})
	}
	if err := write(OrderPlaced{Order: "42", Items: []string{"lamp"}}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(write(OrderPlaced{Order: "43"}))

	send(ctx, outbox, func(msg *message.Message) {
		e, err := transport.Parse("order.placed", msg)
		fmt.Println(e.Type, e.SchemaVersion, e.ContentType, "key", e.Key, string(e.Payload), err)
	})
	// Output:
	// order.placed: value is not valid: no items
	// order.placed 2 application/json key 42 {"order":"42","items":["lamp"]} <nil>
}
