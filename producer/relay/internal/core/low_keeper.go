package core

import (
	"slices"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// The bottom of a shard is a Seq: the queue has no row of the shard at or below the bottom, and
// gets such a row only by [outbox.RelayStore.Undefer] or an operator. The next owner of the shard
// begins to read there. From the beginning of the queue, a statement might step over millions of
// delivered rows, which the database cannot remove while a transaction holds an old snapshot.
//
// One sequence gives out the IDs, so a bottom stays true: later writers write above the bottom. A
// statement that puts a row below the kept bottom also lowers the kept bottom. A shard without a
// kept bottom is read from the beginning, and a sweep begins there in any case.

// lowKeeper keeps the bottoms and the tails of shards in the database, for their next owners.
type lowKeeper struct {
	*Machine

	wanted  bool // the bottom or the tail of some shard may have changed
	from    int  // the shard whose tail is kept first
	cleared bool // the bottoms and tails kept under distrusted leases are cleared
}

// lowest returns the present bottom of sh. Events in memory, skipped events and wanted rows are
// above the bottom. A yielding shard has forgotten its events, so its bottom was noted before.
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

// wantedOf returns the Seqs of the wanted rows of sh, including the wanted rows in a fetch under
// way.
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

// unwritten returns the highest Seq up to which sh was read and no writer can commit an event any
// more.
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

// tail returns the tail of sh: the highest Seq up to which sh was read, no writer can commit an
// event any more, and all remaining events are skipped or wait on stalled routes. Events about to
// be sent are above the tail. The next owner reads on from the tail, and a lap reads the remaining
// events below. Without a tail, a relay that takes the shard over would read all events of a dead
// route before the latest events.
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

// skipWaiting skips all waiting events in the memory of a shard that is about to be given back.
func (lk *lowKeeper) skipWaiting(sh *shardState) {
	for seq, e := range sh.index {
		if e.waits() {
			sh.back.skip(keyset.Hash(e.Key), e.Key != "", seq)
		}
	}
}

const (
	skippedAtOnce = 1 << 16 // keys in one statement; the last shard may go beyond
	skippedMost   = 1 << 18 // with more keys, a shard's next owner reads all remaining events
)

// call keeps the bottoms of shards, and their tails in turns. It waits while deferred events are
// being moved, perhaps below the bottoms. A kept tail stays true: rows up to the tail only leave.
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

// tailToKeep returns the tail of sh if the tail is above the bottom and above the kept tail.
func (lk *lowKeeper) tailToKeep(sh *shardState, bottom int64) *outbox.Tail {
	seq := lk.tail(sh)
	if seq <= max(bottom, sh.keptAt) || len(sh.back.inherited)+len(sh.back.ahead)+len(sh.back.behind) > skippedMost {
		return nil
	}
	return &outbox.Tail{Seq: seq, Passed: sh.skippedKeys().Bytes()}
}

// clearCall clears the kept bottoms and tails in a database that has lost commits: they come from
// lost events.
func (lk *lowKeeper) clearCall() *Call {
	s := &statement.KeepLow{History: lk.leases.identity}
	for _, lease := range lk.leases.distrusted {
		s.Lows = append(s.Lows, outbox.Low{Lease: lease, Tail: &outbox.Tail{}})
	}
	return ask(s)
}

// reply notes the bottoms and tails that the database keeps.
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
