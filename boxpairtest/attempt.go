package boxpairtest

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/store/inbox"
)

var (
	// errLost is the handler's error after the loss of the connection.
	errLost = fmt.Errorf("connection to the database is lost: %w", observe.ErrCrash)
	// errStatement is the error of a single statement.
	errStatement = errors.New("the statement has failed, as the test wants")
)

// attempt is one delivery of a message: the planned faults, and the outcome.
type attempt struct {
	lostAt int  // the statement at which the connection is lost, from 1; 0 is none
	failAt int  // the one statement that fails
	crash  bool // before the COMMIT
	unsure bool // the answer to the COMMIT is lost
	dies   bool // after the COMMIT
	retry  bool // after an error of the handler, the message comes again, without a trace

	mu         sync.Mutex
	closed     bool // later statements, of goroutines that the handler has left, do not count
	began      int  // transactions
	running    bool // the first transaction
	dead       bool // the process has crashed
	ran        bool // the handler has returned
	again      bool // the handler was run a second time
	committed  bool
	returned   error // by the handler
	ended      error // at the end of the transaction
	statements []string
	events     []observe.Event
	nested     []int  // the number of statements before each further transaction of the handler
	inside     int    // savepoints around the next statement
	excused    bool   // the failed statement is within a savepoint, so its error may be handled
	parked     string // why the message was set aside
}

// rollsBack tells whether the transaction is rolled back whatever the handler returns.
func (a *attempt) rollsBack() bool { return a.crash || a.lostAt > 0 || a.failAt > 0 }

// Begin implements [observe.Observer].
func (a *attempt) Begin() (observe.Watch, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.dead:
		return nil, observe.ErrCrash
	case a.running:
		return &nested{a, len(a.statements)}, nil
	}
	a.began++
	if a.began > 1 { // the consumer asks again, after a lost answer
		return &repetition{a}, nil
	}
	a.running = true
	return a, nil
}

// Parked implements [observe.Observer].
func (a *attempt) Parked(state, lastError string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.parked = fmt.Sprintf("set aside as %s: %s", state, lastError)
}

// Statement implements [observe.Watch].
func (a *attempt) Statement(text string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ran || a.closed { // queued events, which go with the COMMIT
		return nil
	}
	kind := savepointStatement(text)
	if kind != "" {
		text = kind // the name may differ from run to run
	}
	a.statements = append(a.statements, text)
	n := len(a.statements)
	switch {
	case a.lostAt > 0 && n >= a.lostAt:
		return errLost
	case n == a.failAt:
		a.excused = a.inside > 0 || kind != ""
		return errStatement
	}
	switch kind {
	case "SAVEPOINT":
		a.inside++
	case "RELEASE SAVEPOINT":
		a.inside--
	}
	return nil
}

// savepointStatement returns the kind of a statement about a savepoint, or "".
func savepointStatement(text string) string {
	words := strings.Fields(strings.ToUpper(text[:min(len(text), 40)]))
	switch {
	case len(words) == 0:
	case words[0] == "SAVEPOINT":
		return "SAVEPOINT"
	case words[0] == "RELEASE":
		return "RELEASE SAVEPOINT"
	case words[0] == "ROLLBACK" && len(words) > 1:
		return "ROLLBACK TO SAVEPOINT"
	}
	return ""
}

// Returned implements [observe.Watch].
func (a *attempt) Returned(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ran, a.returned = true, err
	if a.rollsBack() || err != nil && a.retry {
		return errors.Join(observe.ErrCrash, err)
	}
	return err
}

// Ended implements [observe.Watch].
func (a *attempt) Ended(events []observe.Event, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running, a.events, a.ended, a.committed = false, events, err, err == nil && a.ran
	switch {
	case a.ran && (a.rollsBack() || a.returned != nil && a.retry), !a.ran && err != nil: // a handler that has called Goexit
		a.dead = true
		return errors.Join(observe.ErrCrash, err)
	case a.committed && a.unsure:
		return fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
	case a.committed && a.dies:
		a.dead = true
		return observe.ErrCrash
	case err != nil && a.retry: // the COMMIT has failed
		a.dead = true
		return errors.Join(observe.ErrCrash, err)
	}
	return err
}

// close ends the attempt: later statements do not count.
func (a *attempt) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
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
type nested struct {
	of    *attempt
	after int // statements of the handler's own transaction
}

// Statement implements [observe.Watch].
func (n *nested) Statement(string) error { return nil }

// Returned implements [observe.Watch].
func (n *nested) Returned(err error) error { return err }

// Ended implements [observe.Watch].
func (n *nested) Ended(_ []observe.Event, err error) error {
	n.of.mu.Lock()
	defer n.of.mu.Unlock()
	if err == nil && !n.of.closed {
		n.of.nested = append(n.of.nested, n.after)
	}
	return err
}
