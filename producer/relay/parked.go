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
	*machine

	next   time.Duration   // of the next page
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

func (du *duePoll) soon(at time.Duration) { du.next = min(du.next, at) }

// restart has the next page be the first one, at once.
func (du *duePoll) restart() {
	du.after, du.passed, du.again = outbox.DuePoint{}, 0, true
	du.soon(du.now)
}

const (
	dueSafety  = 30 * time.Second // between looks when none is known to be due
	dueSlowMax = 30 * time.Second
	dueSkipped = time.Second
)

// call looks for heads that are due.
func (du *duePoll) call() *call {
	if du.next == never || du.keys.parked-du.routes.stuck() > du.cfg.Window/2 {
		return nil
	}
	if du.now < du.next {
		du.at(du.next)
		return nil
	}
	cl := ask(statement{op: opDue, since: du.after, limit: du.limits.due})
	for _, sh := range du.shards {
		if sh != nil && sh.open() {
			cl.shards = append(cl.shards, sh)
		}
	}
	if len(cl.shards) == 0 {
		return nil // a shard that opens brings its own look
	}
	cl.numbers = numbersOf(cl.shards)
	du.next, du.again = never, false
	du.changed = make(map[parkedID]struct{})
	return cl
}

func (du *duePoll) reply(cl *call) {
	changed := du.changed
	du.changed = nil
	if cl.err != nil {
		du.soon(du.now)
		return
	}
	owned := make(map[int]*shardState, len(cl.shards))
	for _, sh := range cl.shards {
		owned[sh.no] = sh
	}
	skipped, passed := false, du.passed
	for i := range cl.rows {
		row := &cl.rows[i]
		sh := owned[row.Shard]
		if _, ok := changed[parkedID{sh, row.Seq}]; ok || sh == nil || !sh.open() || !du.take(sh, row) {
			skipped = true
		}
	}
	du.soon(du.now + dueSafety)
	if cl.next > 0 {
		du.soon(du.now + cl.next)
	}
	switch n := len(cl.rows); {
	case du.again:
		du.soon(du.now)
	case n < cl.limit:
		du.passEnded(skipped)
	default:
		last := &cl.rows[n-1]
		du.after = outbox.DuePoint{At: last.DueAt, Seq: last.Seq}
		if du.soon(du.now); du.passed >= passed+n { // all of it: half of the time is for other reads
			du.next = du.now + (du.now - cl.issued)
		}
	}
}

// passEnded plans the next pass after the last page of one.
func (du *duePoll) passEnded(skipped bool) {
	switch {
	case du.passed > 0:
		du.slow = min(max(2*du.slow, dueSkipped), dueSlowMax)
		du.soon(du.now + du.slow)
	case skipped:
		du.slow = 0
		du.soon(du.now + dueSkipped)
	default:
		du.slow = 0
	}
	du.after, du.passed = outbox.DuePoint{}, 0
	for _, r := range du.routes.stalled {
		if !r.dueTook { // none was left behind those that were admitted: they are looked at from the first one again
			r.dueFrom = outbox.DuePoint{}
		}
		r.dueTook = false
	}
}

// take takes a head over to be sent, unless its key is being sent already.
func (du *duePoll) take(sh *shardState, row *outbox.Queued) bool {
	if sh.parked[row.Seq] != nil {
		return false
	}
	if row.Missing {
		du.parking.buryMissing(sh, row, nil)
		return true
	}
	r := du.routes.of(row.Topic)
	if row.Key == "" {
		if !du.routes.admitDue(r, row) {
			return false
		}
		du.keys.place(du.keys.newParked(sh, row, r, nil))
		return true
	}
	l := du.keys.line(sh, row.Key)
	if l == nil {
		l = du.keys.newLine(sh, row.Key)
	}
	defer du.keys.rest(l)
	return du.takeHead(l, row, r)
}

// takeHead takes over the head of a key that is due.
func (du *duePoll) takeHead(l *keyLine, row *outbox.Queued, r *route) bool {
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
	if !du.routes.admitDue(r, row) {
		du.keys.tidy(l)
		return false
	}
	l.head = row.Seq
	l.fifo = append(l.fifo, du.keys.newParked(l.shard, row, r, l))
	du.keys.block(l)
	du.keys.promote(l)
	return true
}

// buryMissing makes a parked event dead whose row in the log is missing. l is nil
// if its key is not known.
func (pk *parking) buryMissing(sh *shardState, row *outbox.Queued, l *keyLine) {
	pk.note(slog.LevelError, "parked event is missing from the log", slog.Int("shard", sh.no), slog.Int64("seq", row.Seq))
	e := pk.keys.newEntry(sh, row)
	e.line, e.parked, e.dead = l, true, true
	e.outcome, e.problem = transport.Invalid, "event is missing from the log"
	e.Attempts++
	sh.parked[e.Seq] = e
	pk.failAgain(e)
}

func (ks *keys) newParked(sh *shardState, row *outbox.Queued, r *route, l *keyLine) *entry {
	e := ks.newEntry(sh, row)
	e.parked, e.route, e.line = true, r, l
	sh.parked[e.Seq] = e
	ks.count(e)
	return e
}

