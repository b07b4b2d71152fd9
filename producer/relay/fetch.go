package relay

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
)

// reading is the part of the core that reads: one statement at a time, so that
// what one brings is never older than what another has brought before.
type reading struct {
	busy  *call
	fails int
	retry time.Duration
	turn  int

	woken    wakeup.Wakeup // what is to be looked for
	paced    time.Duration // when wake-ups will have brought no more than one look per spacing
	spacing  pollPacer
	pollAt   time.Duration
	delay    time.Duration
	followed bool // shards are to be read since something was committed in them …
	polled   bool // … and all of them once
	from     int  // shard that is read first
	budget   budget

	sweepAt  time.Duration // when laps begin at the beginning again
	backAt   time.Duration // of the next page of laps that are in no hurry
	backFrom int           // shard that it begins with
	span     int64         // how many IDs it goes over at most

	healed    bool          // some shard's blocked keys are to be loaded
	load      []*shardState // whose blocked keys are being loaded
	loadAfter outbox.BlockedKey
	refills   []*keyLine
}

// wakesAhead is how many looks for wake-ups may come without a pause between them. On the average
// there is one per spacing at most (a generic cell rate): an event that comes alone waits for
// nothing, and many are read together.
const wakesAhead = 20

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
	kinds := [...]func() *call{c.fetchCall, c.dueCall, c.undeferCall, c.refillCall, c.sampleCall, c.revisitCall}
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
		c.fetched(cl)
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
	if c.room() <= c.capacity()/4 {
		c.relieve()
		if c.room() <= c.capacity()/4 {
			return nil // outcomes make room
		}
	}
	due := r.pollAt
	if !r.woken.None() {
		soon := r.paced - wakesAhead*c.cfg.PollMin
		switch {
		case r.woken.Everywhere():
			due = min(due, soon)
		case c.now >= soon:
			c.followNews()
		default:
			c.at(soon)
		}
	}
	if c.now >= due {
		c.lookEverywhere()
	} else {
		c.at(due)
	}
	return c.fetchRanges()
}

// lookEverywhere has all shards read once.
func (c *relayCore) lookEverywhere() {
	r := &c.reading
	some := false
	for _, sh := range c.shards {
		if c.readable(sh) {
			sh.look, some = true, true
		}
	}
	if !some {
		c.at(c.now + c.cfg.PollMax) // no shard yet; whatever opens one brings an advance
		return
	}
	r.spacing.last = c.now
	if !r.woken.None() {
		r.paced = max(r.paced, c.now) + r.spacing.now
		r.delay = 0 // what it was for may not be committed yet
	}
	r.woken, r.polled = wakeup.Wakeup{}, true
	r.delay = min(max(2*r.delay, r.spacing.now), c.cfg.PollMax)
	r.pollAt = c.now + r.delay
}

// followNews has the shards read in which something was committed, and no other: most have nothing,
// and to look there costs more than what is found.
func (c *relayCore) followNews() {
	r := &c.reading
	followed := false
	for _, sh := range c.shards {
		if sh != nil && r.woken.In(sh.no) && !sh.more {
			sh.more = true
			followed = followed || c.readable(sh)
		}
	}
	r.woken = wakeup.Wakeup{}
	if followed {
		r.paced = max(r.paced, c.now) + r.spacing.now
		r.followed = true
	}
}

// readable tells whether the queue of sh is to be read on.
func (c *relayCore) readable(sh *shardState) bool {
	return sh != nil && sh.open() && sh.readable() && len(sh.lane.follow) < c.limits.follow
}

