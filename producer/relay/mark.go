package relay

import (
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// marking is the part of the core that removes confirmed events from the queue,
// in batches, while further ones are sent.
type marking struct {
	busy     *call
	fails    int
	retry    time.Duration
	pending  []*entry
	since    time.Duration // when the first of them was confirmed
	underway int           // events in the statement
}

const (
	markMax     = 1000
	markDelay   = 2 * time.Millisecond
	markLongest = 10 * time.Millisecond // where looks find much
)

func (m *marking) add(now time.Duration, e *entry) {
	if len(m.pending) == 0 {
		m.since = now
	}
	m.pending = append(m.pending, e)
}

// planMark issues the next mark. While much is in flight, or looks find much, it waits a moment for
// more to be confirmed, so that a batch is worth its round trip.
func (c *relayCore) planMark() {
	m := &c.marking
	if m.busy != nil || len(m.pending) == 0 {
		return
	}
	if c.now < m.retry {
		c.at(m.retry)
		return
	}
	if ripe, wait := c.ripe(); wait && len(m.pending) < c.cfg.Window/4 && c.now < ripe {
		c.at(ripe)
		return
	}
	cl := ask(statement{op: opMark})
	taken := 0
	for _, e := range m.pending {
		if taken++; e.shard.gone {
			continue
		}
		cl.entries = append(cl.entries, e)
		if len(cl.entries) == markMax {
			break
		}
	}
	m.pending = append(m.pending[:0], m.pending[taken:]...)
	if len(cl.entries) == 0 {
		return
	}
	cl.marks = make([]outbox.Mark, len(cl.entries))
	for i, e := range cl.entries {
		cl.marks[i] = e.mark()
	}
	m.underway = len(cl.entries)
	m.busy = c.issue(cl)
}

// ripe returns until when what is to be marked may wait for more, and whether more is to come.
func (c *relayCore) ripe() (at time.Duration, wait bool) {
	m, s := &c.marking, &c.reading.spacing
	if s.wide() && !c.stopping {
		return m.since + min(max(markDelay, s.now/2), markLongest), true
	}
	return m.since + markDelay, c.inflight > len(m.pending)
}

func (c *relayCore) markReply(cl *call) {
	m := &c.marking
	m.busy, m.underway = nil, 0
	if cl.err != nil { // whether it was done or not, it may be done again
		m.fails++
		m.retry = c.now + c.pause(m.fails)
		m.pending = append(cl.entries, m.pending...)
		return
	}
	m.fails = 0
	c.health.marked = c.now
	for _, no := range cl.lost {
		for _, e := range cl.entries {
			if e.shard.no == no {
				c.lose(e.shard, "mark")
			}
		}
	}
	for _, e := range cl.entries {
		sh, l := e.shard, e.line
		if sh.gone {
			continue
		}
		c.report.Delivered++
		sh.marking--
		c.left(e)
		if l != nil {
			l.marking--
			if l.marking == 0 {
				c.marked(l)
			}
			c.tidy(l)
		}
		c.free(e)
	}
}

// marked lets the failed event of l that waited for the marks of its
// predecessors be parked: were it parked first and the relay died then, they
// would be sent behind it.
func (c *relayCore) marked(l *keyLine) {
	if e := l.first; e != nil && e.state == entryParking && l.parking > 0 {
		c.parkNow(e)
	}
}
