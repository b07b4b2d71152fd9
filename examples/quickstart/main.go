// Command quickstart is the smallest complete program for both sides: orders are placed, their
// events leave the outbox, and handlers ship and bill each order once. The program runs on a SQLite
// file, in one process.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair"
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

// shipOrder is the receiving side: the shipment is committed with the inbox row of its message, so
// a second copy of the message ships nothing.
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
	db, err := sqlite.Open(path)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = sqlite.Migrate(ctx, db, sqlite.Config{}) // the library's tables
	if err != nil {
		return err
	}
	store, err := sqlite.New(db, sqlite.Config{}) // or postgres.New(pool, postgres.Config{})
	if err != nil {
		return err
	}
	broker, err := memory.New(memory.Config{}) // or amqp.NewPublisher and amqp.NewSubscriber
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
	inbox, err := consumer.New(store, consumer.Config{Service: "warehouse"}, consumer.WithOutbox(outbox))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	_, err = inbox.AddHandler(router, "ship", "order.placed", broker.Subscriber("ship"), shipOrder, consumer.HandlerConfig{})
	if err != nil {
		return err
	}

	addExisting(router, inbox, broker.Subscriber("bill"))
	publisher, err := newPublisher(outbox)
	err = errors.Join(err, createTables(ctx, db))
	if err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	shopped := make(chan error, 1)
	go func() { // two customers
		err := errors.Join(placeOrder(ctx, outbox, "42"), publishOrder(ctx, db, outbox, publisher, "43"))
		if err == nil {
			err = waitForBoth(ctx, db)
		}
		shopped <- err
		stop() // another service waits for a signal
	}()
	service := boxpair.Group{Outbox: outbox, Relay: relay, Inbox: inbox, Router: router}
	err = service.Run(ctx)
	return errors.Join(err, <-shopped)
}

// createTables makes the tables of the service.
func createTables(ctx context.Context, db *sql.DB) error {
	for _, table := range []string{"orders", "shipments", "invoices"} {
		if _, err := db.ExecContext(ctx, `CREATE TABLE `+table+` (id text PRIMARY KEY)`); err != nil {
			return err
		}
	}
	return nil
}

// waitForBoth waits until both orders are shipped and billed.
func waitForBoth(ctx context.Context, db *sql.DB) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for shipped, billed := 0, 0; ; {
		err := db.QueryRowContext(ctx, `SELECT (SELECT count(*) FROM shipments), (SELECT count(*) FROM invoices)`).Scan(&shipped, &billed)
		if err != nil {
			return err
		}
		if shipped == 2 && billed == 2 {
			fmt.Printf("%d orders shipped, %d billed\n", shipped, billed)
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
}
