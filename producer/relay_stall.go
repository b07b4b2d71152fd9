package producer

import (
	"cmp"
	"slices"
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

// admit tells whether an event whose route is r is to be kept in memory. On a
// stalled route that has enough there, one that was probed in vain makes room: or
// the route could stay closed for a few bad events, with good ones behind them. What was
// passed over before draws lots with the others of which that is true, behind in number.
func (c *relayCore) admit(r *route, seq int64, behind int) bool {
	if !r.stalled() {
		return true
	}
	if seq <= r.drawUpTo && c.rand.IntN(behind+1) >= c.limits.stall && c.othersWork(r) {
		return false
	}
	if !c.crowded(r) {
		return true
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
	c.evict(worst)
	return true
}

// admitDue is admit for a parked event.
func (c *relayCore) admitDue(r *route, seq int64) bool {
	if c.admit(r, seq, r.behindDue) {
		return true
	}
	c.due.passed++
	r.passedDue++
	return false
}

// rotate gives events a chance that stalled routes have passed over, if all that they
// keep in memory was probed in vain: they are read again, and others are drawn.
func (c *relayCore) rotate() {
	var rotated []*route
	for _, r := range c.stalled {
		all := r.candidates()
		if r.passed+r.behindDue == 0 || len(all) > 0 && all[0].probes == 0 {
			continue
		}
		rotated = append(rotated, r)
		r.drawUpTo, r.behind = c.late.seen, r.passed
		for _, e := range all {
			c.evict(e)
		}
		if len(all) == 0 {
			r.behind = 0
		}
	}
	if len(rotated) == 0 {
		return
	}
	c.readAgain()
	for _, r := range rotated {
		r.passed = min(r.behind, 1) // or it would count as one with nothing to wait for
	}
}

// crowded tells whether r is stalled and has enough events in memory, so that
// further ones are passed over: they would take the room of those that
// can be sent. If nothing comes through anywhere, there are none.
func (c *relayCore) crowded(r *route) bool {
	return r.stalled() && r.ready.n+r.refused.n >= c.limits.stall && c.othersWork(r)
}

// stuck is how many events stalled routes may keep in memory without taking the
// room of others.
func (c *relayCore) stuck() (n int) {
	for _, r := range c.stalled {
		if c.othersWork(r) {
			n += min(r.events, c.limits.stall)
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
	all := r.candidates()
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.shard.no, b.shard.no)) })
	for i, e := range all {
		switch {
		case i >= c.limits.stall:
			c.evict(e)
		case e.parked && e.line != nil:
			c.forgetFIFO(e.line, e)
		case e.line != nil && e.next != nil:
			c.trim(e.line, e.next)
		}
	}
}

// trim takes the events of l from e on out of memory and leaves a hole.
func (c *relayCore) trim(l *keyLine, e *entry) {
	seq := e.Seq
	for l.last != nil && l.last.Seq >= seq && l.last.state == entryWaiting {
		c.forgetLast(l)
	}
	if l.hole == 0 || seq < l.hole {
		l.hole = seq
	}
}

// forgetLast forgets the last event of l, which waits, and keeps l.
func (c *relayCore) forgetLast(l *keyLine) {
	e := l.last
	c.uncount(e)
	delete(l.shard.index, e.Seq)
	l.remove(e)
	c.free(e)
}

// evict passes over an event that was read already, with all of its key.
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
			c.forgetLast(l)
		}
		c.passOver(sh, r, key, seq)
		c.forget(e)
	}
}

// passOver leaves an event in the database until a route that is stalled
// works. Later events of its key are then passed over too.
func (c *relayCore) passOver(sh *shardState, r *route, key string, seq int64) {
	if r.stalled() {
		r.passed++
	}
	if key != "" {
		if sh.passed == nil {
			sh.passed = make(map[uint64]struct{})
		}
		sh.passed[hashKey(key)] = struct{}{}
	}
	c.reading.passed = true
	if sh.passedMin == 0 || seq < sh.passedMin {
		sh.passedMin = seq
	}
}

// readAgain reads what was passed over.
func (c *relayCore) readAgain() {
	for _, sh := range c.shards {
		if sh != nil && sh.passedMin > 0 {
			sh.rewind(sh.passedMin - 1)
			sh.passed, sh.passedMin = nil, 0
		}
	}
	for _, r := range c.stalled {
		r.passed = 0
	}
	c.due.restart(c.now)
	c.reading.slowAt = 0
}
