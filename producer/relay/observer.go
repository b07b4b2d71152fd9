package relay

import (
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer/relay/internal/core"
	"github.com/boxpair/boxpair/store/control"
)

// Observer holds functions that a relay calls when something happens that a person may want to know
// of, as for an alert or a message to a team. Every function may be nil. The functions are called one
// after another, in the order of what they tell, beside the work of the relay: a slow function delays
// only later calls. At most 1024 calls wait; further ones are dropped, with a record in the log. A
// panic is logged. Each relay tells of what it has seen itself.
type Observer struct {
	// OnParked is told of a counted attempt after which an event waits for the next one.
	OnParked func(EventNotice)
	// OnDead is told of an event that is dead.
	OnDead func(EventNotice)
	// OnStalled is told when nothing succeeds on a route any more, and when the route works again.
	OnStalled func(RouteNotice)
	// OnPaused is told when a pause of topics or of a downstream begins or changes, and when it ends.
	OnPaused func(PauseNotice)
}

// EventNotice tells of an event that could not be sent.
type EventNotice struct {
	ID            uuid.UUID // the dispatch ID
	Topic, Key    string
	CorrelationID string
	Route         string // the name of its route; "" if the event is missing from the log
	Attempts      int    // counted so far
	RetryIn       time.Duration
	Error         string // the last error
}

// RouteNotice tells of a route.
type RouteNotice struct {
	Route   string // its name, as of [transport.Sender]
	Stalled bool   // false: the route works again
	For     time.Duration
	Error   string // the last error
}

// PauseNotice tells of a pause.
type PauseNotice struct {
	Paused bool // false: the pause has ended
	Pause  control.Pause
}

// wanted tells whether some function is set.
func (o *Observer) wanted() bool {
	return o.OnParked != nil || o.OnDead != nil || o.OnStalled != nil || o.OnPaused != nil
}

// observe has the functions told what the core has noticed.
func (l *relayLoop) observe(notices []core.Notice) {
	for i := range notices {
		if call := l.cfg.Observer.call(&notices[i]); call != nil {
			l.observers.Put(call)
		}
	}
}

// call returns the call that tells of n, or nil.
func (o *Observer) call(n *core.Notice) func() {
	switch n.Kind {
	case core.NoticeParked, core.NoticeDead:
		f := o.OnParked
		if n.Kind == core.NoticeDead {
			f = o.OnDead
		}
		return bound(f, EventNotice{
			ID: n.ID, Topic: n.Topic, Key: n.Key, CorrelationID: n.CorrelationID, Route: n.Route,
			Attempts: n.Attempts, RetryIn: n.RetryIn, Error: n.Error,
		})
	case core.NoticeStalled, core.NoticeWorks:
		return bound(o.OnStalled, RouteNotice{Route: n.Route, Stalled: n.Kind == core.NoticeStalled, For: n.For, Error: n.Error})
	default:
		return bound(o.OnPaused, PauseNotice{Paused: n.Kind == core.NoticePaused, Pause: n.Pause})
	}
}

// bound returns a call of f with its argument, or nil without f.
func bound[T any](f func(T), arg T) func() {
	if f == nil {
		return nil
	}
	return func() { f(arg) }
}
