package core

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
)

// reader owns the reading of the queue: one statement at a time, so that the rows of one are never
// older than the rows of the one before.
type reader struct {
	*Machine

	busy  *Call
	fails int
	retry time.Duration
	turn  int // kind of read that comes next

	woken    wakeup.Wakeup // shards to be read since something was committed
	paced    time.Duration // when wake-ups will have brought no more than one look per spacing
	pacer    pollPacer
	pollAt   time.Duration
	delay    time.Duration
	followed bool // shards are to be read since something was committed in them …
	polled   bool // … and all of them once
	from     int  // shard that is read first
	budget   budget

	refills []*keyLine // keys whose skipped events are to be read
}

// wakesAhead is how many looks for wake-ups may come without a pause between them. On the average
// there is one per spacing at most (a generic cell rate): an event that comes alone waits for
// nothing, and many are read together.
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

// readsQueue tells whether rows of the queue are on their way, which may be older than
// what has happened meanwhile.
func (rd *reader) readsQueue() bool {
	busy := rd.busy
	return rd.late.held != nil || busy != nil && (busy.Op() == statement.OpFetch || busy.Op() == statement.OpFetchKey)
}

// fetchCall looks for events above the low-water marks, if there is room for
// them and either more are known to be there or it is time to look.
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

// lookEverywhere has all shards read once.
func (rd *reader) pollAll() {
	some := false
	for _, sh := range rd.shards {
		if rd.readable(sh) {
			sh.pollOnce, some = true, true
		}
	}
	if !some {
		rd.at(rd.now + rd.cfg.PollMax) // no shard yet; whatever opens one brings an advance
		return
	}
	rd.pacer.last = rd.now
	if !rd.woken.None() {
		rd.paced = max(rd.paced, rd.now) + rd.pacer.interval
		rd.delay = 0 // what it was for may not be committed yet
	}
	rd.woken, rd.polled = wakeup.Wakeup{}, true
	rd.delay = min(max(2*rd.delay, rd.pacer.interval), rd.cfg.PollMax)
	rd.pollAt = rd.now + rd.delay
}

// followWakeups has the shards read in which something was committed, and no other: most have nothing,
// and to look there costs more than what is found.
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

// readable tells whether the queue of sh is to be read on.
func (rd *reader) readable(sh *shardState) bool {
	return sh != nil && sh.open() && sh.readable() && len(sh.writer.follow) < rd.limits.follow
}

// fetchRanges makes a fetch of the shards that are to be read, which share the budget: those where
// more is known to be take what the others leave. It begins with another shard each time, in case
// not all are reached.
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
	rd.followed, rd.polled = false, false
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

// include adds a range of a shard to a fetch, and what is to be looked for below it.
func (rd *reader) include(cl *Call, sh *shardState, r outbox.Range, young int64) {
	f := cl.fetch()
	cl.shards, f.versions = append(cl.shards, sh), append(f.versions, sh.version)
	rd.late.addLateRange(f, sh, r.After, young)
	f.above = append(f.above, len(f.Ranges))
	f.Ranges = append(f.Ranges, r)
}

// byShard returns the position of every shard in the call, -1 for those not in it
// and for those whose low-water mark was set back since: a row from above the
// old mark would overtake those that are to be read again.
func (rd *reader) byShard(cl *Call) (positions [idgen.Shards]int) {
	for i := range positions {
		positions[i] = -1
	}
	for i, sh := range cl.shards {
		if rd.shards[sh.no] == sh && sh.version == cl.fetch().versions[i] && !sh.yielding {
			positions[sh.no] = i
		}
	}
	return positions
}

// fetched takes over what a fetch has brought, at once or after a sample: if its
// looks did not reach down to the floor of a writer.
func (rd *reader) fetched(cl *Call) {
	f := cl.fetch()
	rd.budget.booked(cl.Err, rd.now-cl.issued > rd.cfg.LeaseTTL/2, f.Rows)
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
			if positions[sh.no] == p && sh.known >= f.known[p] {
				sh.known = max(min(f.sampled, sh.low), sh.sealed) // unless a sample says otherwise
			}
		}
		rd.pacer.found(cl.issued, len(f.Rows))
		rd.late.read += len(f.Rows)
		if len(f.Rows) > 0 && !f.woken { // where wake-ups come, there is no need to ask for more
			rd.delay = rd.pacer.interval
			rd.pollAt = min(rd.pollAt, cl.issued+rd.pacer.interval)
		}
	}
	if len(f.Rows) > 0 && slices.ContainsFunc(f.lateFrom, func(from int64) bool { return f.old < from }) {
		rd.late.held = cl
		return
	}
	rd.taken(cl)
}

