package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// lockStmt takes the write lock without changing anything.
const lockStmt = `UPDATE {outbox_shards} SET shard = shard WHERE false`

// Transact implements [outbox.EventStore]. The transaction has the write lock from its start: it
// waits for other writers of this process and then of other processes, at most for the busy
// timeout. Beginning another transaction with the context of fn gives [ErrNested].
func (s *Store) Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, limits{wait: s.busy}, func(ctx context.Context, tx *sql.Tx) error {
		return s.core.RunChecked(ctx, tx, func() error { return fn(ctx, tx) })
	})
}

// limits bound the waits of a transaction.
type limits struct {
	wait time.Duration // for the write lock
	idle time.Duration // between two statements; 0 is no bound
}

func (s *Store) transact(ctx context.Context, l limits, fn func(ctx context.Context, tx *sql.Tx) error) error {
	o := &sqlstore.Owned{}
	ctx, tx, err := s.begin(ctx, o, l)
	if err != nil {
		return fmt.Errorf("begin: %w", &sqlstore.OwnError{Err: err})
	}
	return sqlstore.Run(ctx, o, tx, fn, s.commit)
}

// claiming is the transaction of a handler. The only isolation level is serializable.
func (s *Store) claiming(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, s.limits(c), fn)
}

// begin begins a transaction with the write lock. The transaction ends with ctx.
func (s *Store) begin(ctx context.Context, o *sqlstore.Owned, l limits) (context.Context, *sql.Tx, error) {
	if s.gate == nil {
		return s.beginUnguarded(ctx)
	}
	t, err := s.gate.enter(ctx, l.wait)
	if err != nil {
		return nil, nil, err
	}
	t.idle = l.idle
	ctx = withTurn(ctx, t)
	tx, err := s.db.BeginTx(sqlstore.WithOwned(ctx, o), nil)
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
	// The transaction may be deferred. It has not read anything yet, so it can wait for the lock.
	if err := s.takeLock(ctx, tx); err != nil {
		return nil, nil, errors.Join(err, tx.Rollback())
	}
	return ctx, tx, nil
}

// commit commits tx, and classifies a failure.
func (s *Store) commit(ctx context.Context, o *sqlstore.Owned, tx *sql.Tx) error {
	return s.core.Commit(ctx, o, tx, func(err error) error {
		// After an I/O error the log may be found whole after a restart.
		return &sqlstore.CommitError{Err: err, Unknown: primaryCode(err) == codeIOErr}
	})
}

// write runs fn in a short transaction of the store's own, which has the write lock from its start.
// Once begun, the transaction does not end with ctx.
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
	return sqlstore.Run(inner, nil, tx, fn, s.commit)
}

// read runs fn in a read-only transaction on one snapshot.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.core.ReadOnly(ctx, sql.TxOptions{}, fn)
}

// LockKeys implements [outbox.EventStore]. It takes the write lock, unless tx has it already: with
// one writer at a time, the write lock covers every key.
func (s *Store) LockKeys(ctx context.Context, tx *sql.Tx, _ []string) error {
	return s.takeLock(ctx, tx)
}

func (s *Store) takeLock(ctx context.Context, tx *sql.Tx) error {
	_, err := s.core.Exec(ctx, tx, lockStmt)
	return err
}
