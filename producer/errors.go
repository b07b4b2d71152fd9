package producer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

var (
	// ErrConflict is wrapped when an event is written whose dispatch ID the outbox
	// has with other content. The transaction cannot be committed any more. The error names the event by its dispatch ID,
	// topic, source, version and index.
	ErrConflict = errors.New("dispatch ID is taken by an event with other content")
	// ErrSecondWriter is returned when a second writer writes in one
	// transaction: both would count events from 0, and equal IDs would be
	// taken for repetitions.
	ErrSecondWriter = errors.New("transaction has another outbox writer already")
	// ErrNoIdentity is wrapped for an event from which no dispatch ID can be computed, or whose Source has neither a Version of
	// at least 1 nor an IdempotencyKey.
	ErrNoIdentity = errors.New("event has no identity: set Source with a Version, counted from 1, or with an IdempotencyKey; or Random alone, for an event that is never written again")
	// ErrCommitUnknown is wrapped by the error of a COMMIT whose outcome is not
	// known, as when the connection was lost before the answer.
	ErrCommitUnknown = errors.New("outcome of the commit is unknown")
	// ErrBeyondHorizon is wrapped when events are to be sent again after the time until which
	// they may be (Config.ResendFor): consumers may have forgotten them, and will set them aside
	// as too old rather than apply them twice. Consumers that have forgotten nothing yet, like new ones, apply
	// them. Filter.Force and Replay.Force send them.
	ErrBeyondHorizon = errors.New("re-send horizon is over, consumers may have forgotten the event: use Force to send it all the same")
	// ErrNoSignal is returned by stores that cannot wake relays in other processes.
	ErrNoSignal = errors.New("store has no signal between processes")
)

// Conflict returns an [ErrConflict] about the event with a dispatch ID, for stores. A writer adds what else names
// the event. uuid.Nil: it is not known which of the events it is.
func Conflict(id uuid.UUID) error { return &conflict{id: id} }

type conflict struct{ id uuid.UUID }

func (c *conflict) Error() string {
	if c.id == uuid.Nil {
		return ErrConflict.Error()
	}
	return fmt.Sprintf("event %s: %v", c.id, ErrConflict)
}

func (c *conflict) Unwrap() error { return ErrConflict }

// named adds to a conflict what names the event among records.
func named(err error, records []Record) error {
	var c *conflict
	if err == nil || !errors.As(err, &c) {
		return err
	}
	for i := range records {
		r := &records[i]
		if r.ID != c.id && (c.id != uuid.Nil || len(records) > 1) {
			continue
		}
		const remedy = "what the outbox has is not changed: give what has changed a Version or an IdempotencyKey of its own, and write the same content again for the same"
		if r.Source == "" { // a child, whose identity is that of a message
			return fmt.Errorf("event %s (topic %q, index %d): %w; a handler that runs again writes the same events in the same order", r.ID, r.Topic, r.Index, ErrConflict)
		}
		return fmt.Errorf("event %s (topic %q, source %q, version %d, index %d): %w; %s", r.ID, r.Topic, r.Source, r.Version, r.Index, ErrConflict, remedy)
	}
	return err
}
