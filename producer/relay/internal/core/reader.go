package core

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// reader reads the queue. Only one read is under way at a time, so no read shows an older state of
// the queue than the read before.
type reader struct {
	*Machine

	busy  *Call
	fails int
	retry time.Duration
	turn  int // the next kind of read

	woken    wakeup.Wakeup // shards with unread commits
	paced    time.Duration // time up to which wake-ups have used up their polls; at most wakesAhead × PollMin ahead of now
	pacer    pollPacer
	pollAt   time.Duration
	delay    time.Duration
	followed bool // the next fetch follows wake-ups …
	polled   bool // … and polls all shards …
	alone    bool // … without a wake-up, after a while without events
	from     int  // the shard to be read first
	budget   budget

	refills []*keyLine // keys whose hole is to be read
}

// wakesAhead is how many polls for wake-ups may come at once. The average is at most one poll per
// interval of the pacer (a token bucket). So a lone event is read at once, and a burst in few
// reads.
const wakesAhead = 20

// plan issues the next read. The kinds take turns.
func (rd *reader) plan() {
	if rd.busy != nil {
		return
	}
	if rd.now < rd.retry {
		rd.at(rd.retry)
		return
	}
	if rd.stopping {
		return
	}
	if cl := rd.loading.call(); cl != nil {
		rd.busy = rd.issue(cl)
		return
	}
	if rd.late.held != nil || rd.late.read-rd.late.readBy >= rd.limits.readsLong {
		rd.busy = rd.issue(rd.late.sampleCall())
		return
	}
	kinds := [...]func() *Call{rd.fetchCall, rd.due.call, rd.deferred.call, rd.refillCall, rd.late.sampleCall, rd.laps.call}
	for range kinds {
		kind := kinds[rd.turn]
		rd.turn = (rd.turn + 1) % len(kinds)
		if cl := kind(); cl != nil {
			rd.busy = rd.issue(cl)
			return
		}
	}
}

func (rd *reader) reply(cl *Call) {
	rd.busy = nil
	rd.health.reads++
	rd.health.reading += rd.now - cl.issued
	if cl.Err != nil {
		rd.fails++
		rd.retry = rd.now + rd.pause(rd.fails)
	} else {
		rd.fails = 0
		rd.health.read = rd.now
	}
	switch cl.Op() {
	case statement.OpFetch:
		rd.fetched(cl)
	case statement.OpFetchKey:
		rd.refilled(cl)
	case statement.OpWriters:
		rd.late.sample(cl)
	case statement.OpBlocked:
		rd.loading.page(cl)
	case statement.OpDue:
		rd.due.reply(cl)
	case statement.OpUndefer:
		rd.deferred.moved(cl)
	}
	if !rd.readsQueue() {
		for _, sh := range rd.shards {
			if sh != nil && len(sh.recent) > 0 {
				clear(sh.recent)
			}
		}
	}
}

// readsQueue tells whether a read of the queue is under way, or is held for a sample. The rows of
// such a read may be older than the state in memory.
func (rd *reader) readsQueue() bool {
	busy := rd.busy
	return rd.late.held != nil || busy != nil && (busy.Op() == statement.OpFetch || busy.Op() == statement.OpFetchKey)
}

// fetchCall fetches events above the read positions if memory has room: from shards with more
// events, or from all shards when a poll is due.
func (rd *reader) fetchCall() *Call {
	if rd.room() <= rd.capacity()/4 {
		rd.routes.evictSurplus()
		if rd.room() <= rd.capacity()/4 {
			return nil // outcomes make room
		}
	}
	due := rd.pollAt
	if !rd.woken.None() {
		soon := rd.paced - wakesAhead*rd.cfg.PollMin
		switch {
		case rd.woken.Everywhere():
			due = min(due, soon)
		case rd.now >= soon:
			rd.followWakeups()
		default:
			rd.at(soon)
		}
	}
	if rd.now >= due {
		rd.pollAll()
	} else {
		rd.at(due)
	}
	return rd.fetchRanges()
}

