package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport/amqp"
)

// config publishes to and consumes from one queue through the default exchange.
func config(o options, queue string) wamqp.Config {
	c := amqp.DurableQueue(o.amqpURL)
	c.Queue.GenerateName = func(string) string { return queue }
	c.Publish.GenerateRoutingKey = func(string) string { return queue }
	c.Queue.Arguments = map[string]any{"x-queue-type": o.queue}
	return c
}

func newStore(ctx context.Context, o options) (*postgres.Store, func(), error) {
	pool, name, drop, err := schema(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	cfg := postgres.Config{Schema: name}
	if _, err := postgres.Migrate(ctx, pool, cfg); err != nil {
		drop()
		return nil, nil, err
	}
	if _, err := pool.Exec(ctx, `CREATE TABLE effects (id uuid, body bytea)`); err != nil {
		drop()
		return nil, nil, err
	}
	store, err := postgres.New(pool, cfg)
	return store, drop, err
}

// relay publishes and marks committed events of a number of keys.
func relay(ctx context.Context, o options, keys int) (float64, error) {
	store, drop, err := newStore(ctx, o)
	if err != nil {
		return 0, err
	}
	defer drop()
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return 0, err
	}
	for n := 0; n < o.events; n += 1000 {
		events := make([]producer.Event, min(1000, o.events-n))
		for i := range events {
			events[i] = producer.Event{Topic: "bench", Key: fmt.Sprint("key-", (n+i)%keys), Source: "s", Version: int64(n + i), Payload: payload}
		}
		err := outbox.Transact(ctx, func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			_, err := w.Write(ctx, events...)
			return err
		})
		if err != nil {
			return 0, err
		}
	}
	conn, ch, queue, err := newQueue(o)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config(o, queue)})
	if err != nil {
		return 0, err
	}
	defer publisher.Close()
	r, err := producer.NewRelay(outbox, publisher, producer.RelayConfig{})
	if err != nil {
		return 0, err
	}
	start := time.Now()
	report, err := r.RunOnce(ctx)
	if err != nil {
		return 0, err
	}
	took := time.Since(start)
	if report.Delivered != o.events {
		return 0, fmt.Errorf("%d of %d events delivered", report.Delivered, o.events)
	}
	return float64(o.events) / took.Seconds(), nil
}

// inboxConsume applies messages through a Watermill router and an inbox.
func inboxConsume(ctx context.Context, o options) (float64, error) {
	store, drop, err := newStore(ctx, o)
	if err != nil {
		return 0, err
	}
	defer drop()
	conn, ch, queue, err := newQueue(o)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer func() { _, _ = ch.QueueDelete(queue, false, false, false) }()
	if err := fillQueue(ctx, ch, queue, o.events); err != nil {
		return 0, err
	}
	inbox, err := consumer.New(store, nil, consumer.Config{Service: "bench"})
	if err != nil {
		return 0, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var done atomic.Int64
	handler, err := inbox.Handle("effect", func(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
		_, err := w.DB().Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, msg.UUID, []byte(msg.Payload))
		return err
	}, consumer.HandlerConfig{})
	if err != nil {
		return 0, err
	}
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config(o, queue), InFlight: 8})
	if err != nil {
		return 0, err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return 0, err
	}
	var took time.Duration
	start := time.Now()
	router.AddConsumerHandler("effect", "bench", subscriber, func(msg *message.Message) error {
		if err := handler.Consume(msg); err != nil {
			return err
		}
		if done.Add(1) == int64(o.events) {
			took = time.Since(start)
			stop()
		}
		return nil
	})
	var parts sync.WaitGroup
	parts.Go(func() { _ = inbox.Run(ctx) })
	err = router.Run(ctx)
	stop()
	parts.Wait()
	if done.Load() < int64(o.events) {
		return 0, errors.Join(err, fmt.Errorf("%d of %d messages applied", done.Load(), o.events))
	}
	return float64(o.events) / took.Seconds(), errors.Join(err, subscriber.Close())
}
