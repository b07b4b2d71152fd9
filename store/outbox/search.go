package outbox

import (
	"context"
	"time"

	"github.com/google/uuid"
)

// The states of events that are not parked, for a search. A parked event is [Retrying],
// [Following], [Dead], [Discarded] or [Cancelled].
const (
	// PendingState events are in the queue.
	PendingState State = "pending"
	// DeferredState events are not due yet.
	DeferredState State = "deferred"
	// DeliveredState events were confirmed.
	DeliveredState State = "delivered"
)

// Searcher is an optional part of a [Store] that finds events in any state, for operators. The
// stores of this library have it.
type Searcher interface {
	// Search reads events by descending Seq, in one snapshot, without a lock. Dispatch IDs, Seqs and
	// all states but [DeliveredState] are found through indexes, and so is the part of the log in
	// which events were written between q.Since and q.Until. Every other condition is compared event
	// by event, so a search looks at no more than q.Scan events, and says in [Results.Before] where
	// the next search goes on.
	//
	// Of the earlier events of a key in the queue, a search names the one on a route that does not
	// work only if it is among the first few hundred events of its shard's queue.
	Search(ctx context.Context, q Query) (Results, error)
	// Causes counts the parked events that f selects by state, topic and last error, the most
	// frequent first. f.Limit bounds the number of causes, and f.After is ignored.
	Causes(ctx context.Context, f Filter) ([]Cause, error)
}

// Cause is what parked events have in common.
type Cause struct {
	State State
	Topic string
	Error string
	Count int64
	// First and Last are when the first and the last of the events were parked.
	First, Last time.Time
	// Example is the dispatch ID of one of the events.
	Example uuid.UUID
}

// Query selects events in any state. Zero fields select all.
type Query struct {
	// IDs are dispatch IDs.
	IDs []uuid.UUID
	// From and To bound the dispatch ID, From ≤ ID ≤ To, so that they select by its first digits. A
	// zero To is no bound, and From is then ignored.
	From, To uuid.UUID
	// Seqs are places in the log.
	Seqs []int64
	// States are the states of the events.
	States []State
	// Topic, Key, CorrelationID and Source are compared exactly.
	Topic, Key, CorrelationID, Source string
	// Named is the key, the source or the correlation ID, compared exactly.
	Named string
	// Part is a part of the key, the source or the correlation ID, without regard to case and without
	// wildcards.
	Part string
	// Error is a part of the last error, compared case-sensitively and without wildcards.
	Error string
	// Since and Until bound the time of writing: Since ≤ time < Until.
	Since, Until time.Time
	// Before continues a search with the events below this Seq.
	Before int64
	// Limit bounds the number of events. Defaults to 100.
	Limit int
	// Scan bounds the number of events that are looked at. Defaults to 20,000.
	Scan int
	// Content reads payloads and headers as well; otherwise they are nil.
	Content bool
}

// Results is the result of one search.
type Results struct {
	Events []Found
	// Before is where the next search continues ([Query.Before]), or 0 if the search has reached the
	// beginning of the log.
	Before int64
}

// Found is an event with what became of it.
type Found struct {
	Record
	// Seq is the event's place in the log.
	Seq   int64
	State State
	// Why says in words why the event is in its state, for example "waits for event 12 of its key".
	Why string
	// WaitsFor is the Seq of the earlier event of the key that the event waits for, or 0.
	WaitsFor int64
	// Attempts is the number of counted attempts of a parked event, or of failed attempts of a
	// delivered event.
	Attempts int
	// WrittenAt is when the event was written.
	WrittenAt time.Time
	// NextAttemptAt is when a retrying event is sent again, or a deferred event is due. Otherwise it
	// is zero.
	NextAttemptAt time.Time
	// ParkedAt is when a parked event was parked, or zero.
	ParkedAt time.Time
	// DeliveredAt is when the last copy of a delivered event was confirmed. It is zero if the event is
	// in another state, or its receipt is no longer retained.
	DeliveredAt time.Time
	// LastError is the last failure of a parked event.
	LastError string
	// Reason is why the event was discarded or cancelled.
	Reason string
}
