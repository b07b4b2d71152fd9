package main

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/producer"
)

func steadyScenario() scenario {
	return scenario{
		name: "steady", unit: "events",
		about: "8 producers that never rest and a relay beside them, until all is confirmed by a classic queue",
		variants: []variant{
			{"limit-handwritten", "transactions of four round trips into a plain outbox, and a relay that deletes what it has published", "", 40_000, 6_000, handwrittenSteady},
			{"steady", "this library on its defaults, as README writes it", "limit-handwritten", 40_000, 6_000, steadily},
		},
	}
}

// steadily measures this library's producers with its relay beside them.
func steadily(ctx context.Context, s *stage) error {
	store, pool, _, err := s.store(ctx)
	if err != nil {
		return err
	}
	q, err := s.queues("classic", 1)
	if err != nil {
		return err
	}
	outbox, err := producer.New(store, producer.Config{Name: "bench"})
	if err != nil {
		return err
	}
	relay, err := s.relay(ctx, outbox, q, headers)
	if err != nil {
		return err
	}
	if err := s.warm(ctx, pool, 12); err != nil {
		return err
	}
	once, err := readme(ctx, &desk{pool: pool, outbox: outbox, events: 1, number: newNumber()})
	if err != nil {
		return err
	}
	ctx = s.alongside(ctx, relay.Run)
	return s.timed(ctx, func() (int, error) {
		return s.n, errors.Join(concurrently(ctx, 8, s.n, once), untilEmpty(ctx, pool, "outbox_queue"))
	})
}

// byHand returns a database with the tables of handwritten code and so many open connections, and a queue
// of the kind, on a channel with confirms.
func (s *stage) byHand(ctx context.Context, tables, kind string, connections int) (*pgxpool.Pool, *queues, error) {
	pool, _, err := s.schema(ctx)
	if err != nil {
		return nil, nil, err
	}
	if _, err := pool.Exec(ctx, tables); err != nil {
		return nil, nil, err
	}
	q, err := s.queues(kind, 1)
	if err != nil {
		return nil, nil, err
	}
	if err := q.ch.Confirm(false); err != nil {
		return nil, nil, err
	}
	return pool, q, s.warm(ctx, pool, connections)
}

// handwrittenSteady measures handwritten code likewise.
func handwrittenSteady(ctx context.Context, s *stage) error {
	pool, q, err := s.byHand(ctx, businessTables, "classic", 12)
	if err != nil {
		return err
	}
	once, err := plain(ctx, &desk{pool: pool, events: 1})
	if err != nil {
		return err
	}
	ctx = s.alongside(ctx, func(ctx context.Context) error { return relayByHand(ctx, pool, q) })
	return s.timed(ctx, func() (int, error) {
		return s.n, errors.Join(concurrently(ctx, 8, s.n, once), untilEmpty(ctx, pool, "plain_outbox"))
	})
}

// alongside runs a relay until the variant has been measured. Its failure ends the returned context.
func (s *stage) alongside(ctx context.Context, relay func(context.Context) error) context.Context {
	ctx, fail := context.WithCancelCause(ctx)
	s.later(func() { fail(nil) })
	s.background(ctx, func(ctx context.Context) {
		if err := relay(ctx); ctx.Err() == nil {
			fail(err)
		}
	})
	return ctx
}
