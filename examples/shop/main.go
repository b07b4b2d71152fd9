// Command shop is the shop of docker-compose.yml: three services, each a process of its own, on
// PostgreSQL and RabbitMQ. The services share a database and its outbox.
//
//	orders:  places an order every second ─► order.placed
//	stock:   reserves                     ─► stock.reserved
//	payment: charges                      ─► payment.charged
//	orders:  notes that the order is paid
//
// A relay in another process sends the events of all three:
//
//	DATABASE_URL=postgres://… AMQP_URL=amqp://… go run ./examples/shop orders    # and stock, and payment
//	go -C cmd/boxpair run . relay --outbox postgres://… --amqp amqp://…
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// service is what one of the services does with each order. Its tables are its own.
type service struct {
	handler string
	topic   string // of the handled messages
	change  string // of the service's tables, by a message
	writes  string // the topic of the event of the change; "" for none
	tables  string
}

var services = map[string]service{
	"orders": {
		handler: "pay", topic: "payment.charged", change: `UPDATE orders SET paid = true WHERE id = $1`,
		tables: `CREATE TABLE IF NOT EXISTS orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, paid boolean NOT NULL DEFAULT false)`,
	},
	"stock": {
		handler: "reserve", topic: "order.placed", change: `INSERT INTO reservations VALUES ($1)`, writes: "stock.reserved",
		tables: `CREATE TABLE IF NOT EXISTS reservations (id bigint NOT NULL)`,
	},
	"payment": {
		handler: "charge", topic: "stock.reserved", change: `INSERT INTO charges VALUES ($1)`, writes: "payment.charged",
		tables: `CREATE TABLE IF NOT EXISTS charges (id bigint NOT NULL)`,
	},
}

// place writes an order and its event, in one transaction, and returns the order's number.
func place(ctx context.Context, outbox *producer.Outbox[pgx.Tx], topic string) (id string, err error) {
	err = outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		if err := w.DB().QueryRow(ctx, `INSERT INTO orders DEFAULT VALUES RETURNING id::text`).Scan(&id); err != nil {
			return err
		}
		_, err := w.Write(ctx, producer.Event{Topic: topic, Key: id, Source: "order/" + id, Version: 1, Payload: []byte(id)})
		return err
	})
	return id, err
}

// handle makes the service's change and writes the change's event, in the transaction of the message's
// inbox row.
func (s service) handle(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	id := string(msg.Payload)
	if _, err := w.DB().Exec(ctx, s.change, id); err != nil || s.writes == "" {
		return err
	}
	_, err := w.Write(ctx, producer.Event{Topic: s.writes, Key: id, Payload: msg.Payload})
	return err
}

// customers place an order in each interval.
type customers struct {
	outbox *producer.Outbox[pgx.Tx]
	topic  string
	every  time.Duration
}

// Run places orders until ctx ends. An order that fails is lost to the shop.
func (c customers) Run(ctx context.Context) error {
	next := time.NewTicker(c.every)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
		}
		id, err := place(ctx, c.outbox, c.topic)
		if err != nil {
			slog.WarnContext(ctx, "order failed", "error", err)
			continue
		}
		slog.InfoContext(ctx, "order placed", "order", id)
	}
}

// logged logs each message whose change is committed.
func logged(name string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			if err == nil {
				slog.InfoContext(msg.Context(), "order handled", "by", name, "order", string(msg.Payload))
			}
			return produced, err
		}
	}
}

// run runs a service until ctx ends. Topics begin with prefix.
func run(ctx context.Context, name, database, broker, prefix string, every time.Duration) error {
	s, known := services[name]
	if !known {
		return fmt.Errorf("want orders, stock or payment, got %q", name)
	}
	s.topic = prefix + s.topic
	if s.writes != "" {
		s.writes = prefix + s.writes
	}
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, s.tables); err != nil {
		return err
	}
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: name})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, consumer.Config{Service: name}, consumer.WithOutbox(outbox))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	router.AddMiddleware(logged(name + "/" + s.handler)) //nolint:contextcheck // a message has a context of its own
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(broker, name)})
	if err != nil {
		return err
	}
	defer subscriber.Close()
	if _, err := inbox.AddHandler(router, s.handler, s.topic, subscriber, s.handle, consumer.HandlerConfig{}); err != nil {
		return err
	}
	var others []boxpair.Part
	if name == "orders" {
		others = append(others, customers{outbox, prefix + "order.placed", every})
	}
	return boxpair.Group{Outbox: outbox, NoJanitor: true, Inbox: inbox, Router: router, Others: others}.Run(ctx)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := errors.New("want one argument: orders, stock or payment")
	if len(os.Args) == 2 {
		err = run(ctx, os.Args[1], os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL"), "", time.Second)
	}
	if stop(); err != nil {
		log.Fatal(err)
	}
}
