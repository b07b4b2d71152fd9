package core

import (
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// parkedWriter holds the unwritten changes of one shard's parked events. Its statements run one at
// a time, so each sees the results of the statements before. The fence keeps other relays out;
// without the turns, two statements of this relay could collide: the first moves an event behind a
// head, the second releases the head.
type parkedWriter struct {
	busy  *Call
	fails int
	retry time.Duration
	turn  int

	sent   []*Entry      // parked events that were confirmed
	since  time.Duration // when the first event of sent was confirmed
	again  []*Entry      // parked events that failed
	park   []*Entry      // queued events that failed
	follow []*Entry      // queued events behind failed events
	fetch  []*keyLine    // keys whose parked events are to be read
	heal   bool          // a follower without a head was seen
}

func (pw *parkedWriter) idle() bool {
	return pw.busy == nil && !pw.heal && len(pw.sent)+len(pw.again)+len(pw.park)+len(pw.follow)+len(pw.fetch) == 0
}

// parking writes the changes of parked events of all shards.
type parking struct {
	*Machine

	pending uint64 // shards whose writer has work, as bits
	busy    int    // statements under way
	turn    int
	healing budget // of shards in one statement
}

const (
	parkingCalls = 4   // statements under way at once, over all shards
	parkingBatch = 500 // events in one statement
	parkingKeys  = 64  // keys in one statement that reads parked events
	sentBatch    = 64  // with as many of a shard, confirmed events do not wait for more
	sentDelay    = 10 * time.Millisecond
	readDelay    = 5 * time.Millisecond // a read of parked events waits behind the confirmed ones
)

// sentAt returns until when confirmed events may wait for later ones, to be recorded together.
func (pw *parkedWriter) sentAt() time.Duration {
	if len(pw.fetch) > 0 {
		return pw.since + readDelay
	}
	return pw.since + sentDelay
}

// sentWaits tells whether confirmed events may wait for later ones: no failure of the shard waits behind
// them.
func (pw *parkedWriter) sentWaits(now time.Duration) bool {
	return len(pw.sent) > 0 && len(pw.sent) < sentBatch && len(pw.again) == 0 && now < pw.sentAt()
}

// mark notes that the writer of sh has work.
func (pk *parking) mark(sh *shardState) {
	if !sh.gone {
		pk.pending |= 1 << sh.no
	}
}

// plan issues the next statements of the writers, the shards in turns.
func (pk *parking) plan() {
	first := pk.turn
	for i := range pk.shards {
		if pk.pending == 0 || pk.busy >= parkingCalls {
			return
		}
		no := (first + i) % len(pk.shards)
		sh := pk.shards[no]
		if pk.pending&(1<<no) == 0 || sh == nil || sh.writer.busy != nil {
			continue
		}
		if pk.now < sh.writer.retry {
			pk.at(sh.writer.retry)
			continue
		}
		if sh.phase == phaseReady && !sh.yielding && sh.writer.sentWaits(pk.now) && len(sh.writer.park)+len(sh.writer.follow) == 0 {
			pk.at(sh.writer.sentAt())
			continue
		}
		cl := pk.next(sh)
		if cl == nil {
			pk.idleShard(sh)
			continue
		}
		for _, other := range cl.shards {
			other.writer.busy = cl
		}
		pk.busy++
		pk.turn = (no + 1) % len(pk.shards)
		pk.issue(cl)
	}
}

// idleShard leaves a writer without work alone.
func (pk *parking) idleShard(sh *shardState) {
	if sh.phase == phaseReady && sh.writer.sentWaits(pk.now) {
		pk.at(sh.writer.sentAt())
		return
	}
	pk.pending &^= 1 << sh.no
}

// next makes the next statement of sh. Confirmed parked events go first, then parked events that
// failed again, then healing. Parks, moves and reads take turns.
func (pk *parking) next(sh *shardState) *Call {
	pw := &sh.writer
	switch sh.phase {
	case phaseHeal:
		return pk.healCall()
	case phaseLoad:
		return nil
	}
	cl, fenced := ask(nil, sh), statement.Fenced{Lease: sh.lease()}
	if len(pw.sent) > 0 && (sh.yielding || !pw.sentWaits(pk.now)) {
		return pk.sentCall(sh)
	}
	if len(pw.again) > 0 {
		pw.again = cl.take(pw.again)
		cl.Statement = &statement.Retry{Fenced: fenced, Failures: failuresOf(cl.entries)}
		return cl
	}
	if pw.heal && !sh.yielding {
		pw.heal = false
		cl.Statement = &heal{Heal: statement.Heal{Leases: []outbox.Lease{sh.lease()}}}
		return cl
	}
	for range 3 {
		pw.turn = (pw.turn + 1) % 3
		switch {
		case pw.turn == 0 && len(pw.park) > 0:
			pw.park = cl.take(pw.park)
			cl.Statement = &statement.Park{Fenced: fenced, Failures: failuresOf(cl.entries)}
			return cl
		case pw.turn == 1 && len(pw.follow) > 0:
			if pw.follow = cl.takeFollowers(pw.follow); len(cl.entries) == 0 {
				continue
			}
			cl.Statement = &statement.Follow{Fenced: fenced, Marks: marksOf(cl.entries)}
			return cl
		case pw.turn == 2 && len(pw.fetch) > 0 && len(pw.sent) == 0: // a read shows what is recorded
			return pk.fetchCall(sh)
		}
	}
	return nil
}

// beside yields sh, then the other shards whose writers have no statement under way: they may go along
// with a statement of sh.
func (pk *parking) beside(sh *shardState) iter.Seq[*shardState] {
	return func(yield func(*shardState) bool) {
		for i := range pk.shards {
			other := pk.shards[(sh.no+i)%len(pk.shards)]
			if other == nil || other.phase != phaseReady || other.writer.busy != nil || pk.now < other.writer.retry {
				continue
			}
			if !yield(other) {
				return
			}
		}
	}
}

// sentCall records the confirmed parked events of sh, and with them those of other shards, so that many
// shards with an event each are one statement.
func (pk *parking) sentCall(sh *shardState) *Call {
	s := new(statement.Sent)
	cl := ask(s)
	for other := range pk.beside(sh) {
		pw := &other.writer
		if len(pw.sent) == 0 {
			continue
		}
		pw.sent = cl.take(pw.sent)
		cl.shards = append(cl.shards, other)
		if len(cl.entries) == parkingBatch {
			break
		}
	}
	s.Marks = marksOf(cl.entries)
	return cl
}

// fetchCall reads the parked events of keys of sh, and of other shards with nothing to record before. With
// many keys, few events of each are read.
func (pk *parking) fetchCall(sh *shardState) *Call {
	s := new(fetchParked)
	cl := ask(s)
	for other := range pk.beside(sh) {
		pw := &other.writer
		if len(pw.fetch) == 0 || len(pw.sent)+len(pw.again) > 0 || pw.heal {
			continue
		}
		n := min(len(pw.fetch), parkingKeys-len(s.lines))
		s.lines = append(s.lines, pw.fetch[:n]...)
		pw.fetch = slices.Delete(pw.fetch, 0, n)
		cl.shards = append(cl.shards, other)
		if len(s.lines) == parkingKeys {
			break
		}
	}
	for _, l := range s.lines {
		s.Keys = append(s.Keys, outbox.BlockedKey{Shard: l.shard.no, Key: l.key})
	}
	s.Limit = min(pk.cfg.MaxPerKey, max(1, parkingBatch/len(s.Keys)))
	return cl
}

// take moves a batch of entries into the call and returns the remaining entries.
func (c *Call) take(from []*Entry) []*Entry {
	n := min(len(from), parkingBatch-len(c.entries))
	c.entries = append(c.entries, from[:n]...)
	return append(from[:0], from[n:]...)
}

// takeFollowers is take for followers. An event waits while an earlier event of its key is in
// flight from the queue, or about to be parked. Suppose the event did not wait, the relay died and
// an operator discarded the head. Then the event would become the head, and be sent before the
// earlier event, which is still in the queue.
func (c *Call) takeFollowers(from []*Entry) []*Entry {
	rest := from[:0]
	for _, e := range from {
		if len(c.entries) < parkingBatch && !e.line.leads(e) {
			c.entries = append(c.entries, e)
		} else {
			rest = append(rest, e)
		}
	}
	return rest
}

// queueFollower puts e before the later followers of its key: events of a key are moved in order.
func (pw *parkedWriter) queueFollower(e *Entry) {
	at := len(pw.follow)
	for i := at - 1; i >= 0 && e.line.following > 0; i-- {
		if f := pw.follow[i]; f.line == e.line {
			if f.Seq < e.Seq {
				break
			}
			at = i
		}
	}
	pw.follow = slices.Insert(pw.follow, at, e)
}

// healCall heals idle shards that need healing: as many as the statement can heal in time, even
// with a million keys.
func (pk *parking) healCall() *Call {
	s := &heal{reload: true}
	cl := ask(s)
	for _, sh := range pk.shards {
		if len(cl.shards) == pk.healing.now {
			break
		}
		if sh != nil && sh.phase == phaseHeal && sh.writer.busy == nil && !sh.yielding {
			sh.reloadAgain = false
			cl.shards = append(cl.shards, sh)
			s.Leases = append(s.Leases, sh.lease())
		}
	}
	if len(cl.shards) == 0 {
		return nil
	}
	return cl
}

func (pk *parking) reply(cl *Call) {
	pk.busy--
	for _, sh := range cl.shards {
		if sh.writer.busy == cl {
			sh.writer.busy = nil
		}
		pk.mark(sh)
	}
	healing, heals := cl.Statement.(*heal)
	if heals {
		pk.healing.booked(cl.Err, pk.now-cl.issued > pk.cfg.LeaseTTL/2, nil)
	}
	if cl.Err != nil {
		pk.failed(cl)
		return
	}
	// A FetchParked follows each Retry of unknown outcome, and its success tells nothing about the
	// next Retry. So a FetchParked does not reset the count.
	if cl.Op() != statement.OpFetchParked {
		for _, sh := range cl.shards {
			sh.writer.fails = 0
		}
	}
	if heals {
		pk.healed(cl, healing.reload)
		return
	}
	switch s := cl.Statement.(type) {
	case *statement.Sent:
		pk.sent(cl, s.Lost)
		return
	case *fetchParked:
		for i, l := range s.lines {
			if !l.shard.gone {
				pk.fetched(l, s.Rows[i])
			}
		}
		return
	}
	sh := cl.shards[0]
	if s, ok := cl.Statement.(interface{ LeaseLost() bool }); ok && s.LeaseLost() {
		pk.leases.lose(sh, cl.Op().String())
	}
	if sh.gone {
		return
	}
	switch cl.Op() {
	case statement.OpRetry:
		pk.retried(cl)
	case statement.OpPark:
		pk.parkedEvents(cl)
	case statement.OpFollow:
		pk.followed(cl)
	}
}

// healed goes on to the purpose of healing: to load blocked keys, or to send the events that have
// become heads.
func (pk *parking) healed(cl *Call, reload bool) {
	pk.due.soon(pk.now)
	for _, sh := range cl.shards {
		if !sh.gone && !sh.yielding && reload {
			sh.phase = phaseLoad
			pk.loading.healed = true
		}
	}
}

// failed puts the work of a failed statement back, before other work. Even an executed statement
// may be repeated, except for a Retry, which counts failures: its events are read again instead.
func (pk *parking) failed(cl *Call) {
	for _, sh := range cl.shards {
		sh.writer.fails++
		sh.writer.retry = pk.now + pk.pause(sh.writer.fails)
	}
	pw := &cl.shards[0].writer
	switch s := cl.Statement.(type) {
	case *heal:
		pw.heal = !s.reload && !cl.shards[0].yielding
	case *statement.Sent:
		for _, e := range cl.entries {
			e.shard.writer.sent = append(e.shard.writer.sent, e)
		}
	case *statement.Retry:
		for _, e := range cl.entries {
			pk.retryLost(e)
		}
	case *statement.Park:
		for _, e := range cl.entries {
			e.doubtful = true
		}
		pw.park = append(cl.entries, pw.park...)
	case *statement.Follow:
		if !cl.shards[0].yielding {
			pw.follow = append(cl.entries, pw.follow...)
		}
	case *fetchParked:
		for _, l := range s.lines {
			if !l.shard.yielding {
				l.shard.writer.fetch = append(l.shard.writer.fetch, l)
			}
		}
	}
}

// park records the failure of a queued event, once the marks of its predecessors are answered.
// Until then e stays first of its key and holds up the key. parkedEvents blocks the key, unless e
// is dead and HoldDeadKeys is off.
func (pk *parking) park(e *Entry) {
	e.state = entryParking
	l := e.line
	if l == nil {
		pk.parkNow(e)
		return
	}
	l.parking++
	if l.marking == 0 {
		pk.parkNow(e)
	}
}

func (pk *parking) parkNow(e *Entry) {
	e.shard.writer.park = append(e.shard.writer.park, e)
	pk.mark(e.shard)
}

func (pk *parking) parkedEvents(cl *Call) {
	sh := cl.shards[0]
	for _, e := range cl.entries {
		l := e.line
		if !e.dead {
			pk.due.soon(pk.now + e.retryIn)
		}
		pk.keys.leftQueue(e)
		pk.reportDead(e)
		if l != nil {
			l.parking--
			l.remove(e)
			if !e.dead || pk.cfg.HoldDeadKeys {
				switch {
				case e.doubtful: // if e was parked before, an operator may have settled e since
					l.head = 0
				case l.head == 0 || e.Seq < l.head:
					l.head = e.Seq
				}
				pk.keys.block(l)
			}
			if !sh.yielding {
				pk.reader.refill(l)
				pk.keys.promote(l)
				pk.recheck(l)
			}
			pk.keys.dropIdle(l)
			pk.keys.compact(l)
		}
		pk.keys.free(e)
	}
}

// reportDead counts and logs a dead event.
func (pk *parking) reportDead(e *Entry) {
	if !e.dead {
		return
	}
	pk.report.Dead++
	pk.noteEvent(slog.LevelError, "event is dead", e, slog.Int("attempts", e.Attempts),
		slog.String("outcome", e.outcome.String()), slog.String("error", e.problem))
}

func (pk *parking) followed(cl *Call) {
	pk.due.soon(pk.now) // the head may have gone, and the first follower becomes the head
	for _, e := range cl.entries {
		l := e.line
		l.following--
		if e.Seq <= l.head || l.head == headUnknown {
			l.head = 0 // e may come before the head, or be the head, whose park the database has lost
		}
		pk.keys.leftQueue(e)
		pk.keys.free(e)
		pk.reader.refill(l)
		pk.recheck(l)
		pk.keys.compact(l)
	}
}

// recheck reads the parked events of a blocked key with an unknown head and no statement under way:
// the key may have a follower without a head.
func (pk *parking) recheck(l *keyLine) {
	if l.blocked && l.head == 0 && l.parking == 0 && !l.flowing() {
		pk.readParked(l)
	}
}

// readParked asks for the parked events of a key.
func (pk *parking) readParked(l *keyLine) {
	if l.fetching || l.shard.yielding {
		return
	}
	l.fetching = true
	l.shard.writer.fetch = append(l.shard.writer.fetch, l)
	pk.mark(l.shard)
}
