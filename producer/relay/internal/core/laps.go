package core

import (
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/store/outbox"
)

// revisit is the state of a shard's skipped events, and of the lap that reads them once more. The
// tail, shardState.low, goes on ahead and never comes back for them.
//
// Of a skipped event only its place counts, and of its key a hash: no event of that key is taken
// until a lap comes by. A lap reads in order, from the lowest skipped event to the tail, so the
// first event of a key that it meets is the key's first. If the lap takes that event, it goes on
// with the key; if not, the key waits for the next lap, with all its events read by the tail
// meanwhile.
//
// Laps are slow while a route is stalled: a stalled route gets further events to probe once all in
// memory were probed in vain, so every event gets its turn. When the route works, its shards are
// walked through without a pause. The first lap of a shard that was taken over is slow too, except
// for pages of events that can be sent. Now and then a lap begins at the beginning of the queue: a
// sweep. A sweep should find no further event, and guards against the unforeseen. A sweep may pass
// millions of delivered rows that the database cannot remove, so a page goes over a bounded number
// of IDs and is over soon.
type revisit struct {
	ahead, behind map[uint64]struct{} // skipped keys that the lap still meets, and those that wait for the next lap
	inherited     keyset.Set          // keys skipped by an earlier owner, until a lap has met all of them
	first, next   int64               // lowest Seq that was skipped before the lap, and for the next lap; 0: none

	active    bool
	at        int64         // the lap has read up to here
	sweep     bool          // the next lap is a sweep, from the beginning
	whole     bool          // this lap is a sweep
	urgent    int           // so many laps go without a pause
	notBefore time.Duration // no lap begins before, unless urgent
}

// laps plans the laps of all shards.
type laps struct {
	*Machine

	sweepAt time.Duration // when the next sweep is due
	pageAt  time.Duration // of the next page of laps in no hurry
	span    int64         // how many IDs a page goes over at most
}

const (
	revisitShare = 9   // the pause after a page, as a multiple of its time
	pageSlow     = 100 // urgent pages are to take less than LeaseTTL / pageSlow …
	pageQuick    = 3   // … and may become larger when they take pageQuick times less
	// pageCalm is how long a page in no hurry is to take: events that were just committed wait for
	// it.
	pageCalm     = 3 * time.Millisecond
	revisitPause = 64 // laps of a shard in no hurry are at least 1/revisitPause of the time between sweeps apart
)

// has tells whether events of a key with the hash were skipped: then an event that was just read is
// not the next of its key. A lap may take keys that were skipped before it, but not by it.
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

// hurry has all skipped events met soon: by the rest of the current lap, and by the next one.
func (b *revisit) hurry() {
	switch {
	case b.none():
	case b.active && b.urgent < 2:
		b.urgent = 2
	default:
		b.urgent = max(b.urgent, 1)
	}
}

// reset ends a lap, since the tail is set back.
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

// inherit takes over the keys that an earlier owner has skipped, from first on. A lap meets them.
func (b *revisit) inherit(keys keyset.Set, first int64) { b.inherited, b.first = keys, first }

// wanted tells whether a lap is to go on or to begin, even if no route needs candidates.
func (b *revisit) wanted() bool { return b.urgent > 0 || b.sweep || b.whole || b.inherited != nil }

// begin begins a lap, if there is a range to walk through.
func (b *revisit) begin(sh *shardState) bool {
	switch {
	case b.active:
	case b.sweep && sh.low > 0:
		b.active, b.whole, b.sweep, b.at = true, true, false, 0
	case b.first > 0 && b.first <= sh.low:
		b.active, b.at = true, b.first-1
	default:
		b.urgent, b.sweep = 0, false
	}
	return b.active
}

// end ends a lap that has reached the tail: the events that it did not skip again are in memory or
// have left the queue.
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
	if lp.reader.room() <= lp.reader.capacity()/2 {
		lp.routes.evictSurplus()
	}
	room := lp.reader.room()
	if room <= lp.reader.capacity()/4 {
		return nil // outcomes make room
	}
	wanted, urgent := lp.wanted()
	switch {
	case len(wanted) == 0:
		return nil
	case urgent:
	case room <= lp.reader.capacity()/2 && slices.ContainsFunc(lp.shards[:], func(sh *shardState) bool { return lp.reader.readable(sh) && sh.more }):
		return nil // the tail goes first
	case lp.now < lp.pageAt:
		lp.at(lp.pageAt)
		return nil
	}
	return lp.pageCall(wanted, urgent)
}

