package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/boxpair/boxpair/store/inbox"
)

// Owned is a transaction in which a store runs a function, as the store and the guard of its
// connection both know it. database/sql keeps nobody who has a transaction from ending it: the
// guard turns such a COMMIT into a ROLLBACK. It is safe for concurrent use.
type Owned struct {
	mu         sync.Mutex
	guarded    bool
	ending     bool  // the store is about to end it
	rolledBack bool  // somebody else has
	wrong      error // what the function did first
	open       int   // rows that can still be read
	doubtful   bool  // a statement ran that may have ended it
	separate   bool  // handlers of several messages have it
}

type ownedKey struct{}

// WithOwned hands o to the connection that begins a transaction with the context, and to
// [Core.Hand].
func WithOwned(ctx context.Context, o *Owned) context.Context {
	return context.WithValue(ctx, ownedKey{}, o)
}

// TakeOwned returns what the transaction that begins with ctx is to the store, or nil. Only the
// first one is that.
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

// Admit tells whether a statement may run. It may for a nil o.
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
	case o.separate && (r.Sets || r.Back):
		return o.blame(inbox.ErrNotShared)
	}
	return nil
}

// share notes whether handlers of several messages have the transaction now, one after another.
func (o *Owned) share(separate bool) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.separate = separate
}

// blame notes what the function did, and returns it. The caller holds mu.
func (o *Owned) blame(err error) error {
	if o.wrong == nil {
		o.wrong = err
	}
	return err
}

// Commit tells whether a COMMIT may be sent. If not, the transaction is to be rolled back.
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

// Opened counts rows that were opened, or, with -1, closed.
func (o *Owned) Opened(n int) {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.open += n
}

// Busy tells, for a connection that runs one statement at a time, that rows are still open.
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

// end notes that what comes is the store's own doing.
func (o *Owned) end() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ending = true
}

// unguarded tells whether the connection does not watch over the transaction.
func (o *Owned) unguarded() bool {
	if o == nil {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.guarded
}

// settleDoubts has the guard look whether the transaction is still there.
const settleDoubts = `SELECT 1`

// Hand runs fn, which is given tx by a store, and returns what forbids the commit: its error, or
// what it did and swallowed.
func (c *Core) Hand(ctx context.Context, tx *sql.Tx, fn func() error) error {
	o, _ := ctx.Value(ownedKey{}).(*Owned)
	o.share(inbox.SharesTransaction(ctx))
	err := fn()
	o.share(false)
	if o == nil {
		return err
	}
	o.mu.Lock()
	wrong, open, doubtful, rolledBack := o.wrong, o.open, o.doubtful, o.rolledBack
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
	return errors.Join(wrong, err) // which may follow from it
}
