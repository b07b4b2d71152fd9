// Package observe lets a test watch the transactions that begin with a context, and have them fail.
// Package boxpairtest offers that to services.
package observe

import (
	"context"
	"errors"
	"sync"
)

// ErrCrash is the error of what a process does after its simulated crash. A consumer leaves the
// message of such an attempt alone, as a dead process does.
var ErrCrash = errors.New("the process has crashed, as the test wants")

// Observer watches the transactions that begin with its context. Its methods are called by several
// goroutines if they use the context.
type Observer interface {
	// Begin is called before a transaction begins. After an error it does not begin.
	Begin() (Watch, error)
	// Parked is called when a consumer has set a message aside, in a state and with the last error.
	Parked(state, lastError string)
}

// Watch watches one transaction.
type Watch interface {
	// Statement is called before each statement of the function that runs in the transaction. After
	// an error the statement is not run, and the transaction cannot commit. After an error that
	// wraps [ErrCrash] the context of the transaction ends.
	Statement(text string) error
	// Returned gets the error of a consumer's handler, and returns the error to go on with.
	Returned(err error) error
	// Ended gets the events that were written in the transaction, and the error with which it ended.
	// It returns the error to go on with.
	Ended(events []Event, err error) error
}

// Event is an event that was written in a transaction.
type Event struct {
	Record any // an outbox.Record
	After  int // the number of statements before the event, that of the write included
}

// Transaction is a watched transaction. A nil *Transaction is not watched. A Transaction is safe for
// concurrent use.
type Transaction struct {
	watch  Watch
	cancel context.CancelFunc

	mu         sync.Mutex
	taken      bool
	ended      bool
	events     []Event
	statements int
}

type (
	observerKey    struct{}
	transactionKey struct{}
)

// Context returns ctx with o as the observer of transactions.
func Context(ctx context.Context, o Observer) context.Context {
	return context.WithValue(ctx, observerKey{}, o)
}

func observerOf(ctx context.Context) Observer {
	o, _ := ctx.Value(observerKey{}).(Observer)
	return o
}

// Begin is called before a transaction begins, and returns its context. Without an observer it
// returns ctx and nil.
func Begin(ctx context.Context) (context.Context, *Transaction, error) {
	o := observerOf(ctx)
	if o == nil {
		return ctx, nil, nil
	}
	watch, err := o.Begin()
	if err != nil {
		return ctx, nil, err
	}
	t := &Transaction{watch: watch}
	ctx, t.cancel = context.WithCancel(ctx)
	return context.WithValue(ctx, transactionKey{}, t), t, nil
}

// Parked tells the observer that a consumer has set a message aside.
func Parked(ctx context.Context, state, lastError string) {
	if o := observerOf(ctx); o != nil {
		o.Parked(state, lastError)
	}
}

// From returns the transaction that ctx is in, or nil if it is not watched or has ended.
func From(ctx context.Context) *Transaction {
	t, _ := ctx.Value(transactionKey{}).(*Transaction)
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil
	}
	return t
}

// Take is From for a store that begins a transaction: a further transaction, which a function begins
// within the first one, is not the watched one.
func Take(ctx context.Context) *Transaction {
	t := From(ctx)
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.taken {
		return nil
	}
	t.taken = true
	return t
}

// Statement returns an error if a statement must not run. An empty text is no statement.
func (t *Transaction) Statement(text string) error {
	if t == nil || text == "" {
		return nil
	}
	t.mu.Lock()
	t.statements++
	t.mu.Unlock()
	err := t.watch.Statement(text)
	if errors.Is(err, ErrCrash) {
		t.cancel()
	}
	return err
}

// Returned returns the error to go on with after a handler has returned err.
func (t *Transaction) Returned(err error) error {
	if t == nil {
		return err
	}
	return t.watch.Returned(err)
}

// Wrote notes an event that is written in the transaction.
func (t *Transaction) Wrote(record any) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = append(t.events, Event{record, t.statements})
}

// Mark returns a mark for [Transaction.UndoTo].
func (t *Transaction) Mark() int {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.events)
}

// UndoTo notes that the events since mark were rolled back.
func (t *Transaction) UndoTo(mark int) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.events = t.events[:mark]
}

// Ended returns the error to go on with after the transaction has ended with err.
func (t *Transaction) Ended(err error) error {
	if t == nil {
		return err
	}
	t.mu.Lock()
	t.ended = true
	events := t.events
	t.mu.Unlock()
	t.cancel()
	return t.watch.Ended(events, err)
}
