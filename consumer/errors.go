package consumer

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrRolledBack is wrapped when the database answered COMMIT with ROLLBACK,
	// as it does when a handler swallowed the error of a statement.
	ErrRolledBack = errors.New("database rolled the transaction back at commit: a statement in it had failed")
	// ErrCommitUnknown is wrapped by the error of a COMMIT whose outcome is not known.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrNotClaimed is what the transaction of a handler with HandlerConfig.Optimistic returns if the message is
	// not to be applied: it was applied before, is too old, or has to wait. The handler returns it; what it returns then does not matter.
	ErrNotClaimed = errors.New("message is not to be applied: it was before, is too old, or follows one that is parked")
	// ErrEnded is wrapped when a transaction was ended by the function that it was given to, in a way that the store could
	// not refuse, as by a COMMIT on the connection itself. Part of the work may be committed. A message whose claim is then found committed
	// is not acknowledged but set aside as [AlteredState], for an operator: nobody knows how much of its effect is there.
	ErrEnded = errors.New("the transaction may have been ended by the function that it was given to, and part of its work been committed")
	// ErrNotShared is wrapped by a store when a handler changes settings, or goes back to a savepoint by SQL, in a
	// transaction that it shares with handlers of other messages ([Separate]). The message is handled alone, where it may.
	ErrNotShared = errors.New("settings and savepoints by SQL would be those of other messages in the transaction, too: the handler needs one of its own")
	// ErrNested is wrapped by a store with one writer when a message is handled with the context of another handler, whose
	// transaction would wait for itself. Nothing became of the message.
	ErrNested = errors.New("within the transaction of the same database: use that transaction, or do it after its end")
	// ErrClockJump is returned when the time up to which dispatch IDs are forgotten
	// would advance much further than time has passed.
	ErrClockJump = errors.New("database clock jumped ahead: nothing is forgotten")

	// ErrShortWindow is wrapped by [Inbox.Run], [Inbox.Check] and [Handler.Consume] when a producer
	// may send events again for longer than Config.Window, and Config.ShortWindow refuses that.
	ErrShortWindow = errors.New("window is shorter than a producer may send events again: late copies would be set aside as too old; raise Config.Window, or set Config.ShortWindow to ReportShortWindow")

	// ErrOtherKey is wrapped by [Handler.Consume] of a handler with HandlerConfig.Ordered when the subscriber keeps messages in order
	// by another key than HandlerConfig.Key says: it hands out messages of one key together, and none is in order.
	ErrOtherKey = errors.New("subscriber keeps messages in order by another key: give it the function of HandlerConfig.Key, or none to either")

	// ErrNoOutbox is returned when a handler writes events and its inbox has no
	// outbox. The transaction is not committed then, even if the handler goes on.
	ErrNoOutbox = errors.New("inbox has no outbox: pass one to consumer.New, so that handlers can write events")
	// ErrDuplicateName is wrapped when a second handler is given a name that is
	// taken: two handlers under one name would swallow each other's messages.
	ErrDuplicateName = errors.New("handler name is taken: each handler is a consumer of its own")
	// ErrRunning is returned by [Inbox.Run] if the inbox is running already.
	ErrRunning = errors.New("inbox is running already")
	// ErrGoexit is the error of a handler that ended its goroutine.
	ErrGoexit = errors.New("handler called runtime.Goexit")
	// ErrNeverCameBack is wrapped by the error that a message is dead with if its
	// handling was begun too often without coming back.
	ErrNeverCameBack = errors.New("handling was begun and never came back: the process died meanwhile")
)

// Reject returns an error that makes the message dead at once, for an operator
// to look at. It wraps err, which says why.
func Reject(err error) error {
	if err == nil {
		err = errors.New("rejected without a reason")
	}
	return &rejection{err: err}
}

type rejection struct{ err error }

func (r *rejection) Error() string { return "rejected: " + r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }

// RetryAfter returns an error that parks the message for d, without the quick
// attempts and the usual backoff. It counts an attempt like any other error: the
// last one makes the message dead. A d below zero is like zero. It wraps err, which says why.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		err = errors.New("to be retried later")
	}
	return &postponement{after: max(d, 0), err: err}
}

type postponement struct {
	after time.Duration
	err   error
}

func (p *postponement) Error() string { return p.err.Error() }
func (p *postponement) Unwrap() error { return p.err }

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any
	// Stack is the stack of the panic. It is logged, and not part of Error.
	Stack []byte
}

// Error tells the value if it is an error or a string, and its type otherwise.
func (e *PanicError) Error() string {
	switch v := e.Value.(type) {
	case error:
		return "handler panicked: " + v.Error()
	case string:
		return "handler panicked: " + v
	default:
		return fmt.Sprintf("handler panicked with a %T", v)
	}
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
