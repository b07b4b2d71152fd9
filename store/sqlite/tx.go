package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// savepoint is the name of this package's savepoints. Nested ones may share it: SQLite
// takes the innermost.
const savepoint = `"boxpair_savepoint"`

// lockStmt takes the write lock without changing anything.
const lockStmt = `UPDATE {outbox_shards} SET shard = shard WHERE false`

// Transact runs fn in a new transaction that has the write lock, and commits it
// if fn returns nil. It waits for other writers of this process, at most for the busy
// timeout, and then for those of others. The context given to fn marks what runs within
// the transaction: beginning another one with it gives [ErrNested].
func (s *Store) Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, limits{wait: s.busy}, fn)
}

// limits are how long a transaction may take over what.
type limits struct {
	wait time.Duration // for the write lock
	idle time.Duration // between two statements; 0: for ever
}

func (s *Store) transact(ctx context.Context, l limits, fn func(ctx context.Context, tx *sql.Tx) error) error {
	ctx, tx, err := s.begin(ctx, l)
	if err != nil {
		return fmt.Errorf("begin: %w", &ownError{err})
	}
	// After fn has failed, panicked or called Goexit; after a COMMIT it does nothing.
	defer func() { _ = tx.Rollback() }()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return s.commit(ctx, tx)
}

// begin begins a transaction that has the write lock. It ends with ctx.
func (s *Store) begin(ctx context.Context, l limits) (context.Context, *sql.Tx, error) {
	if s.gate == nil {
		return s.beginUnguarded(ctx)
	}
	t, err := s.gate.enter(ctx, l.wait)
	if err != nil {
		return nil, nil, err
	}
	t.idle = l.idle
	ctx = withTurn(ctx, t)
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		t.leave()
		return nil, nil, err
	}
	return ctx, tx, nil
}

func (s *Store) beginUnguarded(ctx context.Context) (context.Context, *sql.Tx, error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	// It may be a deferred one. Nothing has been read yet, so it can wait for the lock.
	if _, err := s.exec(ctx, tx, lockStmt); err != nil {
		return nil, nil, errors.Join(err, tx.Rollback())
	}
	return ctx, tx, nil
}

// errEnded is for a function that has committed or rolled back by itself.
var errEnded = errors.New("commit: the transaction was ended by the function that it was given to")

// commit commits tx, and tells apart what a failure means.
func (s *Store) commit(ctx context.Context, tx *sql.Tx) error {
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone) && s.writers.abandoned(tx):
		return &commitError{err: errors.New("a write of events had failed")}
	case ctx.Err() != nil && (errors.Is(err, sql.ErrTxDone) || errors.Is(err, ctx.Err())):
		return fmt.Errorf("commit: %w", context.Cause(ctx)) // database/sql has rolled back
	case errors.Is(err, sql.ErrTxDone):
		return errEnded
	case primaryCode(err) == codeIOErr:
		return &commitError{err: err, unknown: true}
	default:
		return &commitError{err: err}
	}
}

// write runs fn in a short transaction of the store's own, which has the write lock and,
// once begun, does not end with ctx.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	inner := context.WithoutCancel(ctx)
	if s.gate == nil {
		return s.transact(inner, limits{}, fn)
	}
	t, err := s.gate.enter(ctx, s.busy)
	if err != nil {
		return err
	}
	defer t.leave()
	t.wait = ctx
	inner = withTurn(inner, t)
	tx, err := s.db.BeginTx(inner, nil)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(inner, tx); err != nil {
		return err
	}
	return s.commit(inner, tx)
}

// read runs fn in a read-only transaction: everything that it reads is of one moment.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	return fn(ctx, tx)
}

// Savepoint runs fn within a savepoint of tx.
func (s *Store) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error) (err error) {
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+savepoint); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	released := false
	defer func() {
		if released {
			return
		}
		if failed := undo(ctx, tx); failed != nil {
			err = errors.Join(err, failed)
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "RELEASE "+savepoint); err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	released = true
	return nil
}

// undo rolls back to the savepoint. If that cannot be done, all of tx is rolled
// back, since what the savepoint holds must not be committed.
func undo(ctx context.Context, tx *sql.Tx) error {
	ctx = context.WithoutCancel(ctx)
	_, err := tx.ExecContext(ctx, "ROLLBACK TO "+savepoint)
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE "+savepoint)
	}
	if err == nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, ErrTransactionLost) {
		return nil // a transaction that is gone needs nothing undone
	}
	return errors.Join(fmt.Errorf("roll back to savepoint: %w", err), tx.Rollback())
}

// LockKeys takes the write lock, if tx does not have it yet: there is one writer
// at a time, so it covers every key.
func (s *Store) LockKeys(ctx context.Context, tx *sql.Tx, _ []string) error {
	_, err := s.exec(ctx, tx, lockStmt)
	return err
}
