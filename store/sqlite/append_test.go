package sqlite_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

func TestConflictCannotBeSwallowedIntoACommit(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	run(t, db, `CREATE TABLE orders (id TEXT)`)
	write(t, s, record("a", 1, "one"))

	for name, swallow := range map[string]func(ctx context.Context, tx *sql.Tx, conflict func(*sql.Tx) error) error{
		"ignored": func(_ context.Context, tx *sql.Tx, conflict func(*sql.Tx) error) error {
			if err := conflict(tx); !errors.Is(err, outbox.ErrConflict) {
				t.Errorf("Append() = %v, want ErrConflict", err)
			}
			return nil
		},
		"within a savepoint of the caller's": func(ctx context.Context, tx *sql.Tx, conflict func(*sql.Tx) error) error {
			run(t, tx, `SAVEPOINT mine`)
			_ = conflict(tx)
			_, _ = tx.ExecContext(ctx, `ROLLBACK TO mine`)
			return nil
		},
		"within a savepoint of the store's": func(ctx context.Context, tx *sql.Tx, conflict func(*sql.Tx) error) error {
			_ = s.Savepoint(ctx, tx, func(_ context.Context, tx *sql.Tx) error { return conflict(tx) })
			return nil
		},
	} {
		err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			run(t, tx, `INSERT INTO orders VALUES ('before')`)
			err := swallow(ctx, tx, func(tx *sql.Tx) error {
				_, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("b", 1, "new"), record("a", 1, "other")})
				return err
			})
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders VALUES ('after')`); err == nil {
				t.Errorf("%s: a statement after the conflict was accepted", name)
			}
			return err
		})
		if err == nil {
			t.Errorf("%s: the transaction was committed", name)
		}
	}
	if n := number(t, db, `SELECT count(*) FROM orders`); n != 0 {
		t.Errorf("%d business changes were committed", n)
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_events`); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestConflictInACallersTransactionFailsItsCommit(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	write(t, s, record("a", 1, "one"))
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Append(t.Context(), tx, uuid.New(), []outbox.Record{record("a", 1, "other")})
	if !errors.Is(err, outbox.ErrConflict) {
		t.Errorf("Append() = %v, want ErrConflict", err)
	}
	if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("Commit() = %v, want ErrTxDone", err)
	}
}

func TestEqualEventIsKnownAndNotQueuedAgain(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	write(t, s, record("a", 1, "one"))
	err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		known, err := s.Append(ctx, tx, uuid.New(), []outbox.Record{record("a", 1, "one"), record("a", 2, "two")})
		if err == nil && (!known[0] || known[1]) {
			t.Errorf("known = %v, want [true false]", known)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_queue`); n != 2 {
		t.Errorf("%d queue rows, want 2", n)
	}
}

func TestIDOfARemovedNewestEventIsNotGivenAwayAgain(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	write(t, s, record("a", 1, "one"), record("a", 2, "two"))
	run(t, db, `DELETE FROM boxpair_outbox_queue`)
	run(t, db, `DELETE FROM boxpair_outbox_events`)
	write(t, s, record("a", 3, "three"))
	if n := number(t, db, `SELECT max(id) FROM boxpair_outbox_events`); n != 3 {
		t.Errorf("the next event has ID %d, want 3", n)
	}
}

func TestSecondWriterIsRefusedAndForgottenWithItsTransaction(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	for range 20 {
		err := s.Transact(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
			first, second := uuid.New(), uuid.New()
			if _, err := s.Append(ctx, tx, first, []outbox.Record{record("a", 1, "one")}); err != nil {
				return err
			}
			if _, err := s.Append(ctx, tx, second, []outbox.Record{record("a", 2, "two")}); !errors.Is(err, outbox.ErrSecondWriter) {
				t.Errorf("Append() = %v, want ErrSecondWriter", err)
			}
			_, err := s.Append(ctx, tx, first, []outbox.Record{record("a", 3, "three")})
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_events`); n != 2 {
		t.Errorf("%d events, want 2", n)
	}
	deadline := time.Now().Add(10 * time.Second)
	for sqlite.TiedTransactions(s) > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%d transactions are still remembered", sqlite.TiedTransactions(s))
		}
		runtime.GC()
	}
}

func TestReadBeforeWriteInADeferredTransactionIsRetryable(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true}) // which is how to get a deferred one
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := tx.QueryRow(`SELECT count(*) FROM boxpair_outbox_events`).Scan(new(int)); err != nil {
		t.Fatal(err)
	}
	write(t, s, record("a", 1, "one"))
	_, err = s.Append(t.Context(), tx, uuid.New(), []outbox.Record{record("b", 1, "one")})
	if !s.Retryable(err) {
		t.Errorf("Append() = %v, want a retryable error", err)
	}
	if err := tx.Commit(); err == nil {
		t.Error("the transaction was committed")
	}
}
