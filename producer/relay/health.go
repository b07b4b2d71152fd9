package relay

import "time"

// Health is the state of a relay at one moment. Times are zero for what has not
// happened in this run.
type Health struct {
	Running bool
	// Shards is how many shards the relay has the lease of, and Share how many
	// are its fair share among Relays that are visible.
	Shards, Share, Relays int
	// InFlight is how many events are at the transport, Waiting how many are in memory
	// and not sent, and Unmarked how many were confirmed and are still in the queue.
	InFlight, Waiting, Unmarked int
	// OldestInFlight is when the oldest event was given to the transport that is still there; zero
	// if none is. It is never much longer ago than Config.SendTimeout.
	OldestInFlight time.Time
	// Routes are those on which nothing is sent but probes, by name.
	Routes []RouteHealth
	// DatabaseError is the last failure of a statement, and DatabaseErrorAt
	// when it was.
	DatabaseError   string
	DatabaseErrorAt time.Time
	// SchemaError is what the relay was told of the tables at its start: that migrations are
	// missing, with the command that applies them, or that the database cannot be reached. Asked
	// again until all is there; then it is "".
	SchemaError string
	// FailedOverAt is when the relay last found that the database is another one than
	// before; see [outbox.Identifier].
	FailedOverAt time.Time
	// LastRead, LastRenewal, LastMark and LastConfirm are when the relay last
	// read from the database, renewed its leases, removed delivered events and had an
	// event confirmed.
	LastRead, LastRenewal, LastMark, LastConfirm time.Time
	// Reads is how often the relay has looked into the database for something to do in this run,
	// and ReadTime how long it waited for the answers, failures included.
	Reads    int64
	ReadTime time.Duration
}

// RouteHealth is the state of a route that does not work.
type RouteHealth struct {
	// Route is its name, as of [transport.Sender].
	Route string
	// Paused routes refuse what they are given; the others do not answer.
	Paused bool
	// Since is when the first failure after the last success was.
	Since time.Time
	// Overdue tells that this is longer ago than Config.RouteGrace.
	Overdue bool
	// LastError is the last failure, and LastErrorAt when it was.
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
