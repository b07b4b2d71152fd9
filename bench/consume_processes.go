package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// sharing configures how the processes of a consumer share its messages. Each process is a
// subscriber, a router and an inbox of its own, all within this process. A handler waits for 5 ms,
// as for another service, and 8 messages are in flight: a process handles at most 1,600 messages a
// second.
type sharing struct {
	processes  int
	competing  bool
	partitions int
	inFlight   int           // defaults to handlersPerUnit
	keys       int           // defaults to sharedKeys
	wait       time.Duration // of a handler; defaults to handlerWait
	storeFirst bool
}

const (
	handlerWait     = 5 * time.Millisecond
	handlersPerUnit = 8
	sharedKeys      = 20
)

func (c sharing) measure(ctx context.Context, s *stage) error {
	s.connections = max(40, 10*c.processes)
	store, pool, _, err := s.store(ctx)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.DiscardHandler)
	topic := fmt.Sprint("bench-", uuid.NewString()[:8])
	config := amqp.DurablePubSub(s.amqpURL, "effect")
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{
		AMQP: config, Queues: []amqp.Queue{{Topic: topic}}, CompetingConsumers: c.competing, Partitions: c.partitions, Logger: quiet,
	})
	if err != nil {
		return err
	}
	if err := errors.Join(c.publish(topic, publisher, s), publisher.Close(), s.warm(ctx, pool, max(34, 9*c.processes))); err != nil {
		return err
	}
	s.later(func() { _ = c.remove(s, topic, config.Queue.GenerateName(topic)) })
	order := &overtaking{last: make(map[string]int), left: s.n, all: make(chan struct{})}
	err = s.timed(ctx, func() (int, error) {
		for range c.processes {
			if err := c.start(ctx, s, store, topic, config, order, quiet); err != nil {
				return 0, err
			}
		}
		select {
		case <-order.all:
			return s.n, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	})
	s.extra("overtaken", float64(order.overtaken))
	return err
}

// publish publishes the messages to measure, to each key in turn.
func (c sharing) publish(topic string, publisher *amqp.Publisher, s *stage) error {
	defer s.spend("messages")()
	stamp := time.Now()
	for at := 0; at < s.n; at += 1000 {
		messages := make([]*message.Message, min(1000, s.n-at))
		for i := range messages {
			e := transport.Event{ID: uuid.New(), Topic: topic, Key: fmt.Sprint("key-", (at+i)%cmp.Or(c.keys, sharedKeys)), Payload: fmt.Append(nil, at+i), Stamp: stamp}
			e.Digest = transport.ContentDigest(&e)
			messages[i] = e.Message()
		}
		if err := publisher.Publish(topic, messages...); err != nil {
			return err
		}
	}
	return nil
}

// remove removes what was declared for the topic.
func (c sharing) remove(s *stage, topic, queue string) error {
	conn, err := amqp091.Dial(s.amqpURL)
	if err != nil {
		return errors.New("connect to RabbitMQ failed") // the cause may show the password
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		return err
	}
	for i := range c.partitions {
		if _, err := ch.QueueDelete(fmt.Sprintf("%s.%dof%d", queue, i+1, c.partitions), false, false, false); err != nil {
			return err
		}
	}
	if _, err := ch.QueueDelete(queue, false, false, false); err != nil {
		return err
	}
	return ch.ExchangeDelete(topic, false, false)
}

// start starts one process of the consumer.
func (c sharing) start(ctx context.Context, s *stage, store *postgres.Store, topic string, config wamqp.Config, order *overtaking, quiet *slog.Logger) error {
	inbox, err := consumer.New(store, consumer.Config{Service: "bench", Logger: quiet})
	if err != nil {
		return err
	}
	subscriber, err := amqp.NewSubscriber(amqp.SubscriberConfig{
		AMQP: config, CompetingConsumers: c.competing, Partitions: c.partitions, InFlight: cmp.Or(c.inFlight, handlersPerUnit), RebalanceInterval: 100 * time.Millisecond, Logger: quiet,
	})
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, w *consumer.Work[pgx.Tx], msg *message.Message) error {
		order.begin(msg)
		time.Sleep(cmp.Or(c.wait, handlerWait))
		err := lateEffect(ctx, w, msg)
		if c.storeFirst && err == nil {
			order.done()
		}
		return err
	}
	var hc consumer.HandlerConfig
	if c.storeFirst {
		hc.StoreFirst, hc.Order.ByKey = true, true
	}
	handler, err := inbox.Handle("effect", handle, hc)
	if err != nil {
		return err
	}
	router.AddConsumerHandler("effect", topic, subscriber, func(msg *message.Message) error {
		err := handler.Consume(msg)
		if err == nil && !c.storeFirst {
			order.done()
		}
		return err
	})
	ctx, cancel := context.WithCancel(ctx)
	var parts sync.WaitGroup
	parts.Go(func() { _ = inbox.Run(ctx) })
	parts.Go(func() { _ = router.Run(ctx) })
	s.later(func() {
		cancel()
		parts.Wait()
		_ = subscriber.Close()
	})
	return nil
}

// overtaking counts the messages that were begun after a later message of their key.
type overtaking struct {
	mu        sync.Mutex
	last      map[string]int
	overtaken int
	left      int
	all       chan struct{}
}

func (o *overtaking) begin(msg *message.Message) {
	var n int
	_, _ = fmt.Sscan(string(msg.Payload), &n)
	key := msg.Metadata[transport.MetaKey]
	o.mu.Lock()
	defer o.mu.Unlock()
	if n < o.last[key] {
		o.overtaken++
	}
	o.last[key] = max(o.last[key], n)
}

func (o *overtaking) done() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left--; o.left == 0 {
		close(o.all)
	}
}
