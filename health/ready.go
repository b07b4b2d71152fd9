package health

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
)

// Connection is the state of a connection to a broker, as amqp.Publisher.Health returns it. A
// running relay connects its publishers at once.
type Connection struct {
	// Name is the name of the connection in problems, such as "broker".
	Name string
	// Connected tells whether the connection is open.
	Connected bool
	// Err is why the connection is closed, or why nothing can be sent on it.
	Err error
}

// minStale is the shortest silence of a database that counts as a problem.
const minStale = 30 * time.Second

// held is for how long events may wait for the list of pauses before that counts as a problem.
const held = 5 * time.Second

// Relay returns the problems that keep a relay from working, in words for an operator: a database
// that fails or is silent, missing migrations, a closed connection, or a route that does not work.
// The list is empty, and never nil, if the relay is ready: its database has answered and all
// connections are open, though the relay may not have sent any event yet.
//
// poll is the relay's PollMax, or 0. A database counts as silent after 2*poll, and after 30 seconds
// at least. A relay without shards beside other relays reads nothing, and is ready to take shards
// over. Relay does no I/O.
func Relay(h relay.Health, poll time.Duration, connections ...Connection) []string {
	stale := max(minStale, 2*poll)
	list := []string{}
	if !h.Running {
		list = append(list, "relay: does not run")
	}
	answered := h.LastRead
	if h.LastRenewal.After(answered) {
		answered = h.LastRenewal
	}
	switch waits := h.Shards == 0 && h.Relays > 0; {
	case h.SchemaError != "":
		list = append(list, "database: "+h.SchemaError)
	case h.DatabaseError != "" && !answered.After(h.DatabaseErrorAt) && time.Since(h.DatabaseErrorAt) <= stale:
		list = append(list, "database: "+h.DatabaseError)
	case h.Running && !waits && time.Since(answered) > stale:
		list = append(list, "database: gave no answer yet, or none for "+stale.String())
	}
	if !h.HeldSince.IsZero() && time.Since(h.HeldSince) > held {
		list = append(list, "database: nothing is sent, since the list of pauses could not be read: "+h.PausesError)
	}
	for _, c := range connections {
		switch {
		case c.Err != nil:
			list = append(list, c.Name+": "+c.Err.Error())
		case !c.Connected:
			list = append(list, c.Name+": is not connected yet")
		}
	}
	for _, route := range h.Routes {
		if route.State == outbox.RouteRefusing || route.Overdue && route.State != outbox.RoutePaused {
			list = append(list, "route "+route.Route+": "+route.LastError)
		}
	}
	return list
}
