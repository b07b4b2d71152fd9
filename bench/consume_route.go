package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/transport/amqp"
)

// routing is a Watermill router that passes the messages of a queue to a handler.
type routing struct {
	n       int64
	handled atomic.Int64
	all     chan struct{}
	cancel  context.CancelFunc
	parts   sync.WaitGroup
	close   func() error
	failure error
}

// route starts a router and the inbox's background work. seen, if given, is called for each applied
// message.
func (s *stage) route(ctx context.Context, q *queues, inbox *consumer.Inbox[pgx.Tx], handler *consumer.Handler[pgx.Tx],
	inFlight int, seen ...func(*message.Message)) (*routing, error) {
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: config(s.amqpURL, q.kind, q.names), InFlight: inFlight, CompetingConsumers: true, DeliveryLimitIsSafe: true, // as the queue is declared; there is one consumer
	})
	if err != nil {
		return nil, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := &routing{n: int64(s.n), all: make(chan struct{}), cancel: cancel, close: subscriber.Close}
	router.AddConsumerHandler("effect", "topic-0", subscriber, func(msg *message.Message) error {
		if err := handler.Consume(msg); err != nil {
			return err
		}
		for _, fn := range seen {
			fn(msg)
		}
		if r.handled.Add(1) == r.n {
			close(r.all)
		}
		return nil
	})
	r.parts.Go(func() { _ = inbox.Run(ctx) })
	r.parts.Go(func() {
		defer cancel()
		r.failure = router.Run(ctx)
	})
	return r, nil
}

// wait returns when all messages are handled.
func (r *routing) wait(ctx context.Context) error {
	select {
	case <-r.all:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(2 * time.Minute):
		return fmt.Errorf("%d of %d messages applied", r.handled.Load(), r.n)
	}
}

// stop ends the router, which acknowledges the applied messages. A second stop is harmless.
func (r *routing) stop() error {
	r.cancel()
	r.parts.Wait()
	return errors.Join(r.failure, r.close())
}
