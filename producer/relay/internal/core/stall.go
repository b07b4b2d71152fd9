package core

import (
	"cmp"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

// candidates returns the events of a stalled route that may be probed: first the ones that were not
// probed yet, as they have come (what was refused before the pause is first), then the ones that were
// probed longest ago. By age, bad events that laps read again and again would be probed before a
// younger good one for ever.
func (r *route) candidates() []*Entry {
	all := make([]*Entry, 0, r.refused.n+r.ready.n)
	for _, q := range [...]*entryQueue{&r.refused, &r.ready} {
		for e := q.first; e != nil; e = e.qnext {
			all = append(all, e)
		}
	}
	slices.SortStableFunc(all, func(a, b *Entry) int { return cmp.Compare(a.probe, b.probe) })
	return all
}

// nextProbe returns the event that is probed next: the first candidate of the queue and the first
// parked one in turns.
func (r *route) nextProbe() *Entry {
	all, parked := r.candidates(), r.probe%2 > 0
	return all[max(0, slices.IndexFunc(all, func(e *Entry) bool { return e.parked == parked }))]
}

// turn is how far the events of one source, which a stalled route does not keep in memory, have had
// their turn to be probed. A lap or a pass over the due events often begins again at the first event;
// without turns, only the first ones would be probed. Laps of a shard and passes are numbered from 1.
type turn[P any] struct {
	at  P // the last event that had its turn
	end P // of the round: events behind come in the next one, or more events than probes would keep it from coming
	// leftIn is the latest lap or pass in which an event found no place. No event behind that one
	// has its turn in the same lap or pass, or that one would be skipped.
	leftIn int
}

// ended returns the turn after the end of a lap or a pass. If that was whole and has left no event
// behind, or the round is over, the first event is next.
func (t turn[P]) ended(in int, whole, over bool) turn[P] {
	if t.leftIn != in && whole || over {
		return turn[P]{}
	}
	return t
}

// admit tells whether an event of r in sh is kept in memory. A stalled route keeps only a few, to be
// probed. A lap gives the free places to the events whose turn it is, and then has them take the
// places of events that were probed in vain. Otherwise a few bad events could keep the route stalled,
// with good ones behind them.
func (rs *routes) admit(r *route, sh *shardState, seq int64, lap bool) bool {
	switch {
	case r.pause != nil: // it has no probes
		if !lap {
			rs.pauses.left++
		}
		return false
	case r.limit != nil && !r.stalled():
		return rs.rates.admits(r.limit, sh, lap)
	}
	full := rs.hasEnough(r)
	if !full && (!lap || !rs.keepsFew(r)) {
		r.needsCandidates = false
		return true
	}
	t := r.lapTurns[sh.no]
	if !lap || seq <= t.at || t.leftIn == sh.back.number {
		return false
	}
	if t.at == 0 {
		t.end = sh.low
	}
	var worst *Entry
	if full && sh.back.turns {
		worst = rs.worst(r, false, nil)
	}
	placed := worst != nil || !full
	if placed {
		t.at = seq
	} else {
		t.leftIn = sh.back.number
	}
	if r.lapTurns == nil {
		r.lapTurns = make(map[int]turn[int64])
	}
	r.lapTurns[sh.no] = t
	r.needsCandidates = false // until a further probe was in vain
	if worst != nil {
		rs.evict(worst)
	}
	return placed
}

// admitDue is admit for a parked event of the key of l, or without one, which a pass over the due
// events has read.
func (rs *routes) admitDue(r *route, row *outbox.Queued, l *keyLine) bool {
	if r.pause != nil || r.limit != nil && !r.stalled() && !rs.rates.admitsDue(r.limit) {
		rs.due.skipped++
		return false
	}
	if !rs.keepsFew(r) {
		return true
	}
	at := outbox.DuePoint{At: row.DueAt, Seq: row.Seq}
	if compareDue(at, r.dueTurn.at) > 0 && r.dueTurn.leftIn != rs.due.pass {
		if !rs.hasEnough(r) {
			r.dueTurn.at = at
			return true
		}
		if worst := rs.worst(r, true, l); worst != nil {
			r.dueTurn.at = at
			rs.evict(worst)
			return true
		}
		r.dueTurn.leftIn = rs.due.pass
	}
	rs.due.skipped++
	return false
}

// worst returns the event of r in memory that makes room for another one, parked or of the queue, of
// the key of l: the one that was probed in vain longest ago. Each kind makes room for its own, and
// for the other one while that has less than half of the places. An event of the same key does not:
// its line would be freed. One probed event always stays, and worst returns nil: the good event that
// proves it bad may be next. The second one is left to parked events that wait and have no place:
// laps come more often than passes over the due events.
func (rs *routes) worst(r *route, parked bool, l *keyLine) *Entry {
	var same, other *Entry
	kept, probed := 0, 0
	for _, q := range [...]*entryQueue{&r.refused, &r.ready} {
		for e := q.first; e != nil; e = e.qnext {
			of := &other
			if e.parked == parked {
				kept++
				of = &same
			}
			if e.probe > 0 {
				probed++
				if (l == nil || e.line != l) && (*of == nil || e.probe < (*of).probe) {
					*of = e
				}
			}
		}
	}
	least := 2
	if !parked && kept == r.ready.n+r.refused.n && r.dueTurn.leftIn > 0 && r.dueTurn.leftIn == rs.due.pass {
		least = 3
	}
	switch {
	case probed < least:
		return nil
	case other != nil && kept < rs.candidateShare()/2:
		return other
	}
	return same
}

// probed takes note of the outcome of a probe on r. Once all its events of the queue were probed in
// vain, others are to take their places.
func (rs *routes) probed(r *route) {
	for _, q := range [...]*entryQueue{&r.refused, &r.ready} {
		for e := q.first; e != nil; e = e.qnext {
			if !e.parked && e.probe == 0 {
				return
			}
		}
	}
	r.needsCandidates = r.ready.n+r.refused.n < rs.candidateShare() || rs.worst(r, false, nil) != nil
}

// pausesAt tells whether a lap of sh pauses before row, an event that finds no place in memory now.
// Behind it, no event of its route has its turn in this lap. So the lap goes on only if other routes
// or a sweep need that.
func (rs *routes) pausesAt(sh *shardState, row *outbox.Queued) bool {
	if sh.back.wanted() || sh.index[row.Seq] != nil || row.Missing {
		return false
	}
	r := rs.of(row.Topic)
	if r.pause != nil {
		return !rs.needsLap(sh)
	}
	if r.limit != nil && !r.stalled() {
		return rs.rates.full(r.limit) && !rs.needsLap(sh)
	}
	if t := r.lapTurns[sh.no]; row.Seq <= t.at || t.leftIn == sh.back.number || !rs.hasEnough(r) || rs.worst(r, false, nil) != nil {
		return false
	}
	r.needsCandidates = false // until a further probe was in vain
	return !rs.needsLap(sh)
}

// needsLap tells whether some route needs further events that were skipped in sh.
func (rs *routes) needsLap(sh *shardState) bool {
	return (rs.laps.candidateShards()|rs.rates.needing())&(1<<sh.no) != 0
}

// holdsBack tells whether later events of a key wait in the database because its next event is on r.
func (rs *routes) holdsBack(r *route) bool { return r.stalled() || rs.rates.full(r.limit) }

// forgetShard drops what routes know of the events of a shard that the relay no longer owns.
func (rs *routes) forgetShard(no int) {
	for _, r := range rs.byName {
		r.skippedIn &^= 1 << no
		r.skippedAgain &^= 1 << no
		delete(r.lapTurns, no)
	}
	rs.rates.forget(no)
}

// compareDue orders places by time and Seq.
func compareDue(p, q outbox.DuePoint) int {
	return cmp.Or(p.At.Compare(q.At), cmp.Compare(p.Seq, q.Seq))
}

// keepsFew tells whether r is stalled and keeps only a few events in memory: further ones would take
// the room of events that can be sent. If nothing succeeds on any route, no event can be sent, and
// none is skipped.
func (rs *routes) keepsFew(r *route) bool { return r.stalled() && rs.othersWork(r) }

// hasEnough tells whether r keeps only a few events and has them.
func (rs *routes) hasEnough(r *route) bool {
	return rs.keepsFew(r) && r.ready.n+r.refused.n >= rs.candidateShare()
}

// candidateShare is how many events a stalled route may keep in memory to be probed. All stalled
// routes together may have as many as the window, and each at least two: on a route with one, a bad
// event would make room for the good event that proves it bad.
func (rs *routes) candidateShare() int {
	return max(2, min(rs.limits.stall, rs.reader.capacity()/2/max(len(rs.stalled), 1)))
}

// stalledRoom is how many events stalled and limited routes may keep in memory without taking the
// room of others.
func (rs *routes) stalledRoom() (n int) {
	share := rs.candidateShare()
	for _, l := range rs.rates.all {
		n += l.events
	}
	for _, r := range rs.stalled {
		if rs.othersWork(r) {
			n += min(r.events, share)
		}
	}
	return n
}

// othersWork tells whether other routes may work while r does not: the transport answers, or r has
// been unavailable for so long that the others are worth a try.
func (rs *routes) othersWork(r *route) bool {
	return r.paused || r.pause != nil || rs.success > r.downAt || rs.now-r.downAt > downAlone
}

// evictSurplus evicts surplus events of all stalled routes.
func (rs *routes) evictSurplus() {
	for _, r := range rs.stalled {
		rs.evictSurplusOf(r)
	}
}

// evictSurplusOf takes events of a stalled route out of memory, except for the first event of each of
// a few keys: the ones that were not probed yet, in the order in which they came. The others are read
// again when the route works.
func (rs *routes) evictSurplusOf(r *route) {
	if !rs.othersWork(r) || rs.now < r.evictAt {
		return
	}
	if r.inflight == 0 { // events in flight may be the surplus
		r.evictAt = rs.now + evictInterval
	}
	all, share := r.candidates(), rs.candidateShare()
	if r.pause != nil {
		share = 0
	}
	slices.SortStableFunc(all, func(a, b *Entry) int {
		return cmp.Compare(min(a.probe, 1), min(b.probe, 1))
	})
	for i, e := range all {
		switch {
		case i >= share:
			rs.giveTurnBack(e)
			rs.evict(e)
		case e.parked && e.line != nil:
			rs.keys.forgetParked(e.line, e)
		case e.line != nil && e.next != nil:
			rs.evict(e.next)
		}
	}
}

// giveTurnBack gives e, an event of the queue that leaves memory, its turn again, unless it was probed
// in vain.
func (rs *routes) giveTurnBack(e *Entry) {
	if t := e.route.lapTurns[e.shard.no]; e.turn && e.probe == 0 && e.Seq <= t.at {
		t.at = e.Seq - 1
		e.route.lapTurns[e.shard.no] = t
	}
}

// evict skips an event that was read already and waits, with all later events of its key.
func (rs *routes) evict(e *Entry) {
	sh, l, r := e.shard, e.line, e.route
	if r.pause != nil {
		rs.pauses.left++
	}
	switch {
	case e.parked:
		rs.due.skipped++
		if l == nil {
			rs.keys.forget(e)
		} else {
			rs.keys.forgetParked(l, nil)
			rs.parking.recheck(l)
		}
	case l == nil:
		rs.laps.skip(sh, r, "", e.Seq)
		rs.keys.forget(e)
	default:
		key, seq := l.key, e.Seq
		if l.hole != 0 {
			seq = min(seq, l.hole)
			l.hole = 0
		}
		for l.last != e {
			seq = min(seq, l.last.Seq) // an event that came while e was in flight stands behind it, and may be older
			sh.skip(l.last.Seq)
			rs.keys.forgetLast(l)
		}
		rs.laps.skip(sh, r, key, seq)
		sh.skip(e.Seq)
		rs.keys.forget(e)
	}
}
