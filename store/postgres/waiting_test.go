package postgres_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/producer"
)

// TestEventsAreRolledBackWithASavepointOfTheCaller: events that wait for the COMMIT would outlive
// it.
func TestEventsAreRolledBackWithASavepointOfTheCaller(t *testing.T) {
	t.Parallel()
	write := func(ctx context.Context, w *producer.Writer[pgx.Tx], n int) error {
		_, err := w.Write(ctx, placed(n))
		return err
	}
	for name, fn := range map[string]func(ctx context.Context, w *producer.Writer[pgx.Tx]) error{
		"of pgx": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			sp, err := w.DB().Begin(ctx)
			if err != nil {
				return err
			}
			return errors.Join(write(ctx, w, 2), sp.Rollback(ctx))
		},
		"within another": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			outer, err := w.DB().Begin(ctx)
			if err != nil {
				return err
			}
			inner, err := outer.Begin(ctx)
			if err != nil {
				return err
			}
			return errors.Join(inner.Commit(ctx), write(ctx, w, 2), outer.Rollback(ctx))
		},
		"by a statement": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			if _, err := w.DB().Exec(ctx, "SAVEPOINT mine"); err != nil {
				return err
			}
			err := write(ctx, w, 2)
			_, back := w.DB().Exec(ctx, "ROLLBACK TO mine")
			return errors.Join(err, back)
		},
		"on the connection": func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			conn := w.DB().Conn()
			if _, err := conn.Exec(ctx, "SAVEPOINT mine"); err != nil {
				return err
			}
			err := write(ctx, w, 2)
			_, back := conn.Exec(ctx, "ROLLBACK TO mine")
			return errors.Join(err, back)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTransactRig(t, pgx.QueryExecModeCacheStatement, nil)
			r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				return errors.Join(write(ctx, w, 1), fn(ctx, w), write(ctx, w, 3))
			}))
			if got := value[string](r.rig, "SELECT string_agg(version::text, ',' ORDER BY id) FROM "+r.names.Table("outbox_events")); got != "1,3" {
				t.Errorf("the outbox has versions %s, want 1,3", got)
			}
		})
	}
}

// TestFirstStatementFailsAsByItself: it is sent with the BEGIN, and the caller must not see a
// difference.
func TestFirstStatementFailsAsByItself(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		sql   string
		arg   any
		goes  bool // the transaction goes on
		state string
	}{
		"an argument that cannot be encoded": {sql: insertOrder, arg: make(chan int), goes: true},
		"a statement with an error":          {sql: "INSERT INTO nowhere VALUES ($1)", arg: 1, state: "42P01"},
		"a statement that fails":             {sql: "INSERT INTO orders VALUES (1 / $1::int)", arg: 0, state: "22012"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newTransactRig(t, pgx.QueryExecModeCacheStatement, nil)
			err := r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				_, err := w.DB().Exec(ctx, c.sql, c.arg)
				if err == nil {
					t.Error("no error")
				}
				if got := stateOf(err); got != c.state {
					t.Errorf("SQLSTATE is %q, want %q (%v)", got, c.state, err)
				}
				_, err = w.DB().Exec(ctx, insertOrder, 1)
				if (err == nil) != c.goes {
					t.Errorf("the next statement: %v", err)
				}
				_, write := w.Write(ctx, placed(1))
				return errors.Join(err, write)
			})
			if (err == nil) != c.goes {
				t.Errorf("Transact: %v", err)
			}
			want := 0
			if c.goes {
				want = 1
			}
			if n := r.orders(); n != want {
				t.Errorf("%d orders, want %d", n, want)
			}
		})
	}
}

// TestFirstStatementTellsWhatItChanged: the tag is that of the statement, not of the BEGIN.
func TestFirstStatementTellsWhatItChanged(t *testing.T) {
	t.Parallel()
	inEveryMode(t, func(r *transactRig) {
		r.ok(r.transact(func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
			tag, err := w.DB().Exec(ctx, "DELETE FROM orders WHERE id > $1::int", 0)
			if err != nil || tag.String() != "DELETE 0" {
				r.Errorf("%v, %v", tag, err)
			}
			return err
		}))
	})
}

func stateOf(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
