package relay

import (
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// Health is the state of a relay at one moment. A time is zero if its event has not happened in
// this run.
type Health struct {
	Running bool
	// Shards is the number of leased shards. Share is the relay's fair share among Relays, the
	// visible relays.
	Shards, Share, Relays int
	// InFlight counts the events at the transport, Waiting the unsent events in memory, and
	// Unmarked the confirmed events that are still in the queue.
	InFlight, Waiting, Unmarked int
	// Limited counts those of the Waiting events that wait because of Config.MaxPerSecond or
	// Downstream.MaxPerSecond.
	Limited int
	// OldestInFlight is when the oldest event in flight was given to the transport, or zero without
	// an event in flight. Its age is never much more than Config.SendTimeout.
	OldestInFlight time.Time
	// Routes are the routes on which at most probes are sent, by name.
	Routes []RouteHealth
	// DatabaseError is the last failure of a statement, and DatabaseErrorAt its time.
	DatabaseError   string
	DatabaseErrorAt time.Time
	// SchemaError is the fault of the tables: missing migrations, with the command that applies the
	// migrations, or an unreachable database. The relay checks the tables from its start until they
	// are complete; SchemaError is then "".
	SchemaError string
	// HeldSince is since when nothing is sent because the list of pauses could not be read, and
	// PausesError is why.
	HeldSince   time.Time
	PausesError string
	// FailedOverAt is when the relay last found a changed database; see [outbox.Identifier].
	FailedOverAt time.Time
	// LastRead, LastRenewal, LastMark and LastConfirm are when the relay last read from the
	// database, renewed its leases, removed delivered events and had an event confirmed.
	LastRead, LastRenewal, LastMark, LastConfirm time.Time
	// NoticesDropped counts the calls of functions of Config.Observer that were dropped in this run,
	// because too many waited.
	NoticesDropped int64
	// Reads counts the reads from the database in this run. ReadTime is the time spent in reads,
	// failures included.
	Reads    int64
	ReadTime time.Duration
}

// RouteHealth is the state of a route that does not work, or is paused.
type RouteHealth struct {
	// Route is the name of the route, as of [transport.Sender].
	Route string
	// State tells whether the route refuses messages, does not answer, or is paused by an operator.
	State outbox.RouteState
	// Since is the time of the first failure after the last success, or when this relay has found the
	// pause.
	Since time.Time
	// Overdue tells whether Since is longer ago than Config.RouteGrace.
	Overdue bool
	// LastError is the last failure, and LastErrorAt its time. Of a pause, LastError says until when, by
	// whom and why.
	LastError   string
	LastErrorAt time.Time
	// LastSuccess is when an event was last confirmed on the route.
	LastSuccess time.Time
}

// Health returns the relay's state. It does no I/O.
func (r *Relay) Health() Health {
	r.mu.Lock()
	loop, schema := r.loop, r.schema
	r.mu.Unlock()
	if loop == nil {
		return Health{}
	}
	loop.mu.Lock()
	defer loop.mu.Unlock()
	s := loop.core.State(loop.origin)
	h := Health{
		Running: true, SchemaError: schema,
		Shards: s.Shards, Share: s.Share, Relays: s.Relays,
		InFlight: s.InFlight, Waiting: s.Waiting, Unmarked: s.Unmarked, Limited: s.Limited, OldestInFlight: s.OldestInFlight,
		DatabaseError: s.DatabaseError, DatabaseErrorAt: s.DatabaseErrorAt, FailedOverAt: s.FailedOverAt,
		HeldSince: s.HeldSince, PausesError: s.PausesError,
		LastRead: s.LastRead, LastRenewal: s.LastRenewal, LastMark: s.LastMark, LastConfirm: s.LastConfirm,
		NoticesDropped: loop.observers.Dropped(),
		Reads:          s.Reads, ReadTime: s.ReadTime,
	}
	for _, r := range s.Routes {
		h.Routes = append(h.Routes, RouteHealth(r))
	}
	return h
}
