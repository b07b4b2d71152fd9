package core

import (
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/control"
)

// NoticeKind says what a [Notice] tells.
type NoticeKind uint8

const (
	// NoticeParked tells of an event that waits for its next attempt.
	NoticeParked NoticeKind = iota
	// NoticeDead tells of an event that is dead.
	NoticeDead
	// NoticeStalled tells of a route on which nothing succeeds.
	NoticeStalled
	// NoticeWorks tells of a stalled route that works again.
	NoticeWorks
	// NoticePaused tells of a pause that has begun or changed.
	NoticePaused
	// NoticeResumed tells of a pause that has ended.
	NoticeResumed
)

// Notice is something that an observer is told.
type Notice struct {
	Kind          NoticeKind
	ID            uuid.UUID
	Topic         string
	Key           string
	CorrelationID string
	Attempts      int
	RetryIn       time.Duration
	Route         string
	Error         string
	For           time.Duration // since the first failure of the route
	Pause         control.Pause
}

// notify tells an observer, if there is one.
func (c *Machine) notify(n Notice) {
	if c.cfg.Observed {
		c.notices = append(c.notices, n)
	}
}

// notifyOf tells of the failure of an event.
func (c *Machine) notifyOf(e *Entry) {
	n := Notice{
		Kind: NoticeParked, ID: e.ID, Topic: e.Topic, Key: e.Key, CorrelationID: e.CorrelationID,
		Attempts: e.Attempts, RetryIn: e.retryIn, Error: e.problem,
	}
	if e.dead {
		n.Kind = NoticeDead
	}
	if e.route != nil {
		n.Route = e.route.name
	}
	c.notify(n)
}

// notifyRoute tells of a route that has stalled or works again.
func (c *Machine) notifyRoute(kind NoticeKind, r *route) {
	c.notify(Notice{Kind: kind, Route: r.name, Error: r.problem, For: c.now - r.since})
}