// planSweep makes the next lap of every shard a sweep, now and then.
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

// wanted returns the shards whose lap is to go on: only the urgent ones, if there are any.
func (lp *laps) wanted() (wanted []*shardState, urgent bool) {
	needed := lp.candidateShards()
	for _, sh := range lp.shards {
		if sh == nil || !sh.back.wanted() && needed&(1<<sh.no) == 0 {
			continue
		}
		if !lp.reader.readable(sh) || !lp.wants(sh, needed&(1<<sh.no) != 0) {
			continue
		}
		hurries := sh.back.urgent > 0
		if hurries && !urgent {
			urgent, wanted = true, wanted[:0]
		}
		if hurries || !urgent {
			wanted = append(wanted, sh)
		}
	}
	return wanted, urgent
}

// wants tells whether a lap of sh is to go on, and begins one if needed.
func (lp *laps) wants(sh *shardState, needed bool) bool {
	b := &sh.back
	if b.urgent == 0 && !b.active && lp.now < b.notBefore {
		if needed {
			lp.at(b.notBefore)
		}
		return false
	}
	return (b.wanted() || needed) && b.begin(sh)
}

// pageCall makes a page of laps of shards, which share the limit of one statement. Pages begin with
// any of the shards, in case the limit does not reach all: in turns, the rhythm of probes and sweeps
// could give the same shards each chance to have an event probed.
func (lp *laps) pageCall(shards []*shardState, urgent bool) *Call {
	budget := min(lp.reader.room(), lp.reader.budget.rows())
	if !urgent {
		budget = min(budget, lp.limits.page)
	}
	share := max(budget/len(shards), min(lp.limits.cold, budget))
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

// paged books a page of laps. The next page waits, and goes over more IDs if this one was quick, or
// over fewer if it was slow.
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
		if r.needsCandidates {
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
		if below[p] >= f.lateLimit && f.lateLimit > 0 { // the late range was cut short: the tail reads it again
			positions[sh.no], sh.pollOnce = -1, true
		}
	}
	before := lp.keys.buffered
	for i := range f.Rows {
		row := &f.Rows[i]
		p := positions[row.Shard]
		if p < 0 || cl.shards[p].gone {
			continue
		}
		sh := cl.shards[p]
		if lp.reader.waits(sh, row) {
			continue
		}
		lap := row.Seq > sh.back.at
		if lap {
			sh.back.at = row.Seq
		}
		lp.keys.take(sh, row, lap)
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
		sh.back.notBefore = lp.now + lp.limits.sweep/revisitPause
		lp.lapEnded(sh)
	}
}

// lapEnded takes note of stalled routes without skipped events in a whole lap through sh.
func (lp *laps) lapEnded(sh *shardState) {
	bit := uint64(1) << sh.no
	for _, r := range lp.routes.stalled {
		r.skippedIn = r.skippedIn&^bit | r.skippedAgain&bit
		r.skippedAgain &^= bit
		if t, ok := r.lapTurns[sh.no]; ok {
			r.lapTurns[sh.no] = t.ended()
		}
	}
}

// skip leaves an event that was read in the database. Later events of its key are skipped too.
func (lp *laps) skip(sh *shardState, r *route, key string, seq int64) {
	if r.stalled() {
		bit := uint64(1) << sh.no
		r.skippedIn |= bit
		if sh.back.active && seq <= sh.back.at {
			r.skippedAgain |= bit
		}
	}
	sh.back.skip(keyset.Hash(key), key != "", seq)
	sh.skip(seq)
}

// hurry has the shards walked through that hold skipped events of r.
func (lp *laps) hurry(r *route) {
	for left := r.skippedIn; left != 0; left &= left - 1 {
		if sh := lp.shards[bits.TrailingZeros64(left)]; sh != nil {
			sh.back.hurry()
		}
	}
	r.skippedIn, r.skippedAgain, r.needsCandidates = 0, 0, false
}
