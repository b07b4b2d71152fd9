package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
)

// retainedSize returns the number of delivered events in a log for a target of n: fewer in a run of
// fewer messages, and few with -quick.
func (s *stage) retainedSize(n int) int {
	if s.quick {
		return n
	}
	return s.scaled(n)
}

// retained returns an outbox whose log holds n delivered events. Its making takes minutes, so the
// outbox stays for the next measurement with n events.
func (s *stage) retained(ctx context.Context, n int) (*postgres.Store, *pgxpool.Pool, string, error) {
	schema := fmt.Sprintf("bench_retained_%d", n)
	s.beside = n
	pool, err := s.pool(ctx, schema)
	if err != nil {
		return nil, nil, "", err
	}
	if !s.keep {
		s.later(func() { _ = dropRetained(context.WithoutCancel(ctx), pool, schema) })
	}
	var there bool
	err = pool.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, schema+".filled").Scan(&there)
	if err != nil {
		return nil, nil, "", err
	}
	if there {
		// Events left by an earlier measurement of enqueuing count as delivered.
		if _, err := pool.Exec(ctx, `TRUNCATE outbox_queue`); err != nil {
			return nil, nil, "", fmt.Errorf("empty the queue: %w", err)
		}
		store, err := postgres.New(pool, postgres.Config{Schema: schema})
		return store, pool, schema, err
	}
	defer s.spend("retained")()
	if _, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE; CREATE SCHEMA `+schema); err != nil {
		return nil, nil, "", err
	}
	store, err := s.migrated(ctx, pool, schema)
	if err != nil {
		return nil, nil, "", err
	}
	if err := fillLog(ctx, pool, n, "i"); err != nil {
		return nil, nil, "", err
	}
	_, err = pool.Exec(ctx, `CREATE TABLE filled ()`)
	return store, pool, schema, err
}

// fillLog writes n events into an empty log. The number of the key of event i is an expression of SQL.
func fillLog(ctx context.Context, pool *pgxpool.Pool, n int, key string, then ...string) error {
	for _, sql := range slices.Concat([]string{
		`ALTER TABLE outbox_events DROP CONSTRAINT outbox_events_dispatch`, // checked once, at the end
		fmt.Sprintf(`INSERT INTO outbox_events (dispatch_id, digest, shard, topic, key, producer, source, version, payload)
			SELECT md5('retained ' || i)::uuid, decode(md5('content ' || i), 'hex'), k %% 64, 'topic-0', 'key-' || k, 'bench', 'retained', i,
				convert_to(repeat('x', 512), 'UTF8') FROM generate_series(1, %d) i, LATERAL (SELECT %s AS k) key`, n, key),
		`ALTER TABLE outbox_events ADD CONSTRAINT outbox_events_dispatch UNIQUE (dispatch_id)`,
	}, then, []string{`VACUUM ANALYZE outbox_events, outbox_queue`, `CHECKPOINT`}) {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fill the log: %w", err)
		}
	}
	return nil
}

func dropRetained(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	_, err := pool.Exec(ctx, `DROP SCHEMA IF EXISTS `+schema+` CASCADE`)
	return err
}
