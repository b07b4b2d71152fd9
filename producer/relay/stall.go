package relay

import (
	"cmp"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

// candidates returns the events of a stalled route that may be probed, those
// probed least first, the oldest among equals.
func (r *route) candidates() []*entry {
	all := make([]*entry, 0, r.ready.n+r.refused.n)
	for e := r.ready.first; e != nil; e = e.qnext {
		all = append(all, e)
	}
	for e := r.refused.first; e != nil; e = e.qnext {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *entry) int {
		return cmp.Or(cmp.Compare(a.probes, b.probes), cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.shard.no, b.shard.no))
	})
	return all
}

// admit tells whether an event whose route is r is to be kept in memory. On a stalled route that
// has enough there, it is not; but for one that comes round again, one that was probed in vain
// makes room: or the route could stay closed for a few bad events, with good ones behind them.
func (c *relayCore) admit(r *route, again bool) bool {
	if !c.crowded(r) {
		r.hungry = false
		return true
	}
	if !again {
		return false
	}
	var worst *entry
	for _, q := range []*entryQueue{&r.refused, &r.ready} {
		for e := q.first; e != nil; e = e.qnext {
			if e.probes > 0 && (worst == nil || cmp.Or(cmp.Compare(e.probes, worst.probes), cmp.Compare(e.Seq, worst.Seq)) > 0) {
				worst = e
			}
		}
	}
	if worst == nil {
		return false
	}
	r.hungry = false
	c.evict(worst)
	return true
}

// admitDue is admit for a parked event. Each pass over what is due admits what lies behind what the
// one before it has admitted to r, until there is none.
func (c *relayCore) admitDue(r *route, row *outbox.Queued) bool {
	at := outbox.DuePoint{At: row.DueAt, Seq: row.Seq}
	if !c.crowded(r) || compareDue(at, r.dueFrom) > 0 && c.admit(r, true) {
		if r.stalled() {
			r.dueFrom, r.dueTook = at, true
		}
		return true
	}
	c.due.passed++
	return false
}

// compare orders places by time and Seq.
func compareDue(p, q outbox.DuePoint) int {
	return cmp.Or(p.At.Compare(q.At), cmp.Compare(p.Seq, q.Seq))
}

// crowded tells whether r is stalled and has enough events in memory, so that
// further ones are passed over: they would take the room of those that
// can be sent. If nothing comes through anywhere, there are none.
func (c *relayCore) crowded(r *route) bool {
	return r.stalled() && r.ready.n+r.refused.n >= c.candidateShare() && c.othersWork(r)
}

// candidateShare is how many events a stalled route may keep in memory to be probed: however many
// routes stall, all of them together have a window's, or two each: with one alone, a bad event
// would make room for the good one that proves it bad.
func (c *relayCore) candidateShare() int {
	return max(2, min(c.limits.stall, c.capacity()/2/max(len(c.stalled), 1)))
}

// stuck is how many events stalled routes may keep in memory without taking the
// room of others.
func (c *relayCore) stuck() (n int) {
	share := c.candidateShare()
	for _, r := range c.stalled {
		if c.othersWork(r) {
			n += min(r.events, share)
		}
	}
	return n
}

// othersWork tells whether other routes may work while r does not: the transport
// answers, or r has been unavailable for so long that it is worth a look.
func (c *relayCore) othersWork(r *route) bool {
	return r.paused || c.success > r.downAt || c.now-r.downAt > downAlone
}

// relieve makes room that stalled routes take from others.
func (c *relayCore) relieve() {
	for _, r := range c.stalled {
		c.shed(r)
	}
}

// shed takes events of a stalled route out of memory, except for the oldest of
// its keys, one of each. The others are read again when the route works.
func (c *relayCore) shed(r *route) {
	if !c.othersWork(r) || c.now < r.shedAt {
		return
	}
	if r.inflight == 0 { // what is in flight may be what is too much
		r.shedAt = c.now + shedInterval
	}
	all, share := r.candidates(), c.candidateShare()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.shard.no, b.shard.no)) })
	for i, e := range all {
		switch {
		case i >= share:
			c.evict(e)
		case e.parked && e.line != nil:
			c.forgetFIFO(e.line, e)
		case e.line != nil && e.next != nil:
			c.evict(e.next)
		}
	}
}

// evict passes over an event that was read already and waits, with all that is behind it in its
// key.
func (c *relayCore) evict(e *entry) {
	sh, l, r := e.shard, e.line, e.route
	switch {
	case e.parked:
		c.due.passed++
		if l == nil {
			c.forget(e)
		} else {
			c.forgetFIFO(l, nil)
			c.recheck(l)
		}
	case l == nil:
		c.passOver(sh, r, "", e.Seq)
		c.forget(e)
	default:
		key, seq := l.key, e.Seq
		if l.hole != 0 {
			seq = min(seq, l.hole)
			l.hole = 0
		}
		for l.last != e {
			seq = min(seq, l.last.Seq) // one that came while e was in flight stands behind it, and may be older
			sh.skip(l.last.Seq)
			c.forgetLast(l)
		}
		c.passOver(sh, r, key, seq)
		sh.skip(e.Seq)
		c.forget(e)
	}
}

// forgetLast forgets the last event of l, which waits, and keeps l.
func (c *relayCore) forgetLast(l *keyLine) {
	e := l.last
	e.unqueue()
	c.uncount(e)
	delete(l.shard.index, e.Seq)
	l.remove(e)
	c.free(e)
}
