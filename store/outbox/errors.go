package outbox

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// ConflictError is an [ErrConflict] about one event, as stores return it.
type ConflictError struct {
	// ID is the dispatch ID of the event, or uuid.Nil if the store cannot tell which event
	// conflicts.
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
	// ErrConflict is wrapped when a written event has the dispatch ID of another event with
	// different content. The transaction cannot be committed any more. The error names the event by
	// its dispatch ID, topic, source, version and index.
	ErrConflict = errors.New("dispatch ID belongs to an event with different content")
	// ErrSecondWriter is returned when a second writer writes in one transaction. Both writers
	// would count events from 0, and their equal IDs would pass for repetitions.
	ErrSecondWriter = errors.New("transaction has another outbox writer already")
	// ErrCommitUnknown is wrapped by the error of a COMMIT with an unknown outcome, for example
	// when the connection was lost before the answer.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrNoSignal is returned by stores that cannot wake relays in other processes.
	ErrNoSignal = errors.New("store has no signal between processes")
)
