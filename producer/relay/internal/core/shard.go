package core

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/keyset"

	"github.com/boxpair/boxpair/store/outbox"
)

// phase says how far a shard's state in memory is in step with the database.
type phase uint8

const (
	phaseHeal  phase = iota // its followers are to get heads
	phaseLoad               // its blocked keys are to be loaded
	phaseReady              // its events are sent
)

// shardState is a shard that the relay has the lease of.
type shardState struct {
	no       int
	epoch    int64
	until    time.Duration // nothing is sent after this
	gone     bool          // the lease was lost: its events are nobody's here
	yielding bool          // it is given back when nothing is under way any more
	leaving  bool          // being given back

	phase          phase
	reloadAgain    bool                // what is being loaded is out of date already
	loaded         map[string]struct{} // blocked keys, while they are being loaded
	rewindTo       int64               // where to read from once loaded, 0 if there is no rewind
	ticket         int64               // of the last rewind that was asked for
	clear          bool                // the ticket is to be cleared
	replaysKnown   int64               // the ticket up to which replays are known: low was set back for them
	replaysAwaited int64               // a row of the queue is of a later one, with this ticket at least; 0: none is
	early          int                 // events that were replayed before their marks were answered

	inflight     int // sends whose outcome is not known
	marking      int // confirmed queue events that are not marked
	redeliver    int // how many further events a consumer may have started
	index        map[int64]*Entry
	parked       map[int64]*Entry // parked events in memory
	lines        map[string]*keyLine
	blockedHeads map[string]int64 // keyLine.head of blocked keys of which nothing else is known
	recent       map[int64]int64  // Seq → Round of what left the queue during a read
	wanted       []int64          // Seqs of rows that have come to stand below low, and are to be read
	skipped      []int64          // Seqs above known, or not far below, that were read and are not in memory
	back         revisit
	held         entryQueue

	// version changes when low is set back: what was read above the old low then
	// is no use any more.
	version  uint32
	low      int64 // everything up to here was read, but for late commits
	sealed   int64 // no writer can commit up to here any more, as an earlier owner has found
	bottom   int64 // the queue has no row up to here, but for those that are known
	tail     int64 // of a shard that is given back: what it is when it was last read, see lowKeeper.tail
	kept     int64 // the bottom that the database keeps; 0: not known
	keptAt   int64 // the tail that the database keeps; 0: not known
	known    int64 // below, only what writers that are known may appear
	more     bool  // the last read did not reach the end
	pollOnce bool  // is to be read once, whatever there is
	writer   parkedWriter
}

func (sh *shardState) lease() outbox.Lease { return outbox.Lease{Shard: sh.no, Epoch: sh.epoch} }

// open tells whether events may be read and sent.
func (sh *shardState) open() bool { return sh.phase == phaseReady && !sh.yielding && !sh.gone }

// idle tells whether nothing is under way that the shard's next owner could
// trip over.
func (sh *shardState) idle() bool {
	return sh.inflight == 0 && sh.marking == 0 && sh.writer.idle()
}

// rewind sets the place to read from back to after, for keys of which more is to be read as well.
func (sh *shardState) rewind(after int64) {
	for _, l := range sh.lines {
		l.hole = min(l.hole, after+1) // 0 stays 0
	}
	sh.low, sh.known = min(sh.low, after), min(sh.known, after)
	sh.sealed, sh.bottom = min(sh.sealed, after), min(sh.bottom, after)
	sh.kept, sh.keptAt = 0, 0
	sh.more = true
	sh.wanted = slices.DeleteFunc(sh.wanted, func(seq int64) bool { return seq > sh.low })
	sh.back.reset() // it would read above the mark
	sh.version++
}

// readable tells whether nothing that was read of sh has to wait.
func (sh *shardState) readable() bool { return sh.replaysAwaited == 0 && sh.early == 0 }

// want has the row of an event read that has come to stand below the mark, or is going to be read
// anyway.
func (sh *shardState) want(seq int64) {
	sh.pollOnce, sh.kept, sh.keptAt = true, 0, 0
	if seq <= sh.low {
		sh.wanted = append(sh.wanted, seq)
	}
}

// skip notes an event that a look below the mark should not bring again.
func (sh *shardState) skip(seq int64) {
	if seq > sh.known {
		sh.skipped = append(sh.skipped, seq)
	}
}

// passed returns the keys of what is left up to the tail of sh.
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

// believe has sh read on from the tail that was kept, if there is one, and have a lap read what is
// left from the bottom on.
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
