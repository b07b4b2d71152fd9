package producer

import (
	"time"

	"github.com/boxpair/boxpair/idgen"
)

// reading is the part of the core that reads: one statement at a time, so that
// what one brings is never older than what another has brought before.
type reading struct {
	busy  *call
	fails int
	retry time.Duration
	turn  int

	woken    news          // what is to be looked for
	paced    time.Duration // when wake-ups will have brought no more than one look per spacing
	spacing  spacing
	pollAt   time.Duration
	delay    time.Duration
	followed bool          // a shard is to be read since something was committed in it
	passed   bool          // the last fetch passed events over
	slowAt   time.Duration // nothing is read before, since all that is read is passed over
	from     int           // shard that is read first

	healed    bool          // some shard's blocked keys are to be loaded
	load      []*shardState // whose blocked keys are being loaded
	loadAfter BlockedKey
	refills   []*keyLine

	sweepAt time.Duration // when to read everything again
}

// wakesAhead is how many looks for wake-ups may come without a pause between them. On the average there is one
// per spacing at most (a generic cell rate): an event that comes alone waits for nothing, and many are read
// together.
const wakesAhead = 20

const passOverWait = 50 * time.Millisecond

// planRead issues the next read. The kinds take turns.
func (c *relayCore) planRead() {
	r := &c.reading
	if r.busy != nil {
		return
	}
	if c.now < r.retry {
		c.at(r.retry)
		return
	}
	if c.stopping {
		return
	}
	if cl := c.loadCall(); cl != nil {
		r.busy = c.issue(cl)
		return
	}
	if l := &c.late; l.held != nil || l.read-l.readBy >= c.limits.readsLong {
		r.busy = c.issue(c.sampleCall())
		return
	}
	kinds := [...]func() *call{c.fetchCall, c.dueCall, c.undeferCall, c.refillCall, c.sampleCall, c.sweepCall}
	for range kinds {
		kind := kinds[r.turn]
		r.turn = (r.turn + 1) % len(kinds)
		if cl := kind(); cl != nil {
			r.busy = c.issue(cl)
			return
		}
	}
}

func (c *relayCore) readReply(cl *call) {
	r := &c.reading
	r.busy = nil
	c.health.reads++
	c.health.reading += c.now - cl.issued
	if cl.err != nil {
		r.fails++
		r.retry = c.now + c.pause(r.fails)
	} else {
		r.fails = 0
		c.health.read = c.now
	}
	switch cl.op {
	case opFetch:
		if cl.sweep {
			c.swept(cl)
		} else {
			c.fetched(cl)
		}
	case opFetchKey:
		c.refilled(cl)
	case opWriters:
		c.sampled(cl)
	case opBlocked:
		c.loadedPage(cl)
	case opDue:
		c.dueReply(cl)
	case opUndefer:
		c.undeferred(cl)
	}
	if !c.readsQueue() {
		for _, sh := range c.shards {
			if sh != nil && len(sh.recent) > 0 {
				clear(sh.recent)
			}
		}
	}
}

// readsQueue tells whether rows of the queue are on their way, which may be older than
// what has happened meanwhile.
func (c *relayCore) readsQueue() bool {
	busy := c.reading.busy
	return c.late.held != nil || busy != nil && (busy.op == opFetch || busy.op == opFetchKey)
}

// fetchCall looks for events above the low-water marks, if there is room for
// them and either more are known to be there or it is time to look.
func (c *relayCore) fetchCall() *call {
	r := &c.reading
	room := c.room()
	if room <= c.cfg.Window/2 {
		c.relieve()
		if room = c.room(); room <= c.cfg.Window/2 {
			return nil // outcomes make room
		}
	}
	look := r.pollAt
	if !r.woken.none() {
		soon := r.paced - wakesAhead*c.cfg.PollMin
		switch {
		case r.woken.everywhere():
			look = min(look, soon)
		case c.now >= max(soon, r.slowAt):
			c.followNews()
		default:
			c.at(max(soon, r.slowAt))
		}
	}
	hot := 0
	for _, sh := range c.shards {
		if c.readable(sh) && sh.more {
			hot++
		}
	}
	if look = max(look, r.slowAt); c.now < r.slowAt || c.now < look && hot == 0 {
		c.at(look)
		return nil
	}
	all := c.now >= look
	followed := r.followed
	r.followed = false
	cl := c.fetchRanges(all, hot, min(room, c.cfg.FetchSize))
	if cl == nil {
		if all {
			c.at(c.now + c.cfg.PollMax) // no shard yet; whatever opens one brings an advance
		}
		return nil
	}
	cl.news = followed && !all
	if all {
		r.spacing.last = c.now
		if !r.woken.none() {
			r.paced = max(r.paced, c.now) + r.spacing.now
			r.delay = 0 // what it was for may not be committed yet
		}
		r.woken = news{}
		r.delay = min(max(2*r.delay, r.spacing.now), c.cfg.PollMax)
		r.pollAt = c.now + r.delay
	}
	return cl
}

