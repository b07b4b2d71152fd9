package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/store/inbox"
)

// Owned is the state of a transaction in which a store runs a function, shared by the store and the
// guard of the connection. database/sql lets every holder of a transaction end it: the guard turns
// a COMMIT by the function into a ROLLBACK. Owned is safe for concurrent use. A nil *Owned is a
// transaction that a store does not own, and allows every statement.
type Owned struct {
	mu         sync.Mutex
	guarded    bool                 // the guard of a connection watches the transaction
	ending     bool                 // the store is about to end the transaction
	rolledBack bool                 // the transaction was rolled back, but not by the store
	misuse     error                // the first misuse by the function
	open       int                  // number of open rows
	doubtful   bool                 // a statement may have ended the transaction
	shared     bool                 // handlers of several messages run in the transaction
	seen       *observe.Transaction // set while the function runs and a test watches
}

type ownedKey struct{}

// WithOwned passes o to the connection that begins a transaction with the context, and to
// [Core.RunChecked].
func WithOwned(ctx context.Context, o *Owned) context.Context {
	return context.WithValue(ctx, ownedKey{}, o)
}

// TakeOwned returns the Owned of the transaction that begins with ctx, or nil. Only the first
// transaction of a context is owned.
func TakeOwned(ctx context.Context) *Owned {
	o, _ := ctx.Value(ownedKey{}).(*Owned)
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.guarded {
		return nil
	}
	o.guarded = true
	return o
}

// Admit returns an error if a statement must not run.
func (o *Owned) Admit(r Reading) error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.doubtful = o.doubtful || r.Doubtful
	switch {
	case r.Ends != "":
		return o.blame(Refused(r.Ends))
	case r.Elsewhere:
		return o.blame(ErrElsewhere)
	case o.shared && (r.Sets || r.Back):
		return o.blame(inbox.ErrNotShared)
	}
	if err := o.seen.Statement(r.Text); err != nil {
		return o.blame(err)
	}
	return nil
}

// hand notes whether handlers of several messages run in the transaction from now on, one after
// another, and which test watches them.
func (o *Owned) hand(shared bool, seen *observe.Transaction) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.shared, o.seen = shared, seen
}

// blame notes a misuse by the function, and returns err. The caller holds mu.
func (o *Owned) blame(err error) error {
	if o.misuse == nil {
		o.misuse = err
	}
	return err
}

// Commit returns an error if COMMIT must not be sent. The guard then rolls back.
func (o *Owned) Commit() error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ending {
		return nil
	}
	return o.blame(Refused("Commit"))
}

// Rollback notes that the transaction is rolled back.
func (o *Owned) Rollback() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.rolledBack = o.rolledBack || !o.ending
}

// Opened adds n to the number of open rows: 1 when rows are opened, -1 when they are closed.
func (o *Owned) Opened(n int) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open += n
}

// Busy returns an error if rows are open, for a connection that runs one statement at a time.
func (o *Owned) Busy() error {
	if o == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.open == 0 {
		return nil
	}
	return o.blame(ErrLeftOpen)
}

// end notes that the store ends the transaction now.
func (o *Owned) end() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ending = true
}

// unguarded tells whether the connection has no guard.
func (o *Owned) unguarded() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.guarded
}

// settleDoubts is a statement without effect: it makes the guard check whether the transaction is
// still open.
const settleDoubts = `SELECT 1`

// RunChecked runs fn, which uses tx, and returns the error that forbids the commit: the error of
// fn, or a misuse whose error fn has swallowed.
func (c *Core) RunChecked(ctx context.Context, tx *sql.Tx, fn func() error) error {
	o, _ := ctx.Value(ownedKey{}).(*Owned)
	o.hand(inbox.SharesTransaction(ctx), observe.Take(ctx))
	err := fn()
	o.hand(false, nil)
	if o == nil {
		return err
	}
	o.mu.Lock()
	wrong, open, doubtful, rolledBack := o.misuse, o.open, o.doubtful, o.rolledBack
	o.mu.Unlock()
	if doubtful && wrong == nil && !rolledBack && open == 0 {
		if _, gone := tx.ExecContext(context.WithoutCancel(ctx), settleDoubts); errors.Is(gone, ErrEnded) {
			return errors.Join(err, gone)
		}
	}
	switch {
	case wrong != nil:
	case rolledBack && c.Writers.abandoned(tx):
		wrong = &CommitError{Err: errAbandoned}
	case rolledBack && ctx.Err() == nil:
		wrong = Refused("Rollback")
	case open > 0:
		wrong = ErrLeftOpen
	}
	switch {
	case err == nil:
		return wrong
	case wrong == nil, rolledBack && c.Writers.abandoned(tx), errors.Is(err, wrong):
		return err
	}
	return errors.Join(wrong, err) // err may follow from wrong
}
