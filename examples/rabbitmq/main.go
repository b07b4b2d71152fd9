// Command rabbitmq is a service on PostgreSQL and RabbitMQ, ready for production: it places orders,
// whose events leave its outbox, and ships each order once. docs/getting-started.md explains the
// program.
//
//	DATABASE_URL=postgres://… AMQP_URL=amqp://… go run ./examples/rabbitmq
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// names are the names of the service, its topic and its handler. The queue is named after the
// handler: each handler has a queue.
type names struct{ service, topic, handler string }

// shop is the service.
type shop struct {
	names
	pool       *pgxpool.Pool
	outbox     *producer.Outbox[pgx.Tx]
	inbox      *consumer.Inbox[pgx.Tx]
	relay      *relay.Relay
	router     *message.Router
	publisher  *amqp.Publisher
	subscriber *amqp.Subscriber
	shipped    chan string // tells this program when it is done
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Getenv("DATABASE_URL"), os.Getenv("AMQP_URL"), names{"shop", "order.placed", "ship"})
	stop()
	if err != nil {
		slog.Error("shop has failed", "error", err)
		os.Exit(1)
	}
}

// migrate makes the library's tables, and the service's own.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	if _, err := postgres.Migrate(ctx, pool, postgres.Config{}); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, `CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY); CREATE TABLE IF NOT EXISTS shipments (id text PRIMARY KEY)`)
	return err
}

// connect makes the publisher and the subscriber. They connect at their first use.
func (s *shop) connect(uri string) (err error) {
	config := amqp.DurablePubSub(uri, s.service+"."+s.handler) // the queue is order.placed_shop.ship
	s.publisher, err = amqp.NewPublisher(amqp.PublisherConfig{
		AMQP:   config,
		Queues: []amqp.Queue{{Topic: s.topic}}, // events sent before a consumer's first start wait in its queue
	})
	if err != nil {
		return err
	}
	s.subscriber, err = amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config})
	return err
}

// build makes the parts of the service, without starting any.
func (s *shop) build() (err error) {
	store, err := postgres.New(s.pool, postgres.Config{})
	if err != nil {
		return err
	}
	s.outbox, err = producer.New(store, producer.Config{Name: s.service})
	if err != nil {
		return err
	}
	s.relay, err = relay.New(s.outbox, s.publisher, relay.Config{})
	if err != nil {
		return err
	}
	s.inbox, err = consumer.New(store, consumer.Config{Service: s.service}, consumer.WithOutbox(s.outbox))
	if err != nil {
		return err
	}
	s.router, err = message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	_, err = s.inbox.AddHandler(s.router, s.handler, s.topic, s.subscriber, s.ship, consumer.HandlerConfig{})
	return err
}

// place writes an order and its event, in one transaction.
func (s *shop) place(ctx context.Context, id string) error {
	return s.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		if _, err := w.DB().Exec(ctx, `INSERT INTO orders VALUES ($1)`, id); err != nil {
			return err
		}
		_, err := w.Write(ctx, producer.Event{
			Topic: s.topic, Key: id, Source: "order/" + id, Version: 1, Payload: []byte(id),
		})
		return err
	})
}

// ship ships an order, in the transaction of its message's inbox row.
func (s *shop) ship(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
	id := string(msg.Payload)
	if _, err := w.DB().Exec(ctx, `INSERT INTO shipments VALUES ($1)`, id); err != nil {
		return err
	}
	select {
	case s.shipped <- id:
	default: // it runs again after a rollback
	}
	return nil
}

// serve runs the parts until ctx ends, and returns when each part has finished its running work.
func (s *shop) serve(ctx context.Context) error {
	parts := boxpair.Group{Outbox: s.outbox, Relay: s.relay, Inbox: s.inbox, Router: s.router}
	return parts.Run(ctx)
}

// close closes the connections of serve.
func (s *shop) close() error {
	err := errors.Join(s.publisher.Close(), s.subscriber.Close())
	s.pool.Close()
	return err
}

func run(ctx context.Context, database, broker string, n names) (err error) {
	pool, err := pgxpool.New(ctx, database)
	if err != nil {
		return err
	}
	s := &shop{names: n, pool: pool, shipped: make(chan string, 1)}
	if err := errors.Join(migrate(ctx, pool), s.connect(broker)); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.build(); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- s.serve(ctx) }()
	defer func() {
		stop()
		err = errors.Join(err, <-served)
	}()
	if err := s.place(ctx, fmt.Sprint("order-", os.Getpid())); err != nil {
		return err
	}
	select { // a service would wait for ctx alone
	case id := <-s.shipped:
		fmt.Println(id, "is shipped")
	case <-ctx.Done():
	}
	return nil
}
