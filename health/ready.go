package health

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay"
)

// Connection is the state of a connection to a broker, as amqp.Publisher.Health tells it. A relay
// that runs connects its publishers at once.
type Connection struct {
	// Name is what it is called in problems, as "broker".
	Name string
	// Connected tells whether there is one.
	Connected bool
	// Err is why there is none, or why nothing can be sent on it.
	Err error
}

// minStale is how long a database may give no answer at least.
const minStale = 30 * time.Second

// Relay returns what keeps a relay from working, in words for an operator: its database, whose
// tables, its connections or a route. None means that it is ready: its database has answered and
// every connection is there, though nothing was sent yet. poll is the relay's PollMax, or 0: a
// database that gave no answer for two of these, and at least half a minute, gives none. A relay
// without shards, as beside many others, reads nothing, and is ready to take some. It does no I/O;
// never nil.
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
	for _, c := range connections {
		switch {
		case c.Err != nil:
			list = append(list, c.Name+": "+c.Err.Error())
		case !c.Connected:
			list = append(list, c.Name+": is not connected yet")
		}
	}
	for _, route := range h.Routes {
		if route.Paused || route.Overdue {
			list = append(list, "route "+route.Route+": "+route.LastError)
		}
	}
	return list
}
