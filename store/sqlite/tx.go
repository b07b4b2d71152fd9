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

// Transact runs fn in a new transaction that has the write lock, and commits it
// if fn returns nil. It waits for other writers of this process, at most for the busy
// timeout, and then for those of others. The context given to fn marks what runs within
// the transaction: beginning another one with it gives [ErrNested].
func (s *Store) Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, limits{wait: s.busy}, func(ctx context.Context, tx *sql.Tx) error {
		return s.core.RunChecked(ctx, tx, func() error { return fn(ctx, tx) })
	})
}

// limits are how long a transaction may take over what.
type limits struct {
	wait time.Duration // for the write lock
	idle time.Duration // between two statements; 0: for ever
}

func (s *Store) transact(ctx context.Context, l limits, fn func(ctx context.Context, tx *sql.Tx) error) error {
	o := &sqlstore.Owned{}
	ctx, tx, err := s.begin(ctx, o, l)
	if err != nil {
		return fmt.Errorf("begin: %w", &sqlstore.OwnError{Err: err})
	}
	return sqlstore.Run(ctx, o, tx, fn, s.commit)
}

// claiming is the transaction of a handler. SQLite has one isolation level, which is serializable.
func (s *Store) claiming(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, s.limits(c), fn)
}

// begin begins a transaction that has the write lock. It ends with ctx.
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
	// It may be a deferred one. Nothing has been read yet, so it can wait for the lock.
	if err := s.takeLock(ctx, tx); err != nil {
		return nil, nil, errors.Join(err, tx.Rollback())
	}
	return ctx, tx, nil
}

// commit commits tx, and tells apart what a failure means.
func (s *Store) commit(ctx context.Context, o *sqlstore.Owned, tx *sql.Tx) error {
	return s.core.Commit(ctx, o, tx, func(err error) error {
		// After an I/O error the log may be found whole after a restart.
		return &sqlstore.CommitError{Err: err, Unknown: primaryCode(err) == codeIOErr}
	})
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
	return sqlstore.Run(inner, nil, tx, fn, s.commit)
}

// read runs fn in a read-only transaction: everything that it reads is of one moment.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.core.ReadOnly(ctx, sql.TxOptions{}, fn)
}

// LockKeys takes the write lock, if tx does not have it yet: there is one writer
// at a time, so it covers every key.
func (s *Store) LockKeys(ctx context.Context, tx *sql.Tx, _ []string) error {
	return s.takeLock(ctx, tx)
}

func (s *Store) takeLock(ctx context.Context, tx *sql.Tx) error {
	_, err := s.core.Exec(ctx, tx, lockStmt)
	return err
}
