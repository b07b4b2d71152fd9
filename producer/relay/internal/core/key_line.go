package core

import (
	"math"
	"slices"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// keyLine is the state of one key: its events in memory, and whether they may be sent.
//
// A key has one source at a time. While it is not blocked, its events come from the queue, first to
// last. Once it is blocked, its events come from the parked ones, and its events in the queue are
// moved behind them, until a statement finds no parked event left. An event of the key in flight,
// from either source, keeps all others waiting.
type keyLine struct {
	key   string
	shard *shardState
	lineQueue
	lineParked
	// inflight is the event of the key that was sent and has no outcome yet, from either source.
	inflight *Entry
}

// lineQueue is what memory has of a key's events in the queue.
type lineQueue struct {
	first, last *Entry // not confirmed, by ascending Seq
	n           int
	marking     int   // confirmed, but not marked yet
	parking     int   // counted failures that are not recorded yet
	hole        int64 // from this Seq on, events of the key were skipped; 0: none were
	refilling   bool
}

// lineParked is what memory has of a key's parked events.
type lineParked struct {
	blocked   bool
	following int      // events to be moved, or being moved, behind the head
	head      int64    // Seq of the first parked event, 0 if not known
	parked    []*Entry // by ascending Seq
	sent      int      // confirmed, but not recorded yet
	retrying  int      // with a further failure that is not recorded yet
	fetching  bool     // FetchParked is to be called, or under way
	due       bool     // the first parked event is due, in any state
	verify    bool     // an operator may have changed the parked events
}

// insert puts e at the place of its Seq, but not before the event in flight.
func (l *keyLine) insert(e *Entry) {
	l.n++
	at := &l.first
	if l.last != nil && l.last.Seq < e.Seq {
		at = &l.last.next
	} else {
		for *at != nil && ((*at).Seq < e.Seq || (*at).state.underway()) {
			at = &(*at).next
		}
	}
	e.next = *at
	*at = e
	if e.next == nil {
		l.last = e
	}
}

// remove takes e out of the line.
func (l *keyLine) remove(e *Entry) {
	if e.parked {
		if i := slices.Index(l.parked, e); i >= 0 {
			l.parked = slices.Delete(l.parked, i, i+1)
		}
		return
	}
	var before *Entry
	for at := l.first; at != nil; before, at = at, at.next {
		if at != e {
			continue
		}
		if before == nil {
			l.first = e.next
		} else {
			before.next = e.next
		}
		if l.last == e {
			l.last = before
		}
		e.next = nil
		l.n--
		return
	}
}

// idle tells whether the key has no event in memory and no statement under way.
func (l *keyLine) idle() bool {
	return l.first == nil && l.inflight == nil && l.marking == 0 && l.parking == 0 && l.hole == 0 && !l.refilling &&
		l.following == 0 && l.retrying == 0 && !l.flowing()
}

// headUnknown stands for a head whose Seq is not known.
const headUnknown = 1

// flowing tells whether parked events of the key are on their way out.
func (l *keyLine) flowing() bool {
	return len(l.parked) > 0 || l.sent > 0 || l.retrying > 0 || l.fetching
}

// leads tells whether an event of the queue before e is on its way out of the queue.
func (l *keyLine) leads(e *Entry) bool {
	return l.parking > 0 || l.inflight != nil && !l.inflight.parked && l.inflight.Seq < e.Seq
}

// toMove returns the first Seq of l that is still to be moved behind its head. Parked events behind
// it must not go before it.
func (l *keyLine) toMove() int64 {
	first := int64(math.MaxInt64)
	if l.following == 0 {
		return first
	}
	pw := &l.shard.writer
	lists := [2][]*Entry{pw.follow}
	if pw.busy != nil && pw.busy.Op() == statement.OpFollow {
		lists[1] = pw.busy.entries
	}
	for _, list := range lists {
		for _, e := range list {
			if e.line == l {
				first = min(first, e.Seq)
			}
		}
	}
	return first
}

// waits tells whether the key's next event is on a route whose events wait in the database.
func (l *keyLine) waits() bool { return l.first != nil && l.first.route.keepsBack() }
