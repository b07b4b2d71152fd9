package producer

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// settling is what is known of a shard's queue below its low-water mark. IDs are
// taken when an event is written and seen when its transaction commits, so
// an event may appear below the mark. Up to settled, none can any more.
//
// The way there: remember the mark (candidate) and, after that, who may still
// commit something below it (writers). Once all of those have ended, a catch-up pass
// over (settled, candidate] that finds nothing new settles the candidate. Passes
// before that are for finding events soon.
type settling struct {
	settled   int64
	candidate int64 // 0: none
	writers   map[string]struct{}

	active  bool  // a pass is under way
	at      int64 // it has read up to here
	through int64 // and ends here
	clean   bool  // it has found nothing new
	ended   bool  // all writers had ended before it began
}

func (s *settling) rewind(after int64) {
	s.settled = min(s.settled, after)
	s.candidate, s.active = 0, false
}

const (
	settlePause   = 20 * time.Millisecond
	settleLongest = 5 * time.Second
	settleShare   = 16  // a pass is followed by a pause of so many times what it took
	settleEager   = 256 // events in memory up to which passes read everything
	fullInterval  = 5 * time.Minute
)

// settleSoon plans a pass, since a low-water mark has moved.
func (c *relayCore) settleSoon() {
	if r := &c.reading; r.settleAt == 0 {
		r.settleAt = c.now + settlePause
	}
}

// settleCall issues the next statement of a catch-up pass: first the names of the
// writers, then the pages.
func (c *relayCore) settleCall() *call {
	r := &c.reading
	if r.settling {
		if c.room() < -c.cfg.Window {
			return nil // outcomes make room
		}
		return c.settleRanges()
	}
	if r.fullAt == 0 {
		r.fullAt = c.now + fullInterval
	}
	if c.now >= r.fullAt {
		r.fullAt = c.now + fullInterval
		for _, sh := range c.shards {
			if sh != nil {
				sh.settle.rewind(0)
			}
		}
		c.settleSoon()
	}
	c.at(r.fullAt)
	if r.settleAt == 0 {
		return nil
	}
	if c.now < r.settleAt {
		c.at(r.settleAt)
		return nil
	}
	for _, sh := range c.shards {
		if c.readable(sh) && sh.settle.settled < sh.low {
			return &call{op: opWriters}
		}
	}
	r.settleAt = 0
	return nil
}

// sampled begins a pass in every shard that is not settled.
func (c *relayCore) sampled(cl *call) {
	r := &c.reading
	r.settleAt = c.now + settlePause
	if cl.err != nil {
		return
	}
	names := make(map[string]struct{}, len(cl.names))
	for _, name := range cl.names {
		names[name] = struct{}{}
	}
	r.spent = c.now - cl.issued
	for _, sh := range c.shards {
		if !c.readable(sh) || sh.settle.settled >= sh.low {
			continue
		}
		s := &sh.settle
		if s.active { // it could not be read on for a while
			r.settling = true
			continue
		}
		fresh := s.candidate == 0
		if fresh {
			s.candidate, s.writers = sh.low, names
		}
		s.ended = disjoint(s.writers, names)
		eager := c.buffered <= settleEager
		if fresh && !s.ended && !eager {
			continue // most of what it would read is in flight
		}
		s.active, s.clean, s.at, s.through = true, true, s.settled, s.candidate
		if eager {
			s.through = sh.low
		}
		r.settling = true
	}
}

func disjoint(a, b map[string]struct{}) bool {
	for name := range a {
		if _, ok := b[name]; ok {
			return false
		}
	}
	return true
}

// settleRanges makes the next page of the pass, or ends it.
func (c *relayCore) settleRanges() *call {
	r := &c.reading
	active := 0
	for _, sh := range c.shards {
		if c.readable(sh) && sh.settle.active {
			active++
		}
	}
	if active == 0 {
		r.settling = false
		r.settleAt = c.now + min(max(settleShare*r.spent, settlePause), settleLongest)
		c.at(r.settleAt)
		return nil
	}
	cl := &call{op: opFetch, catchUp: true}
	limit := max(c.cfg.FetchSize/active, coldLimit)
	for _, sh := range c.shards {
		if s := c.readable(sh) && sh.settle.active; s {
			cl.shards = append(cl.shards, sh)
			cl.versions = append(cl.versions, sh.version)
			cl.ranges = append(cl.ranges, Range{Shard: sh.no, After: sh.settle.at, Through: sh.settle.through, Limit: limit})
		}
	}
	return cl
}

