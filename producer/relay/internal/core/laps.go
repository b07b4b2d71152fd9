package core

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/store/outbox"
)

// revisit is the state of a shard's skipped events. A skipped event was read and left in the
// database; a lap reads it again. The read position of the shard (shardState.low) goes on ahead and
// does not come back for skipped events.
//
// revisit remembers only the lowest Seq of the skipped events and the hashes of their keys. Once an
// event of a key is skipped, all later events of the key are skipped until a lap meets the key. A
// lap reads in order, from the lowest skipped event to the read position, so the first event of a
// key met by the lap is the first event of the key. If the lap takes this event, the lap takes the
// later events of the key as well. If not, the key waits for the next lap.
//
// While a route is stalled, laps are slow: the route needs further events to probe only after all
// its events of the queue in memory were probed in vain. Each skipped event gets its turn (see turn).
// When the route works again, laps go through its shards without a pause. Most of these laps give no
// turns: where the route works again once and again, events in its own shards would take the turns of
// all others. The first lap of a shard that was taken over is slow too, except for pages whose events
// can be sent.
//
// From time to time, a lap is a sweep: it begins at the beginning of the queue. A sweep should find
// no event, and guards against the unforeseen. A sweep may pass millions of delivered rows that the
// database cannot remove, so a page covers a bounded number of IDs and is over soon.
type revisit struct {
	ahead, behind map[uint64]struct{} // hashes of skipped keys: ahead of the lap, and left to the next lap
	inherited     keyset.Set          // keys skipped by an earlier owner, until a lap has met all keys
	first, next   int64               // lowest skipped Seq for the lap, and for the next lap; 0: no event was skipped

	active    bool
	number    int           // of the lap, from 1
	at        int64         // the lap has read up to here
	sweep     bool          // the next lap is a sweep
	whole     bool          // this lap is a sweep
	urgent    int           // number of laps to go without a pause
	turns     bool          // events of stalled routes have their turns in this lap
	fruitful  bool          // this lap has brought an event into memory
	starvedAt time.Duration // no lap for a limited route begins before
	notBefore time.Duration // no lap begins before, unless it is urgent and gives no turns
}

// laps plans the laps of all shards.
type laps struct {
	*Machine

	sweepAt  time.Duration // when the next sweep is due
	pageAt   time.Duration // of the next page that is not urgent
	calledAt time.Duration // of the last page
	calmAt   time.Duration // of the last page that was not urgent
	span     int64         // the most IDs covered by a page
}

const (
	revisitShare = 9   // the pause after a page, as a multiple of the page's time
	pageSlow     = 100 // urgent pages should take less than LeaseTTL / pageSlow …
	pageQuick    = 3   // … and grow if they take pageQuick times less
	// pageCalm is how long a page that is not urgent should take: newly committed events wait for
	// the page.
	pageCalm     = 3 * time.Millisecond
	lapAtLeast   = time.Second // the longest time without a page that is not urgent, for others or for what is above the read positions
	revisitPause = 64          // laps of a shard that are not urgent are at least 1/revisitPause of the time between sweeps apart
)

// has tells whether an event of a key with the hash was skipped. A newly read event of the key is
// then not the next event of the key. A lap may take keys that were skipped before the lap, but no
// key that the lap has skipped.
func (b *revisit) has(hash uint64, lap bool) bool {
	if _, ok := b.behind[hash]; ok {
		return true
	}
	if lap {
		return false
	}
	_, ok := b.ahead[hash]
	return ok || b.inherited.Has(hash)
}

// none tells whether no event was skipped.
func (b *revisit) none() bool { return b.first == 0 && b.next == 0 }

// skip notes a skipped event, and the hash of its key, if any.
func (b *revisit) skip(hash uint64, keyed bool, seq int64) {
	set, low := &b.ahead, &b.first
	if b.active && seq <= b.at {
		set, low = &b.behind, &b.next
	}
	if *low == 0 || seq < *low {
		*low = seq
	}
	if !keyed {
		return
	}
	if *set == nil {
		*set = make(map[uint64]struct{})
	}
	(*set)[hash] = struct{}{}
}

