package relay

import "time"

// Health is the state of a relay at one moment. The time of an event that has not happened in this
// run is zero.
type Health struct {
	Running bool
	// Shards is how many shards the relay has the lease of. Share is its fair share among the
	// Relays that are visible.
	Shards, Share, Relays int
	// InFlight is how many events are at the transport, Waiting how many are in memory
	// and not sent, and Unmarked how many were confirmed and are still in the queue.
	InFlight, Waiting, Unmarked int
	// OldestInFlight is when the oldest event in flight was given to the transport; zero if none is
	// in flight. It is never much longer ago than Config.SendTimeout.
	OldestInFlight time.Time
	// Routes are the routes on which only probes are sent, by name.
	Routes []RouteHealth
	// DatabaseError is the last failure of a statement, and DatabaseErrorAt its time.
	DatabaseError   string
	DatabaseErrorAt time.Time
	// SchemaError is what the relay found wrong with the tables at its start: missing migrations,
	// with the command to apply them, or a database that cannot be reached. The relay asks again
	// until the tables are complete; then it is "".
	SchemaError string
	// FailedOverAt is when the relay last found a different database than before; see
	// [outbox.Identifier].
	FailedOverAt time.Time
	// LastRead, LastRenewal, LastMark and LastConfirm are when the relay last read from the
	// database, renewed its leases, removed delivered events and had an event confirmed.
	LastRead, LastRenewal, LastMark, LastConfirm time.Time
	// Reads is how often the relay has read from the database in this run, and ReadTime how long it
	// waited for the answers, failures included.
	Reads    int64
	ReadTime time.Duration
}

// RouteHealth is the state of a route that does not work.
type RouteHealth struct {
	// Route is the name of the route, as of [transport.Sender].
	Route string
	// Paused routes refuse messages; the others do not answer.
	Paused bool
	// Since is when the first failure after the last success was.
	Since time.Time
	// Overdue tells that Since is longer ago than Config.RouteGrace.
	Overdue bool
	// LastError is the last failure, and LastErrorAt its time.
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
		InFlight: s.InFlight, Waiting: s.Waiting, Unmarked: s.Unmarked, OldestInFlight: s.OldestInFlight,
		DatabaseError: s.DatabaseError, DatabaseErrorAt: s.DatabaseErrorAt, FailedOverAt: s.FailedOverAt,
		LastRead: s.LastRead, LastRenewal: s.LastRenewal, LastMark: s.LastMark, LastConfirm: s.LastConfirm,
		Reads: s.Reads, ReadTime: s.ReadTime,
	}
	for _, r := range s.Routes {
		h.Routes = append(h.Routes, RouteHealth(r))
	}
	return h
}
