package audit

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Outbox reads an outbox. Its methods read in short transactions of their own, and change
// nothing. They are called one at a time.
type Outbox interface {
	// Span tells what the outbox still holds.
	Span(ctx context.Context) (Span, error)
	// Events returns the committed events with a greater number than after, by ascending
	// number, at most limit of them; none means that there are no more.
	Events(ctx context.Context, after int64, limit int) ([]Event, error)
	// Unsent returns the rows of the queue, then the parked and then the deferred events that come
	// after a place, in their order, at most limit of them; none means that there are no more.
	Unsent(ctx context.Context, after Place, limit int) ([]Unsent, error)
	// FindEvents returns those events of ids that the outbox has, in any order. Those
	// that were delivered since a time are marked as recent; a zero time marks none.
	FindEvents(ctx context.Context, ids []uuid.UUID, since time.Time) ([]FoundEvent, error)
}

// Inbox reads an inbox. Its methods read in short transactions of their own, and change
// nothing. They are called one at a time.
type Inbox interface {
	// Consumers returns the consumers that have registered.
	Consumers(ctx context.Context) ([]Consumer, error)
	// Claims returns the claims of a consumer that come after a place, by ascending stamp
	// and dispatch ID, with a stamp before a time, at most limit of them; none
	// means that there are no more.
	Claims(ctx context.Context, consumer int, after ClaimPlace, before time.Time, limit int) ([]Claim, error)
	// FindClaims returns what a consumer knows of those of ids of which it knows anything, in any
	// order.
	FindClaims(ctx context.Context, consumer int, ids []uuid.UUID) ([]FoundClaim, error)
	// ParkedMessages returns the parked messages of a consumer with a greater number than
	// after, by ascending number, at most limit of them; none means that there are no more.
	ParkedMessages(ctx context.Context, consumer int, after int64, limit int) ([]ParkedMessage, error)
}

// Delivered is the state of an event that is neither deferred, queued nor parked. Queued is that of
// one in the queue, and of a deferred one that is due. All other states are those of parked events,
// and "deferred".
const (
	Delivered = "delivered"
	Queued    = "pending"
)

// Span is what an outbox still holds.
type Span struct {
	// Now is the time on the database's clock.
	Now time.Time
	// Last is the number of the newest event, 0 if there is none.
	Last int64
	// RetainedSince is the time since which no event was removed. Zero: none ever was.
	RetainedSince time.Time
}

// Event is a committed event.
type Event struct {
	Seq       int64
	ID        uuid.UUID
	Digest    transport.Digest
	Topic     string
	CreatedAt time.Time
}

// FoundEvent is an event that was looked up.
type FoundEvent struct {
	Event         // CreatedAt is when it was due, if it was deferred
	State  string // Delivered, Queued, "deferred", or the state in which it is parked
	Recent bool
}

// Place is where a reading of what is unsent has come to. The zero value is the beginning.
type Place struct {
	Parked   bool // the queue is done
	Deferred bool // and what is parked
	Shard    int  // in the queue
	Seq      int64
}

// Unsent is an event in the queue, a parked one, or a deferred one.
type Unsent struct {
	Place
	Missing   bool // the log has no such event: ID, Topic and times are zero
	ID        uuid.UUID
	Topic     string
	CreatedAt time.Time // or when it was due, if it was deferred and is not any more
	// Since is when the event came to be where it is, as far as is known: its creation, a
	// replay, when it was due, or when it was parked.
	Since    time.Time
	State    string // Queued, "deferred", or the state in which it is parked
	Attempts int
	Why      string // the last error, or the reason for which it was discarded
}

// Consumer is a consumer as its inbox knows it.
type Consumer struct {
	ID             int
	Name           string
	RegisteredAt   time.Time
	ForgottenUntil time.Time // zero: nothing is forgotten
}

// ClaimPlace is where a reading of claims has come to.
type ClaimPlace struct {
	Stamp time.Time
	ID    uuid.UUID
}

// Claim is a dispatch ID that a consumer has applied, or keeps parked.
type Claim struct {
	ClaimPlace
	Digest  transport.Digest // zero: the message had none
	Applied bool             // otherwise it is parked
}

// FoundClaim is what a consumer knows of a dispatch ID.
type FoundClaim struct {
	Claim
	Claimed bool // otherwise Claim has the dispatch ID only
	// States are the states of the parked messages of this dispatch ID.
	States []string
	// Attempts and LastError are of a message that failed and is not parked.
	Attempts  int
	LastError string
}

// ParkedMessage is a message that waits, is dead, was set aside or given up.
type ParkedMessage struct {
	Seq      int64
	ID       uuid.UUID
	Topic    string
	Stamp    time.Time // of its event, or when it was parked
	ParkedAt time.Time
	State    string
	Attempts int
	Why      string // the last error, or the reason for which it was discarded
}
