package outbox

import (
	"context"
	"time"
)

// JanitorStore is what a janitor needs of a store. Its methods remove one batch each, in a
// transaction of their own. They may be called at the same time as each other, as relays, writers
// and operators, in any process; against [OperatorStore.Replay] they are serialised,
// or an event could be removed while it is queued again.
type JanitorStore interface {
	// RemoveDelivered removes receipts that are older than retention, the oldest first, from the
	// time after on, and with them their events and the attempts of those. It stops at the first
	// receipt with which the batch has limit events. An event that is queued or parked, in whatever
	// state, stays, as does one that was replayed within retention: a later receipt brings it up
	// again.
	RemoveDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (Removed, error)
	// RemoveDiscarded removes at most limit events that were discarded or cancelled longer than
	// retention ago, with their attempts, unless they are queued again.
	RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (Removed, error)
}

// Removed tells what a batch has removed.
type Removed struct {
	Events, Attempts, Receipts int
	// Full tells that the batch was limited: there may be more.
	Full bool
	// Through is the time of the last receipt that was removed, from which the next batch may look
	// on.
	Through time.Time
}
