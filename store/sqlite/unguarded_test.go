package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

// unguarded returns a store over a migrated database that was not opened by Open, whose
// transactions are deferred.
func unguarded(t *testing.T) (*sqlite.Store, *sql.DB) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(20000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	cfg := sqlite.Config{Unguarded: true}
	if _, err := sqlite.Migrate(t.Context(), db, cfg); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.New(db, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s, db
}

func TestUnguardedWritersOfOneEventWriteItOnce(t *testing.T) {
	t.Parallel()
	s, db := unguarded(t)
	const n = 8
	errs := make(chan error, n)
	for range n {
		go func() {
			errs <- s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
				if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM boxpair_outbox_events`).Scan(new(int)); err != nil {
					return err
				}
				_, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("a", 1, "one")})
				return err
			})
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_queue`); n != 1 {
		t.Errorf("%d queue rows, want 1", n)
	}
}

func TestUnguardedConflictCannotBeCommitted(t *testing.T) {
	t.Parallel()
	s, db := unguarded(t)
	write(t, s, record("a", 1, "one"))
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		run(t, tx, `CREATE TABLE orders (id TEXT)`)
		_, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("a", 1, "other")})
		if !errors.Is(err, outbox.ErrConflict) {
			t.Errorf("Append() = %v, want ErrConflict", err)
		}
		return nil
	})
	if err == nil {
		t.Error("the transaction was committed")
	}
	if n := number(t, db, `SELECT count(*) FROM sqlite_master WHERE name = 'orders'`); n != 0 {
		t.Error("the change is there")
	}
}

func TestUnguardedCopiesOfOneMessageHaveOneEffect(t *testing.T) {
	t.Parallel()
	s, db := unguarded(t)
	run(t, db, `CREATE TABLE effects (x)`)
	c := claim(t, s)
	const n = 8
	verdicts := make(chan inbox.Verdict, n)
	for range n {
		go func() {
			v, err := s.Apply(t.Context(), c, func(ctx context.Context, tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects VALUES (1)`)
				return err
			})
			if err != nil {
				t.Error(err)
			}
			verdicts <- v
		}()
	}
	applied := 0
	for range n {
		switch v := <-verdicts; v {
		case inbox.Applied:
			applied++
		case inbox.Duplicate:
		default:
			t.Errorf("verdict is %v", v)
		}
	}
	if effects := number(t, db, `SELECT count(*) FROM effects`); applied != 1 || effects != 1 {
		t.Errorf("applied %d times, %d effects", applied, effects)
	}
}