// confirmed books a parked event that was delivered. The next of its key is
// sent without waiting for a look at what is due.
func (pk *parking) confirmed(e *entry) {
	sh, l := e.shard, e.line
	if len(sh.lane.sent) == 0 {
		sh.lane.since = pk.now
	}
	sh.lane.sent = append(sh.lane.sent, e)
	pk.mark(sh)
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
		pk.keys.promote(l)
		return
	}
	l.due = true
	pk.readParked(l)
}

func (pk *parking) sent(cl *call) {
	for _, e := range cl.entries {
		pk.report.Delivered++
		pk.settled(e)
		if l := e.line; l != nil {
			l.sent--
			pk.keys.tidy(l)
			pk.keys.rest(l)
		}
		pk.keys.free(e)
	}
}

// settled forgets a parked event whose new state was recorded.
func (pk *parking) settled(e *entry) {
	delete(e.shard.parked, e.Seq)
	if pk.due.changed != nil {
		pk.due.changed[parkedID{e.shard, e.Seq}] = struct{}{}
	}
}

// failAgain records a further failure of a parked event. The others of its key
// in memory are left to the database again.
func (pk *parking) failAgain(e *entry) {
	l := e.line
	e.state = entryParking
	if l != nil {
		l.retrying++
		l.remove(e)
		pk.keys.forgetFIFO(l, nil)
	}
	e.shard.lane.again = append(e.shard.lane.again, e)
	pk.mark(e.shard)
}

// forgetFIFO takes the parked events of a key that are not in flight out of
// memory, except for one.
func (ks *keys) forgetFIFO(l *keyLine, keep *entry) {
	for i := len(l.fifo) - 1; i >= 0; i-- {
		if e := l.fifo[i]; e != l.inflight && e != keep {
			ks.forget(e)
		}
	}
}

func (pk *parking) retried(cl *call) {
	for _, e := range cl.entries {
		l := e.line
		pk.settled(e)
		pk.buried(e)
		if !e.dead {
			pk.due.soon(pk.now + e.retryIn)
		}
		if l != nil {
			l.retrying--
			switch {
			case e.dead && !pk.cfg.HoldDeadKeys:
				l.due = true
				pk.readParked(l)
			case l.verify:
				pk.readParked(l)
			default:
				pk.recheck(l)
			}
			pk.keys.rest(l)
		}
		if e.Missing && l == nil {
			pk.loading.reload(e.shard) // nobody here knows which key has lost its head
		}
		pk.keys.free(e)
	}
}

// retryLost reads a parked event again whose failure was recorded or was not. If it was not, the
// event is due still and is sent once more. The statement is not repeated: an operator may have
// redriven the event in between, and the failure would be counted for what has not been sent since.
func (pk *parking) retryLost(e *entry) {
	sh, l := e.shard, e.line
	pk.settled(e)
	if l == nil {
		pk.due.soon(sh.lane.retry)
	} else {
		l.retrying--
		pk.readParked(l)
		pk.keys.rest(l)
	}
	pk.keys.free(e)
}

// fetched takes over the parked events of a key, or unblocks it if there
// are none left.
func (pk *parking) fetched(cl *call) {
	l, sh := cl.line, cl.shards[0]
	l.fetching = false
	if sh.yielding {
		return
	}
	defer pk.keys.rest(l)
	due := l.due
	l.due, l.verify = false, false
	if len(l.fifo) > 0 || l.retrying > 0 || l.sent > 0 {
		return // what is under way asks again
	}
	if len(cl.rows) == 0 {
		pk.emptied(l)
		return
	}
	pk.keys.block(l)
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
		pk.buryMissing(sh, first, l)
		return
	}
	switch {
	case first.State == outbox.Following: // without a head, unless a dead event holds it
		sh.lane.heal = true
		pk.mark(sh)
	case due:
		for i := range cl.rows {
			row := &cl.rows[i]
			if row.Missing || row.State == outbox.Dead || row.Seq > toMove {
				break // the next look begins with it
			}
			l.fifo = append(l.fifo, pk.keys.newParked(sh, row, pk.routes.of(row.Topic), l))
		}
		pk.keys.promote(l)
	default:
		pk.due.soon(pk.now)
	}
}

// emptied unblocks a key that has no parked events any more which hold it, unless some are
// on their way there.
func (pk *parking) emptied(l *keyLine) {
	l.head = 0
	switch {
	case !l.blocked:
		pk.keys.tidy(l)
	case l.following > 0 || l.parking > 0 || l.hole != 0:
		pk.reader.refill(l) // what is moved finds itself without a head, and asks again
	default:
		pk.keys.unblock(l)
	}
}

// distrust drops what is known of the parked events of a key, since somebody
// else has changed them. What is in flight comes to its end first.
func (pk *parking) distrust(l *keyLine) {
	l.verify = true
	pk.keys.forgetFIFO(l, nil)
	if l.flowing() {
		return
	}
	pk.readParked(l)
}
