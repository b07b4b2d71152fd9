package inbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// Attempt is one entry of the history of a message.
type Attempt struct {
	At       time.Time
	Consumer string
	// Outcome is "failed" for a counted attempt, "dead" for a message that became dead without a
	// counted attempt, since it cannot be handled or killed the process, "applied" if the store
	// keeps all attempts, and "redriven" or "discarded" for changes by an operator. Outcomes of an
	// effect outside the database are "effect_failed" (not carried out), "effect_uncertain"
	// (perhaps carried out), "effect_answered" (carried out, but Finish failed), "effect_redriven",
	// "effect_resolved" and "effect_discarded".
	Outcome string
	// Error is the error, or an operator's reason. At most 1 KiB.
	Error string
}

// HistoryStore keeps the attempts of messages one by one. [ClaimStore.Failed],
// [ParkedStore.RetryMessage] with more attempts than before, [ParkedStore.ParkMessage] of a dead
// message without attempts, RedriveMessages and DiscardMessages add to it, in their own
// transactions.
type HistoryStore interface {
	// MessageAttempts reads at most limit entries of the history of a message, oldest first, for
	// the named consumer, or for all consumers if consumer is "".
	MessageAttempts(ctx context.Context, consumer string, id uuid.UUID, limit int) ([]Attempt, error)
	// ForgetHistory removes at most limit entries of consumer that are older than age, oldest
	// first, and returns the number of removed entries.
	ForgetHistory(ctx context.Context, consumer int, age time.Duration, limit int) (int, error)
}
