package relay

import (
	"log/slog"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// duePoll is the part of the core that looks for parked events whose time has come, in
// pages. What it leaves where it is, since its route is stalled, does not keep it from what
// comes behind.
type duePoll struct {
	at     time.Duration   // of the next page
	after  outbox.DuePoint // where that begins
	passed int             // due events that were passed over since the first page
	slow   time.Duration   // the pause after a pass that passed events over
	again  bool            // the page that is under way is to be followed by the first one
	// changed holds the parked events that a statement has changed while a page is
	// under way, which may still show them as they were.
	changed map[parkedID]struct{}
}

type parkedID struct {
	shard *shardState
	seq   int64
}

func (d *duePoll) soon(at time.Duration) { d.at = min(d.at, at) }

// restart has the next page be the first one, at once.
func (d *duePoll) restart(now time.Duration) {
	d.after, d.passed, d.again = outbox.DuePoint{}, 0, true
	d.soon(now)
}

const (
	dueSafety  = 30 * time.Second // between looks when none is known to be due
	dueSlowMax = 30 * time.Second
	dueSkipped = time.Second
)

// dueCall looks for heads that are due.
func (c *relayCore) dueCall() *call {
	d := &c.due
	if d.at == never || c.parkedIn-c.stuck() > c.cfg.Window/2 {
		return nil
	}
	if c.now < d.at {
		c.at(d.at)
		return nil
	}
	cl := ask(statement{op: opDue, since: d.after, limit: c.limits.due})
	for _, sh := range c.shards {
		if sh != nil && sh.open() {
			cl.shards = append(cl.shards, sh)
		}
	}
	if len(cl.shards) == 0 {
		return nil // a shard that opens brings its own look
	}
	cl.numbers = numbersOf(cl.shards)
	d.at, d.again = never, false
	d.changed = make(map[parkedID]struct{})
	return cl
}

func (c *relayCore) dueReply(cl *call) {
	d := &c.due
	changed := d.changed
	d.changed = nil
	if cl.err != nil {
		d.soon(c.now)
		return
	}
	owned := make(map[int]*shardState, len(cl.shards))
	for _, sh := range cl.shards {
		owned[sh.no] = sh
	}
	skipped, passed := false, d.passed
	for i := range cl.rows {
		row := &cl.rows[i]
		sh := owned[row.Shard]
		if _, ok := changed[parkedID{sh, row.Seq}]; ok || sh == nil || !sh.open() || !c.takeDue(sh, row) {
			skipped = true
		}
	}
	d.soon(c.now + dueSafety)
	if cl.next > 0 {
		d.soon(c.now + cl.next)
	}
	switch n := len(cl.rows); {
	case d.again:
		d.soon(c.now)
	case n < cl.limit:
		c.duePassed(skipped)
	default:
		last := &cl.rows[n-1]
		d.after = outbox.DuePoint{At: last.DueAt, Seq: last.Seq}
		if d.soon(c.now); d.passed >= passed+n { // all of it: half of the time is for other reads
			d.at = c.now + (c.now - cl.issued)
		}
	}
}

// duePassed plans the next pass after the last page of one.
func (c *relayCore) duePassed(skipped bool) {
	d := &c.due
	switch {
	case d.passed > 0:
		d.slow = min(max(2*d.slow, dueSkipped), dueSlowMax)
		d.soon(c.now + d.slow)
	case skipped:
		d.slow = 0
		d.soon(c.now + dueSkipped)
	default:
		d.slow = 0
	}
	d.after, d.passed = outbox.DuePoint{}, 0
	for _, r := range c.stalled {
		if !r.dueTook { // none was left behind those that were admitted: they are looked at from the first one again
			r.dueFrom = outbox.DuePoint{}
		}
		r.dueTook = false
	}
}

// takeDue takes a head over to be sent, unless its key is being sent already.
func (c *relayCore) takeDue(sh *shardState, row *outbox.Queued) bool {
	if sh.parked[row.Seq] != nil {
		return false
	}
	if row.Missing {
		c.buryMissing(sh, row, nil)
		return true
	}
	r := c.routeFor(row.Topic)
	if row.Key == "" {
		if !c.admitDue(r, row) {
			return false
		}
		c.place(c.newParked(sh, row, r, nil))
		return true
	}
	l := c.line(sh, row.Key)
	if l == nil {
		l = c.newLine(sh, row.Key)
	}
	defer c.rest(l)
	return c.takeHead(l, row, r)
}

// takeHead takes over the head of a key that is due.
func (c *relayCore) takeHead(l *keyLine, row *outbox.Queued, r *route) bool {
	if l.flowing() {
		return false
	}
	if l.blocked {
		l.head = row.Seq
		if l.toMove() < row.Seq {
			return false // an earlier one is on its way there, and looks for its head then
		}
	}
	if l.parking > 0 {
		return false
	}
	if !c.admitDue(r, row) {
		c.tidy(l)
		return false
	}
	l.head = row.Seq
	l.fifo = append(l.fifo, c.newParked(l.shard, row, r, l))
	c.block(l)
	c.promote(l)
	return true
}

// buryMissing makes a parked event dead whose row in the log is missing. l is nil
// if its key is not known.
func (c *relayCore) buryMissing(sh *shardState, row *outbox.Queued, l *keyLine) {
	c.note(slog.LevelError, "parked event is missing from the log", slog.Int("shard", sh.no), slog.Int64("seq", row.Seq))
	e := c.newEntry(sh, row)
	e.line, e.parked, e.dead = l, true, true
	e.outcome, e.problem = transport.Invalid, "event is missing from the log"
	e.Attempts++
	sh.parked[e.Seq] = e
	c.failAgain(e)
}

func (c *relayCore) newParked(sh *shardState, row *outbox.Queued, r *route, l *keyLine) *entry {
	e := c.newEntry(sh, row)
	e.parked, e.route, e.line = true, r, l
	sh.parked[e.Seq] = e
	c.count(e)
	return e
}

// parkedConfirmed books a parked event that was delivered. The next of its key is
// sent without waiting for a look at what is due.
func (c *relayCore) parkedConfirmed(e *entry) {
	sh, l := e.shard, e.line
	if len(sh.lane.sent) == 0 {
		sh.lane.since = c.now
	}
	sh.lane.sent = append(sh.lane.sent, e)
	c.markLane(sh)
	if l == nil {
		return
	}
	l.sent++
	l.remove(e)
	if sh.yielding {
		return
	}
	if len(l.fifo) > 0 {
		l.head = l.fifo[0].Seq
		c.promote(l)
		return
	}
	l.due = true
	c.readParked(l)
}

func (c *relayCore) sentReply(cl *call) {
	for _, e := range cl.entries {
		c.report.Delivered++
		c.settled(e)
		if l := e.line; l != nil {
			l.sent--
			c.tidy(l)
			c.rest(l)
		}
		c.free(e)
	}
}

// settled forgets a parked event whose new state was recorded.
func (c *relayCore) settled(e *entry) {
	delete(e.shard.parked, e.Seq)
	if c.due.changed != nil {
		c.due.changed[parkedID{e.shard, e.Seq}] = struct{}{}
	}
}

// failAgain records a further failure of a parked event. The others of its key
// in memory are left to the database again.
func (c *relayCore) failAgain(e *entry) {
	l := e.line
	e.state = entryParking
	if l != nil {
		l.retrying++
		l.remove(e)
		c.forgetFIFO(l, nil)
	}
	e.shard.lane.again = append(e.shard.lane.again, e)
	c.markLane(e.shard)
}

// forgetFIFO takes the parked events of a key that are not in flight out of
// memory, except for one.
func (c *relayCore) forgetFIFO(l *keyLine, keep *entry) {
	for i := len(l.fifo) - 1; i >= 0; i-- {
		if e := l.fifo[i]; e != l.inflight && e != keep {
			c.forget(e)
		}
	}
}

func (c *relayCore) retryReply(cl *call) {
	for _, e := range cl.entries {
		l := e.line
		c.settled(e)
		c.buried(e)
		if !e.dead {
			c.due.soon(c.now + e.retryIn)
		}
		if l != nil {
			l.retrying--
			switch {
			case e.dead && !c.cfg.HoldDeadKeys:
				l.due = true
				c.readParked(l)
			case l.verify:
				c.readParked(l)
			default:
				c.recheck(l)
			}
			c.rest(l)
		}
		if e.Missing && l == nil {
			c.reload(e.shard) // nobody here knows which key has lost its head
		}
		c.free(e)
	}
}

// retryLost reads a parked event again whose failure was recorded or was not. If it was not, the
// event is due still and is sent once more. The statement is not repeated: an operator may have
// redriven the event in between, and the failure would be counted for what has not been sent since.
func (c *relayCore) retryLost(e *entry) {
	sh, l := e.shard, e.line
	c.settled(e)
	if l == nil {
		c.due.soon(sh.lane.retry)
	} else {
		l.retrying--
		c.readParked(l)
		c.rest(l)
	}
	c.free(e)
}

// parkedReply takes over the parked events of a key, or unblocks it if there
// are none left.
func (c *relayCore) parkedReply(cl *call) {
	l, sh := cl.line, cl.shards[0]
	l.fetching = false
	if sh.yielding {
		return
	}
	defer c.rest(l)
	due := l.due
	l.due, l.verify = false, false
	if len(l.fifo) > 0 || l.retrying > 0 || l.sent > 0 {
		return // what is under way asks again
	}
	if len(cl.rows) == 0 {
		c.emptied(l)
		return
	}
	c.block(l)
	first := &cl.rows[0]
	l.head = first.Seq
	toMove := l.toMove()
	if toMove < first.Seq {
		l.due = due
		return // the earlier one asks again when it has been moved
	}
	if first.State == outbox.Dead {
		return // it holds the key until an operator settles it
	}
	if first.Missing {
		c.buryMissing(sh, first, l)
		return
	}
	switch {
	case first.State == outbox.Following: // without a head, unless a dead event holds it
		sh.lane.heal = true
		c.markLane(sh)
	case due:
		for i := range cl.rows {
			row := &cl.rows[i]
			if row.Missing || row.State == outbox.Dead || row.Seq > toMove {
				break // the next look begins with it
			}
			l.fifo = append(l.fifo, c.newParked(sh, row, c.routeFor(row.Topic), l))
		}
		c.promote(l)
	default:
		c.due.soon(c.now)
	}
}

// emptied unblocks a key that has no parked events any more which hold it, unless some are
// on their way there.
func (c *relayCore) emptied(l *keyLine) {
	l.head = 0
	switch {
	case !l.blocked:
		c.tidy(l)
	case l.following > 0 || l.parking > 0 || l.hole != 0:
		c.refill(l) // what is moved finds itself without a head, and asks again
	default:
		c.unblock(l)
	}
}

// distrust drops what is known of the parked events of a key, since somebody
// else has changed them. What is in flight comes to its end first.
func (c *relayCore) distrust(l *keyLine) {
	l.verify = true
	c.forgetFIFO(l, nil)
	if l.flowing() {
		return
	}
	c.readParked(l)
}
