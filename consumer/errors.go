package consumer

import (
	"errors"
	"fmt"
	"time"
)

var (

	// ErrShortWindow is wrapped by [Inbox.Run], [Inbox.Check] and [Handler.Consume] when a producer
	// may send events again for longer than Config.Window, and Config.ShortWindow is
	// [RefuseShortWindow].
	ErrShortWindow = errors.New("window is shorter than a producer may send events again: late copies would be set aside as too old; raise Config.Window, or set Config.ShortWindow to ReportShortWindow")

	// ErrOtherKey is wrapped by [Handler.Consume] of a handler with HandlerConfig.Order.ByKey when the
	// subscriber orders messages by another key than HandlerConfig.Order.Key: messages of one key are
	// delivered concurrently, and their order is lost.
	ErrOtherKey = errors.New("subscriber keeps messages in order by another key: give it the function of HandlerConfig.Order.Key, or none to either " +
		"(with CompetingConsumers it keeps no order)")

	// ErrPaused is wrapped by [Handler.Consume] when the consumer is paused and the message was held
	// for Config.MaxHold. The text names the pause.
	ErrPaused = errors.New("no message of the consumer is handled for now")

	// ErrRateLimited is wrapped by [Handler.Consume] when the message was held for Config.MaxHold
	// because of HandlerConfig.MaxPerSecond.
	ErrRateLimited = errors.New("message waits behind the consumer's rate limit")

	// ErrTwoInboxes is wrapped by [Handler.Consume] within a handler of the same message: package
	// middleware has put an inbox around a handler that has one.
	ErrTwoInboxes = errors.New("message is in the hands of another inbox already: a handler that has an inbox must not get a second one (middleware.RouterConfig.Except)")
	// ErrNoOutbox is returned when a handler writes events and the inbox has no outbox. The
	// transaction is not committed, even if the handler ignores the error.
	ErrNoOutbox = errors.New("inbox has no outbox: pass one with consumer.WithOutbox, so that handlers can write events")
	// ErrNotEditable is wrapped by the error of [Inbox.Edit] if the message is neither retrying, dead, too old,
	// altered nor discarded, or was not verified, or if several messages have its ID.
	ErrNotEditable = errors.New("only verified messages that are retrying, dead, too old, altered or discarded can be edited")
	// ErrDuplicateName is wrapped when the name of a handler is taken: two handlers under one name
	// would swallow messages of each other.
	ErrDuplicateName = errors.New("handler name is taken: each handler is a consumer of its own")
	// ErrNotRunning is wrapped by [Handler.Consume] of a handler with HandlerConfig.StoreFirst if
	// neither [Inbox.Run] nor RunOnce was called within 5 seconds, and Config.RunElsewhere is not
	// set: the message would be acknowledged, and nothing would handle it.
	ErrNotRunning = errors.New("Inbox.Run was never called in this process, and a handler with StoreFirst handles nothing without it: " +
		"call it, or set Config.RunElsewhere if another process of the service does")
	// ErrRunning is returned by [Inbox.Run] if the inbox is running already.
	ErrRunning = errors.New("inbox is running already")
	// ErrGoexit is the error of a handler that ended its goroutine.
	ErrGoexit = errors.New("handler called runtime.Goexit")
	// ErrNeverCameBack is wrapped by the last error of a dead message whose handler was begun too
	// often without returning.
	ErrNeverCameBack = errors.New("handling was begun and never came back: the process died meanwhile")
)

// Reject returns an error that makes the message dead at once, for an operator. The error wraps
// err, the reason.
func Reject(err error) error {
	if err == nil {
		err = errors.New("rejected without a reason")
	}
	return &rejection{err: err}
}

type rejection struct{ err error }

func (r *rejection) Error() string { return "rejected: " + r.err.Error() }
func (r *rejection) Unwrap() error { return r.err }

// RetryAfter returns an error that parks the message for d, in place of quick attempts and the
// usual backoff. The attempt counts like any other, and the last attempt makes the message dead. A
// d below zero is like zero. The error wraps err, the reason.
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

// Rejected tells whether err wraps an error of [Reject].
func Rejected(err error) bool {
	var r *rejection
	return errors.As(err, &r)
}

// RetryDelay returns the delay of [RetryAfter], and whether err wraps an error of RetryAfter.
func RetryDelay(err error) (time.Duration, bool) {
	var p *postponement
	if errors.As(err, &p) {
		return p.after, true
	}
	return 0, false
}

// PanicError is the error of a handler that panicked.
type PanicError struct {
	Value any
	// Stack is the stack of the panic. The stack is logged, but not part of Error.
	Stack []byte
}

// Error shows a Value that is an error or a string, and only the type of any other Value.
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

// Unwrap returns Value if Value is an error, and otherwise nil.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
