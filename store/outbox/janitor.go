package outbox

import (
	"context"
	"time"
)

// JanitorStore removes old rows for a janitor. Each call removes one batch, in a transaction of its
// own. Calls may run concurrently with janitors, relays, writers and operators in any process. A
// store serialises the calls with [OperatorStore.Requeue]; otherwise an event could be removed
// while it is queued again.
type JanitorStore interface {
	// RemoveDelivered removes receipts that are older than retention, oldest first, from the time
	// after on, together with their events and the attempts of the events. The batch ends with the
	// receipt that brings it to limit events. An event stays if it is deferred, queued, parked in
	// any state, or was replayed within retention: a later receipt names the event again.
	RemoveDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (Removed, error)
	// RemoveDiscarded removes at most limit events that were discarded or cancelled longer than
	// retention ago, with their attempts, unless they are queued again.
	RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (Removed, error)
}

// RemovableCounter is an optional part of a [JanitorStore] that counts what a janitor would remove,
// for operators. The stores of this library have it.
type RemovableCounter interface {
	// CountRemovable counts the rows that a pass of RemoveDelivered and RemoveDiscarded would remove
	// now, without a lock. It looks at no more than about limit delivered events, and limit discarded
	// and cancelled events, however many there are. limit is at least 1.
	CountRemovable(ctx context.Context, retention time.Duration, limit int) (RemovableCount, error)
}

// RemovableCount counts rows that are past their retention.
type RemovableCount struct {
	// Delivered, Discarded and Cancelled count events.
	Delivered, Discarded, Cancelled int
	// Attempts and Receipts are those of the events.
	Attempts, Receipts int
	// Capped tells that there may be more rows than CountRemovable has looked at.
	Capped bool
}

// Removed tells what a batch has removed.
type Removed struct {
	Events, Attempts, Receipts int
	// Full tells that the batch reached its limit: more rows may be left.
	Full bool
	// Through is the time of the last removed receipt. The next batch may begin there.
	Through time.Time
}