// pollAll makes the next fetch read all shards.
func (rd *reader) pollAll() {
	some := false
	for _, sh := range rd.shards {
		if rd.readable(sh) {
			sh.pollOnce, some = true, true
		}
	}
	if !some {
		rd.at(rd.now + rd.cfg.PollMax) // no shard is readable yet
		return
	}
	rd.pacer.last = rd.now
	rd.alone = rd.woken.None() && rd.delay >= rd.cfg.PollMax
	if !rd.woken.None() {
		rd.paced = max(rd.paced, rd.now) + rd.pacer.interval
		rd.delay = 0 // the wake-up may have come before the commit
	}
	rd.woken, rd.polled = wakeup.Wakeup{}, true
	rd.delay = min(max(2*rd.delay, rd.pacer.interval), rd.cfg.PollMax)
	if longest := rd.signals.longest(); rd.delay >= rd.cfg.PollMax {
		rd.delay = longest
	}
	rd.pollAt = rd.now + rd.delay
}

// followWakeups makes the next fetch read only the shards with commits: the few events of other
// shards are not worth their cost.
func (rd *reader) followWakeups() {
	followed := false
	for _, sh := range rd.shards {
		if sh != nil && rd.woken.In(sh.no) && !sh.more {
			sh.more = true
			followed = followed || rd.readable(sh)
		}
	}
	rd.woken = wakeup.Wakeup{}
	if followed {
		rd.paced = max(rd.paced, rd.now) + rd.pacer.interval
		rd.followed = true
	}
}

// readable tells whether the queue of sh may be read on.
func (rd *reader) readable(sh *shardState) bool {
	return sh != nil && sh.open() && sh.readable() && len(sh.writer.follow) < rd.limits.follow
}

// fetchRanges makes a fetch of the shards to be read. A polled shard gets a small limit, and shards
// with more events share the rest of the budget. Each fetch begins with a different shard, in case
// the budget does not reach all shards.
func (rd *reader) fetchRanges() *Call {
	hot, cold := 0, 0
	for _, sh := range rd.shards {
		switch {
		case !rd.readable(sh):
		case sh.more:
			hot++
		case sh.pollOnce:
			cold++
		}
	}
	if hot+cold == 0 {
		return nil
	}
	budget := min(rd.room(), rd.budget.rows())
	each := rd.coldLimit()
	share := max((budget-cold*each)/max(hot, 1), each)
	f := new(fetch)
	cl := ask(f)
	f.woken = rd.followed && !rd.polled
	if f.alone = rd.alone; rd.polled {
		rd.deferred.look(f)
	}
	rd.followed, rd.polled, rd.alone = false, false, false
	young, old := rd.late.floor()
	f.old, f.sampled = old, rd.late.sampled
	first := rd.from
	for i := range rd.shards {
		sh := rd.shards[(first+i)%len(rd.shards)]
		if !rd.readable(sh) || !sh.more && !sh.pollOnce {
			continue
		}
		limit := each
		if sh.more {
			limit = share
		}
		sh.pollOnce = false
		rd.include(cl, sh, outbox.Range{Shard: sh.no, After: sh.low, Limit: limit}, young)
		rd.from = (sh.no + 1) % len(rd.shards)
		if budget -= limit; budget <= 0 {
			break
		}
	}
	return cl
}

// include adds to a fetch a range of a shard, and the late range below.
func (rd *reader) include(cl *Call, sh *shardState, r outbox.Range, young int64) {
	f := cl.fetch()
	part := fetchPart{version: sh.version, known: sh.known}
	part.lateFrom, part.wanted = rd.late.addLateRange(f, sh, r.After, young)
	part.above = len(f.Ranges)
	cl.shards, f.parts, f.Ranges = append(cl.shards, sh), append(f.parts, part), append(f.Ranges, r)
}

// byShard returns for every shard its position in cl.shards, or -1 if the rows of the shard must
// not be taken: the shard is not in the call, was lost, is yielding, or had its read position set
// back while the call was under way. In the last case the queue is read again from the new
// position, and the rows of this call would be taken before the rows below them.
func (rd *reader) byShard(cl *Call) (positions [idgen.Shards]int) {
	for i := range positions {
		positions[i] = -1
	}
	for i, sh := range cl.shards {
		if rd.shards[sh.no] == sh && sh.version == cl.fetch().parts[i].version && !sh.yielding {
			positions[sh.no] = i
		}
	}
	return positions
}