// settlePage takes over a page of a catch-up pass.
func (c *relayCore) settlePage(cl *call) {
	c.reading.spent += c.now - cl.issued
	if cl.err != nil {
		return // the same page again
	}
	positions := c.byShard(cl)
	counts := make([]int, len(cl.shards))
	for i := range cl.rows {
		row := &cl.rows[i]
		p := positions[row.Shard]
		if p < 0 {
			continue
		}
		counts[p]++
		s := &cl.shards[p].settle
		s.at = max(s.at, row.Seq)
		if c.take(cl.shards[p], row) {
			s.clean = false
		}
	}
	for p, sh := range cl.shards {
		s := &sh.settle
		if positions[sh.no] != p || !s.active || counts[p] >= cl.ranges[p].Limit {
			continue
		}
		s.active = false
		if s.clean && s.ended {
			s.settled, s.candidate, s.writers = max(s.settled, min(s.candidate, s.through)), 0, nil
		}
	}
}

// loadCall reads the blocked keys of shards that were healed.
func (c *relayCore) loadCall() *call {
	r := &c.reading
	if len(r.load) == 0 {
		for _, sh := range c.shards {
			if sh != nil && sh.phase == phaseLoad {
				sh.loaded = make(map[string]struct{})
				r.load = append(r.load, sh)
			}
		}
		r.loadAfter = BlockedKey{}
	}
	if len(r.load) == 0 {
		return nil
	}
	return &call{op: opBlocked, shards: r.load, after: r.loadAfter, limit: blockedLimit}
}

func (c *relayCore) loadedPage(cl *call) {
	r := &c.reading
	if cl.err != nil {
		return
	}
	for _, b := range cl.blocked {
		if sh := c.shards[b.Shard]; b.Key != "" && sh != nil && sh.phase == phaseLoad && slices.Contains(r.load, sh) {
			sh.loaded[b.Key] = struct{}{}
		}
	}
	if len(cl.blocked) >= cl.limit {
		r.loadAfter = cl.blocked[len(cl.blocked)-1]
		return
	}
	loaded := r.load
	r.load = nil
	for _, sh := range loaded {
		switch {
		case sh.gone || sh.yielding || sh.phase != phaseLoad:
		case sh.again:
			sh.again, sh.loaded, sh.phase = false, nil, phaseHeal
			c.markLane(sh)
		default:
			c.opened(sh)
		}
	}
}

// reload brings sh in step with parked events that somebody else has changed. Until
// then nothing is parked, moved or released in it by this relay, so that what is
// loaded is the truth.
func (c *relayCore) reload(sh *shardState) {
	if sh.phase != phaseReady {
		sh.again = true
		return
	}
	sh.phase = phaseHeal
	c.markLane(sh)
}

// opened takes over the blocked keys of a shard, and where to read from.
func (c *relayCore) opened(sh *shardState) {
	sh.phase = phaseReady
	for _, key := range slices.Sorted(maps.Keys(sh.loaded)) {
		l := sh.lines[key]
		if l == nil {
			l = c.newLine(sh, key)
		}
		if l.blocked && l.flowing() {
			c.distrust(l)
		}
		c.block(l)
		if l.head == 0 && c.cfg.HoldDeadKeys {
			l.head = 1 // it has a head, or a dead event: healing has seen to that
		}
	}
	var freed []*keyLine
	for _, l := range sh.lines {
		if _, ok := sh.loaded[l.key]; !ok && l.blocked {
			freed = append(freed, l)
		}
	}
	slices.SortFunc(freed, func(a, b *keyLine) int { return strings.Compare(a.key, b.key) })
	for _, l := range freed {
		c.notLoaded(l)
	}
	sh.loaded = nil
	if sh.rewindTo > 0 {
		sh.rewind(sh.rewindTo - 1)
		sh.rewindTo, sh.clear = 0, true
	}
	c.due.at = c.now
	c.reading.pollAt, c.reading.delay = c.now, 0
	c.settleSoon()
	c.markLane(sh)
}

// notLoaded considers a key that counts as blocked here and has no live event
// in the database. What this relay has under way for it comes to its end first.
func (c *relayCore) notLoaded(l *keyLine) {
	switch {
	case l.flowing():
		c.distrust(l)
	case l.following > 0 || l.parking > 0:
		l.head = 0 // they will find themselves without a head
	default:
		c.unblock(l)
	}
}
