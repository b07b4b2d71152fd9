package relay

import (
	"log/slog"
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// leasing is the lease keeper's part of the core.
type leasing struct {
	busy  *call
	fails int
	retry time.Duration // no further statement before

	held      int // shards
	live      int // relays, 0 if not known
	renewAt   time.Duration
	beatAt    time.Duration
	acquireAt time.Duration
	acquired  bool          // an attempt to acquire has ended
	yielding  bool          // some shard is to be given back
	clears    bool          // the rewind of some shard may have to be cleared
	keep      bool          // what is known of the queues of shards is to be kept
	untold    bool          // some shard is to be told of a replay
	heard     time.Duration // when the last renewal was answered
	keepFrom  int           // shard whose tail is kept first

	// doubted are leases of the database that has lost commits. They are given back before others
	// are acquired. Nothing that was kept of them counts any more.
	doubted []outbox.Lease
	undone  bool   // what was kept of the doubted ones has been undone
	abrupt  uint64 // shards of which events were sent under such leases, as bits
}

// share returns how many shards are this relay's fair share. Rounded up, so that
// no shard is left over; that the last relay gets a few less is of no matter.
func (l *leasing) share() int { return (idgen.Shards + l.live - 1) / max(l.live, 1) }

// margin is what is taken off a lease on this side: for the time between a look
// at the clock and the broker's, and for clocks that run at different rates.
func (c *relayCore) margin() time.Duration { return c.cfg.LeaseTTL / 10 }

// planLeases issues the next statement on leases: one at a time, so that what a
// renewal says is never older than what was acquired or given back before.
func (c *relayCore) planLeases() {
	l := &c.leasing
	if l.busy != nil {
		return
	}
	if c.now < l.retry {
		c.at(l.retry)
		return
	}
	cl := c.nextLeaseCall()
	if cl != nil {
		l.busy = c.issue(cl)
	}
}

func (c *relayCore) nextLeaseCall() *call {
	l := &c.leasing
	if len(l.doubted) > 0 {
		if !l.undone {
			return c.doubtCall()
		}
		return ask(statement{op: opRelease, leases: l.doubted})
	}
	if c.stopping && c.allIdle() {
		if cl := c.keepCall(); cl != nil {
			return cl
		}
		return c.releaseCall(true)
	}
	if l.held > 0 && c.now >= l.renewAt {
		return c.renewCall()
	}
	if c.now >= l.beatAt && !c.stopping {
		return ask(statement{op: opHeartbeat, read: c.numbers.read})
	}
	for _, next := range [...]func() *call{c.reportCall, c.keepCall, c.yieldedCall, c.clearCall, c.acquireCall} {
		if cl := next(); cl != nil {
			return cl
		}
	}
	if l.held > 0 {
		if soon := l.heard + c.cfg.LeaseTTL/100; l.untold && c.now >= soon {
			return c.renewCall()
		} else if l.untold {
			c.at(soon)
		}
		c.at(l.renewAt)
	}
	if !c.stopping {
		c.at(l.beatAt)
	}
	return nil
}

// yieldedCall gives shards back that are idle by now.
func (c *relayCore) yieldedCall() *call {
	if !c.leasing.yielding {
		return nil
	}
	return c.releaseCall(false)
}

// acquireCall asks for the shards that are missing of the relay's share.
func (c *relayCore) acquireCall() *call {
	l := &c.leasing
	want := l.share() - l.held
	if l.live == 0 || want <= 0 || c.stopping {
		return nil
	}
	if c.now < l.acquireAt {
		c.at(l.acquireAt)
		return nil
	}
	return ask(statement{op: opAcquire, limit: want})
}

// clearCall tells the database of a rewind that is done.
func (c *relayCore) clearCall() *call {
	if !c.leasing.clears {
		return nil
	}
	for _, sh := range c.shards {
		if sh != nil && sh.clear {
			cl := ask(statement{op: opClearRewind, leases: []outbox.Lease{sh.lease()}, ticket: sh.ticket})
			cl.shards = []*shardState{sh}
			return cl
		}
	}
	c.leasing.clears = false
	return nil
}

func (c *relayCore) renewCall() *call {
	cl := ask(statement{op: opRenew})
	for _, sh := range c.shards {
		if sh != nil {
			cl.shards = append(cl.shards, sh)
			cl.leases = append(cl.leases, sh.lease())
			cl.untold = append(cl.untold, sh.untold)
		}
	}
	return cl
}

// releaseCall gives back what is to be given back and idle; with forget, when
// the relay ends, even if that is nothing.
func (c *relayCore) releaseCall(forget bool) *call {
	var cl *call
	if forget {
		cl = ask(statement{op: opRelease, forget: true})
	}
	waiting := false
	for _, sh := range c.shards {
		switch {
		case sh == nil || !sh.yielding:
		case !sh.idle():
			waiting = true
		default:
			if cl == nil {
				cl = ask(statement{op: opRelease})
			}
			sh.leaving, waiting = true, true
			cl.shards = append(cl.shards, sh)
			cl.leases = append(cl.leases, sh.lease())
		}
	}
	c.leasing.yielding = waiting
	return cl
}

func (c *relayCore) allIdle() bool {
	for _, sh := range c.shards {
		if sh != nil && !sh.idle() {
			return false
		}
	}
	return true
}

func (c *relayCore) leaseReply(cl *call) {
	l := &c.leasing
	l.busy = nil
	if cl.op == opReport {
		c.reported(cl)
		return
	}
	if cl.err != nil {
		c.leaseFailed(cl)
		return
	}
	l.fails = 0
	switch cl.op {
	case opRenew:
		c.health.renewed = c.now
		l.renewAt, l.heard = cl.issued+c.cfg.LeaseTTL/3, c.now
		l.keep = true
		c.renewed(cl)
	case opHeartbeat:
		l.beatAt = cl.issued + c.cfg.LeaseTTL/3
		c.reporting.due = true
		c.identified(cl.identity)
		c.numbered(cl)
		if cl.live != l.live {
			l.live = max(cl.live, 1)
			l.acquireAt = 0
		}
		c.yieldSurplus()
	case opAcquire:
		l.acquired = true
		l.acquireAt = cl.issued + c.cfg.LeaseTTL/10
		for _, g := range cl.grants {
			c.acquired(g, cl.issued)
		}
	case opRelease:
		l.doubted = slices.DeleteFunc(l.doubted, func(lease outbox.Lease) bool { return slices.Contains(cl.leases, lease) })
		c.released(cl)
	case opClearRewind:
		cl.shards[0].clear = false
	case opKeepLow:
		c.keptReply(cl)
	}
}

// identified looks whether the database is still the one that it was. Another one may have lost
// what was committed last.
func (c *relayCore) identified(identity string) {
	if identity == "" || identity == c.identity {
		return
	}
	before := c.identity
	c.identity = identity
	if before == "" {
		return
	}
	c.note(slog.LevelWarn, "database is another one than before, as after a fail-over, a restore or a crash: reading everything again",
		slog.String("before", before), slog.String("now", identity))
	c.beginAnew()
}

// beginAnew forgets all that was read, since the database has lost commits: events, marks and
// leases among them. It may give out IDs again, of events in memory and of others below the
// low-water marks, and floors of writers that were found by what is gone say nothing. The shards
// are given back and acquired again, so that the fence holds up what is under way. What was
// delivered and is queued there once more is sent once more, and the inboxes tell.
func (c *relayCore) beginAnew() {
	c.health.failedOver = c.now
	l := &c.leasing
	for _, sh := range c.shards {
		if sh != nil && !sh.leaving {
			l.doubted, l.undone = append(l.doubted, sh.lease()), false
			l.abrupt |= 1 << sh.no
			c.drop(sh)
		}
	}
	c.late, c.numbers.read = lateCommits{}, 0
	l.acquireAt = 0
}

// contradicts tells whether an event in memory has the Seq of another one, which has been written
// since: the database has lost the one in memory. It may be found before the identity of the
// database is asked for again, or the database may not tell.
func (c *relayCore) contradicts(known *entry, row *outbox.Queued) bool {
	if known == nil || known.Missing || row.Missing || known.ID == row.ID {
		return false
	}
	c.note(slog.LevelError, "database has lost committed events, and given out their IDs again: reading everything again",
		slog.Int("shard", row.Shard), slog.Int64("seq", row.Seq),
		slog.String("lost_dispatch_id", known.ID.String()), slog.String("dispatch_id", row.ID.String()))
	c.beginAnew()
	return true
}

func (c *relayCore) leaseFailed(cl *call) {
	l := &c.leasing
	l.fails++
	l.retry = c.now + min(c.pause(l.fails), c.cfg.LeaseTTL/10)
	if cl.op != opRelease {
		return
	}
	if cl.forget { // whoever is told to stop does not wait for a database: leases run out
		c.stopped = true
		return
	}
	for _, sh := range cl.shards {
		sh.leaving = false
	}
}

// renewed extends the leases that the database has extended, from the time
// before it was asked, and drops the others.
func (c *relayCore) renewed(cl *call) {
	c.leasing.untold = false
	for n, sh := range cl.shards {
		if sh.gone {
			continue
		}
		i := slices.IndexFunc(cl.renewals, func(r outbox.Renewal) bool { return r.Lease == sh.lease() })
		if i < 0 {
			c.lose(sh, "renewal")
			continue
		}
		sh.until = cl.issued + c.cfg.LeaseTTL - c.margin()
		for e := sh.held.pop(); e != nil; e = sh.held.pop() {
			c.place(e)
		}
		if r := cl.renewals[i]; r.Rewind && !sh.yielding && (r.Ticket != sh.ticket || sh.phase == phaseReady && !sh.clear) {
			c.rewind(sh, r)
		}
		if sh.open() {
			c.hear(sh, cl.untold[n]) // else when it is
		}
	}
}

// hear has sh be read on if it is told of all replays that it waits for.
func (c *relayCore) hear(sh *shardState, ticket int64) {
	sh.told = max(sh.told, ticket)
	switch {
	case sh.untold == 0:
	case sh.untold <= sh.told:
		sh.untold, sh.more = 0, true
	default:
		c.leasing.untold = true
	}
}

// rewind begins to take over what an operator has changed.
func (c *relayCore) rewind(sh *shardState, r outbox.Renewal) {
	if sh.rewindTo == 0 || r.RewindTo < sh.rewindTo {
		sh.rewindTo = max(r.RewindTo, 1)
	}
	sh.ticket, sh.clear = r.Ticket, false
	c.reload(sh)
}

// acquired takes a shard over. What the statement that healed it, the one that
// loads its blocked keys and the first fetch see is later than the lease.
func (c *relayCore) acquired(g outbox.Grant, issued time.Duration) {
	if g.Shard < 0 || g.Shard >= idgen.Shards || c.shards[g.Shard] != nil {
		c.note(slog.LevelError, "store granted a shard that is held or does not exist", slog.Int("shard", g.Shard))
		return
	}
	sh := &shardState{
		no: g.Shard, epoch: g.Epoch, until: issued + c.cfg.LeaseTTL - c.margin(),
		more:   true,
		index:  make(map[int64]*entry),
		parked: make(map[int64]*entry),
		lines:  make(map[string]*keyLine),
	}
	sh.told = g.Ticket
	if g.History == c.identity {
		sh.believe(g.Low, g.Tail)
	}
	before := c.leasing.abrupt & (1 << g.Shard)
	c.leasing.abrupt &^= before
	if g.Abrupt || before != 0 {
		sh.redeliver = c.cfg.Window
		c.note(slog.LevelWarn, "shard taken over from a relay that did not give it back",
			slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch))
	} else {
		c.note(slog.LevelDebug, "shard acquired", slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch))
	}
	c.shards[sh.no] = sh
	c.leasing.held++
	if c.leasing.held == 1 {
		c.leasing.renewAt = issued + c.cfg.LeaseTTL/3
	}
	c.markLane(sh)
	if c.stopping {
		c.yield(sh)
	}
}

