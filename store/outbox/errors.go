package outbox

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// ConflictError is an [ErrConflict] about one event, as stores return it.
type ConflictError struct {
	// ID is the dispatch ID of the event, or uuid.Nil: the store does not know which of the events
	// it is.
	ID uuid.UUID
}

// Error names the event.
func (c *ConflictError) Error() string {
	if c.ID == uuid.Nil {
		return ErrConflict.Error()
	}
	return fmt.Sprintf("event %s: %v", c.ID, ErrConflict)
}

// Unwrap returns [ErrConflict].
func (c *ConflictError) Unwrap() error { return ErrConflict }

var (
	// ErrConflict is wrapped when an event is written whose dispatch ID the outbox has with other
	// content. The transaction cannot be committed any more. The error names the event by its
	// dispatch ID, topic, source, version and index.
	ErrConflict = errors.New("dispatch ID is taken by an event with other content")
	// ErrSecondWriter is returned when a second writer writes in one
	// transaction: both would count events from 0, and equal IDs would be
	// taken for repetitions.
	ErrSecondWriter = errors.New("transaction has another outbox writer already")
	// ErrCommitUnknown is wrapped by the error of a COMMIT whose outcome is not
	// known, as when the connection was lost before the answer.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrNoSignal is returned by stores that cannot wake relays in other processes.
	ErrNoSignal = errors.New("store has no signal between processes")
)
