package core

import (
	"slices"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// The bottom of a shard is a place in the log at or below which its queue has no row, and will get
// none except by [outbox.RelayStore.Undefer] and operators. Its next owner begins there: from the
// beginning, a statement may have to step over millions of delivered rows that the database cannot
// remove while some transaction holds an old snapshot.
//
// One sequence gives out the IDs, so a bottom stays true: a writer that begins later writes above
// it. Statements that put a row below the kept bottom lower it themselves. A shard without a kept
// bottom is read from the beginning, and a sweep goes there now and then in any case.

// lowKeeper keeps places in the database for the next owner of a shard.
type lowKeeper struct {
	*Machine

	wanted  bool // the places of some shard may have changed
	from    int  // the shard whose tail is kept first
	cleared bool // the places kept under distrusted leases are cleared
}

// lowest returns the bottom of sh as it is now. Events in memory, skipped events and rows to be
// read by their Seq hold it down. A yielding shard has forgotten its events: its bottom was noted
// before.
func (lk *lowKeeper) lowest(sh *shardState) int64 {
	low := sh.bottom
	above := func(seq int64) {
		if seq != 0 {
			low = min(low, seq-1)
		}
	}
	if !sh.yielding {
		low = max(low, lk.unwritten(sh))
		for seq := range sh.index {
			above(seq)
		}
		for _, l := range sh.lines {
			above(l.hole)
		}
		above(sh.back.first)
		above(sh.back.next)
	}
	for _, seq := range lk.wantedOf(sh) {
		above(seq)
	}
	return low
}

// wantedOf returns the Seqs of rows of sh that are read, or to be read, by their Seqs.
func (lk *lowKeeper) wantedOf(sh *shardState) []int64 {
	all := sh.wanted
	for _, cl := range [...]*Call{lk.reader.busy, lk.late.held} {
		f := cl.fetch()
		if f == nil {
			continue
		}
		for p, other := range cl.shards {
			if other == sh {
				all = slices.Concat(all, f.parts[p].wanted)
			}
		}
	}
	return all
}

// unwritten returns the place up to which sh was read and no writer may commit any more.
func (lk *lowKeeper) unwritten(sh *shardState) int64 {
	low := min(sh.low, sh.known)
	for _, w := range lk.late.writers {
		low = min(low, w.floor)
	}
	if held := lk.late.held; held != nil {
		for p, other := range held.shards {
			if other == sh {
				low = min(low, held.fetch().parts[p].lateFrom)
			}
		}
	}
	return low
}

// tail returns the place up to which sh was read, no writer may commit any more, and all remaining
// events are skipped or wait on stalled routes. The next owner reads on from there and leaves the
// remaining events to a lap; events about to be sent are above it. Otherwise a relay that takes
// over would read all events of a dead route before it gets to the latest ones.
func (lk *lowKeeper) tail(sh *shardState) int64 {
	tail := sh.tail
	above := func(seq int64) {
		if seq != 0 {
			tail = min(tail, seq-1)
		}
	}
	if !sh.yielding {
		tail = max(sh.sealed, lk.unwritten(sh))
		for seq, e := range sh.index {
			if !e.waits() {
				above(seq)
			}
		}
		for _, l := range sh.lines {
			if !l.waits() {
				above(l.hole)
			}
		}
	}
	for _, seq := range lk.wantedOf(sh) {
		above(seq)
	}
	return tail
}

// skipWaiting skips all events that wait in the memory of a shard that is about to be given back.
func (lk *lowKeeper) skipWaiting(sh *shardState) {
	for seq, e := range sh.index {
		if e.waits() {
			sh.back.skip(keyset.Hash(e.Key), e.Key != "", seq)
		}
	}
}

const (
	skippedAtOnce = 1 << 16 // keys in one statement, beyond those of one shard
	skippedMost   = 1 << 18 // keys of a shard beyond which its next owner reads all remaining events
)

// call keeps the bottoms of shards, and their tails in turns. It waits while deferred events are
// being moved: they may come to stand below. A kept tail stays true: rows up to it may only leave.
func (lk *lowKeeper) call() *Call {
	if b := lk.reader.busy; !lk.wanted || b != nil && b.Op() == statement.OpUndefer {
		return nil
	}
	lk.wanted = false
	s := &statement.KeepLow{History: lk.leases.identity}
	cl := ask(s)
	room, first := skippedAtOnce, lk.from
	for i := range lk.shards {
		sh := lk.shards[(first+i)%len(lk.shards)]
		if sh == nil {
			continue
		}
		low := outbox.Low{Lease: sh.lease(), Seq: lk.lowest(sh)}
		if room > 0 {
			if low.Tail = lk.tailToKeep(sh, low.Seq); low.Tail != nil {
				room -= len(low.Tail.Passed) / 4
			}
			if room <= 0 {
				lk.from = sh.no + 1
			}
		}
		if low.Tail != nil || low.Seq > 0 && low.Seq != sh.kept {
			cl.shards, s.Lows = append(cl.shards, sh), append(s.Lows, low)
		}
	}
	if len(s.Lows) == 0 {
		return nil
	}
	return cl
}

// tailToKeep returns the tail of sh if it is above the bottom and above the kept tail.
func (lk *lowKeeper) tailToKeep(sh *shardState, bottom int64) *outbox.Tail {
	seq := lk.tail(sh)
	if seq <= max(bottom, sh.keptAt) || len(sh.back.inherited)+len(sh.back.ahead)+len(sh.back.behind) > skippedMost {
		return nil
	}
	return &outbox.Tail{Seq: seq, Passed: sh.skippedKeys().Bytes()}
}

// clearCall clears the places of shards of a database that has lost commits: their bottoms come
// from lost events.
func (lk *lowKeeper) clearCall() *Call {
	s := &statement.KeepLow{History: lk.leases.identity}
	for _, lease := range lk.leases.distrusted {
		s.Lows = append(s.Lows, outbox.Low{Lease: lease, Tail: &outbox.Tail{}})
	}
	return ask(s)
}

// reply notes the places that are kept now.
func (lk *lowKeeper) reply(cl *Call) {
	s := cl.Statement.(*statement.KeepLow)
	if len(cl.shards) == 0 {
		lk.cleared = len(s.Lows) == len(lk.leases.distrusted)
	}
	for i, sh := range cl.shards {
		sh.kept = s.Lows[i].Seq
		if tail := s.Lows[i].Tail; tail != nil {
			sh.keptAt = tail.Seq
		}
	}
}
