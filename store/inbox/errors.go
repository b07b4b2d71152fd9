package inbox

import (
	"errors"
	"fmt"
	"time"
)

var (
	// ErrRolledBack is wrapped when the database answered COMMIT with ROLLBACK, for example after a
	// handler swallowed the error of a statement.
	ErrRolledBack = errors.New("database rolled the transaction back at commit: a statement in it had failed")
	// ErrCommitUnknown is wrapped by the error of a COMMIT with an unknown outcome.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrNotClaimed is returned by the transaction of a handler with HandlerConfig.Optimistic if
	// the message must not be applied: it was applied before, is too old, or has to wait. The
	// handler should return the error; its result is ignored in any case.
	ErrNotClaimed = errors.New("message must not be applied: it was applied before, is too old, or follows a parked message")
	// ErrEnded is wrapped when a function ended its transaction in a way that the store could not
	// refuse, for example by a COMMIT on the connection itself. Part of the work may be committed.
	// If the claim of the message is found committed, the message is set aside as [AlteredState]
	// for an operator instead of being acknowledged: its effect may be incomplete.
	ErrEnded = errors.New("the transaction may have been ended by its function, and part of the work may be committed")
	// ErrNotShared is wrapped when a handler changes settings, or rolls back to a savepoint by SQL,
	// in a transaction shared with handlers of other messages ([SharesTransaction]). The message is
	// then handled alone, where the statement is allowed.
	ErrNotShared = errors.New("settings and savepoints by SQL would affect other messages in the transaction: the handler needs a transaction of its own")
	// ErrNested is wrapped by a store with one writer when a message is handled with the context of
	// another handler: the transaction would wait for itself. The message is untouched.
	ErrNested = errors.New("within an open transaction of the same database: use the open transaction, or wait for its end")
	// ErrClockJump is what a [ClockJumpError] is: the time up to which dispatch IDs are forgotten would
	// advance in a larger step than the caller allows.
	ErrClockJump = errors.New("database clock jumped ahead: nothing is forgotten")
	// ErrNoConsumer is wrapped if no consumer was registered under a name.
	ErrNoConsumer = errors.New("no consumer was registered under the name")
	// ErrLeaseEnded is wrapped by the error of an effect whose lease ended before its process
	// reported.
	ErrLeaseEnded = errors.New("lease of the effect ended before its process reported")
)

// ClockJumpError is returned when the database's clock has advanced by more than the caller allows. It
// is an [ErrClockJump].
type ClockJumpError struct {
	// Since is when a pass last forgot, or when the consumer was registered, by the database's clock.
	Since time.Time
}

// Error implements error.
func (e *ClockJumpError) Error() string {
	return fmt.Sprintf("%v; the last pass was at %s", ErrClockJump, e.Since.UTC().Format(time.RFC3339))
}

// Is tells whether target is [ErrClockJump].
func (*ClockJumpError) Is(target error) bool { return target == ErrClockJump }
