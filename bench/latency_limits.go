package main

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// listeningByHand is the latency of a relay by hand: a transaction notifies, and each notification begins a pass
// that publishes, waits for the confirms and deletes.
func listeningByHand(ctx context.Context, s *stage) error {
	pool, q, err := s.byHand(ctx, handwrittenTables, "classic", 12)
	if err != nil {
		return err
	}
	watch := newStopwatch(s.n)
	s.background(ctx, func(ctx context.Context) {
		_ = workers(ctx, q, 1, s.n, func(d amqp.Delivery) error {
			watch.see(d.Body)
			return d.Ack(false)
		})
	})
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	s.later(conn.Release)
	if _, err := conn.Exec(ctx, `LISTEN plain_outbox`); err != nil {
		return err
	}
	ctx = s.alongside(ctx, func(ctx context.Context) error {
		for {
			if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
				return err
			}
			if _, err := relayOnceByHand(ctx, pool, q); err != nil {
				return err
			}
		}
	})
	err = s.timed(ctx, func() (int, error) {
		return s.n, clocked(ctx, watch, func(ctx context.Context, i int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, insertOrder, uuid.New(), payload); err != nil {
					return err
				}
				if _, err := tx.Exec(ctx, insertPlain, "topic-0", body(i), plainHeaders); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, `NOTIFY plain_outbox`)
				return err
			})
		})
	})
	if err == nil {
		s.latencies(watch)
	}
	return err
}