// followNews has the shards read in which something was committed, and no other: most have nothing, and to look there costs
// more than what is found.
func (c *relayCore) followNews() {
	r := &c.reading
	for _, sh := range c.shards {
		if sh != nil && r.woken.in(sh.no) && !sh.more {
			sh.more = true
			r.followed = r.followed || c.readable(sh)
		}
	}
	r.woken = news{}
	if r.followed {
		r.paced = max(r.paced, c.now) + r.spacing.now
	}
}

// room is how many more events are to be kept in memory.
func (c *relayCore) room() int { return 2*c.cfg.Window - c.buffered + c.stuck() }

// passOverPause is how long to wait after a fetch of which everything was passed
// over: longer if nothing comes through anywhere.
func (c *relayCore) passOverPause() time.Duration {
	if c.success < c.now-downAlone {
		return 20 * passOverWait
	}
	return passOverWait
}

// readable tells whether the queue of sh is to be read on.
func (c *relayCore) readable(sh *shardState) bool {
	return sh != nil && sh.open() && len(sh.lane.follow) < c.limits.follow
}

// fetchRanges makes a fetch of all shards, or of the hot ones, which share the
// room. It begins with another shard each time, in case not all are reached.
func (c *relayCore) fetchRanges(all bool, hot, room int) *call {
	r := &c.reading
	share := max(room/max(hot, 1), c.limits.cold)
	cl := &call{op: opFetch}
	young, old := c.floor()
	cl.old, cl.sampled = old, c.late.sampled
	first := r.from
	for i := range c.shards {
		sh := c.shards[(first+i)%len(c.shards)]
		if !c.readable(sh) || !sh.more && !all {
			continue
		}
		limit := c.limits.cold
		if sh.more {
			limit = share
			room -= share
		}
		cl.shards = append(cl.shards, sh)
		c.look(cl, sh, young)
		cl.above = append(cl.above, len(cl.ranges))
		cl.ranges = append(cl.ranges, Range{Shard: sh.no, After: sh.low, Limit: limit})
		cl.versions = append(cl.versions, sh.version)
		r.from = (sh.no + 1) % len(c.shards)
		if room <= 0 {
			break
		}
	}
	if len(cl.ranges) == 0 {
		return nil
	}
	return cl
}

// byShard returns the position of every shard in the call, -1 for those not in it
// and for those whose low-water mark was set back since: a row from above the
// old mark would overtake those that are to be read again.
func (c *relayCore) byShard(cl *call) (positions [idgen.Shards]int) {
	for i := range positions {
		positions[i] = -1
	}
	for i, sh := range cl.shards {
		if c.shards[sh.no] == sh && sh.version == cl.versions[i] && !sh.yielding {
			positions[sh.no] = i
		}
	}
	return positions
}

// fetched takes over what a fetch has brought, at once or after a sample: if its
// looks did not reach down to the floor of a writer.
func (c *relayCore) fetched(cl *call) {
	r := &c.reading
	if cl.err != nil {
		r.pollAt, r.delay = 0, 0
		return
	}
	positions := c.byShard(cl)
	for p, sh := range cl.shards {
		if positions[sh.no] == p && sh.known >= cl.known[p] {
			sh.known = min(cl.sampled, sh.low) // unless a sample says otherwise
		}
	}
	r.spacing.found(cl.issued, len(cl.rows))
	if len(cl.rows) > 0 {
		c.late.read += len(cl.rows)
		if !cl.news { // where wake-ups come, there is no need to ask for more
			r.delay = r.spacing.now
			r.pollAt = min(r.pollAt, cl.issued+r.spacing.now)
		}
		for _, from := range cl.looks {
			if cl.old < from {
				c.late.held = cl
				return
			}
		}
	}
	c.takeFetched(cl)
}

