package postgres_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

func TestMisuseContract(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
	open := inboxFixture(pool, "")
	storetest.Misuse(t, func(t *testing.T) storetest.MisuseFixture[pgx.Tx] {
		i := open(t)
		return storetest.MisuseFixture[pgx.Tx]{
			Store: i.Store.(*postgres.Store), Effect: i.Effect, Effects: i.Effects, Chains: true,
			Exec:     func(ctx context.Context, tx pgx.Tx, sql string) error { _, err := tx.Exec(ctx, sql); return err },
			Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
			Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
			LeaveOpen: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, "SELECT generate_series(1, 3)") //nolint:sqlclosecheck // that is the point
				return err
			},
			Past: func(ctx context.Context, tx pgx.Tx, sql ...string) error {
				conn := tx.Conn() // asked for again, it would tell that no transaction is open
				for _, statement := range sql {
					if _, err := conn.Exec(ctx, statement); err != nil {
						return err
					}
				}
				return nil
			},
		}
	})
}
