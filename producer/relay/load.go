package relay

import (
	"maps"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

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
		r.loadAfter = outbox.BlockedKey{}
	}
	if len(r.load) == 0 {
		return nil
	}
	cl := ask(statement{op: opBlocked, numbers: numbersOf(r.load), after: r.loadAfter, limit: c.limits.blocked})
	cl.shards = r.load
	return cl
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
	c.takeBlocked(sh)
	sh.loaded = nil
	if sh.rewindTo > 0 {
		sh.rewind(sh.rewindTo - 1)
		sh.rewindTo, sh.clear = 0, true
		c.leasing.clears = true
	}
	c.hear(sh, sh.ticket)
	c.due.at, c.deferred.at = c.now, c.now
	c.reading.pollAt, c.reading.delay = c.now, 0
	c.sampleSoon()
	c.markLane(sh)
}

// takeBlocked brings what is known of the keys of sh in step with those that were loaded.
// Keys of which nothing is in memory rest: only the others need a line.
func (c *relayCore) takeBlocked(sh *shardState) {
	head := int64(0) // not known
	if c.cfg.HoldDeadKeys {
		head = headUnknown // or a dead event: healing has seen to that
	}
	for _, key := range slices.Sorted(maps.Keys(sh.lines)) {
		l := sh.lines[key]
		if _, ok := sh.loaded[key]; !ok {
			if l.blocked {
				c.notLoaded(l)
			}
			continue
		}
		delete(sh.loaded, key)
		if l.blocked && l.flowing() {
			c.distrust(l)
		}
		c.block(l)
		l.head = head // what it was may have been settled by an operator
	}
	resting := make(map[string]int64, len(sh.loaded))
	for key := range sh.loaded {
		resting[key] = head
	}
	sh.resting = resting
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
