package core

import (
	"cmp"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

// candidates returns the events of a stalled route that may be probed: the fewest probes first, and
// among equals the one that has waited longest. By age, bad events that laps read again and again
// would be probed before a younger good one for ever.
func (r *route) candidates() []*Entry {
	all := make([]*Entry, 0, r.ready.n+r.refused.n)
	for e := r.ready.first; e != nil; e = e.qnext {
		all = append(all, e)
	}
	for e := r.refused.first; e != nil; e = e.qnext {
		all = append(all, e)
	}
	slices.SortStableFunc(all, func(a, b *Entry) int { return cmp.Compare(a.probes, b.probes) })
	return all
}

// turn is how far the events that a stalled route does not keep in memory have had their turn to be
// probed. Who reads them, a lap or a pass over the due events, often begins again at the first, and
// would have none but the first ones probed.
type turn[P any] struct {
	at   P    // up to here
	left bool // an event behind waits, as far as the lap or the pass has come
}

// ended takes note of the end of a lap or a pass. If it has left no event behind, the first one is
// next.
func (t turn[P]) ended() turn[P] {
	if !t.left {
		return turn[P]{}
	}
	return turn[P]{at: t.at}
}

// admit tells whether an event of r in sh is kept in memory. A stalled route with enough events
// admits none, except for one that a lap reads again, whose turn it is: it takes the place of an
// event that was probed in vain. Otherwise a few bad events could keep the route stalled, with good
// ones behind them.
func (rs *routes) admit(r *route, sh *shardState, seq int64, lap bool) bool {
	if !rs.hasEnough(r) {
		r.needsCandidates = false
		return true
	}
	t := r.lapTurns[sh.no]
	if !lap || seq <= t.at {
		return false
	}
	admitted := rs.makeRoom(r)
	if admitted {
		t.at = seq
	} else {
		t.left = true
	}
	if r.lapTurns == nil {
		r.lapTurns = make(map[int]turn[int64])
	}
	r.lapTurns[sh.no] = t
	return admitted
}

// makeRoom takes the place of an event that was probed in vain, the one with the most probes and
// the youngest among equals. The last one stays: the good event that proves it bad may be next.
func (rs *routes) makeRoom(r *route) bool {
	var worst *Entry
	probed := 0
	for _, q := range []*entryQueue{&r.refused, &r.ready} {
		for e := q.first; e != nil; e = e.qnext {
			if e.probes == 0 {
				continue
			}
			if probed++; worst == nil || cmp.Or(cmp.Compare(e.probes, worst.probes), cmp.Compare(e.Seq, worst.Seq)) > 0 {
				worst = e
			}
		}
	}
	if probed < 2 {
		return false
	}
	r.needsCandidates = false
	rs.evict(worst)
	return true
}

// admitDue is admit for a parked event, which a pass over the due events has read.
func (rs *routes) admitDue(r *route, row *outbox.Queued) bool {
	if !rs.hasEnough(r) {
		return true
	}
	at := outbox.DuePoint{At: row.DueAt, Seq: row.Seq}
	if compareDue(at, r.dueTurn.at) > 0 {
		if rs.makeRoom(r) {
			r.dueTurn.at = at
			return true
		}
		r.dueTurn.left = true
	}
	rs.due.skipped++
	return false
}

// compareDue orders places by time and Seq.
func compareDue(p, q outbox.DuePoint) int {
	return cmp.Or(p.At.Compare(q.At), cmp.Compare(p.Seq, q.Seq))
}

// hasEnough tells whether r is stalled and has enough events in memory, so that further ones are
// skipped: they would take the room of events that can be sent. If nothing succeeds on any route,
// there are no such events, and none is skipped.
func (rs *routes) hasEnough(r *route) bool {
	return r.stalled() && r.ready.n+r.refused.n >= rs.candidateShare() && rs.othersWork(r)
}

// candidateShare is how many events a stalled route may keep in memory to be probed. All stalled
// routes together may have as many as the window, and each at least two: on a route with one, a bad
// event would make room for the good event that proves it bad.
func (rs *routes) candidateShare() int {
	return max(2, min(rs.limits.stall, rs.reader.capacity()/2/max(len(rs.stalled), 1)))
}

// stalledRoom is how many events stalled routes may keep in memory without taking the room of
// others.
func (rs *routes) stalledRoom() (n int) {
	share := rs.candidateShare()
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
	return r.paused || rs.success > r.downAt || rs.now-r.downAt > downAlone
}

// evictSurplus evicts surplus events of all stalled routes.
func (rs *routes) evictSurplus() {
	for _, r := range rs.stalled {
		rs.evictSurplusOf(r)
	}
}

// evictSurplusOf takes events of a stalled route out of memory, except for the oldest event of each
// of its oldest keys. The others are read again when the route works.
func (rs *routes) evictSurplusOf(r *route) {
	if !rs.othersWork(r) || rs.now < r.evictAt {
		return
	}
	if r.inflight == 0 { // events in flight may be the surplus
		r.evictAt = rs.now + evictInterval
	}
	all, share := r.candidates(), rs.candidateShare()
	slices.SortFunc(all, func(a, b *Entry) int {
		return cmp.Or(cmp.Compare(a.probes, b.probes), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.shard.no, b.shard.no))
	})
	for i, e := range all {
		switch {
		case i >= share:
			rs.evict(e)
		case e.parked && e.line != nil:
			rs.keys.forgetParked(e.line, e)
		case e.line != nil && e.next != nil:
			rs.evict(e.next)
		}
	}
}

// evict skips an event that was read already and waits, with all later events of its key.
func (rs *routes) evict(e *Entry) {
	sh, l, r := e.shard, e.line, e.route
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
