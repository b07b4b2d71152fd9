package postgres_test

import (
	"context"
	"database/sql"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

const misuseState = `SELECT concat_ws(', ', current_user, session_user, current_setting('search_path'), current_setting('work_mem'),
	current_setting('transaction_isolation'))`

var misuseChanges = map[string]storetest.MisuseChange{
	"changes a setting for the transaction":          {SQL: "SET LOCAL work_mem = '5MB'"},
	"changes a setting for the session":              {SQL: "SET work_mem = '5MB'", Says: "SET LOCAL"},
	"takes another role for the transaction":         {SQL: "SET LOCAL ROLE pg_monitor", Says: "permission denied"},
	"takes another role for the session":             {SQL: "SET ROLE pg_monitor", Says: "SET LOCAL"},
	"takes another user for the session":             {SQL: "SET SESSION AUTHORIZATION pg_monitor", Says: "SET LOCAL"},
	"looks for names elsewhere in the transaction":   {SQL: "SET LOCAL search_path = pg_catalog"},
	"looks for names elsewhere in the session":       {SQL: "SELECT set_config('search_path', 'pg_catalog', false)", Says: "SET LOCAL"},
	"changes the isolation level of the transaction": {SQL: "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE", Says: "had failed"}, // not behind a statement
	"changes the isolation level of the session":     {SQL: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL SERIALIZABLE", Says: "SET LOCAL"},
	"defines a table":                                {SQL: "CREATE TEMPORARY TABLE defined (id int) ON COMMIT DROP"},
	"drops a table":                                  {SQL: "DROP TABLE IF EXISTS nothing"},
	"locks a table":                                  {SQL: "LOCK TABLE pg_am IN ACCESS SHARE MODE"},
	"begins another transaction":                     {SQL: "BEGIN"}, // it is a warning
}

func withoutMisuse(more map[string]string) map[string]string {
	without := map[string]string{
		"drops a table past the store":           "PostgreSQL rolls a definition back",
		"drops a table under a setting for that": "settings are for the transaction",
		"has each statement committed":           "PostgreSQL has no such setting",
	}
	maps.Copy(without, more)
	return without
}

func TestMisuseContract(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
	open := inboxFixture(pool, "")
	storetest.Misuse(t, func(t *testing.T) storetest.MisuseFixture[pgx.Tx] {
		i := open(t)
		return storetest.MisuseFixture[pgx.Tx]{
			Store: i.Store.(*postgres.Store), Effect: i.Effect, Effects: i.Effects, Break: i.Break, ErrorsDoom: i.ErrorsDoom,
			Exec:     func(ctx context.Context, tx pgx.Tx, sql string) error { _, err := tx.Exec(ctx, sql); return err },
			Commit:   func(ctx context.Context, tx pgx.Tx) error { return tx.Commit(ctx) },
			Rollback: func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
			LeaveOpen: func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Query(ctx, "SELECT generate_series(1, 3)") //nolint:sqlclosecheck // that is the point
				return err
			},
			LeaveBatchOpen: func(ctx context.Context, tx pgx.Tx) error {
				b := &pgx.Batch{}
				b.Queue("SELECT 1")
				b.Queue("SELECT 2")
				_, err := tx.SendBatch(ctx, b).Exec() // of the first
				return err
			},
			Past: func(ctx context.Context, tx pgx.Tx, sql ...string) error {
				return runOn(ctx, tx.Conn(), sql) // asked for again, it would tell that no transaction is open
			},
			State: func(ctx context.Context, tx pgx.Tx) (state string, err error) {
				err = tx.QueryRow(ctx, misuseState).Scan(&state)
				return state, err
			},
			Changes: misuseChanges, Without: withoutMisuse(nil),
		}
	})
}

func runOn(ctx context.Context, conn *pgx.Conn, sql []string) error {
	for _, statement := range sql {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func TestMisuseContractOfDatabaseSQL(t *testing.T) {
	t.Parallel()
	pool := newPool(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 40 })
	tables := &shelf{pool: pool}
	storetest.Misuse(t, func(t *testing.T) storetest.MisuseFixture[*sql.Tx] {
		i := sqlInbox(t, pool, tables.config(t))
		return storetest.MisuseFixture[*sql.Tx]{
			Store: i.Store.(*postgres.SQLStore), Effect: i.Effect, Effects: i.Effects, Break: i.Break, ErrorsDoom: i.ErrorsDoom,
			Exec: func(ctx context.Context, tx *sql.Tx, statement string) error {
				_, err := tx.ExecContext(ctx, statement)
				return err
			},
			Commit:   func(_ context.Context, tx *sql.Tx) error { return tx.Commit() },
			Rollback: func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() },
			LeaveOpen: func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.QueryContext(ctx, "SELECT generate_series(1, 3)") //nolint:rowserrcheck,sqlclosecheck // that is the point
				return err
			},
			Past: func(ctx context.Context, tx *sql.Tx, statements ...string) error {
				_, err := tx.ExecContext(ctx, "SELECT 1", rewriter{statements})
				return err
			},
			State: func(ctx context.Context, tx *sql.Tx) (state string, err error) {
				err = tx.QueryRowContext(ctx, misuseState).Scan(&state)
				return state, err
			},
			Changes: misuseChanges,
			Without: withoutMisuse(map[string]string{"leaves the results of a batch open": "database/sql has no batches"}),
		}
	})
}

// rewriter is an argument that is given the connection, and runs statements on it.
type rewriter struct{ statements []string }

// RewriteQuery implements [pgx.QueryRewriter].
func (r rewriter) RewriteQuery(ctx context.Context, conn *pgx.Conn, sql string, _ []any) (string, []any, error) {
	return sql, nil, runOn(ctx, conn, r.statements)
}
