// Command cqrs runs Watermill's CQRS component over an outbox and an inbox. Its one event bus
// publishes in the transaction of the change. Its event processor handles every event in the transaction of
// the event's inbox row, and an event that a handler publishes leaves with that transaction. The
// program runs on a SQLite file, in one process. Each event is delivered twice, and has one effect.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/transport/memory"
)

// OrderPlaced is emitted by the shop.
type OrderPlaced struct {
	Order string `json:"order"`
	Item  string `json:"item"`
}

// StockReserved is emitted by the warehouse while it handles OrderPlaced.
type StockReserved struct {
	Order string `json:"order"`
}

// The events of one order keep their order.
func (e *OrderPlaced) EventKey() string   { return e.Order }
func (e *StockReserved) EventKey() string { return e.Order }

// EventIdentity names the event: an order is placed once. StockReserved needs no identity, since
// its dispatch ID is a child of the handled event's ID.
func (e *OrderPlaced) EventIdentity() producer.Identity {
	return producer.Identity{Source: "order/" + e.Order, Version: 1}
}

var marshaler = cqrs.CommandEventMarshalerDecorator{
	CommandEventMarshaler: cqrs.JSONMarshaler{GenerateName: cqrs.StructName},
	DecorateFunc:          producer.Describe, // passes on EventKey and EventIdentity
}

// service is the code of the service, with an event bus for all of its transactions and handlers.
type service struct {
	outbox *producer.Outbox[*sql.Tx]
	bus    *cqrs.EventBus
}

func newService(outbox *producer.Outbox[*sql.Tx]) (*service, error) {
	publisher, err := outbox.Publisher(producer.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
		GeneratePublishTopic: func(p cqrs.GenerateEventPublishTopicParams) (string, error) { return p.EventName, nil },
		Marshaler:            marshaler,
	})
	return &service{outbox: outbox, bus: bus}, err
}

// placeOrder writes an order and publishes OrderPlaced.
func (s *service) placeOrder(ctx context.Context, order, item string) error {
	return s.outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
		if _, err := w.DB().ExecContext(ctx, `INSERT INTO orders VALUES (?, ?)`, order, item); err != nil {
			return err
		}
		return s.bus.Publish(ctx, &OrderPlaced{Order: order, Item: item})
	})
}

// reserve reserves stock for an order and publishes StockReserved.
func (s *service) reserve(ctx context.Context, event *OrderPlaced) error {
	w, ok := middleware.WorkFrom[*sql.Tx](ctx)
	if !ok {
		return errors.New("reserve runs outside an inbox")
	}
	if _, err := w.DB().ExecContext(ctx, `UPDATE stock SET left = left - 1 WHERE item = ?`, event.Item); err != nil {
		return err
	}
	return s.bus.Publish(ctx, &StockReserved{Order: event.Order})
}

// confirm confirms an order whose stock is reserved.
func (s *service) confirm(ctx context.Context, event *StockReserved) error {
	w, ok := middleware.WorkFrom[*sql.Tx](ctx)
	if !ok {
		return errors.New("confirm runs outside an inbox")
	}
	_, err := w.DB().ExecContext(ctx, `INSERT INTO confirmations VALUES (?)`, event.Order)
	return err
}

// addHandlers adds the handlers of an event processor to router, and the inbox around them.
func (s *service) addHandlers(router *message.Router, broker *memory.Broker, inbox *consumer.Inbox[*sql.Tx]) error {
	processor, err := cqrs.NewEventProcessorWithConfig(router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(p cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return p.EventName, nil },
		SubscriberConstructor: func(p cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return broker.Subscriber(p.HandlerName), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		return err
	}
	for _, h := range []cqrs.EventHandler{
		cqrs.NewEventHandler("reserve", s.reserve),
		cqrs.NewEventHandler("confirm", s.confirm),
	} {
		if _, err := processor.AddHandler(h); err != nil {
			return err
		}
	}
	router.AddPlugin(middleware.Router(inbox, middleware.RouterConfig{}))
	return nil
}

// twice delivers every message twice, as brokers sometimes do.
type twice struct{ message.Publisher }

func (p twice) Publish(topic string, messages ...*message.Message) error {
	for _, msg := range messages {
		if err := p.Publisher.Publish(topic, msg, msg.Copy()); err != nil {
			return err
		}
	}
	return nil
}

func main() {
	dir, err := os.MkdirTemp("", "boxpair-cqrs-*")
	if err != nil {
		log.Fatal(err)
	}
	err = run(context.Background(), filepath.Join(dir, "shop.db"), os.Stdout)
	if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, path string, out io.Writer) error {
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
	relay, err := relay.New(outbox, twice{broker}, relay.Config{})
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "shop"}, consumer.WithOutbox(outbox))
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	shop, err := newService(outbox)
	if err != nil {
		return err
	}
	if err := shop.addHandlers(router, broker, inbox); err != nil {
		return err
	}

	ctx, stop := context.WithTimeout(ctx, 30*time.Second)
	defer stop()
	shopped := make(chan error, 1)
	go func() { // a customer
		err := shop.placeOrder(ctx, "42", "lamp")
		if err == nil {
			err = waitForConfirmation(ctx, db)
		}
		shopped <- err
		stop() // another service waits for a signal
	}()
	group := boxpair.Group{Outbox: outbox, Relay: relay, Inbox: inbox, Router: router}
	if err := errors.Join(group.Run(ctx), <-shopped); err != nil {
		return err
	}
	return report(db, out)
}

// waitForConfirmation waits until the order is confirmed.
func waitForConfirmation(ctx context.Context, db *sql.DB) error {
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for confirmed := 0; confirmed == 0; {
		if err := db.QueryRowContext(ctx, `SELECT count(*) FROM confirmations`).Scan(&confirmed); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-look.C:
		}
	}
	return nil
}

func report(db *sql.DB, out io.Writer) error {
	var left, confirmed int
	err := db.QueryRow(`SELECT (SELECT left FROM stock), (SELECT count(*) FROM confirmations)`).Scan(&left, &confirmed)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d of 10 lamps left, %d order confirmed\n", left, confirmed)
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
	for _, statement := range []string{
		`CREATE TABLE orders (id text PRIMARY KEY, item text)`,
		`CREATE TABLE stock (item text PRIMARY KEY, left integer)`,
		`INSERT INTO stock VALUES ('lamp', 10)`,
		`CREATE TABLE confirmations (id text)`,
	} {
		if _, err := db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(err, db.Close())
		}
	}
	return db, nil
}