// fetchRanges makes a fetch of the shards that are to be read, which share the budget: those where
// more is known to be take what the others leave. It begins with another shard each time, in case
// not all are reached.
func (c *relayCore) fetchRanges() *call {
	r := &c.reading
	hot, cold := 0, 0
	for _, sh := range c.shards {
		switch {
		case !c.readable(sh):
		case sh.more:
			hot++
		case sh.look:
			cold++
		}
	}
	if hot+cold == 0 {
		return nil
	}
	budget := min(c.room(), r.budget.rows())
	each := c.lookLimit()
	share := max((budget-cold*each)/max(hot, 1), each)
	cl := ask(statement{op: opFetch})
	cl.news = r.followed && !r.polled
	r.followed, r.polled = false, false
	young, old := c.floor()
	cl.old, cl.sampled = old, c.late.sampled
	first := r.from
	for i := range c.shards {
		sh := c.shards[(first+i)%len(c.shards)]
		if !c.readable(sh) || !sh.more && !sh.look {
			continue
		}
		limit := each
		if sh.more {
			limit = share
		}
		sh.look = false
		c.include(cl, sh, outbox.Range{Shard: sh.no, After: sh.low, Limit: limit}, young)
		r.from = (sh.no + 1) % len(c.shards)
		if budget -= limit; budget <= 0 {
			break
		}
	}
	return cl
}

// include adds a range of a shard to a fetch, and what is to be looked for below it.
func (c *relayCore) include(cl *call, sh *shardState, r outbox.Range, young int64) {
	cl.shards, cl.versions = append(cl.shards, sh), append(cl.versions, sh.version)
	c.look(cl, sh, r.After, young)
	cl.above = append(cl.above, len(cl.ranges))
	cl.ranges = append(cl.ranges, r)
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
	r.budget.booked(cl, c.now-cl.issued > c.cfg.LeaseTTL/2)
	if cl.back {
		c.paged(cl)
	}
	if cl.err != nil {
		if !cl.back {
			r.pollAt, r.delay = 0, 0
		}
		for p := range cl.shards {
			cl.wantAgain(p)
		}
		return
	}
	if !cl.back {
		positions := c.byShard(cl)
		for p, sh := range cl.shards {
			if positions[sh.no] == p && sh.known >= cl.known[p] {
				sh.known = max(min(cl.sampled, sh.low), sh.sealed) // unless a sample says otherwise
			}
		}
		r.spacing.found(cl.issued, len(cl.rows))
		c.late.read += len(cl.rows)
		if len(cl.rows) > 0 && !cl.news { // where wake-ups come, there is no need to ask for more
			r.delay = r.spacing.now
			r.pollAt = min(r.pollAt, cl.issued+r.spacing.now)
		}
	}
	if len(cl.rows) > 0 && slices.ContainsFunc(cl.looks, func(from int64) bool { return cl.old < from }) {
		c.late.held = cl
		return
	}
	c.taken(cl)
}

// taken takes over what a fetch has brought.
func (c *relayCore) taken(cl *call) {
	if cl.back {
		c.takeRevisited(cl)
	} else {
		c.takeFetched(cl)
	}
}

// takeFetched takes over what a fetch has brought. Where more was to be looked for below the
// mark than it has brought, the queue is read again from there on: what is above
// might overtake it.
func (c *relayCore) takeFetched(cl *call) {
	below, above := cl.counts()
	for p, sh := range cl.shards {
		if cl.lookLimit > 0 && below[p] >= cl.lookLimit || sh.known < cl.looks[p] {
			sh.rewind(min(cl.looks[p], sh.known))
		}
	}
	positions := c.byShard(cl)
	for i := range cl.rows {
		row := &cl.rows[i]
		p := positions[row.Shard]
		if p < 0 || cl.shards[p].gone {
			continue // and says nothing of who may write below it: the database may have lost it since
		}
		sh := cl.shards[p]
		c.sawSeq(row.Seq)
		if c.waits(sh, row) {
			continue
		}
		sh.low = max(sh.low, row.Seq)
		c.take(sh, row, false)
	}
	for p, sh := range cl.shards {
		if positions[sh.no] == p && sh.readable() {
			sh.more = above[p] >= cl.ranges[cl.above[p]].Limit
		} else { // what it has brought from below was not taken
			sh.known = min(sh.known, cl.looks[p])
			cl.wantAgain(p)
		}
	}
	c.sampleSoon()
}

