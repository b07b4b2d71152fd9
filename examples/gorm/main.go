// Command gorm is a service on GORM with both sides: an order and its event are written in one of
// GORM's transactions, and a handler takes the goods from the stock through GORM, in the inbox's
// transaction. The transport sends every message twice, and each order reduces the stock once.
//
//	DATABASE_URL=postgres://… go run .
//
// The service runs on PostgreSQL, in a schema of its own, which is removed in the end. The example
// is a module of its own, since no other part of the library needs GORM.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"gorm.io/gorm"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/memory"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	report, err := run(ctx, os.Getenv("DATABASE_URL"))
	stop()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report)
}

// run places some orders, sends their events and reports the result.
func run(ctx context.Context, url string) (report string, err error) {
	db, err := open(ctx, url, &gorm.Config{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.drop(context.WithoutCancel(ctx))) }()
	s, err := newService(db)
	if err != nil {
		return "", err
	}
	if err := s.stockUp(ctx, Stock{Item: "tea", Left: 100}); err != nil {
		return "", err
	}
	orders := []Order{{ID: "1", Item: "tea", Amount: 7}, {ID: "2", Item: "tea", Amount: 2}, {ID: "3", Item: "tea", Amount: 3}}
	for _, order := range orders {
		if err := s.place(ctx, order); err != nil {
			return "", err
		}
	}
	err = s.consuming(ctx, func(broker *memory.Broker) error {
		relay, err := relay.New(s.outbox, twice{broker}, relay.Config{})
		if err != nil {
			return err
		}
		_, err = relay.RunOnce(ctx) // a service calls Run
		return err
	})
	if err != nil {
		return "", err
	}
	left, err := s.left(ctx, "tea")
	counters := s.handler.Counters()
	return fmt.Sprintf("%d orders placed, %d applied, %d copies refused, %d of 100 left",
		len(orders), counters.Applied, counters.Duplicates(), left), err
}

// consuming runs the service's handler while fn runs, and waits until the handler has ended.
func (s *service) consuming(ctx context.Context, fn func(broker *memory.Broker) error) error {
	broker, err := memory.New(memory.Config{})
	if err != nil {
		return err
	}
	defer broker.Close()
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler("take", topic, broker.Subscriber("stock"), s.handler.Consume)
	ctx, stop := context.WithCancel(ctx)
	errs := make([]error, 2)
	var parts sync.WaitGroup
	for i, part := range []func(context.Context) error{router.Run, s.inbox.Run} {
		parts.Go(func() {
			errs[i] = part(ctx)
			stop()
		})
	}
	select {
	case <-router.Running():
		err = fn(broker)
	case <-ctx.Done():
		err = ctx.Err()
	}
	stop()
	parts.Wait()
	return errors.Join(append(errs, err)...)
}

// twice is a publisher that sends every message twice.
type twice struct{ message.Publisher }

// Publish implements [message.Publisher].
func (t twice) Publish(topic string, messages ...*message.Message) error {
	for _, m := range messages {
		if err := t.Publisher.Publish(topic, m, m.Copy()); err != nil {
			return err
		}
	}
	return nil
}
