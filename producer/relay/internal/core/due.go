package core

import (
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// duePoll polls for due parked events, in pages. Skipped events of stalled routes do not hold up
// the events behind them.
type duePoll struct {
	*Machine

	next    time.Duration   // of the next page
	after   outbox.DuePoint // where the next page begins
	skipped int             // due events skipped since the first page
	slow    time.Duration   // the pause after a pass that skipped events
	pass    int             // number of the pass, from 1
	again   bool            // the first page comes after the current page
	// restarted tells that the pass was begun by restart, or will be.
	restarted, restartAgain bool
	// changed holds parked events that were changed during a page. Rows of the page may still show
	// the old state.
	changed map[parkedID]struct{}
}

type parkedID struct {
	shard *shardState
	seq   int64
}

const (
	dueSafety  = 30 * time.Second // between polls without a known due event
	dueSlowMax = 30 * time.Second
	dueSkipped = time.Second
)

func (du *duePoll) soon(at time.Duration) { du.next = min(du.next, at) }

// restart makes the next page the first page, at once. A pass that was begun by restart ends first:
// routes that work again once and again would keep it from events that are due later.
func (du *duePoll) restart() {
	du.soon(du.now)
	if du.restarted {
		du.restartAgain = true
		return
	}
	du.restarted = true
	du.after, du.skipped, du.again = outbox.DuePoint{}, 0, true
}

// full tells whether the events of routes that work take too much of the room in memory.
func (du *duePoll) full() bool { return du.keys.parked-du.routes.stalledRoom() > du.cfg.Window/2 }

// call polls for due heads.
func (du *duePoll) call() *Call {
	if du.next == never {
		return nil
	}
	if du.full() {
		du.routes.evictSurplus() // of a route that has stalled since
		if du.full() {
			return nil
		}
	}
	if du.now < du.next {
		du.at(du.next)
		return nil
	}
	s := &statement.Due{Since: du.after, Limit: du.limits.due}
	cl := ask(s)
	for _, sh := range du.shards {
		if sh != nil && sh.open() {
			cl.shards = append(cl.shards, sh)
		}
	}
	if len(cl.shards) == 0 {
		return nil // a shard that opens plans a poll
	}
	s.Shards = numbersOf(cl.shards)
	if du.after == (outbox.DuePoint{}) {
		du.pass++
	}
	du.next, du.again = never, false
	du.changed = make(map[parkedID]struct{})
	return cl
}

func (du *duePoll) reply(cl *Call) {
	changed := du.changed
	du.changed = nil
	s := cl.Statement.(*statement.Due)
	if cl.Err != nil {
		du.soon(du.now)
		return
	}
	owned := make(map[int]*shardState, len(cl.shards))
	for _, sh := range cl.shards {
		owned[sh.no] = sh
	}
	left, before := false, du.skipped
	for i := range s.Rows {
		row := &s.Rows[i]
		sh := owned[row.Shard]
		if _, ok := changed[parkedID{sh, row.Seq}]; ok || sh == nil || !sh.open() || !du.take(sh, row) {
			left = true
		}
	}
	du.soon(du.now + dueSafety)
	if s.Next > 0 {
		du.soon(du.now + s.Next)
	}
	switch n := len(s.Rows); {
	case du.again:
		du.soon(du.now)
	case n < s.Limit:
		du.passEnded(left)
	default:
		last := &s.Rows[n-1]
		du.after = outbox.DuePoint{At: last.DueAt, Seq: last.Seq}
		if du.soon(du.now); du.skipped >= before+n { // the whole page was skipped: half of the time is for other reads
			du.next = du.now + (du.now - cl.issued)
		}
	}
}

// passEnded plans the next pass after the last page of a pass. left tells whether the pass has left
// events in the database.
func (du *duePoll) passEnded(left bool) {
	switch {
	case du.skipped > 0:
		du.slow = min(max(2*du.slow, dueSkipped), dueSlowMax)
		du.soon(du.now + du.slow)
	case left:
		du.slow = 0
		du.soon(du.now + dueSkipped)
	default:
		du.slow = 0
	}
	if du.restartAgain {
		du.slow = 0
		du.soon(du.now)
	}
	du.restarted, du.restartAgain = du.restartAgain, false
	du.after, du.skipped = outbox.DuePoint{}, 0
	for _, r := range du.routes.stalled {
		r.dueTurn = r.dueTurn.ended(du.pass, true, false)
	}
}

// take takes over a head to be sent, unless an event of its key is being sent already.
func (du *duePoll) take(sh *shardState, row *outbox.Queued) bool {
	if sh.parked[row.Seq] != nil {
		return false
	}
	if row.Missing {
		du.parking.failMissing(sh, row, nil)
		return true
	}
	r := du.routes.of(row.Topic)
	if row.Key == "" {
		if !du.routes.admitDue(r, row, nil) {
			return false
		}
		du.keys.place(du.keys.newParked(sh, row, r, nil))
		return true
	}
	l := du.keys.line(sh, row.Key)
	if l == nil {
		l = du.keys.newLine(sh, row.Key)
	}
	defer du.keys.compact(l)
	return du.takeHead(l, row, r)
}

// takeHead takes over the due head of a key.
func (du *duePoll) takeHead(l *keyLine, row *outbox.Queued, r *route) bool {
	if l.flowing() {
		return false
	}
	if l.blocked {
		l.head = row.Seq
		if l.toMove() < row.Seq {
			return false // an earlier event is being moved, and looks for its head then
		}
	}
	if l.parking > 0 {
		return false
	}
	if !du.routes.admitDue(r, row, l) {
		du.keys.dropIdle(l)
		return false
	}
	l.head = row.Seq
	l.parked = append(l.parked, du.keys.newParked(l.shard, row, r, l))
	du.keys.block(l)
	du.keys.promote(l)
	return true
}