// fetched takes over the rows of a fetch: after a sample if the late ranges do not reach down to
// the floors of all writers, and at once otherwise.
func (rd *reader) fetched(cl *Call) {
	f := cl.fetch()
	rd.budget.booked(cl.Err, rd.now-cl.issued > rd.cfg.LeaseTTL/2, f.Rows)
	rd.deferred.looked(cl)
	if f.lap {
		rd.laps.paged(cl)
	}
	if cl.Err != nil {
		if !f.lap {
			rd.pollAt, rd.delay = 0, 0
		}
		for p := range cl.shards {
			cl.wantAgain(p)
		}
		return
	}
	if !f.lap {
		positions := rd.byShard(cl)
		for p, sh := range cl.shards {
			if positions[sh.no] == p && sh.known >= f.parts[p].known {
				sh.known = max(min(f.sampled, sh.low), sh.sealed) // unless a sample says otherwise
			}
		}
		rd.pacer.found(cl.issued, len(f.Rows))
		rd.late.read += len(f.Rows)
		if len(f.Rows) > 0 {
			rd.signals.found(f.alone && rd.woken.None())
		}
		if len(f.Rows) > 0 && !f.woken { // wake-ups tell of further events, without a poll
			rd.delay = rd.pacer.interval
			rd.pollAt = min(rd.pollAt, cl.issued+rd.pacer.interval)
		}
	}
	if len(f.Rows) > 0 && slices.ContainsFunc(f.parts, func(part fetchPart) bool { return f.old < part.lateFrom }) {
		rd.late.held = cl
		return
	}
	rd.taken(cl)
}

// taken takes over the rows of a fetch or of a lap.
func (rd *reader) taken(cl *Call) {
	if cl.fetch().lap {
		rd.laps.take(cl)
	} else {
		rd.takeFetched(cl)
	}
}

// takeFetched takes over the rows of a fetch. A late range with as many rows as its limit was cut
// short. Its shard is read again from the beginning of the range; otherwise events above the read
// position would go before late events.
func (rd *reader) takeFetched(cl *Call) {
	f := cl.fetch()
	below, above := cl.counts()
	for p, sh := range cl.shards {
		if f.lateLimit > 0 && below[p] >= f.lateLimit || sh.known < f.parts[p].lateFrom {
			sh.rewind(min(f.parts[p].lateFrom, sh.known))
		}
	}
	positions := rd.byShard(cl)
	for i := range f.Rows {
		row := &f.Rows[i]
		p := positions[row.Shard]
		if p < 0 || cl.shards[p].gone {
			continue // before numbers.saw: the database may have lost the row since, and give out its number again
		}
		sh := cl.shards[p]
		rd.numbers.saw(row.Seq)
		if rd.waits(sh, row) {
			continue
		}
		sh.low = max(sh.low, row.Seq)
		rd.keys.take(sh, row, false)
	}
	for p, sh := range cl.shards {
		if positions[sh.no] == p && sh.readable() {
			sh.more = above[p] >= f.Ranges[f.parts[p].above].Limit
		} else { // late events were not taken either
			sh.known = min(sh.known, f.parts[p].lateFrom)
			cl.wantAgain(p)
		}
	}
	rd.late.sampleSoon()
}

// waits tells whether row, and all rows of its shard behind it, are left for a later read, and
// notes the reason in sh. Replayed events of a key are sent in order, so a row with a key is left
//
//   - before the shard was set back for the replay: earlier rows of the replay may be below the
//     read position, where no fetch looks. The next renewal, which is sent at once, tells how far
//     to set the shard back;
//   - while the event is in memory with its row from before the replay: the event is confirmed, and
//     its mark is not answered yet.
func (rd *reader) waits(sh *shardState, row *outbox.Queued) bool {
	if row.Key == "" {
		return !sh.readable()
	}
	if ticket := row.Round >> outbox.RoundChance; ticket > sh.replaysKnown {
		sh.replaysAwaited = max(sh.replaysAwaited, ticket)
		rd.leases.replaysAwaited = true
	}
	if e := sh.index[row.Seq]; e != nil && e.state == entryConfirmed && e.ID == row.ID && e.Round != row.Round && !e.early {
		e.rewritten, e.early = true, true
		sh.early++
	}
	return !sh.readable()
}

