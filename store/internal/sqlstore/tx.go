package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"weak"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

// Writers remembers the writer, the depth of savepoints, and a failed write of each transaction.
// These databases have no variables that live as long as a transaction, so the entry is kept here
// under a weak pointer, and removed when the transaction is garbage.
type Writers struct {
	mu sync.Mutex
	of map[weak.Pointer[sql.Tx]]tied
}

type tied struct {
	writer    uuid.UUID
	depth     int
	abandoned bool
}

// change changes the entry of tx.
func (w *Writers) change(tx *sql.Tx, change func(t *tied)) {
	p := weak.Make(tx)
	w.mu.Lock()
	defer w.mu.Unlock()
	t, ok := w.of[p]
	if !ok {
		if w.of == nil {
			w.of = make(map[weak.Pointer[sql.Tx]]tied)
		}
		runtime.AddCleanup(tx, w.forget, p)
	}
	change(&t)
	w.of[p] = t
}

// tie ties tx to writer, unless tx is tied already, and tells whether tx is tied to writer.
func (w *Writers) tie(tx *sql.Tx, writer uuid.UUID) (mine bool) {
	w.change(tx, func(t *tied) {
		if t.writer == uuid.Nil {
			t.writer = writer
		}
		mine = t.writer == writer
	})
	return mine
}

// deeper adds n to the depth of savepoints, and returns the new depth.
func (w *Writers) deeper(tx *sql.Tx, n int) (depth int) {
	w.change(tx, func(t *tied) {
		t.depth += n
		depth = t.depth
	})
	return depth
}

// abandon notes that a write in tx has failed.
func (w *Writers) abandon(tx *sql.Tx) {
	w.change(tx, func(t *tied) { t.abandoned = true })
}

// abandoned tells whether a write in tx has failed.
func (w *Writers) abandoned(tx *sql.Tx) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.of[weak.Make(tx)].abandoned
}

func (w *Writers) forget(p weak.Pointer[sql.Tx]) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of, p)
}

// Len returns the number of remembered transactions.
func (w *Writers) Len() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.of)
}

// Abandon rolls tx back, so that it cannot be committed. A failed statement alone does not prevent
// a COMMIT, and a caller could ignore its error.
func (c *Core) Abandon(tx *sql.Tx) error {
	err := tx.Rollback()
	if errors.Is(err, sql.ErrTxDone) {
		return nil // the transaction has ended already
	}
	c.Writers.abandon(tx)
	if err != nil {
		return fmt.Errorf("roll back: %w", err)
	}
	return nil
}

// Run runs fn in tx and commits. If fn fails, panics or calls Goexit, tx is rolled back. o is the
// state of tx, or nil for a transaction of the store's own.
func Run(ctx context.Context, o *Owned, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error, commit func(context.Context, *Owned, *sql.Tx) error) error {
	defer func() { // after a COMMIT it does nothing
		o.end()
		_ = tx.Rollback()
	}()
	inner := ctx
	if o != nil {
		inner = WithOwned(ctx, o)
	}
	err := fn(inner, tx)
	switch {
	case err == nil:
		return commit(ctx, o, tx)
	case o.unguarded() && errors.Is(err, sql.ErrTxDone) && ctx.Err() == nil:
		err = errors.Join(err, ErrEnded) // without a guard, ending it was not refused
	}
	if errors.Is(err, ErrEnded) {
		return fmt.Errorf("%w: %w", outbox.ErrCommitUnknown, err)
	}
	return err
}

// ReadOnly runs fn in a read-only transaction with opts, and rolls the transaction back.
func (c *Core) ReadOnly(ctx context.Context, opts sql.TxOptions, fn func(ctx context.Context, tx *sql.Tx) error) error {
	opts.ReadOnly = true
	tx, err := c.DB.BeginTx(ctx, &opts)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }()
	return fn(ctx, tx)
}

var errAbandoned = errors.New("a write of events has failed")

// Commit commits tx, whose state is o, and classifies a failure. failed classifies an error of the
// database.
func (c *Core) Commit(ctx context.Context, o *Owned, tx *sql.Tx, failed func(err error) error) error {
	o.end()
	err := tx.Commit()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, sql.ErrTxDone) && c.Writers.abandoned(tx):
		return &CommitError{Err: errAbandoned}
	case ctx.Err() != nil && (errors.Is(err, sql.ErrTxDone) || errors.Is(err, ctx.Err())):
		return fmt.Errorf("commit: %w", context.Cause(ctx)) // database/sql has rolled back
	case errors.Is(err, ErrEnded):
		return fmt.Errorf("commit: %w: %w", outbox.ErrCommitUnknown, err)
	case errors.Is(err, sql.ErrTxDone): // on a connection without a guard
		return fmt.Errorf("commit: %w: %w", outbox.ErrCommitUnknown, ErrEnded)
	}
	return failed(err)
}

// savepoint is the prefix of the names of the stores' savepoints.
const savepoint = "boxpair_savepoint"

// Savepoint implements [outbox.EventStore]. Each depth has a name of its own, since setting a
// savepoint may replace an earlier savepoint of equal name.
func (s *Store) Savepoint(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, tx *sql.Tx) error) (err error) {
	depth := s.c.Writers.deeper(tx, 1)
	defer s.c.Writers.deeper(tx, -1)
	name := fmt.Sprintf("%s%d", savepoint, depth)
	if _, err := tx.ExecContext(ctx, "SAVEPOINT "+name); err != nil {
		return fmt.Errorf("savepoint: %w", err)
	}
	released := false
	defer func() {
		if released {
			return
		}
		if failed := s.c.undo(ctx, tx, name); failed != nil {
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

// undo rolls back to the savepoint. If the database cannot do so, all of tx is rolled back, since
// the changes behind the savepoint must not be committed.
func (c *Core) undo(ctx context.Context, tx *sql.Tx, name string) error {
	ctx = context.WithoutCancel(ctx)
	_, err := tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+name)
	if err == nil {
		_, err = tx.ExecContext(ctx, "RELEASE SAVEPOINT "+name)
	}
	if err == nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, c.d.Lost) {
		return nil // a transaction that is gone needs nothing undone
	}
	return errors.Join(fmt.Errorf("roll back to savepoint: %w", err), c.Abandon(tx))
}
