package producer_test

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

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

// A service runs a janitor beside its relay, in as many processes as it likes. What
// is past its retention goes in batches; what is not delivered stays.
func ExampleJanitor() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store, done := exampleStore(ctx)
	defer done()
	outbox := exampleOutbox(store)
	place(ctx, outbox, "41", "42")
	send(ctx, outbox, func(*message.Message) {})
	place(ctx, outbox, "43") // and no relay runs

	removed := int64(0)
	janitor, err := producer.NewJanitor(store, producer.JanitorConfig{
		Retention: time.Second, // in a service: days
		Interval:  100 * time.Millisecond,
		Progress: func(r producer.JanitorReport) {
			if r.Done {
				removed += r.Events
			}
			if removed == 2 {
				stop()
			}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := janitor.Run(ctx); err != nil { // until ctx ends
		log.Fatal(err)
	}
	stats, err := outbox.Stats(context.WithoutCancel(ctx))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%d events removed, %d to be sent\n", removed, stats.Pending)
	// Output: 2 events removed, 1 to be sent
}

// exampleStore returns a store over a database in a directory of its own.
func exampleStore(ctx context.Context) (*sqlite.Store, func()) {
	dir, err := os.MkdirTemp("", "boxpair")
	if err != nil {
		log.Fatal(err)
	}
	db, err := sqlite.Open(filepath.Join(dir, "orders.db"))
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

// exampleOutbox returns the outbox of the producer "orders".
func exampleOutbox(store *sqlite.Store) *producer.Outbox[*sql.Tx] {
	outbox, err := producer.New(store, producer.Config{Name: "orders"})
	if err != nil {
		log.Fatal(err)
	}
	return outbox
}

// place writes an event for each order.
func place(ctx context.Context, outbox *producer.Outbox[*sql.Tx], orders ...string) {
	err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		for _, order := range orders {
			// w.DB().ExecContext(ctx, `INSERT INTO orders …`)
			e := producer.Event{Topic: "order.placed", Key: order, Source: "order/" + order, Version: 1, Payload: []byte("lamp")}
			if _, err := w.Write(ctx, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
}

// subscribers is a broker that hands every message over.
type subscribers func(msg *message.Message)

func (s subscribers) Publish(_ string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		s(msg)
	}
	return nil
}

func (subscribers) Close() error { return nil }

// send has a relay send what is in the outbox to subscribers.
func send(ctx context.Context, outbox *producer.Outbox[*sql.Tx], to subscribers) {
	relay, err := relay.New(outbox, to, relay.Config{Publishers: 1})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := relay.RunOnce(ctx); err != nil {
		log.Fatal(err)
	}
}

// After a consumer was repaired, an operator sends it again what it got wrong: the events of one
// topic from one hour, under their dispatch IDs. Consumers that have applied them run nothing.
func ExampleOutbox_Replay() {
	ctx := context.Background()
	store, done := exampleStore(ctx)
	defer done()
	out := exampleOutbox(store)
	place(ctx, out, "42")
	received := func(msg *message.Message) { fmt.Println("received", msg.UUID) }
	send(ctx, out, received)

	now := time.Now()
	report, err := out.Replay(ctx, producer.Replay{
		Selection: outbox.Selection{Topic: "order.placed", From: now.Add(-time.Hour), To: now.Add(time.Hour)},
	})
	if errors.Is(err, producer.ErrBeyondHorizon) {
		fmt.Println("consumers may have forgotten some of them:", err)
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("events that are sent again:", report.Replayed)
	send(ctx, out, received)
	// Output:
	// received cdbf5f30-fc67-5626-bd91-7743466d11a1
	// events that are sent again: 1
	// received cdbf5f30-fc67-5626-bd91-7743466d11a1
}
