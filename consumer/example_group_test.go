package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/transport"
)

// Messages that a subscriber delivers at the same time share one transaction. Here a
// group waits until it is full; by default it takes what is there.
func ExampleHandlerConfig_group() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	inbox, err := consumer.New(store, consumer.Config{Service: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	h, err := inbox.Handle("reserve", func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
		_, err := w.DB().ExecContext(ctx, `INSERT INTO stock VALUES (?, 1)`, string(msg.Payload))
		return err
	}, consumer.HandlerConfig{Topic: "order.placed", Group: consumer.GroupConfig{Size: 8, Wait: 5 * time.Second}})
	if err != nil {
		log.Fatal(err)
	}
	deliver(h, 8)

	c := h.Counters()
	fmt.Printf("%d applied in %d transaction\n", c.Applied, c.Groups)
	// Output: 8 applied in 1 transaction
}

// A batch handler writes the effects of a whole set. What cannot be applied in it is found by
// halves and handled alone.
func ExampleInbox_HandleBatch() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	inbox, err := consumer.New(store, consumer.Config{Service: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	h, err := inbox.HandleBatch("reserve", func(ctx context.Context, b *consumer.Batch[*sql.Tx], msgs []*message.Message) error {
		_, err := b.DB().ExecContext(ctx, `INSERT INTO stock VALUES ('lamp', ?)`, len(msgs))
		return err
	}, consumer.HandlerConfig{Topic: "order.placed", Group: consumer.GroupConfig{Size: 8, Wait: 5 * time.Second}})
	if err != nil {
		log.Fatal(err)
	}
	deliver(h, 8)

	fmt.Printf("%d applied\n", h.Counters().Applied)
	// Output: 8 applied
}

// deliver has n messages handled at the same time, as a subscriber does.
func deliver(h *consumer.Handler[*sql.Tx], n int) {
	var all sync.WaitGroup
	for version := range n {
		all.Go(func() {
			e := transport.Event{ID: idgen.Of("shop", "order-42", int64(version), 0), Payload: []byte("lamp")}
			if err := h.Consume(e.Message()); err != nil {
				log.Print(err)
			}
		})
	}
	all.Wait()
}