// yieldSurplus begins to give back what is more than the fair share, the
// emptiest shards first.
func (c *relayCore) yieldSurplus() {
	staying := make([]*shardState, 0, idgen.Shards)
	for _, sh := range c.shards {
		if sh != nil && !sh.yielding {
			staying = append(staying, sh)
		}
	}
	surplus := len(staying) - c.leasing.share()
	if surplus <= 0 {
		return
	}
	slices.SortStableFunc(staying, func(a, b *shardState) int { return len(a.index) - len(b.index) })
	for _, sh := range staying[:surplus] {
		c.yield(sh)
	}
	c.note(slog.LevelInfo, "giving shards back to share them", slog.Int("shards", surplus), slog.Int("relays", c.leasing.live))
}

// yield stops sending from sh, so that it can be given back once what is under
// way has ended. Events that were not sent yet are forgotten; they are in the database.
func (c *relayCore) yield(sh *shardState) {
	if sh.yielding {
		return
	}
	sh.bottom, sh.tail = c.lowest(sh), c.tail(sh)
	c.passAll(sh)
	sh.yielding = true
	c.leasing.yielding, c.leasing.keep = true, true
	sh.phase, sh.loaded, sh.rewindTo, sh.clear = phaseReady, nil, 0, false
	for _, e := range sh.index {
		switch e.state {
		case entryWaiting, entryReady, entryHeld, entryRefused:
			c.forget(e)
		}
	}
	for _, e := range sh.parked {
		switch e.state {
		case entryWaiting, entryReady, entryHeld, entryRefused:
			c.forget(e)
		}
	}
	sh.lane.follow, sh.lane.fetch, sh.lane.heal = nil, nil, false // nothing of it was begun
	c.markLane(sh)
}

