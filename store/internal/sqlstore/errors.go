package sqlstore

import (
	"errors"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// CommitError is a COMMIT that failed.
type CommitError struct {
	// Err is what went wrong.
	Err error
	// Unknown tells that the transaction may be found committed nevertheless.
	Unknown bool
}

// Error says what went wrong.
func (e *CommitError) Error() string { return "commit: " + e.Err.Error() }

// Unwrap gives what went wrong and what it means to either side.
func (e *CommitError) Unwrap() []error {
	if e.Unknown {
		return []error{e.Err, outbox.ErrCommitUnknown, inbox.ErrCommitUnknown}
	}
	return []error{e.Err, inbox.ErrRolledBack}
}

// OwnError marks an error of the store's own statements, which no handler is to blame for.
type OwnError struct {
	// Err is the error.
	Err error
}

// Error says what e.Err says.
func (e *OwnError) Error() string { return e.Err.Error() }

// Unwrap gives the error.
func (e *OwnError) Unwrap() error { return e.Err }

// IsOwn tells whether err is one of the store's own statements.
func IsOwn(err error) bool {
	var own *OwnError
	return errors.As(err, &own)
}

// ErrNothing rolls a transaction back that has found nothing to commit.
var ErrNothing = errors.New("nothing to commit")
