package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

// newPool returns a pool on a new database, closed when the test ends.
func newPool(t testing.TB, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	return poolOn(t, testenv.Postgres(t), change)
}

func poolOn(t testing.TB, url string, change func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 16
	if change != nil {
		change(cfg)
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// newStore makes the tables that cfg names and returns a store of them.
func newStore(t testing.TB, pool *pgxpool.Pool, cfg postgres.Config) *postgres.Store {
	t.Helper()
	if _, err := postgres.Migrate(t.Context(), pool, cfg); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(pool, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// fixture is an empty outbox in a schema of its own.
func fixture(pool *pgxpool.Pool) func(t *testing.T) storetest.OutboxFixture[pgx.Tx] {
	tables := &shelf{pool: pool}
	return func(t *testing.T) storetest.OutboxFixture[pgx.Tx] { return outboxFixtureOf(t, pool, tables.config(t)) }
}

func outboxFixtureOf(t *testing.T, pool *pgxpool.Pool, cfg postgres.Config) storetest.OutboxFixture[pgx.Tx] {
	t.Helper()
	return storetest.OutboxFixture[pgx.Tx]{
		Store:    newStore(t, pool, cfg),
		Begin:    pool.Begin,
		Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
		Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		User:     pool.Config().ConnConfig.User,
	}
}

func TestProducerContract(t *testing.T) {
	t.Parallel()
	storetest.Producer(t, fixture(newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })))
}