// taken takes over what a fetch has brought.
func (rd *reader) taken(cl *Call) {
	if cl.fetch().lap {
		rd.laps.take(cl)
	} else {
		rd.takeFetched(cl)
	}
}

// takeFetched takes over what a fetch has brought. Where more was to be looked for below the
// mark than it has brought, the queue is read again from there on: what is above
// might overtake it.
func (rd *reader) takeFetched(cl *Call) {
	f := cl.fetch()
	below, above := cl.counts()
	for p, sh := range cl.shards {
		if f.lateLimit > 0 && below[p] >= f.lateLimit || sh.known < f.lateFrom[p] {
			sh.rewind(min(f.lateFrom[p], sh.known))
		}
	}
	positions := rd.byShard(cl)
	for i := range f.Rows {
		row := &f.Rows[i]
		p := positions[row.Shard]
		if p < 0 || cl.shards[p].gone {
			continue // and says nothing of who may write below it: the database may have lost it since
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
			sh.more = above[p] >= f.Ranges[f.above[p]].Limit
		} else { // what it has brought from below was not taken
			sh.known = min(sh.known, f.lateFrom[p])
			cl.wantAgain(p)
		}
	}
	rd.late.sampleSoon()
}

// waits tells whether a row of a shard is to be read again later, as all that is behind it. What a
// replay has put back of a key is sent in order, so a row of one must not be taken
//
//   - before the shard was told of the replay: there may be earlier ones below the mark, where
//     nobody looks. The next renewal tells to where it is to be set back, and is asked for at once;
//   - while an earlier one of that replay has to wait, as its event is in memory with the row
//     before: it is confirmed, and the answer to its mark is on the way.
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

// counts returns how many rows of each shard a fetch has brought from below
// and from above its mark.
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
		case seq > f.Ranges[f.above[p]].After:
			above[p]++
		case seq > f.lateFrom[p]:
			below[p]++
		}
	}
	return below, above
}

// keyShare is so small a part of a lease that a read in one key may take: no other read is under
// way meanwhile.
const KeyShare = 10

// refillCall reads on in a key of which events were passed over.
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
			return nil // an answer that is awaited changes that
		}
		rd.refills = rd.refills[1:]
		return ask(&fetchKey{
			FetchKey: statement.FetchKey{Shard: l.shard.no, Key: l.key, From: l.hole, Limit: rd.cfg.MaxPerKey},
			line:     l, version: l.shard.version,
		}, l.shard)
	}
	return nil
}

// refill asks for the events of l that were passed over, once there is room.
func (rd *reader) refill(l *keyLine) {
	if l.refilling || l.shard.yielding {
		return
	}
	if !l.blocked && (l.n > rd.cfg.MaxPerKey/2 || l.n > 0 && l.first.route.stalled()) {
		return // when the first of them has gone
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

// refilled takes over the events of a key from its hole on. The hole is closed if
// the statement has reached the end: what earlier reads passed over, it saw.
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
		l.hole = row.Seq + 1 // what is taken is in front of it
		if rd.keys.take(sh, row, false); sh.gone {
			return
		}
		if full, skipped = l.hole == row.Seq, l.hole == 0; full || skipped {
			break // there is no room for more: the hole begins again here; or its route is stalled
		}
	}
	if !full && !skipped && len(s.Rows) < s.Limit {
		l.hole = 0
	}
	rd.refill(l)
	rd.parking.recheck(l)
	rd.keys.dropIdle(l)
}

// leaveToLap has a lap read on in a key, in pages: between its events are so many of other keys
// that one statement takes too long to read over them.
func (rd *reader) leaveToLap(l *keyLine) {
	sh := l.shard
	sh.back.skip(keyset.Hash(l.key), true, l.hole)
	sh.back.hurry()
	l.hole = 0
	rd.parking.recheck(l)
	rd.keys.dropIdle(l)
}

// capacity is how many events are kept in memory at most: twice the window, or as many as
// WindowBytes has room for.
func (rd *reader) capacity() int {
	most := 2 * rd.cfg.Window
	if average := rd.budget.average; average*float64(most) > float64(rd.cfg.WindowBytes) {
		most = max(2, int(float64(rd.cfg.WindowBytes)/average))
	}
	return most
}

// room is how many more events are to be kept in memory.
func (rd *reader) room() int { return rd.capacity() - rd.keys.buffered + rd.routes.stalledRoom() }

// lookLimit is how many rows are read of a shard that is read for the first time in a while, and
// how many a look below its mark may bring before it counts as cut short.
func (rd *reader) coldLimit() int {
	return max(1, min(rd.limits.cold, rd.budget.rows()/len(rd.shards)))
}
