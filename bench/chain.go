package main

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

func chainScenario() scenario {
	return scenario{
		name: "chain", unit: "events",
		about: "8 producers, a relay and consumers at once: transaction, outbox, quorum queue, inbox transaction, acknowledged",
		variants: []variant{
			{"limit-handwritten", "by hand: transactions of one round trip, a claim held through the publish, 8 workers; no order, no parking, no attempts",
				"", 40_000, 4_000, handwrittenChain},
			{"chain", "this library, a transaction per message in one round trip", "limit-handwritten", 40_000, 4_000,
				chaining{config: consumer.HandlerConfig{Optimistic: true}}.measure},
			{"chain-headers", "the same with headers, as by default", "limit-handwritten", 40_000, 0,
				chaining{config: consumer.HandlerConfig{Optimistic: true}, form: headers}.measure},
			{"chain-default", "on the defaults, as README writes it: producers and handlers by Exec, headers", "limit-handwritten", 40_000, 4_000,
				chaining{fn: effect, produce: readme, form: headers}.measure},
			{"chain-queued", "the same with the statements of producers and handlers queued for the COMMIT", "limit-handwritten", 40_000, 4_000,
				chaining{form: headers}.measure},
			{"chain-group", "this library, group commit of up to 64", "limit-handwritten", 40_000, 4_000,
				chaining{config: consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 64}}}.measure},
		},
	}
}

// chaining is this library from end to end.
type chaining struct {
	config consumer.HandlerConfig
	form   form
	// fn and produce default to the fastest.
	fn      consumer.HandlerFunc[pgx.Tx]
	produce enqueuer
}

func (c chaining) measure(ctx context.Context, s *stage) error {
	store, pool, _, err := s.store(ctx)
	if err != nil {
		return err
	}
	q, err := s.queues("quorum", 1)
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	relay, err := s.relay(ctx, outbox, q, c.form)
	if err != nil {
		return err
	}
	inbox, err := consumer.New(store, consumer.Config{Service: "bench"})
	if err != nil {
		return err
	}
	if c.fn == nil {
		c.fn, c.produce = lateEffect, transact
	}
	consume := consuming{config: c.config, fn: c.fn}
	handler, err := consume.handler(inbox)
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, 40); err != nil {
		return err
	}
	d := &desk{pool: pool, outbox: outbox, events: 1, number: newNumber()}
	once, err := c.produce(ctx, d)
	if err != nil {
		return err
	}
	r, err := s.route(ctx, q, inbox, handler, consume.subscriber())
	if err != nil {
		return err
	}
	s.later(func() { _ = r.stop() })
	s.background(ctx, func(ctx context.Context) { _ = relay.Run(ctx) })
	return s.timed(ctx, func() (int, error) {
		return s.n, errors.Join(concurrently(ctx, 8, s.n, once), r.wait(ctx))
	})
}

const handwrittenTables = `CREATE TABLE orders (id uuid PRIMARY KEY, body bytea);` + plainOutbox + `;` + plainTables

// handwrittenChain is a chain written by hand for speed alone.
func handwrittenChain(ctx context.Context, s *stage) error {
	pool, q, err := s.byHand(ctx, handwrittenTables, "quorum", 18)
	if err != nil {
		return err
	}
	produce := func(ctx context.Context) error {
		b := &pgx.Batch{}
		b.Queue("begin")
		b.Queue(insertOrder, uuid.New(), payload)
		b.Queue(insertPlain, "topic-0", payload, plainHeaders)
		b.Queue("commit")
		return pool.SendBatch(ctx, b).Close()
	}
	failed := make(chan error, 1)
	s.background(ctx, func(ctx context.Context) {
		if err := relayByHand(ctx, pool, q); ctx.Err() == nil {
			failed <- err
		}
	})
	consumed := make(chan error, 1)
	return s.timed(ctx, func() (int, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			consumed <- workers(ctx, q, 8, s.n, func(d amqp.Delivery) error {
				if err := applyPipelined(ctx, pool, d.MessageId, d.Body); err != nil {
					return err
				}
				return d.Ack(false)
			})
		}()
		if err := concurrently(ctx, 8, s.n, produce); err != nil {
			return 0, err
		}
		select {
		case err := <-consumed:
			return s.n, err
		case err := <-failed:
			return 0, err
		}
	})
}

// relayByHand claims up to 1,000 rows by deleting them, publishes them, waits for the confirms and
// commits. It repeats until an error, or until ctx ends.
func relayByHand(ctx context.Context, pool *pgxpool.Pool, q *queues) error {
	for {
		n, err := relayOnceByHand(ctx, pool, q)
		if err != nil {
			return err
		}
		if n == 0 {
			if err := pause(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
}

func relayOnceByHand(ctx context.Context, pool *pgxpool.Pool, q *queues) (n int, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `DELETE FROM plain_outbox WHERE id IN (SELECT id FROM plain_outbox ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED)
			RETURNING id, payload, headers`)
		if err != nil {
			return err
		}
		defer rows.Close()
		var open []*amqp.DeferredConfirmation
		for rows.Next() {
			var id int64
			var body []byte
			var named map[string]string
			if err := rows.Scan(&id, &body, &named); err != nil {
				return err
			}
			msg := amqp.Publishing{DeliveryMode: amqp.Persistent, MessageId: plainID(id), Body: body, Headers: amqp.Table{}}
			for name, value := range named {
				msg.Headers[name] = value
			}
			c, err := q.ch.PublishWithDeferredConfirm("", q.names[0], true, false, msg)
			if err != nil {
				return err
			}
			open = append(open, c)
		}
		for _, c := range open {
			if ok, err := c.WaitContext(ctx); !ok || err != nil {
				return errors.Join(errors.New("not confirmed"), err)
			}
		}
		n = len(open)
		return rows.Err()
	})
	return n, err
}