// hurry makes the current lap, if any, and the next lap urgent. Together they meet all skipped
// events.
func (b *revisit) hurry() {
	switch {
	case b.none():
	case b.active && b.urgent < 2:
		b.urgent = 2
	default:
		b.urgent = max(b.urgent, 1)
	}
}

// reset ends a lap, since the read position is set back. All skipped keys wait for the next lap.
func (b *revisit) reset() {
	if !b.active {
		return
	}
	if b.next != 0 && (b.first == 0 || b.next < b.first) {
		b.first = b.next
	}
	if len(b.ahead) < len(b.behind) {
		b.ahead, b.behind = b.behind, b.ahead
	}
	for hash := range b.behind {
		b.ahead[hash] = struct{}{}
	}
	b.sweep = b.sweep || b.whole
	b.behind, b.next, b.active, b.whole = nil, 0, false, false
}

// inherit takes over the keys that an earlier owner has skipped, from the Seq first on.
func (b *revisit) inherit(keys keyset.Set, first int64) { b.inherited, b.first = keys, first }

// wanted tells whether a lap should begin or go on even if no route needs candidates.
func (b *revisit) wanted() bool { return b.urgent > 0 || b.sweep || b.whole || b.inherited != nil }

// begin begins a lap if the lap has a range to read, and tells whether a lap is active.
func (b *revisit) begin(sh *shardState) bool {
	switch {
	case b.active:
		return true
	case b.sweep && sh.low > 0:
		b.whole, b.sweep, b.at = true, false, 0
	case b.first > 0 && b.first <= sh.low:
		b.at = b.first - 1
	default: // the read position may have been set back below the skipped events
		b.sweep = false
		if b.none() {
			b.urgent = 0
		} else if !sh.more { // read to the end since: none is left
			b.ahead, b.first, b.urgent = nil, 0, 0
		}
		return false
	}
	b.active, b.fruitful = true, false
	b.number++
	return true
}

// end ends a lap that has reached the read position. Events that the lap has not skipped again are
// in memory or have left the queue.
func (b *revisit) end() {
	b.ahead, b.behind, b.inherited = b.behind, nil, nil
	b.first, b.next = b.next, 0
	b.active, b.whole = false, false
	b.urgent = max(b.urgent-1, 0)
	if b.none() {
		b.urgent = 0
	}
}

// call reads the next page of laps.
func (lp *laps) call() *Call {
	lp.planSweep()
	if lp.reader.room() <= lp.reader.capacity()/2 || len(lp.rates.all) > 0 { // what waits behind stalled events takes places of limits
		lp.routes.evictSurplus()
	}
	room := lp.reader.room()
	if room <= lp.reader.capacity()/4 {
		return nil // outcomes make room
	}
	urgent, calm := lp.wanted()
	switch {
	case len(urgent) > 0 && (len(calm) == 0 || lp.now < lp.calmAt+lapAtLeast):
		return lp.pageCall(urgent, true)
	case len(calm) == 0:
		return nil
	case len(urgent) > 0: // not for ever
	case room <= lp.reader.capacity()/2 && lp.now < lp.calledAt+lapAtLeast && slices.ContainsFunc(lp.shards[:], func(sh *shardState) bool { return lp.reader.readable(sh) && sh.more }):
		return nil // reads above the read position go first, but not for ever
	case lp.now < lp.pageAt:
		lp.at(lp.pageAt)
		return nil
	}
	lp.calmAt = lp.now
	return lp.pageCall(calm, false)
}

// planSweep makes the next lap of every shard a sweep, from time to time.
func (lp *laps) planSweep() {
	if lp.sweepAt == 0 {
		lp.sweepAt = lp.now + lp.limits.sweep
	}
	if lp.now >= lp.sweepAt {
		lp.sweepAt, lp.span = lp.now+lp.limits.sweep, 0
		for _, sh := range lp.shards {
			if sh != nil {
				sh.back.sweep = true
			}
		}
	}
	lp.at(lp.sweepAt)
}