// counts returns how many rows of each shard a fetch has brought from below and from above the read
// position.
func (c *Call) counts() (below, above []int) {
	f := c.fetch()
	below, above = make([]int, len(c.shards)), make([]int, len(c.shards))
	var positions [idgen.Shards]int
	for p, sh := range c.shards {
		positions[sh.no] = p
	}
	for i := range f.Rows {
		p, seq := positions[f.Rows[i].Shard], f.Rows[i].Seq
		switch {
		case seq > f.Ranges[f.parts[p].above].After:
			above[p]++
		case seq > f.parts[p].lateFrom:
			below[p]++
		}
	}
	return below, above
}

// KeyShare bounds a read of one key to LeaseTTL / KeyShare, since no other read runs meanwhile.
const KeyShare = 10

// refillCall reads the events of a key from its hole on.
func (rd *reader) refillCall() *Call {
	for len(rd.refills) > 0 {
		l := rd.refills[0]
		if l.shard.gone || l.hole == 0 || l.shard.yielding {
			rd.refills = rd.refills[1:]
			l.refilling = false
			continue
		}
		if !l.shard.open() || !l.shard.readable() || l.blocked && len(l.shard.writer.follow) >= rd.limits.follow {
			rd.refills = append(rd.refills[1:], l)
			return nil // the answer to a statement changes the state
		}
		rd.refills = rd.refills[1:]
		return ask(&fetchKey{
			FetchKey: statement.FetchKey{Shard: l.shard.no, Key: l.key, From: l.hole, Limit: rd.cfg.MaxPerKey},
			line:     l, version: l.shard.version,
		}, l.shard)
	}
	return nil
}

// refill asks for the events of l from its hole on, once memory has room.
func (rd *reader) refill(l *keyLine) {
	if l.refilling || l.shard.yielding {
		return
	}
	if !l.blocked && (l.n > rd.cfg.MaxPerKey/2 || l.n > 0 && rd.routes.holdsBack(l.first.route)) {
		return // refilled when the first event has gone
	}
	if l.hole == 0 {
		if b := &l.shard.back; !b.none() && b.has(keyset.Hash(l.key), false) {
			b.hurry()
		}
		return
	}
	l.refilling = true
	rd.refills = append(rd.refills, l)
}

// refilled takes over the events of a key from its hole on. If the statement has reached the end of
// the key, the hole is closed: the statement saw every event that earlier reads had skipped.
func (rd *reader) refilled(cl *Call) {
	s := cl.Statement.(*fetchKey)
	l, sh := s.line, cl.shards[0]
	l.refilling = false
	if sh.gone || sh.yielding || l.hole == 0 {
		return
	}
	if cl.Err != nil && rd.now-cl.issued >= rd.cfg.LeaseTTL/KeyShare && l.hole == s.From {
		rd.leaveToLap(l)
		return
	}
	if cl.Err != nil || l.hole != s.From || sh.version != s.version {
		rd.refill(l)
		return
	}
	full, skipped := false, false
	for i := range s.Rows {
		row := &s.Rows[i]
		if l.hole = row.Seq; rd.waits(sh, row) {
			full = true
			break
		}
		l.hole = row.Seq + 1 // if the row is taken, the hole begins behind it
		if rd.keys.take(sh, row, false); sh.gone {
			return
		}
		if full, skipped = l.hole == row.Seq, l.hole == 0; full || skipped {
			break // no room, and the hole begins again here; or the route is stalled
		}
	}
	if !full && !skipped && len(s.Rows) < s.Limit {
		l.hole = 0
	}
	rd.refill(l)
	rd.parking.recheck(l)
	rd.keys.dropIdle(l)
}

// leaveToLap leaves the events from a key's hole on to a lap, which reads in pages. Too many events
// of other keys are in between for one statement.
func (rd *reader) leaveToLap(l *keyLine) {
	sh := l.shard
	sh.back.skip(keyset.Hash(l.key), true, l.hole)
	sh.back.hurry()
	l.hole = 0
	rd.parking.recheck(l)
	rd.keys.dropIdle(l)
}