// takeFetched takes over what a fetch has brought. Where more was to be looked for below the
// mark than it has brought, the queue is read again from there on: what is above
// might overtake it.
func (c *relayCore) takeFetched(cl *call) {
	r := &c.reading
	below, above := cl.counts()
	for p, sh := range cl.shards {
		if below[p] >= c.lookLimit() || sh.known < cl.looks[p] {
			sh.rewind(min(cl.looks[p], sh.known))
		}
	}
	positions := c.byShard(cl)
	rounds := make([]int64, len(cl.shards))
	news := 0
	r.passed = false
	for i := range cl.rows {
		row := &cl.rows[i]
		p := positions[row.Shard]
		if p < 0 || cl.shards[p].gone {
			continue // and says nothing of who may write below it: the database may have lost it since
		}
		sh := cl.shards[p]
		c.late.seen = max(c.late.seen, row.Seq)
		if cl.looks[p] > 0 && row.Seq <= cl.ranges[cl.above[p]].After && sh.putBack(row) {
			sh.rewind(0)
			positions[row.Shard] = -1
			continue
		}
		sh.low = max(sh.low, row.Seq)
		rounds[p] = max(rounds[p], row.Round)
		if c.take(sh, row) {
			news++
		}
	}
	for p, sh := range cl.shards {
		if positions[sh.no] == p {
			sh.round = max(sh.round, rounds[p])
			sh.more = above[p] >= cl.ranges[cl.above[p]].Limit
		} else { // what it has brought from below was not taken
			sh.known = min(sh.known, cl.looks[p])
		}
	}
	if len(cl.rows) > 0 && news == 0 && r.passed {
		r.slowAt = c.now + c.passOverPause()
	}
	c.sampleSoon()
}

// putBack tells whether a row that was found below the mark is one that a replay has put there since. There may be
// earlier ones of its key where nobody looks, so all of the queue has to be read, as the shard will be told to. What was
// read above the mark before, and not kept since there was no room or no way for it, is of an earlier replay: rounds
// ascend from one to the next.
func (sh *shardState) putBack(row *Queued) bool {
	return row.Key != "" && row.Round > sh.round
}

// counts returns how many rows of each shard a fetch has brought from below
// and from above its mark.
func (c *call) counts() (below, above []int) {
	below, above = make([]int, len(c.shards)), make([]int, len(c.shards))
	var positions [idgen.Shards]int
	for p, sh := range c.shards {
		positions[sh.no] = p
	}
	for i := range c.rows {
		p := positions[c.rows[i].Shard]
		if c.rows[i].Seq > c.ranges[c.above[p]].After {
			above[p]++
		} else {
			below[p]++
		}
	}
	return below, above
}

// refillCall reads on in a key of which events were passed over.
func (c *relayCore) refillCall() *call {
	r := &c.reading
	for len(r.refills) > 0 {
		l := r.refills[0]
		if l.shard.gone || l.hole == 0 || l.shard.yielding {
			r.refills = r.refills[1:]
			l.refilling = false
			continue
		}
		if !l.shard.open() || l.blocked && len(l.shard.lane.follow) >= c.limits.follow {
			r.refills = append(r.refills[1:], l)
			return nil // an answer that is awaited changes that
		}
		r.refills = r.refills[1:]
		return &call{
			op: opFetchKey, shards: []*shardState{l.shard}, versions: []uint32{l.shard.version},
			line: l, key: l.key, from: l.hole, limit: c.cfg.MaxPerKey,
		}
	}
	return nil
}

// refill asks for the events of l that were passed over, once there is room.
func (c *relayCore) refill(l *keyLine) {
	if l.hole == 0 || l.refilling || l.shard.yielding {
		return
	}
	if !l.blocked && (l.n > c.cfg.MaxPerKey/2 || l.n > 0 && l.first.route.stalled()) {
		return // when the first of them has gone
	}
	l.refilling = true
	c.reading.refills = append(c.reading.refills, l)
}

// refilled takes over the events of a key from its hole on. The hole is closed if
// the statement has reached the end: what earlier reads passed over, it saw.
func (c *relayCore) refilled(cl *call) {
	l, sh := cl.line, cl.shards[0]
	l.refilling = false
	if sh.gone || sh.yielding || l.hole == 0 {
		return
	}
	if cl.err != nil || l.hole != cl.from || sh.version != cl.versions[0] {
		c.refill(l)
		return
	}
	l.hole = 0
	for i := range cl.rows {
		row := &cl.rows[i]
		if c.take(sh, row); sh.gone {
			return
		}
		if l.hole != 0 {
			break // there is no room for more: the hole begins again here
		}
	}
	if _, passed := sh.passed[hashKey(l.key)]; passed {
		l.hole = 0 // all of them are read again together
	} else if l.hole == 0 && len(cl.rows) >= cl.limit {
		l.hole = cl.rows[len(cl.rows)-1].Seq + 1
	}
	c.refill(l)
	c.recheck(l)
	c.tidy(l)
}
