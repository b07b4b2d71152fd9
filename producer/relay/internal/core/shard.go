package core

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/store/outbox"
)

// phase tells how far the memory of a shard is in step with the database.
type phase uint8

const (
	phaseHeal  phase = iota // followers without a head are to get one
	phaseLoad               // blocked keys are to be loaded
	phaseReady              // events are sent
)

// shardState is a leased shard. Its parts are named for the owners that write them.
type shardState struct {
	no int
	shardLease
	shardWitness
	shardReplay
	shardEvents
	shardQueue
	back   revisit      // of laps
	writer parkedWriter // of parking
}

// shardLease is the lease of a shard; owner: leases.
type shardLease struct {
	epoch    int64
	until    time.Duration // no event is sent after this time
	gone     bool          // the lease was lost; the relay no longer owns the events
	yielding bool          // to be given back once the shard is idle
	leaving  bool          // being given back
	held     entryQueue    // events that wait for a renewal
}

// shardReplay tells how far a shard is in step with changes by operators; owners: loading, and
// leases for the news of a renewal.
type shardReplay struct {
	phase          phase
	reloadAgain    bool                // the keys being loaded are out of date already
	loaded         map[string]struct{} // blocked keys, while they are being loaded
	rewindTo       int64               // where to read from once loaded; 0: no rewind
	ticket         int64               // of the last requested rewind
	clear          bool                // the rewind of the ticket is to be cleared
	replaysKnown   int64               // the ticket up to which low was set back for replays
	replaysAwaited int64               // the latest ticket of replays whose rows were met too early; 0: none
	early          int                 // events replayed before their marks were answered
}

// shardEvents are the events of a shard in memory; owners: keys, and dispatch and marks for the
// counts.
type shardEvents struct {
	inflight     int // sends without an outcome
	marking      int // confirmed queue events that are not marked
	redeliver    int // number of further sends to be marked as redelivered: an earlier owner may have sent the events
	index        map[int64]*Entry
	parked       map[int64]*Entry // parked events in memory
	lines        map[string]*keyLine
	blockedHeads map[string]int64 // keyLine.head of blocked keys without a line
}

// shardQueue tells how far the queue of a shard was read; owner: reader, with late, laps and lows.
type shardQueue struct {
	// version changes when low is set back: rows from above the old low are then discarded.
	version  uint32
	low      int64           // the read position: every row up to here was read, except for late events
	sealed   int64           // no writer can commit up to here any more, as an earlier owner has found
	bottom   int64           // up to here, the queue has only rows in memory, in a hole, skipped or wanted; see lowKeeper
	tail     int64           // of a yielding shard: the tail when it began to yield, see lowKeeper.tail
	kept     int64           // the bottom that the database keeps; 0: not known
	keptAt   int64           // the tail that the database keeps; 0: not known
	known    int64           // up to here, only writers of the last sample may still commit
	more     bool            // the last read did not reach the end of the queue
	pollOnce bool            // to be polled once
	recent   map[int64]int64 // Seq → Round of rows that left the queue during a read
	wanted   []int64         // Seqs of new rows below low, to be read
	skipped  []int64         // Seqs above known, or not far below, of rows that were read and are not in memory
}

func (sh *shardState) lease() outbox.Lease { return outbox.Lease{Shard: sh.no, Epoch: sh.epoch} }

// open tells whether events may be read and sent.
func (sh *shardState) open() bool { return sh.phase == phaseReady && !sh.yielding && !sh.gone }

// idle tells whether no send or change is under way that could disturb the shard's next owner.
func (sh *shardState) idle() bool {
	return sh.inflight == 0 && sh.marking == 0 && sh.writer.idle()
}

// rewind makes the queue be read again from behind the Seq after. Holes of keys above after move
// down to it.
func (sh *shardState) rewind(after int64) {
	for _, l := range sh.lines {
		l.hole = min(l.hole, after+1) // 0 stays 0
	}
	sh.low, sh.known = min(sh.low, after), min(sh.known, after)
	sh.sealed, sh.bottom = min(sh.sealed, after), min(sh.bottom, after)
	sh.kept, sh.keptAt = 0, 0
	sh.more = true
	sh.wanted = slices.DeleteFunc(sh.wanted, func(seq int64) bool { return seq > sh.low })
	if sh.back.at > sh.low { // the lap would read above the read position
		sh.back.reset()
	}
	sh.version++
}

// readable tells whether sh may be read on: sh awaits neither a rewind for a replay nor the mark of
// a replayed event.
func (sh *shardState) readable() bool { return sh.replaysAwaited == 0 && sh.early == 0 }

// want asks for a new row below the read position, by its Seq. A row above is read anyway.
func (sh *shardState) want(seq int64) {
	sh.pollOnce, sh.kept, sh.keptAt = true, 0, 0
	if seq <= sh.low {
		sh.wanted = append(sh.wanted, seq)
	}
}

// skip notes an event that late ranges need not bring again.
func (sh *shardState) skip(seq int64) {
	if seq > sh.known {
		sh.skipped = append(sh.skipped, seq)
	}
}

// skippedKeys returns the hashes of the keys of skipped events up to the read position of sh.
func (sh *shardState) skippedKeys() keyset.Set {
	keys := slices.Clone(sh.back.inherited)
	for _, set := range [...]map[uint64]struct{}{sh.back.ahead, sh.back.behind} {
		for hash := range set {
			keys = append(keys, keyset.Short(hash))
		}
	}
	for _, l := range sh.lines {
		if l.waits() {
			keys = append(keys, keyset.Short(keyset.Hash(l.key)))
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// resume makes reads of sh begin at the tail that the last owner kept, if it kept one, and makes a
// lap read the skipped events between bottom and tail.
func (sh *shardState) resume(bottom int64, tail outbox.Tail) {
	keys, ok := keyset.Parse(tail.Passed)
	if !ok || tail.Seq < bottom {
		tail = outbox.Tail{Seq: bottom}
	}
	sh.bottom, sh.low, sh.known, sh.sealed = bottom, tail.Seq, tail.Seq, tail.Seq
	if tail.Seq > bottom {
		sh.keptAt = tail.Seq
		sh.back.inherit(keys, bottom+1)
	}
}
