package core

import (
	"cmp"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// State is the state of the machine at one moment, for Health.
type State struct {
	Shards, Share, Relays       int
	InFlight, Waiting, Unmarked int
	Limited                     int // of Waiting, for want of tokens
	OldestInFlight              time.Time
	Routes                      []RouteState
	DatabaseError               string
	DatabaseErrorAt             time.Time
	FailedOverAt                time.Time
	HeldSince                   time.Time // since when events wait for the list of pauses
	PausesError                 string

	LastRead, LastRenewal, LastMark, LastConfirm time.Time

	Reads    int64
	ReadTime time.Duration
}

// RouteState is the state of a stalled route.
type RouteState struct {
	Route       string
	State       outbox.RouteState
	Since       time.Time
	Overdue     bool
	LastError   string
	LastErrorAt time.Time
	LastSuccess time.Time
}

// State returns the machine's state, with its times counted from origin.
func (c *Machine) State(origin time.Time) State {
	at := func(d time.Duration) time.Time {
		if d < 0 {
			return time.Time{}
		}
		return origin.Add(d)
	}
	h := State{
		Shards:          c.leases.held,
		Relays:          c.leases.live,
		InFlight:        c.dispatch.inflight,
		Waiting:         c.keys.buffered - c.dispatch.inflight,
		Unmarked:        len(c.marks.pending) + c.marks.underway,
		DatabaseError:   c.health.callErr,
		DatabaseErrorAt: at(c.health.callErrAt),
		FailedOverAt:    at(c.health.failedOver),
		LastRead:        at(c.health.read),
		LastRenewal:     at(c.health.renewed),
		LastMark:        at(c.health.marked),
		LastConfirm:     at(c.routes.success),
		Reads:           c.health.reads,
		ReadTime:        c.health.reading,
	}
	if c.pauses.heldAt > 0 {
		h.HeldSince, h.PausesError = at(c.pauses.heldAt), c.pauses.problem
	}
	if sent, ok := c.dispatch.unanswered.oldest(); ok {
		h.OldestInFlight = at(sent)
	}
	if h.Relays > 0 {
		h.Share = c.leases.share()
	}
	for _, l := range c.rates.all {
		h.Limited += l.ready()
	}
	for _, r := range c.routes.byName {
		if !r.stalled() {
			continue
		}
		s := RouteState{
			Route:       r.name,
			State:       r.state(),
			Since:       at(r.since),
			Overdue:     r.reported,
			LastError:   r.problem,
			LastErrorAt: at(r.failed),
			LastSuccess: at(r.success),
		}
		if r.pause != nil {
			s.Since, s.LastError, s.LastErrorAt = at(r.pausedAt), r.pause.String(), time.Time{}
		}
		h.Routes = append(h.Routes, s)
	}
	slices.SortFunc(h.Routes, func(a, b RouteState) int { return cmp.Compare(a.Route, b.Route) })
	return h
}
