// Command quickstart is the smallest complete program for both sides: an order
// is placed, its event leaves the outbox, and a handler ships it, once. It runs on
// a SQLite file and within one process.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/memory"
)

// placeOrder is the sending side: the order and its event, in one transaction.
func placeOrder(ctx context.Context, outbox *producer.Outbox[*sql.Tx], id string) error {
	return outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		if _, err := w.DB().ExecContext(ctx, `INSERT INTO orders VALUES ($1)`, id); err != nil {
			return err
		}
		_, err := w.Write(ctx, producer.Event{
			Topic: "order.placed", Key: id, Source: "order/" + id, Version: 1, Payload: []byte(id),
		})
		return err
	})
}

// shipOrder is the receiving side: the shipment is committed with the inbox row of
// its message, so a second copy of the message ships nothing.
func shipOrder(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
	_, err := w.DB().ExecContext(ctx, `INSERT INTO shipments VALUES ($1)`, string(msg.Payload))
	return err
}

func main() {
	dir, err := os.MkdirTemp("", "boxpair-quickstart-*")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), filepath.Join(dir, "shop.db"))
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, path string) error {
	db, err := open(ctx, path)
	if err != nil {
		return err
	}
	defer db.Close()
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		return err
	}
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer broker.Close()

	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	if err != nil {
		return err
	}
	relay, err := relay.New(outbox, broker, relay.Config{})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, outbox, consumer.Config{Service: "warehouse"})
	if err != nil {
		return err
	}
	ship, err := inbox.Handle("ship", shipOrder, consumer.HandlerConfig{})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("ship", "order.placed", broker.Subscriber("ship"), ship.Consume)

	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var parts sync.WaitGroup
	for _, part := range []func(context.Context) error{router.Run, inbox.Run} {
		parts.Go(func() {
			if err := part(ctx); err != nil {
				log.Print(err)
			}
		})
	}
	<-router.Running()
	if err := placeOrder(ctx, outbox, "42"); err != nil {
		return err
	}
	report, err := relay.RunOnce(ctx) // a service calls Run, and that of a producer.Janitor, which removes what was delivered
	if err != nil {
		return err
	}
	stop()
	parts.Wait()

	var shipped int
	err = db.QueryRow(`SELECT count(*) FROM shipments`).Scan(&shipped)
	fmt.Printf("%d event delivered, %d order shipped\n", report.Delivered, shipped)
	return err
}

// open opens the database, with the library's tables and the service's own.
func open(ctx context.Context, path string) (*sql.DB, error) {
	db, err := sqlite.Open(path)
	if err != nil {
		return nil, err
	}
	if _, err := sqlite.Migrate(ctx, db, sqlite.Config{}); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	for _, table := range []string{"orders", "shipments"} {
		if _, err := db.ExecContext(ctx, `CREATE TABLE `+table+` (id text PRIMARY KEY)`); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}
