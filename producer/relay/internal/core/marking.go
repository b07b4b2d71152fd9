package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// marking removes confirmed events from the queue, in batches, while further events are sent.
type marking struct {
	*Machine

	busy     *Call
	fails    int
	retry    time.Duration
	pending  []*Entry
	since    time.Duration // when the first pending event was confirmed
	underway int           // events in the statement
}

const (
	markMax     = 1000
	markDelay   = 2 * time.Millisecond
	markLongest = 10 * time.Millisecond // under load
)

func (mk *marking) add(e *Entry) {
	if len(mk.pending) == 0 {
		mk.since = mk.now
	}
	mk.pending = append(mk.pending, e)
}

// plan issues the next mark. With much in flight, or under load, plan waits a moment for more
// confirms, so that a batch is worth its round trip.
func (mk *marking) plan() {
	if mk.busy != nil || len(mk.pending) == 0 {
		return
	}
	if mk.now < mk.retry {
		mk.at(mk.retry)
		return
	}
	if ripe, wait := mk.ripe(); wait && len(mk.pending) < mk.cfg.Window/4 && mk.now < ripe {
		mk.at(ripe)
		return
	}
	s := new(statement.Mark)
	cl := ask(s)
	taken := 0
	for _, e := range mk.pending {
		if taken++; e.shard.gone {
			continue
		}
		cl.entries = append(cl.entries, e)
		if len(cl.entries) == markMax {
			break
		}
	}
	mk.pending = append(mk.pending[:0], mk.pending[taken:]...)
	if len(cl.entries) == 0 {
		return
	}
	s.Marks = marksOf(cl.entries)
	mk.underway = len(cl.entries)
	mk.busy = mk.issue(cl)
}

// ripe returns the time until which the events to mark may wait for more, and whether more are
// expected.
func (mk *marking) ripe() (at time.Duration, wait bool) {
	s := &mk.reader.pacer
	if s.wide() && !mk.stopping {
		return mk.since + min(max(markDelay, s.interval/2), markLongest), true
	}
	return mk.since + markDelay, mk.dispatch.inflight > len(mk.pending)
}

func (mk *marking) reply(cl *Call) {
	mk.busy, mk.underway = nil, 0
	if cl.Err != nil { // even an executed statement may be repeated
		mk.fails++
		mk.retry = mk.now + mk.pause(mk.fails)
		mk.pending = append(cl.entries, mk.pending...)
		return
	}
	mk.fails = 0
	mk.health.marked = mk.now
	for _, no := range cl.Statement.(*statement.Mark).Lost {
		for _, e := range cl.entries {
			if e.shard.no == no {
				mk.leases.lose(e.shard, "mark")
			}
		}
	}
	for _, e := range cl.entries {
		sh, l := e.shard, e.line
		if sh.gone {
			continue
		}
		mk.report.Delivered++
		sh.marking--
		mk.keys.leftQueue(e)
		if l != nil {
			l.marking--
			if l.marking == 0 {
				mk.marked(l)
			}
			mk.keys.dropIdle(l)
		}
		mk.keys.free(e)
	}
}

// marked parks the failed event of l, which has waited for the marks of its predecessors. If the
// relay parked the event before the marks and died, the next owner would send the predecessors
// behind the event.
func (mk *marking) marked(l *keyLine) {
	if e := l.first; e != nil && e.state == entryParking && l.parking > 0 {
		mk.parking.parkNow(e)
	}
}

// toMark queues the removal of e's queue row.
func (mk *marking) toMark(e *Entry) {
	mk.keys.uncount(e)
	e.state = entryConfirmed
	e.shard.marking++
	if e.line != nil {
		e.line.remove(e)
		e.line.marking++
	}
	mk.add(e)
}
