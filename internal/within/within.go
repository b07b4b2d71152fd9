// Package within tells in which transaction a context is, so that a publisher that was made once
// finds the transaction of each message.
package within

import (
	"context"
	"sync/atomic"

	"github.com/google/uuid"
)

// Transaction is a transaction that is under way. Its methods are safe for concurrent use, since
// contexts travel to other goroutines.
type Transaction struct {
	// Writer is the *producer.Writer of the transaction, or nil.
	Writer any
	// Instead tells what to do, if Writer is nil.
	Instead string

	forbidden atomic.Pointer[error]
	ended     atomic.Bool
}

// Forbid has the commit fail with err, the first one that was given.
func (t *Transaction) Forbid(err error) { t.forbidden.CompareAndSwap(nil, &err) }

// Err returns the error that forbids the commit, or nil.
func (t *Transaction) Err() error {
	if err := t.forbidden.Load(); err != nil {
		return *err
	}
	return nil
}

// End takes note that the transaction is no longer under way.
func (t *Transaction) End() { t.ended.Store(true) }

// Ended tells whether the transaction is no longer under way.
func (t *Transaction) Ended() bool { return t.ended.Load() }

type key struct{}

// Context returns ctx within the transaction t.
func Context(ctx context.Context, t *Transaction) context.Context {
	return context.WithValue(ctx, key{}, t)
}

// From returns the innermost transaction that ctx is in, or nil.
func From(ctx context.Context) *Transaction {
	t, _ := ctx.Value(key{}).(*Transaction)
	return t
}

type handlingKey struct{}

// Handling returns ctx within a plain handler of the message id.
func Handling(ctx context.Context, id uuid.UUID) context.Context {
	return context.WithValue(ctx, handlingKey{}, id)
}

// Handles tells whether ctx is within a plain handler of the message id.
func Handles(ctx context.Context, id uuid.UUID) bool {
	of, ok := ctx.Value(handlingKey{}).(uuid.UUID)
	return ok && of == id
}
