package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"
)

// plainTables are a hand-written inbox and effects.
const plainTables = `CREATE TABLE inbox (id uuid PRIMARY KEY, at timestamptz DEFAULT now()); CREATE TABLE effects (id uuid, body bytea)`

// ackOnly only acknowledges each message.
func ackOnly(ctx context.Context, s *stage) error {
	q, err := s.filled(ctx)
	if err != nil {
		return err
	}
	return s.timed(ctx, func() (int, error) {
		return s.n, workers(ctx, q, 8, s.n, func(d amqp.Delivery) error { return d.Ack(false) })
	})
}

// ackMultiple acknowledges 100 messages at once.
func ackMultiple(ctx context.Context, s *stage) error {
	q, err := s.filled(ctx)
	if err != nil {
		return err
	}
	return s.timed(ctx, func() (int, error) {
		deliveries, err := q.deliveries(400)
		if err != nil {
			return 0, err
		}
		for i := range s.n {
			d, ok := <-deliveries
			if !ok {
				return i, errors.New("the consumer was closed")
			}
			if (i+1)%100 == 0 || i+1 == s.n {
				if err := d.Ack(true); err != nil {
					return i, err
				}
			}
		}
		return s.n, nil
	})
}

// pipelined applies each message in a transaction of one round trip: an insert of the ID, which
// fails for a copy, an effect, and COMMIT.
func pipelined(n int) func(context.Context, *stage) error {
	return plainConsume(n, applyPipelined)
}

func applyPipelined(ctx context.Context, pool *pgxpool.Pool, id string, body []byte) error {
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(`INSERT INTO inbox (id) VALUES ($1)`, id)
	b.Queue(`INSERT INTO effects VALUES ($1, $2)`, id, body)
	b.Queue("commit")
	return pool.SendBatch(ctx, b).Close()
}

// fourRoundTrips applies each message like a plain handler.
func fourRoundTrips(ctx context.Context, s *stage) error { return plainConsume(8, applyPlain)(ctx, s) }

func applyPlain(ctx context.Context, pool *pgxpool.Pool, id string, body []byte) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO inbox (id) VALUES ($1) ON CONFLICT DO NOTHING`, id)
		if err != nil || tag.RowsAffected() == 0 {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO effects VALUES ($1, $2)`, id, body)
		return err
	})
}

func plainConsume(n int, apply func(context.Context, *pgxpool.Pool, string, []byte) error) func(context.Context, *stage) error {
	return func(ctx context.Context, s *stage) error {
		pool, _, err := s.schema(ctx)
		if err != nil {
			return err
		}
		if _, err := pool.Exec(ctx, plainTables); err != nil {
			return err
		}
		q, err := s.filled(ctx)
		if err != nil {
			return err
		}
		if err := s.warm(ctx, pool, n); err != nil {
			return err
		}
		return s.timed(ctx, func() (int, error) {
			return s.n, workers(ctx, q, n, s.n, func(d amqp.Delivery) error {
				if err := apply(ctx, pool, d.MessageId, d.Body); err != nil {
					return err
				}
				return d.Ack(false)
			})
		})
	}
}

// workers runs a number of workers that handle messages of a queue.
func workers(ctx context.Context, q *queues, count, messages int, handle func(amqp.Delivery) error) error {
	deliveries, err := q.deliveries(max(100, 2*count))
	if err != nil {
		return err
	}
	todo := make(chan amqp.Delivery)
	errs := make(chan error, count)
	var all sync.WaitGroup
	for range count {
		all.Go(func() {
			for d := range todo {
				if err := handle(d); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	err = hand(ctx, deliveries, todo, errs, messages)
	close(todo)
	all.Wait()
	select {
	case failure := <-errs:
		return failure
	default:
		return err
	}
}

// hand distributes n messages to workers.
func hand(ctx context.Context, deliveries <-chan amqp.Delivery, todo chan<- amqp.Delivery, errs <-chan error, n int) error {
	for range n {
		var d amqp.Delivery
		select {
		case d = <-deliveries:
		case err := <-errs:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		select {
		case todo <- d:
		case err := <-errs:
			return err
		}
	}
	return nil
}

// watermillConsume runs a router with 8 stock subscribers of watermill-amqp.
func watermillConsume(ctx context.Context, s *stage) error {
	pool, _, err := s.schema(ctx)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, plainTables); err != nil {
		return err
	}
	q, err := s.filled(ctx)
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, 8); err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	p := newProgress(s.n)
	for i := range 8 {
		in := config(s.amqpURL, q.kind, q.names)
		in.Consume.Qos.PrefetchCount = 50
		subscriber, err := wamqp.NewSubscriber(in, watermill.NopLogger{})
		if err != nil {
			return errors.New("connect watermill-amqp to RabbitMQ failed")
		}
		router.AddConsumerHandler(topic(i, 8), "topic-0", subscriber, func(msg *message.Message) error {
			err := applyPlain(msg.Context(), pool, msg.UUID, msg.Payload)
			if err == nil {
				p.add()
			}
			return err
		})
	}
	var running sync.WaitGroup
	s.later(func() {
		_ = router.Close()
		running.Wait()
	})
	return s.timed(ctx, func() (int, error) {
		running.Go(func() { _ = router.Run(ctx) })
		return p.wait(ctx, time.Minute)
	})
}
