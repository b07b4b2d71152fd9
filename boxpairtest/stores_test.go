package boxpairtest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

type bothStores[TX any] interface {
	inbox.Store[TX]
	outbox.Store[TX]
}

// visits are rows that each handler of these tests writes.
const visits = `CREATE TABLE visits (id INTEGER)`

// explored explores a handler with a fault before its last statement, and wants the fault found
// there.
func explored[TX any](t *testing.T, id string, at int, store bothStores[TX], db *sql.DB, cfg consumer.HandlerConfig, steps []func(ctx context.Context, tx TX) error) {
	t.Helper()
	var mails int
	findings, err := found(t, func(testing.TB) Subject {
		handle := func(ctx context.Context, w *consumer.Work[TX], _ *message.Message) error {
			for i, step := range steps {
				if i == len(steps)-1 {
					mails++
				}
				if err := step(ctx, w.DB()); err != nil {
					return err
				}
			}
			_, err := w.Write(ctx, producer.Event{Topic: "visited"})
			return err
		}
		tables := Tables(db)
		return Subject{
			Start: func() (message.NoPublishHandlerFunc, error) {
				outbox, err := producer.New[TX](store, producer.Config{Name: "p", Logger: quiet})
				ok(t, err)
				inbox, err := consumer.New[TX](store, consumer.Config{Service: "s", Logger: quiet}, consumer.WithOutbox(outbox))
				ok(t, err)
				h, err := inbox.Handle("visit", handle, cfg)
				ok(t, err)
				return h.Consume, nil
			},
			Events: []producer.Event{placed(id)},
			State: func(ctx context.Context) (any, error) {
				rows, err := tables(ctx)
				return []any{rows, mails}, err
			},
		}
	})
	ok(t, err)
	want := fmt.Sprintf("an effect outside of the transaction, before statement %d", at)
	if len(findings) != 1 || !strings.Contains(findings[0], want) {
		t.Errorf("want %s, found\n%s", want, strings.Join(findings, "\n"))
	}
	state, err := Tables(db)(t.Context())
	ok(t, err)
	if rows := state.([]string); len(rows) != len(steps) {
		t.Errorf("visits: %q", rows)
	}
}

// newPostgres returns a database with the library's tables and visits.
func newPostgres(t *testing.T) (*pgxpool.Pool, *sql.DB) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), testenv.Postgres(t))
	ok(t, err)
	t.Cleanup(pool.Close)
	_, err = postgres.Migrate(t.Context(), pool, postgres.Config{})
	ok(t, err)
	db := stdlib.OpenDBFromPool(pool)
	t.Cleanup(func() { _ = db.Close() })
	execute(t, db, visits)
	return pool, db
}

func TestEachWayToSendAStatementIsSeen(t *testing.T) {
	t.Parallel()
	pool, db := newPostgres(t)
	store, err := postgres.New(pool, postgres.Config{})
	ok(t, err)
	const insert = `INSERT INTO visits VALUES ($1)`
	ways := []func(ctx context.Context, tx pgx.Tx) error{
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insert, 1)
			return err
		},
		func(ctx context.Context, tx pgx.Tx) error {
			rows, err := tx.Query(ctx, insert+` RETURNING id`, 2)
			if err == nil {
				rows.Close()
				err = rows.Err()
			}
			return err
		},
		func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, insert+` RETURNING id`, 3).Scan(new(int))
		},
		func(ctx context.Context, tx pgx.Tx) error {
			b := &pgx.Batch{}
			b.Queue(insert, 4)
			return tx.SendBatch(ctx, b).Close()
		},
		func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"visits"}, []string{"id"}, pgx.CopyFromRows([][]any{{5}}))
			return err
		},
		func(ctx context.Context, tx pgx.Tx) error {
			return pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, insert, 6)
				return err
			})
		},
	}
	for name, cfg := range map[string]consumer.HandlerConfig{"alone": {}, "optimistic": {Optimistic: true}, "in a group": {Group: consumer.GroupConfig{Size: 10}}} {
		for i := range ways {
			execute(t, db, `TRUNCATE visits`)
			at := len(ways) + 2 // the way with a savepoint has three statements
			if i == len(ways)-1 {
				at = len(ways)
			}
			explored(t, fmt.Sprintf("%s, way %d", name, i), at, store, db, cfg, slices.Concat(ways[i+1:], ways[:i+1]))
		}
	}
}

// plainSteps are statements through database/sql, with a placeholder of the database.
func plainSteps(placeholder string) []func(ctx context.Context, tx *sql.Tx) error {
	insert := `INSERT INTO visits VALUES (` + placeholder + `)`
	return []func(ctx context.Context, tx *sql.Tx) error{
		func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, insert, 1)
			return err
		},
		func(ctx context.Context, tx *sql.Tx) error {
			stmt, err := tx.PrepareContext(ctx, insert)
			if err != nil {
				return err
			}
			defer func() { _ = stmt.Close() }()
			_, err = stmt.ExecContext(ctx, 2)
			return err
		},
	}
}

func TestStatementsOfDatabaseSQLAreSeen(t *testing.T) {
	t.Parallel()
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		pool, db := newPostgres(t)
		store, err := postgres.NewSQL(pool, postgres.Config{})
		ok(t, err)
		explored(t, "1", 1, store, db, consumer.HandlerConfig{}, plainSteps("$1")[:1])
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		db, store := SQLite(t)
		execute(t, db, visits)
		explored(t, "1", 2, store, db, consumer.HandlerConfig{}, plainSteps("?"))
	})
	t.Run("MySQL", func(t *testing.T) {
		t.Parallel()
		db, err := mysql.Open(testenv.MySQL(t))
		ok(t, err)
		t.Cleanup(func() { _ = db.Close() })
		_, err = mysql.Migrate(t.Context(), db, mysql.Config{})
		ok(t, err)
		store, err := mysql.New(db, mysql.Config{})
		ok(t, err)
		execute(t, db, visits)
		explored(t, "1", 2, store, db, consumer.HandlerConfig{}, plainSteps("?"))
	})
}