// waits tells whether a row of a shard is to be read again later, as all that is behind it. What a
// replay has put back of a key is sent in order, so a row of one must not be taken
//
//   - before the shard was told of the replay: there may be earlier ones below the mark, where
//     nobody looks. The next renewal tells to where it is to be set back, and is asked for at once;
//   - while an earlier one of that replay has to wait, as its event is in memory with the row
//     before: it is confirmed, and the answer to its mark is on the way.
func (c *relayCore) waits(sh *shardState, row *outbox.Queued) bool {
	if row.Key == "" {
		return !sh.readable()
	}
	if ticket := row.Round >> outbox.RoundChance; ticket > sh.told {
		sh.untold = max(sh.untold, ticket)
		c.leasing.untold = true
	}
	if e := sh.index[row.Seq]; e != nil && e.state == entryConfirmed && e.ID == row.ID && e.Round != row.Round && !e.early {
		e.rewritten, e.early = true, true
		sh.early++
	}
	return !sh.readable()
}

// readable tells whether nothing that was read of sh has to wait.
func (sh *shardState) readable() bool { return sh.untold == 0 && sh.early == 0 }

// counts returns how many rows of each shard a fetch has brought from below
// and from above its mark.
func (c *call) counts() (below, above []int) {
	below, above = make([]int, len(c.shards)), make([]int, len(c.shards))
	var positions [idgen.Shards]int
	for p, sh := range c.shards {
		positions[sh.no] = p
	}
	for i := range c.rows {
		p, seq := positions[c.rows[i].Shard], c.rows[i].Seq
		switch {
		case seq > c.ranges[c.above[p]].After:
			above[p]++
		case seq > c.looks[p]:
			below[p]++
		}
	}
	return below, above
}

// keyShare is so small a part of a lease that a read in one key may take: no other read is under
// way meanwhile.
const keyShare = 10

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
		if !l.shard.open() || !l.shard.readable() || l.blocked && len(l.shard.lane.follow) >= c.limits.follow {
			r.refills = append(r.refills[1:], l)
			return nil // an answer that is awaited changes that
		}
		r.refills = r.refills[1:]
		cl := ask(statement{op: opFetchKey, numbers: []int{l.shard.no}, key: l.key, from: l.hole, limit: c.cfg.MaxPerKey})
		cl.shards, cl.versions, cl.line = []*shardState{l.shard}, []uint32{l.shard.version}, l
		return cl
	}
	return nil
}

// refill asks for the events of l that were passed over, once there is room.
func (c *relayCore) refill(l *keyLine) {
	if l.refilling || l.shard.yielding {
		return
	}
	if !l.blocked && (l.n > c.cfg.MaxPerKey/2 || l.n > 0 && l.first.route.stalled()) {
		return // when the first of them has gone
	}
	if l.hole == 0 {
		if b := &l.shard.back; !b.none() && b.has(hashKey(l.key), false) {
			b.hurry()
		}
		return
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
	if cl.err != nil && c.now-cl.issued >= c.cfg.LeaseTTL/keyShare && l.hole == cl.from {
		c.leaveToLap(l)
		return
	}
	if cl.err != nil || l.hole != cl.from || sh.version != cl.versions[0] {
		c.refill(l)
		return
	}
	full, passed := false, false
	for i := range cl.rows {
		row := &cl.rows[i]
		if l.hole = row.Seq; c.waits(sh, row) {
			full = true
			break
		}
		l.hole = row.Seq + 1 // what is taken is in front of it
		if c.take(sh, row, false); sh.gone {
			return
		}
		if full, passed = l.hole == row.Seq, l.hole == 0; full || passed {
			break // there is no room for more: the hole begins again here; or its route is stalled
		}
	}
	if !full && !passed && len(cl.rows) < cl.limit {
		l.hole = 0
	}
	c.refill(l)
	c.recheck(l)
	c.tidy(l)
}

// leaveToLap has a lap read on in a key, in pages: between its events are so many of other keys
// that one statement takes too long to read over them.
func (c *relayCore) leaveToLap(l *keyLine) {
	sh := l.shard
	sh.back.pass(hashKey(l.key), true, l.hole)
	sh.back.hurry()
	l.hole = 0
	c.recheck(l)
	c.tidy(l)
}
