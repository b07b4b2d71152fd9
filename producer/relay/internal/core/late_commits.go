package core

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// lateCommits finds events that appear below the low-water marks. An event takes its ID when it is
// written and becomes visible when its transaction commits. So a fetch may find an event and pass
// the place of a lower one that commits later.
//
// The relay asks every now and then which transactions are writing (a sample). A writer in this
// sample that was missing in the one before began to write in between. So all its IDs are above
// every event read before the earlier sample: above its floor. The range below the mark
// is read again (a late range) from the floors of the writers that have ended since the last fetch,
// and from the last sample on, since a writer that came and went between two samples is in neither.
//
// The late range is part of the statement that reads above the mark, and also reaches down to the
// floors of the current writers. That keeps the order of keys: an event below the mark may belong
// to a key whose next event is above it, and one snapshot shows both. Two separate reads were
// tried, and sent the later event first.
//
// A writer that goes on for long would have every late range step over all rows that were delivered
// since it began. So late ranges do not reach down to its floor; the rows of the fetch are held
// instead until a later sample says that it still writes. If it does not, the queue is read again
// from its floor.
type lateCommits struct {
	*Machine

	seen    int64 // highest Seq that was read
	read    int   // how many events were read
	sampled int64 // seen, at the last sample
	readBy  int   // read, at the last sample
	writers map[string]writer

	sampleAt time.Duration // of the next sample, 0: none is needed
	between  time.Duration // pause between two samples
	held     *Call         // a fetch that waits for a sample
}

// writer is a transaction that may commit events.
type writer struct {
	floor int64 // its events are above
	since time.Duration
	read  int // how many events had been read when it was first seen
}

const (
	samplePause   = 20 * time.Millisecond
	sampleLongest = 250 * time.Millisecond
)

// reset forgets all reads and samples.
func (lc *lateCommits) reset() { *lc = lateCommits{Machine: lc.Machine} }

// sampleSoon plans a sample, since a low-water mark has moved.
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

// ended has the late ranges of all shards begin at the floor of a writer that has ended.
func (lc *lateCommits) ended(w writer) {
	for _, sh := range lc.shards {
		if sh != nil {
			sh.known = min(sh.known, max(w.floor, sh.sealed))
		}
	}
}

// floor returns the lowest floor of the writers that late ranges reach down to, and the lowest
// floor of those that write for too long.
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

// addLateRange adds the range below a mark of sh to a fetch, if there may be late events, and the
// rows that are read by their Seqs. It returns where the range begins, and those Seqs. Events in
// memory and skipped events, which are most of the range, are left out.
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

// wantAgain has the wanted rows that a fetch has not brought read by the next one. The mark may
// have been set back since. Rows above it are read anyway; a single one, read alone, would take the
// mark past unread rows.
func (c *Call) wantAgain(p int) {
	for _, seq := range c.fetch().parts[p].wanted {
		c.shards[p].want(seq)
	}
}
