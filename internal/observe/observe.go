// Package observe lets a test watch the transactions that begin with a context, and have them fail.
// Package boxpairtest is for services what this package is for the library.
package observe

import (
	"context"
	"errors"
)

// ErrCrash is the error of everything that a process does after its simulated crash. A consumer
// leaves the message of such an attempt alone, as a dead process does.
var ErrCrash = errors.New("the process has crashed, as the test wants")

// Observer watches the transactions that begin with its context. Its method is called by several
// goroutines if they begin transactions.
type Observer interface {
	// Begin is called before a transaction begins.
	Begin() Watch
}

// Watch watches one transaction.
type Watch interface {
	// Statement is called before each statement of the function that runs in the transaction. After
	// an error the statement is not run, and the transaction cannot commit.
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
	After  int // the number of statements before the event
}

// Transaction is a watched transaction. A nil *Transaction is not watched. A Transaction is not safe
// for concurrent use.
type Transaction struct {
	watch      Watch
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

// Begin is called before a transaction begins, and returns its context. Without an observer it
// returns ctx and nil.
func Begin(ctx context.Context) (context.Context, *Transaction) {
	o, _ := ctx.Value(observerKey{}).(Observer)
	if o == nil {
		return ctx, nil
	}
	t := &Transaction{watch: o.Begin()}
	return context.WithValue(ctx, transactionKey{}, t), t
}

// From returns the transaction that ctx is in, or nil if it is not watched.
func From(ctx context.Context) *Transaction {
	t, _ := ctx.Value(transactionKey{}).(*Transaction)
	return t
}

// Statement returns an error if a statement must not run. An empty text is no statement.
func (t *Transaction) Statement(text string) error {
	if t == nil || text == "" {
		return nil
	}
	t.statements++
	return t.watch.Statement(text)
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
	if t != nil {
		t.events = append(t.events, Event{record, t.statements})
	}
}

// Mark returns a mark for [Transaction.UndoTo].
func (t *Transaction) Mark() int {
	if t == nil {
		return 0
	}
	return len(t.events)
}

// UndoTo notes that the events since mark were rolled back.
func (t *Transaction) UndoTo(mark int) {
	if t != nil {
		t.events = t.events[:mark]
	}
}

// Ended returns the error to go on with after the transaction has ended with err.
func (t *Transaction) Ended(err error) error {
	if t == nil {
		return err
	}
	return t.watch.Ended(t.events, err)
}
