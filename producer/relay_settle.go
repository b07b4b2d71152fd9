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
// Between settled and the mark every fetch looks again, in the same statement with
// which it reads above the mark. That keeps the order of keys: an event
// below the mark may be an earlier one of a key whose next event is above it, and whoever
// sees the next one sees the earlier one too, if he looks in one snapshot.
// Reading the two apart was tried, and sent the later one first.
//
// The window closes like this: remember the mark (candidate) and, after that, who
// may still commit something below it (writers). Once all of those have ended, a fetch that
// begins later and reads the whole window settles the candidate.
type settling struct {
	settled   int64
	candidate int64 // 0: none
	writers   map[string]struct{}
	ended     bool // all of writers have
}

func (s *settling) rewind(after int64) {
	s.settled = min(s.settled, after)
	s.candidate, s.ended = 0, false
}

// sweep is a pass over all of a shard's queue below the mark. It should find
// nothing: it is there for what nobody has thought of.
type sweep struct {
	active  bool
	at      int64 // it has read up to here
	through int64 // and ends here
}

const (
	settlePause   = 20 * time.Millisecond
	settleLongest = 250 * time.Millisecond
	lateLimit     = 2000 // rows of a shard between settled and the mark, those in memory excepted
	sweepInterval = 5 * time.Minute
)

// settleSoon plans to ask who is writing, since a low-water mark has moved.
func (c *relayCore) settleSoon() {
	if r := &c.reading; r.settleAt == 0 {
		r.settling = settlePause
		r.settleAt = c.now + settlePause
	}
}

// settleCall asks who is writing, while a shard is not settled.
func (c *relayCore) settleCall() *call {
	r := &c.reading
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

// sampled takes over who is writing, and has all windows looked through.
func (c *relayCore) sampled(cl *call) {
	r := &c.reading
	defer func() {
		r.settleAt = c.now + r.settling
		c.at(r.settleAt)
	}()
	r.settling = min(2*r.settling, settleLongest) // as long as somebody writes on and on
	if cl.err != nil {
		return
	}
	names := make(map[string]struct{}, len(cl.names))
	for _, name := range cl.names {
		names[name] = struct{}{}
	}
	for _, sh := range c.shards {
		if !c.readable(sh) || sh.settle.settled >= sh.low {
			continue
		}
		s := &sh.settle
		if s.candidate == 0 {
			s.candidate, s.writers = sh.low, names
			r.settling = settlePause
		}
		s.ended = s.ended || disjoint(s.writers, names)
		r.pollAt = c.now
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

// window adds the look below the mark of sh to a fetch, if it is not settled.
// What is in memory is left out: it is most of what there is.
func (c *relayCore) window(cl *call, sh *shardState) {
	s := &sh.settle
	late := lateRange{ended: s.ended, candidate: s.candidate}
	if s.settled < sh.low {
		var except []int64
		for seq, e := range sh.index {
			if seq > s.settled && seq <= sh.low && !e.rewritten {
				except = append(except, seq)
			}
		}
		slices.Sort(except)
		late.read = true
		cl.ranges = append(cl.ranges, Range{Shard: sh.no, After: s.settled, Through: sh.low, Limit: lateLimit, Except: except})
	}
	cl.late = append(cl.late, late)
}

// lateRange is the part of a fetch that looks below the mark of a shard.
type lateRange struct {
	read      bool // there is one
	ended     bool
	candidate int64
}

// looked takes note that a fetch has read the whole window of sh.
func (c *relayCore) looked(sh *shardState, late lateRange) {
	if s := &sh.settle; late.read && late.ended && s.candidate == late.candidate && s.candidate != 0 {
		s.settled = max(s.settled, s.candidate)
		s.candidate, s.writers, s.ended = 0, nil, false
	}
}

// sweepCall issues the next page of a sweep.
func (c *relayCore) sweepCall() *call {
	r := &c.reading
	if r.sweepAt == 0 {
		r.sweepAt = c.now + sweepInterval
	}
	if c.now >= r.sweepAt {
		r.sweepAt = c.now + sweepInterval
		for _, sh := range c.shards {
			if c.readable(sh) {
				sh.sweep = sweep{active: true, through: sh.low}
			}
		}
	}
	c.at(r.sweepAt)
	if c.room() < c.cfg.Window {
		return nil // outcomes make room
	}
	for _, sh := range c.shards {
		if c.readable(sh) && sh.sweep.active {
			return &call{
				op: opFetch, sweep: true, shards: []*shardState{sh}, versions: []uint32{sh.version},
				ranges: []Range{{Shard: sh.no, After: sh.sweep.at, Through: sh.sweep.through, Limit: c.cfg.FetchSize}},
			}
		}
	}
	return nil
}

// swept takes over a page of a sweep.
func (c *relayCore) swept(cl *call) {
	sh := cl.shards[0]
	if cl.err != nil || c.byShard(cl)[sh.no] < 0 {
		return
	}
	for i := range cl.rows {
		row := &cl.rows[i]
		sh.sweep.at = max(sh.sweep.at, row.Seq)
		c.take(sh, row)
	}
	sh.sweep.active = len(cl.rows) >= cl.ranges[0].Limit
}

// loadCall reads the blocked keys of shards that were healed.
func (c *relayCore) loadCall() *call {
	r := &c.reading
	if len(r.load) == 0 {
		if !r.healed {
			return nil
		}
		r.healed = false
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
		c.leasing.clears = true
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
