package core

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// lateCommits finds late events: events that appear below the read position of a shard
// (shardState.low). An event gets its ID when the event is written, and becomes visible when its
// transaction commits. So a fetch may read past the ID of an event whose transaction is still open.
//
// From time to time, the relay samples the writers: the transactions that may still commit events.
// A writer that the previous sample does not name began after the previous sample. So all IDs of
// the writer are above its floor: the highest ID read before the previous sample.
//
// The late range of a shard is the range below the read position that a fetch reads again. It
// begins at the lowest of
//   - the floors of the writers that have ended since the last fetch;
//   - the highest ID read before the last sample, since a writer that comes and goes between two
//     samples is in no sample;
//   - the floors of the current writers.
//
// One statement reads the late range and the range above the read position, since the next event of
// a late event's key may be above: one snapshot must show both events. Therefore the late range
// also covers the current writers, which may have committed since the last sample. Two separate
// statements were tried, and sent the next event first.
//
// A long writer (coreLimits.writesLong, readsLong) would make every late range step over all rows
// delivered since the writer began. So late ranges do not reach down to the floor of a long writer.
// Instead the rows of a fetch are held until the next sample. If the long writer still writes, the
// fetch has missed none of its events. If the long writer has ended, the queue is read again from
// its floor.
type lateCommits struct {
	*Machine

	seen    int64 // highest Seq read
	read    int   // number of events read
	sampled int64 // seen at the last sample
	readBy  int   // read at the last sample
	writers map[string]writer

	sampleAt time.Duration // of the next sample; 0: no sample is needed
	between  time.Duration // pause between two samples
	held     *Call         // a fetch that waits for a sample
}

// writer is a transaction that may still commit events.
type writer struct {
	floor int64 // all events of the writer have higher IDs
	since time.Duration
	read  int // lateCommits.read when the writer was first seen
}

const (
	samplePause   = 20 * time.Millisecond
	sampleLongest = 250 * time.Millisecond
)

// reset forgets all reads and samples.
func (lc *lateCommits) reset() { *lc = lateCommits{Machine: lc.Machine} }

// sampleSoon plans a sample, since a read position has moved.
func (lc *lateCommits) sampleSoon() {
	if lc.sampleAt == 0 {
		lc.between = samplePause
		lc.sampleAt = lc.now + samplePause
	}
}

// sampleCall asks for the current writers, as long as a shard may get late events.
func (lc *lateCommits) sampleCall() *Call {
	if lc.held != nil || lc.read-lc.readBy >= lc.limits.readsLong {
		return ask(new(statement.Writers))
	}
	if lc.sampleAt == 0 {
		return nil
	}
	if lc.now < lc.sampleAt {
		lc.at(lc.sampleAt)
		return nil
	}
	wanted := len(lc.writers) > 0
	for _, sh := range lc.shards {
		wanted = wanted || lc.reader.readable(sh) && sh.known < sh.low
	}
	if !wanted {
		lc.sampleAt = 0
		return nil
	}
	return ask(new(statement.Writers))
}

// sample takes over the current writers.
func (lc *lateCommits) sample(cl *Call) {
	lc.between = min(2*lc.between, sampleLongest) // up to the longest, while writers go on
	lc.sampleAt = lc.now + lc.between
	if cl.Err != nil {
		return
	}
	before, changed := lc.sampled, lc.sampled != lc.seen
	lc.sampled, lc.readBy = lc.seen, lc.read
	all := cl.Statement.(*statement.Writers).Names
	names, writes := make(map[string]writer, len(all)), make(map[string]struct{}, len(all))
	for _, name := range all {
		writes[name] = struct{}{}
	}
	ended := before
	for name, w := range lc.writers {
		if _, ok := writes[name]; !ok {
			ended = min(ended, w.floor)
		}
	}
	for _, name := range all {
		w, ok := lc.writers[name]
		if !ok {
			w, changed = writer{floor: before, since: lc.now, read: lc.read}, true
			if strings.HasPrefix(name, "p ") { // a prepared transaction may be any writer that has ended
				w.floor = ended
			}
		}
		names[name] = w
	}
	for name, w := range lc.writers {
		if _, ok := names[name]; !ok {
			changed = true
			lc.ended(w)
		}
	}
	lc.writers = names
	if changed {
		lc.between = samplePause
		lc.sampleAt = lc.now + samplePause
		lc.reader.pollAt = min(lc.reader.pollAt, max(lc.now, lc.reader.pacer.next()))
	}
	if held := lc.held; held != nil {
		lc.held = nil
		lc.reader.taken(held)
	}
}

// ended makes the late ranges of all shards begin at the floor of an ended writer.
func (lc *lateCommits) ended(w writer) {
	for _, sh := range lc.shards {
		if sh != nil {
			sh.known = min(sh.known, max(w.floor, sh.sealed))
		}
	}
}

// floor returns two floors: the lowest floor of the young writers, to which late ranges reach down,
// and the lowest floor of the long writers.
func (lc *lateCommits) floor() (young, old int64) {
	young, old = math.MaxInt64, math.MaxInt64
	for _, w := range lc.writers {
		if lc.now-w.since < lc.limits.writesLong && lc.read-w.read < lc.limits.readsLong {
			young = min(young, w.floor)
		} else {
			old = min(old, w.floor)
		}
	}
	return young, old
}

// addLateRange adds to a fetch the late range of sh below mark, the read position, if late events
// are possible, and the wanted rows. It returns the beginning of the range and the Seqs of the
// wanted rows. The range leaves out events in memory and skipped events, which are most of its
// rows.
func (lc *lateCommits) addLateRange(f *fetch, sh *shardState, mark, floor int64) (from int64, wanted []int64) {
	from = max(min(floor, sh.known), sh.sealed)
	sh.skipped = slices.DeleteFunc(sh.skipped, func(seq int64) bool { return seq <= min(from, sh.known) })
	if !f.lap {
		n := min(len(sh.wanted), lc.reader.coldLimit())
		wanted, sh.wanted = sh.wanted[:n:n], sh.wanted[n:]
		sh.more = sh.more || len(sh.wanted) > 0
	}
	for _, seq := range wanted {
		if seq <= from || from >= mark {
			f.Ranges = append(f.Ranges, outbox.Range{Shard: sh.no, After: seq - 1, Through: seq, Limit: 1})
		}
	}
	if from >= mark {
		return from, wanted
	}
	var except []int64
	for seq := range sh.index {
		if seq > from && seq <= mark {
			except = append(except, seq)
		}
	}
	for _, seq := range sh.skipped {
		if seq > from && seq <= mark {
			except = append(except, seq)
		}
	}
	slices.Sort(except)
	f.lateLimit = lc.reader.coldLimit()
	f.Ranges = append(f.Ranges, outbox.Range{Shard: sh.no, After: from, Through: mark, Limit: f.lateLimit, Except: slices.Compact(except)})
	return from, wanted
}

// wantAgain makes the next fetch read the wanted rows that this fetch has not brought. Rows above
// the read position, which may have been set back since, are read anyway. Such a row, read alone,
// would move the read position past unread rows.
func (c *Call) wantAgain(p int) {
	for _, seq := range c.fetch().parts[p].wanted {
		c.shards[p].want(seq)
	}
}
