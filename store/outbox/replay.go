package outbox

import (
	"time"

	"github.com/google/uuid"
)

// Selection selects events of the log. Zero fields select all.
type Selection struct {
	// IDs are dispatch IDs.
	IDs []uuid.UUID
	// Topic and Key are compared exactly.
	Topic, Key string
	// From and To bound the stamp of the event: From ≤ stamp < To.
	From, To time.Time
}

// Retained is an event of the log that is delivered, as a replay sees it.
type Retained struct {
	Seq         int64
	ID          uuid.UUID
	Stamp       time.Time
	ResendUntil time.Time // zero if the producer did not say
	// Expired tells that ResendUntil is over, by the database's clock.
	Expired bool
}

// Page is the result of one scan of the log.
type Page struct {
	Events []Retained
	// Through is the place up to which the log was scanned.
	Through int64
	// Stamp is the earliest stamp of all scanned events, selected or not.
	Stamp time.Time
	// End tells that no event is behind Through.
	End bool
}

// Requeued is an event that was queued again.
type Requeued struct {
	Shard int
	Seq   int64
	Round int64
	ID    uuid.UUID
}