// wanted returns the shards whose lap should go on.
func (lp *laps) wanted() (urgent, calm []*shardState) {
	starved := lp.rates.needing()
	needed := lp.candidateShards() | starved
	for _, sh := range lp.shards {
		if sh == nil || !sh.back.wanted() && needed&(1<<sh.no) == 0 {
			continue
		}
		if !lp.reader.readable(sh) || !lp.wants(sh, needed&(1<<sh.no) != 0, starved&(1<<sh.no) != 0) {
			continue
		}
		if sh.back.urgent > 0 {
			urgent = append(urgent, sh)
		} else {
			calm = append(calm, sh)
		}
	}
	return urgent, calm
}

// wants tells whether a lap of sh should go on, and begins a lap if needed. A starved lap is for a
// limited route with few events left in memory. It need not wait, unless the lap before was in vain.
func (lp *laps) wants(sh *shardState, needed, starved bool) bool {
	b := &sh.back
	from := b.notBefore
	if starved {
		from = b.starvedAt
	}
	if b.urgent == 0 && !b.active && lp.now < from {
		if needed {
			lp.at(from)
		}
		return false
	}
	if !b.wanted() && !needed {
		return false
	}
	active := b.active
	begun := b.begin(sh)
	if begun && !active {
		b.turns = lp.now >= b.notBefore
	}
	if b.none() {
		for _, r := range lp.routes.stalled { // what was skipped has left the queue
			r.skippedIn &^= 1 << sh.no
		}
		lp.rates.forget(sh.no)
	}
	return begun
}

// pageCall makes a page of laps of shards, which share the limit of one statement. A page begins
// with a random shard, in case the limit does not reach all shards. If shards took turns, the
// rhythm of probes and sweeps could give every chance to probe to the same shards.
func (lp *laps) pageCall(shards []*shardState, urgent bool) *Call {
	budget := min(lp.reader.room(), lp.reader.budget.rows())
	if !urgent {
		budget = min(budget, lp.limits.page)
	}
	share := max(budget/len(shards), min(lp.limits.cold, budget))
	lp.calledAt = lp.now
	f := new(fetch)
	cl := ask(f)
	f.lap, f.urgent, f.share = true, urgent, share
	young, old := lp.late.floor()
	f.old, f.sampled = old, lp.late.sampled
	first := lp.rand.IntN(len(shards))
	for i := range shards {
		sh := shards[(first+i)%len(shards)]
		lp.reader.include(cl, sh, outbox.Range{Shard: sh.no, After: sh.back.at, Through: min(sh.low, sh.back.at+max(lp.span, lp.limits.span)), Limit: share}, young)
		if budget -= share; budget <= 0 {
			break
		}
	}
	return cl
}

// paged books a page of laps. The next page waits. It covers more IDs after a quick page, and fewer
// IDs after a slow page.
func (lp *laps) paged(cl *Call) {
	took, slow := lp.now-cl.issued, lp.cfg.LeaseTTL/pageSlow
	if !cl.fetch().urgent {
		slow = min(slow, pageCalm)
	}
	lp.pageAt = lp.now + revisitShare*took
	switch least := lp.limits.span; {
	case cl.Err != nil || took > slow:
		lp.span = max(lp.span/budgetCut, least)
	case took < slow/pageQuick:
		lp.span = min(2*max(lp.span, least), math.MaxInt64/4)
	}
}

// candidateShards returns the shards, as bits, with skipped events of routes that need candidates.
func (lp *laps) candidateShards() (shards uint64) {
	for _, r := range lp.routes.stalled {
		if r.needsCandidates && r.pause == nil {
			shards |= r.skippedIn
		}
	}
	return shards
}

