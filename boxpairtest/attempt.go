package boxpairtest

import (
	"errors"
	"fmt"
	"sync"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/store/inbox"
)

// errLost is what the handler sees after its connection was lost.
var errLost = fmt.Errorf("connection to the database is lost: %w", observe.ErrCrash)

// attempt is one run of a handler: what shall happen in it, and what has happened. Goroutines of the
// handler may use its transaction, one after another.
type attempt struct {
	lostAt int  // the statement at which the connection is lost, from 1; 0 is none
	crash  bool // before the COMMIT
	unsure bool // the answer to the COMMIT is lost
	dies   bool // after the COMMIT
	retry  bool // an error of the handler has the message come again, without a trace

	mu         sync.Mutex
	ran        bool
	statements []string
	returned   error // by the handler
	events     []observe.Event
	nested     []int // the number of statements before each transaction that the handler has committed
	again      bool  // the handler was run a second time
	committed  bool
}

// observer gives the first transaction of a message to its attempt.
type observer struct {
	mu      sync.Mutex
	attempt *attempt
	running bool
	began   bool
}

// Begin implements [observe.Observer].
func (o *observer) Begin() observe.Watch {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.running:
		return &nested{of: o.attempt}
	case o.began: // the consumer asks again, after a lost answer
		return &repetition{o.attempt}
	}
	o.began, o.running = true, true
	return &first{o}
}

// first is the transaction in which the handler runs.
type first struct{ *observer }

// Statement implements [observe.Watch].
func (f *first) Statement(text string) error {
	a := f.attempt
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ran { // queued events, which go with the COMMIT
		return nil
	}
	a.statements = append(a.statements, text)
	if a.lostAt > 0 && len(a.statements) >= a.lostAt {
		return errLost
	}
	return nil
}

// Returned implements [observe.Watch].
func (f *first) Returned(err error) error {
	a := f.attempt
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ran, a.returned = true, err
	if a.crash || a.lostAt > 0 || err != nil && a.retry {
		return errors.Join(observe.ErrCrash, err)
	}
	return err
}

// Ended implements [observe.Watch].
func (f *first) Ended(events []observe.Event, err error) error {
	f.mu.Lock()
	f.running = false
	f.mu.Unlock()
	a := f.attempt
	a.mu.Lock()
	defer a.mu.Unlock()
	a.events, a.committed = events, err == nil && a.ran
	switch {
	case a.ran && (a.crash || a.lostAt > 0 || a.returned != nil && a.retry), !a.ran && err != nil: // a handler that panicked
		return errors.Join(observe.ErrCrash, err)
	case a.committed && a.unsure:
		return fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
	case a.committed && a.dies:
		return observe.ErrCrash
	}
	return err
}

// repetition is a later transaction of the same message.
type repetition struct{ *attempt }

// Statement implements [observe.Watch].
func (r *repetition) Statement(string) error { return nil }

// Returned implements [observe.Watch].
func (r *repetition) Returned(err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again = true
	return err
}

// Ended implements [observe.Watch].
func (r *repetition) Ended(_ []observe.Event, err error) error { return err }

// nested is a transaction that the handler begins by itself.
type nested struct{ of *attempt }

// Statement implements [observe.Watch].
func (n *nested) Statement(string) error { return nil }

// Returned implements [observe.Watch].
func (n *nested) Returned(err error) error { return err }

// Ended implements [observe.Watch].
func (n *nested) Ended(_ []observe.Event, err error) error {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if err == nil {
		n.of.nested = append(n.of.nested, len(n.of.statements))
	}
	return err
}
