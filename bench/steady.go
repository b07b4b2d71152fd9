package main

import (
	"context"
	"errors"

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
	store, pool, err := s.store(ctx)
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
	s.background(ctx, func(ctx context.Context) { _ = relay.Run(ctx) })
	return s.timed(ctx, func() (int, error) {
		return s.n, errors.Join(concurrently(ctx, 8, s.n, once), untilEmpty(ctx, pool))
	})
}

// handwrittenSteady measures the same by hand.
func handwrittenSteady(ctx context.Context, s *stage) error {
	pool, _, err := s.schema(ctx)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, businessTables); err != nil {
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
	once, err := plain(ctx, &desk{pool: pool, events: 1})
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	s.background(ctx, func(ctx context.Context) {
		if err := relayByHand(ctx, pool, q); ctx.Err() == nil {
			failed <- err
		}
	})
	return s.timed(ctx, func() (int, error) {
		if err := concurrently(ctx, 8, s.n, once); err != nil {
			return 0, err
		}
		for {
			var left bool
			if err := pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM plain_outbox)`).Scan(&left); err != nil || !left {
				return s.n, err
			}
			select {
			case err := <-failed:
				return 0, err
			default:
			}
		}
	})
}
