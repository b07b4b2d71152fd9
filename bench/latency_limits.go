package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// listeningByHand is the latency of a relay by hand: a transaction notifies, and each notification begins a pass
// that publishes, waits for the confirms and deletes.
func listeningByHand(ctx context.Context, s *stage) error {
	pool, _, err := s.schema(ctx)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, handwrittenTables); err != nil {
		return err
	}
	q, err := s.queues("classic", 1)
	if err != nil {
		return err
	}
	if err := q.ch.Confirm(false); err != nil {
		return err
	}
	if err := s.warm(ctx, pool, 12); err != nil {
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
	failed := make(chan error, 1)
	s.background(ctx, func(ctx context.Context) {
		for {
			if _, err := conn.Conn().WaitForNotification(ctx); err != nil {
				return
			}
			if _, err := relayOnceByHand(ctx, pool, q); err != nil && ctx.Err() == nil {
				failed <- fmt.Errorf("relay by hand: %w", err)
				return
			}
		}
	})
	err = s.timed(ctx, func() (int, error) {
		return s.n, clocked(ctx, watch, func(ctx context.Context, i int) error {
			select {
			case err := <-failed:
				return err
			default:
			}
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
