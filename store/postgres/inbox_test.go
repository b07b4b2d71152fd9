package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

// inboxFixture is an empty inbox in a schema of its own, with a table of effects.
func inboxFixture(pool *pgxpool.Pool, prefix string) func(t *testing.T) storetest.InboxFixture[pgx.Tx] {
	tables := &shelf{pool: pool, prefix: prefix}
	return func(t *testing.T) storetest.InboxFixture[pgx.Tx] { return inboxFixtureOf(t, pool, tables.config(t)) }
}

func inboxFixtureOf(t *testing.T, pool *pgxpool.Pool, cfg postgres.Config) storetest.InboxFixture[pgx.Tx] {
	t.Helper()
	store := newStore(t, pool, cfg)
	effects := pgx.Identifier{cfg.Schema, "effects"}.Sanitize()
	_, err := pool.Exec(t.Context(), "CREATE TABLE IF NOT EXISTS "+effects+" (n bigint GENERATED ALWAYS AS IDENTITY, name text)")
	if err != nil {
		t.Fatal(err)
	}
	return storetest.InboxFixture[pgx.Tx]{
		Store: store,
		Effect: func(ctx context.Context, tx pgx.Tx, name string) error {
			_, err := tx.Exec(ctx, "INSERT INTO "+effects+" (name) VALUES ($1)", name)
			return err
		},
		Effects: func(ctx context.Context) ([]string, error) {
			rows, err := pool.Query(ctx, "SELECT name FROM "+effects+" ORDER BY n")
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		},
		Break: func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "SELECT 1/0")
			return err
		},
		ErrorsDoom: true,
		User:       pool.Config().ConnConfig.User,
	}
}

func TestEffectContract(t *testing.T) {
	t.Parallel()
	storetest.Effects(t, inboxFixture(newPool(t, nil), ""))
}

func TestConsumerContract(t *testing.T) {
	t.Parallel()
	storetest.Consumer(t, inboxFixture(newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 }), ""))
}
