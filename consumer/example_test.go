package consumer_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport"
)

// A handler reserves stock and tells about it, in one transaction with the claim
// of its message. The copy is acknowledged without running it.
func Example() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	outbox, err := producer.New(store, producer.Config{Name: "inventory"})
	if err != nil {
		log.Fatal(err)
	}

	inbox, err := consumer.New(store, consumer.Config{Service: "inventory"}, consumer.WithOutbox(outbox))
	if err != nil {
		log.Fatal(err)
	}
	reserve, err := inbox.Handle("reserve", func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
		_, err := w.DB().ExecContext(ctx, `UPDATE stock SET left = left - 1 WHERE item = ?`, string(msg.Payload))
		if err != nil {
			return err
		}
		_, err = w.Write(ctx, producer.Event{Topic: "stock.reserved", Key: w.Event().Key, Payload: msg.Payload})
		return err
	}, consumer.HandlerConfig{Topic: "order.placed"})
	if err != nil {
		log.Fatal(err)
	}

	// With a router:
	//
	//	router.AddConsumerHandler("reserve", "order.placed", subscriber, reserve.Consume)
	//	go inbox.Run(ctx)
	order := transport.Event{ID: idgen.Of("shop", "order-42", 1, 0), Topic: "order.placed", Key: "order-42", Payload: []byte("lamp")}
	for range 2 { // the second is a copy
		if err := reserve.Consume(order.Message()); err != nil {
			log.Fatal(err)
		}
	}
	c := reserve.Counters()
	fmt.Printf("%s: %d applied, %d duplicates suppressed\n", reserve.Name(), c.Applied, c.Duplicates())
	// Output: inventory/reserve: 1 applied, 1 duplicates suppressed
}

// A message that can never be handled is dead at once; one that comes too early is
// put off. Both are kept in the database.
func ExampleReject() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	in, err := consumer.New(store, consumer.Config{Service: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	h, err := in.Handle("count", func(_ context.Context, _ *consumer.Work[*sql.Tx], msg *message.Message) error {
		if len(msg.Payload) == 0 {
			return consumer.Reject(errors.New("no item named"))
		}
		return consumer.RetryAfter(time.Hour, errors.New("shelf is being counted"))
	}, consumer.HandlerConfig{Topic: "order.placed"})
	if err != nil {
		log.Fatal(err)
	}
	for n, payload := range []string{"", "lamp"} {
		e := transport.Event{ID: idgen.Of("shop", "order-42", int64(n), 0), Payload: []byte(payload)}
		if err := h.Consume(e.Message()); err != nil {
			log.Fatal(err)
		}
	}

	parked, err := in.ListParked(ctx, inbox.Filter{Consumer: h.Name()})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range parked {
		fmt.Printf("%s after %d attempt: %s\n", m.State, m.Attempts, m.LastError)
	}
	// Output:
	// dead after 1 attempt: rejected: no item named
	// retrying after 1 attempt: shelf is being counted
}

// exampleStore returns a store in a file of its own, and what removes it.
func exampleStore(ctx context.Context) (*sqlite.Store, func()) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "inventory.db"))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		log.Fatal(err)
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE stock (item TEXT, left INTEGER)`); err != nil {
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
