package outbox

import (
	"time"

	"github.com/boxpair/boxpair/transport"
)

// Record is an event as a store keeps it.
type Record struct {
	transport.Event
	// Shard is the event's shard, in [0, idgen.Shards).
	Shard int
	// OccurredAt is when the event happened.
	OccurredAt time.Time
	// DeliverAt is the earliest time to send the event, for [EventStore.Append]. Records that are
	// read have no DeliverAt: their stamps are no earlier.
	DeliverAt time.Time
	// ResendFor is how long after its stamp the event may be sent again, in whole seconds. 0 says
	// nothing. Stores derive ResendUntil from ResendFor when they read a record.
	ResendFor time.Duration
}

// SetResend sets r.ResendUntil from r.Stamp and r.ResendFor, for stores.
func (r *Record) SetResend() {
	r.ResendUntil = time.Time{}
	if r.ResendFor > 0 && !r.Stamp.IsZero() {
		r.ResendUntil = r.Stamp.Add(r.ResendFor)
	}
}
