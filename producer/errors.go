package producer

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

var (
	// ErrNoTransaction is wrapped if a message is published outside of a transaction of the outbox,
	// or after its end. Nothing was written.
	ErrNoTransaction = errors.New("no transaction of the outbox in the context (nor OwnTransaction)")

	// ErrNoIdentity is wrapped for an event from which no dispatch ID can be computed, or whose
	// Source has neither a Version of at least 1 nor an IdempotencyKey.
	ErrNoIdentity = errors.New("event has no identity: set Source with a Version, counted from 1, or with an IdempotencyKey; or Random alone, for an event that is never written again")

	// ErrBeyondHorizon is wrapped when events were to be sent again after their re-send horizon
	// (Config.ResendFor). A consumer that may have forgotten the events would set them aside as too
	// old rather than apply them twice. A consumer with a complete memory, such as a new consumer,
	// would apply them. Filter.Force and Replay.Force send the events all the same.
	ErrBeyondHorizon = errors.New("re-send horizon is over, consumers may have forgotten the event: use Force to send it all the same")
)

// ErrNotEditable is wrapped by the error of [Outbox.Edit] if the event is neither dead, retrying nor
// discarded.
var ErrNotEditable = errors.New("only dead, retrying and discarded events can be edited")

// errEnded is the error of a writer after the end of its transaction.
var errEnded = fmt.Errorf("%w: the transaction that the context was in has ended", ErrNoTransaction)

// named adds to a conflict the name of the conflicting event, a member of records.
func named(err error, records []outbox.Record) error {
	var c *outbox.ConflictError
	if err == nil || !errors.As(err, &c) {
		return err
	}
	for i := range records {
		r := &records[i]
		if r.ID != c.ID && (c.ID != uuid.Nil || len(records) > 1) {
			continue
		}
		const remedy = "what the outbox has is not changed: give what has changed a Version or an IdempotencyKey of its own, and write the same content again for the same"
		if r.Source == "" { // a child, whose identity comes from a message
			return fmt.Errorf("event %s (topic %q, index %d): %w; a handler that runs again writes the same events in the same order", r.ID, r.Topic, r.Index, outbox.ErrConflict)
		}
		return fmt.Errorf("event %s (topic %q, source %q, version %d, index %d): %w; %s", r.ID, r.Topic, r.Source, r.Version, r.Index, outbox.ErrConflict, remedy)
	}
	return err
}
