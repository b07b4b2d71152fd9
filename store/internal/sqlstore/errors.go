package sqlstore

import (
	"errors"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// CommitError is a COMMIT that failed.
type CommitError struct {
	// Err is the cause.
	Err error
	// Unknown tells that the transaction may be committed nevertheless.
	Unknown bool
}

// Error returns the text of the cause.
func (e *CommitError) Error() string { return "commit: " + e.Err.Error() }

// Unwrap returns the cause, and the errors that tell an outbox and an inbox the outcome.
func (e *CommitError) Unwrap() []error {
	if e.Unknown {
		return []error{e.Err, outbox.ErrCommitUnknown, inbox.ErrCommitUnknown}
	}
	return []error{e.Err, inbox.ErrRolledBack}
}

// OwnError marks an error of the store's own statements, which is not the handler's fault.
type OwnError struct {
	// Err is the error.
	Err error
}

// Error returns the text of e.Err.
func (e *OwnError) Error() string { return e.Err.Error() }

// Unwrap returns e.Err.
func (e *OwnError) Unwrap() error { return e.Err }

// IsOwn tells whether err wraps an [OwnError].
func IsOwn(err error) bool {
	var own *OwnError
	return errors.As(err, &own)
}

// ErrNothing rolls back a transaction that has nothing to commit.
var ErrNothing = errors.New("nothing to commit")