func (c *relayCore) released(cl *call) {
	for _, sh := range cl.shards {
		if !sh.gone {
			c.note(slog.LevelDebug, "shard given back", slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch))
			c.drop(sh)
		}
	}
	if cl.forget {
		c.stopped = true
	}
}

// lose drops a shard that another relay owns.
func (c *relayCore) lose(sh *shardState, how string) {
	if sh.gone {
		return
	}
	c.note(slog.LevelWarn, "lease lost", slog.Int("shard", sh.no), slog.Int64("epoch", sh.epoch),
		slog.String("found_by", how), slog.Int("in_flight", sh.inflight), slog.Int("unmarked", sh.marking))
	c.drop(sh)
}

// drop forgets a shard. The outcomes of what is in flight change nothing any more.
func (c *relayCore) drop(sh *shardState) {
	sh.gone = true
	c.shards[sh.no] = nil
	c.leasing.held--
	c.lanes &^= 1 << sh.no
	for _, e := range sh.index {
		c.abandonEntry(e)
	}
	for _, e := range sh.parked {
		c.abandonEntry(e)
	}
	sh.index, sh.parked, sh.lines, sh.resting = nil, nil, nil, nil
}

// abandonEntry takes e out of whatever leads to a send. It is not used again:
// calls that are under way may still refer to it.
func (c *relayCore) abandonEntry(e *entry) {
	e.unqueue()
	if e.state != entrySending && e.state != entryRiding {
		c.uncount(e)
	}
}
