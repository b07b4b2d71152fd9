package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

const (
	// ownIdle bounds the idle time of a transaction of the store's own. Such a transaction is idle
	// only if this process was stopped, and then must not keep its locks. ownIdle is shorter than a
	// lease.
	ownIdle = 5 * time.Second
	// ownAttempts is the number of attempts at a transaction of the store's own that meets
	// deadlocks.
	ownAttempts = 6
	// slots is the number of locks that all keys share.
	slots = 4096
)

// Transact implements [outbox.EventStore] at READ COMMITTED.
func (s *Store) Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, limits{}, nil, func(ctx context.Context, tx *sql.Tx) error {
		return s.core.RunChecked(ctx, tx, func() error { return fn(ctx, tx) })
	})
}

func (s *Store) transact(ctx context.Context, l limits, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	o := &sqlstore.Owned{}
	tx, err := s.db.BeginTx(sqlstore.WithOwned(withLimits(ctx, l), o), opts)
	if err != nil {
		return fmt.Errorf("begin: %w", &sqlstore.OwnError{Err: err})
	}
	return sqlstore.Run(ctx, o, tx, fn, s.commit)
}

// claiming is the transaction of a handler.
func (s *Store) claiming(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, limits{lock: c.LockTimeout, idle: c.IdleTimeout}, isolation(c.Isolation), fn)
}

// commit commits tx, and classifies a failure.
func (s *Store) commit(ctx context.Context, o *sqlstore.Owned, tx *sql.Tx) error {
	if ctx.Err() != nil {
		return fmt.Errorf("before commit: %w", context.Cause(ctx))
	}
	return s.core.Commit(ctx, o, tx, func(err error) error {
		switch {
		case errors.Is(err, ErrTransactionLost), endsTransaction(err):
			return &sqlstore.CommitError{Err: err}
		case errors.Is(err, driver.ErrBadConn): // no COMMIT was sent
			return fmt.Errorf("commit: %w", &sqlstore.OwnError{Err: err})
		}
		return &sqlstore.CommitError{Err: err, Unknown: true}
	})
}

// write runs fn in a short transaction of the store's own, and repeats the transaction after a
// deadlock.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := s.transact(ctx, limits{idle: ownIdle}, nil, fn)
		if err == nil || attempt == ownAttempts || errorNumber(err) != erLockDeadlock || ctx.Err() != nil {
			return err
		}
	}
}

// read runs fn in a read-only transaction on one snapshot.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.core.ReadOnly(withLimits(ctx, limits{idle: ownIdle}), sql.TxOptions{Isolation: sql.LevelRepeatableRead}, fn)
}

// LockKeys implements [outbox.EventStore]. Keys share a fixed number of locks: two keys with a
// common lock wait for each other without need.
func (s *Store) LockKeys(ctx context.Context, tx *sql.Tx, keys []string) error {
	return s.lockSlots(ctx, tx, "{outbox_keys}", "", keys)
}

// lockSlots locks the rows of keys, in ascending order.
func (s *Store) lockSlots(ctx context.Context, tx *sql.Tx, table, scope string, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	list := make([]int, len(keys))
	for i, key := range keys {
		list[i] = slotOf(scope, key)
	}
	slices.Sort(list)
	_, err := s.core.IDs(ctx, tx, `SELECT slot FROM `+table+` FORCE INDEX (PRIMARY) WHERE slot IN `+numbers(slices.Compact(list))+
		` ORDER BY slot FOR UPDATE`)
	return err
}

func slotOf(scope, key string) int {
	h := fnv.New64a()
	_, _ = h.Write(bytes.Join([][]byte{[]byte(scope), []byte(key)}, []byte{0})) // never fails
	return int(h.Sum64() % slots)
}