// take takes over a page of laps.
func (lp *laps) take(cl *Call) {
	f := cl.fetch()
	below, above := cl.counts()
	positions := lp.reader.byShard(cl)
	for p, sh := range cl.shards {
		if below[p] >= f.lateLimit && f.lateLimit > 0 { // the late range was cut short: the next poll reads it again
			positions[sh.no], sh.pollOnce = -1, true
		}
	}
	before := lp.keys.buffered
	for _, row := range inOrderOf(&positions, f.Rows) {
		p := positions[row.Shard]
		if p < 0 || cl.shards[p].gone {
			continue
		}
		if sh := cl.shards[p]; !lp.takeRow(sh, row) {
			positions[sh.no] = -1 // the lap goes on from here
		}
	}
	if taken := lp.keys.buffered - before; taken > 0 && taken >= len(f.Rows)/2 {
		lp.pageAt = lp.now // the skipped events can be sent
	}
	for p, sh := range cl.shards {
		if positions[sh.no] != p || above[p] >= f.share || sh.gone || !sh.readable() {
			continue
		}
		if sh.back.at = max(sh.back.at, f.Ranges[f.parts[p].above].Through); sh.back.at < sh.low {
			continue
		}
		sh.back.end()
		pause := lp.limits.sweep / revisitPause
		if sh.back.turns {
			sh.back.notBefore = lp.now + pause
		}
		if !sh.back.fruitful {
			sh.back.starvedAt = lp.now + pause
		}
		lp.lapEnded(sh)
	}
}

// takeRow takes over a row of sh. It returns false if the lap pauses before the row.
func (lp *laps) takeRow(sh *shardState, row *outbox.Queued) bool {
	if lp.reader.waits(sh, row) {
		return true
	}
	lap := row.Seq > sh.back.at
	if lap && lp.routes.pausesAt(sh, row) {
		return false
	}
	if lap {
		sh.back.at = row.Seq
	}
	had := lp.keys.buffered
	lp.keys.take(sh, row, lap)
	sh.back.fruitful = sh.back.fruitful || lp.keys.buffered > had
	return true
}

// inOrderOf returns rows in the order in which events are given places: in the order of the shards in
// the call, which begins with a random one. The order of the rows would give all places to the oldest
// events, in whatever shards they are.
func inOrderOf(positions *[idgen.Shards]int, rows []outbox.Queued) []*outbox.Queued {
	ordered := make([]*outbox.Queued, len(rows))
	for i := range rows {
		ordered[i] = &rows[i]
	}
	slices.SortStableFunc(ordered, func(a, b *outbox.Queued) int { return positions[a.Shard] - positions[b.Shard] })
	return ordered
}

// lapEnded books a whole lap through sh for the stalled routes: without events skipped again, a
// route has no skipped event in sh.
func (lp *laps) lapEnded(sh *shardState) {
	bit := uint64(1) << sh.no
	lp.rates.lapEnded(sh)
	for _, r := range lp.routes.stalled {
		r.skippedIn = r.skippedIn&^bit | r.skippedAgain&bit
		r.skippedAgain &^= bit
		if t, ok := r.lapTurns[sh.no]; ok {
			whole := sh.low >= t.end || !sh.more // not so if the read position was set back
			r.lapTurns[sh.no] = t.ended(sh.back.number, whole, t.at >= t.end)
		}
	}
}

// skip leaves a read event in the database. Later events of its key are skipped too.
func (lp *laps) skip(sh *shardState, r *route, key string, seq int64) {
	if r.stalled() {
		bit := uint64(1) << sh.no
		if r.pause != nil {
			lp.pauses.skippedIn |= bit
		}
		r.skippedIn |= bit
		if sh.back.active && seq <= sh.back.at {
			r.skippedAgain |= bit
		}
	}
	sh.back.skip(keyset.Hash(key), key != "", seq)
	sh.skip(seq)
}

// hurry makes the laps of all shards with skipped events of r urgent.
func (lp *laps) hurry(r *route) {
	for left := r.skippedIn; left != 0; left &= left - 1 {
		if sh := lp.shards[bits.TrailingZeros64(left)]; sh != nil {
			sh.back.hurry()
		}
	}
	r.skippedIn, r.skippedAgain, r.needsCandidates = 0, 0, false
}
