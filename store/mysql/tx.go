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
	"strconv"
	"time"
)

const (
	// savepoint begins the names of this package's savepoints.
	savepoint = "boxpair_savepoint"
	// ownIdle bounds how long a transaction of the store's own may be idle. It is idle only if this
	// process was stopped, and then it must not keep what it has locked. It is shorter than a lease.
	ownIdle = 5 * time.Second
	// ownAttempts is how often a transaction of the store's own is tried when it meets deadlocks.
	ownAttempts = 6
	// slots is how many locks the keys share.
	slots = 4096
)

// Transact runs fn in a new transaction at READ COMMITTED, and commits it if fn returns nil.
func (s *Store) Transact(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	return s.transact(ctx, limits{}, nil, fn)
}

func (s *Store) transact(ctx context.Context, l limits, opts *sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(withLimits(ctx, l), opts)
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

// errEnded is for a function that has committed or rolled back by itself.
var errEnded = errors.New("commit: the transaction was ended by the function that it was given to")

// commit commits tx, and tells apart what a failure means.
func (s *Store) commit(ctx context.Context, tx *sql.Tx) error {
	if ctx.Err() != nil {
		return fmt.Errorf("before commit: %w", context.Cause(ctx))
	}
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
	case errors.Is(err, ErrTransactionLost), endsTransaction(err):
		return &commitError{err: err}
	case errors.Is(err, driver.ErrBadConn): // no COMMIT was sent
		return fmt.Errorf("commit: %w", &ownError{err})
	default:
		return &commitError{err: err, unknown: true}
	}
}

// write runs fn in a short transaction of the store's own, and again if it meets a deadlock.
func (s *Store) write(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	for attempt := 1; ; attempt++ {
		err := s.transact(ctx, limits{idle: ownIdle}, nil, fn)
		if err == nil || attempt == ownAttempts || errorNumber(err) != erLockDeadlock || ctx.Err() != nil {
			return err
		}
	}
}

// read runs fn in a read-only transaction: everything that it reads is of one moment.
func (s *Store) read(ctx context.Context, fn func(ctx context.Context, tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(withLimits(ctx, limits{idle: ownIdle}), &sql.TxOptions{ReadOnly: true, Isolation: sql.LevelRepeatableRead})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	return fn(ctx, tx)
}

// Savepoint runs fn within a savepoint of tx.
func (s *Store) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error) (err error) {
	// A name that is set again replaces the savepoint that had it, so each depth has its own.
	depth := s.writers.deeper(tx, 1)
	defer s.writers.deeper(tx, -1)
	name := savepoint + strconv.Itoa(depth)
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+name); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	released := false
	defer func() {
		if released {
			return
		}
		if failed := undo(ctx, tx, name); failed != nil {
			err = errors.Join(err, failed)
		}
	}()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "RELEASE SAVEPOINT "+name); err != nil {
		return fmt.Errorf("release savepoint: %w", err)
	}
	released = true
	return nil
}

// undo rolls back to the savepoint. If that cannot be done, all of tx is rolled
// back, since what the savepoint holds must not be committed.
func undo(ctx context.Context, tx *sql.Tx, name string) error {
	ctx = context.WithoutCancel(ctx)
	_, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+name)
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT "+name)
	}
	if err == nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, ErrTransactionLost) {
		return nil // a transaction that is gone needs nothing undone
	}
	return errors.Join(fmt.Errorf("roll back to savepoint: %w", err), tx.Rollback())
}

// LockKeys locks keys to the end of tx. There are as many locks as the table has rows: two keys may
// share one and wait for each other without need.
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
	_, err := s.ids(ctx, tx, `SELECT slot FROM `+table+` FORCE INDEX (PRIMARY) WHERE slot IN `+numbers(slices.Compact(list))+
		` ORDER BY slot FOR UPDATE`)
	return err
}

func slotOf(scope, key string) int {
	h := fnv.New64a()
	_, _ = h.Write(bytes.Join([][]byte{[]byte(scope), []byte(key)}, []byte{0})) // never fails
	return int(h.Sum64() % slots)
}
