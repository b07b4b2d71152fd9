package audit

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/transport"
)

// Outbox reads an outbox. Each method reads in short transactions of its own and changes nothing.
// An Audit calls one method at a time.
type Outbox interface {
	// Span returns the extent of the outbox.
	Span(ctx context.Context) (Span, error)
	// Events returns at most limit committed events with a number greater than after, by ascending
	// number. An empty page is the end.
	Events(ctx context.Context, after int64, limit int) ([]Event, error)
	// Unsent returns at most limit rows after a place: first the rows of the queue, then the parked
	// events, then the deferred events, each in their order. An empty page is the end.
	Unsent(ctx context.Context, after Place, limit int) ([]Unsent, error)
	// FindEvents returns the events of ids that the outbox has, in any order. Events delivered
	// since the given time are marked as recent; a zero time marks none.
	FindEvents(ctx context.Context, ids []uuid.UUID, since time.Time) ([]FoundEvent, error)
}

// Inbox reads an inbox. Each method reads in short transactions of its own and changes nothing. An
// Audit calls one method at a time.
type Inbox interface {
	// Consumers returns the registered consumers.
	Consumers(ctx context.Context) ([]Consumer, error)
	// Claims returns at most limit claims of a consumer after a place and with a stamp before a
	// time, by ascending stamp and dispatch ID. An empty page is the end.
	Claims(ctx context.Context, consumer int, after ClaimPlace, before time.Time, limit int) ([]Claim, error)
	// FindClaims returns the claims and parked messages of a consumer for ids, in any order. IDs
	// that are unknown to the consumer are left out.
	FindClaims(ctx context.Context, consumer int, ids []uuid.UUID) ([]FoundClaim, error)
	// ParkedMessages returns at most limit parked messages of a consumer with a number greater than
	// after, by ascending number. An empty page is the end.
	ParkedMessages(ctx context.Context, consumer int, after int64, limit int) ([]ParkedMessage, error)
}

// Delivered is the state of an event that is neither deferred, queued nor parked. Queued is the
// state of an event in the queue, and of a deferred event that is due. All other states are
// "deferred" and the states of parked events.
const (
	Delivered = "delivered"
	Queued    = "pending"
)

// Span is the extent of an outbox.
type Span struct {
	// Now is the time on the database's clock.
	Now time.Time
	// Last is the number of the newest event, or 0 if there is no event.
	Last int64
	// RetainedSince is the time since which no event was removed; zero if no event ever was.
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

// FoundEvent is the result of a lookup of an event.
type FoundEvent struct {
	Event         // CreatedAt is the due time of an event that was deferred
	State  string // Delivered, Queued, "deferred", or the state of a parked event
	Recent bool   // delivered since the time given to FindEvents
}

// Place is the position of a reader of unsent events. The zero value is the beginning.
type Place struct {
	Parked   bool // the queue is read
	Deferred bool // the parked events are read
	Shard    int  // position in the queue
	Seq      int64
}

// Unsent is an event that is queued, parked or deferred.
type Unsent struct {
	Place
	Missing   bool // the log has no such event: ID, Topic and times are zero
	ID        uuid.UUID
	Topic     string
	CreatedAt time.Time // or the due time of a deferred event that is due
	// Since is when the event entered its state, as far as is known: the time of its creation, of a
	// replay, of its due time, or of its parking.
	Since    time.Time
	State    string // Queued, "deferred", or the state of a parked event
	Attempts int
	Why      string // the last error, or an operator's reason to discard the event
}

// Consumer is a consumer as registered in its inbox.
type Consumer struct {
	ID             int
	Name           string
	RegisteredAt   time.Time
	ForgottenUntil time.Time // zero if nothing is forgotten
}

// ClaimPlace is the position of a reader of claims.
type ClaimPlace struct {
	Stamp time.Time
	ID    uuid.UUID
}

// Claim is a dispatch ID that a consumer has applied or keeps parked.
type Claim struct {
	ClaimPlace
	Digest  transport.Digest // zero if the message had no digest
	Applied bool             // false: the message is parked
}

// FoundClaim is the state of a dispatch ID at a consumer.
type FoundClaim struct {
	Claim
	Claimed bool // false: Claim holds the dispatch ID only
	// States are the states of the parked messages with this dispatch ID.
	States []string
	// Attempts and LastError belong to a message that failed and is not parked.
	Attempts  int
	LastError string
}

// ParkedMessage is a message that is retried, follows another message, is dead, set aside or
// discarded.
type ParkedMessage struct {
	Seq      int64
	ID       uuid.UUID
	Topic    string
	Stamp    time.Time // creation time of its event, or the time of its parking
	ParkedAt time.Time
	State    string
	Attempts int
	Why      string // the last error, or an operator's reason to discard the message
}
