package producer

import (
	"math"
	"slices"
	"strings"
	"time"
)

// lateness is what is known of events that may appear below the low-water marks.
// IDs are taken when an event is written and seen when its transaction commits, so
// a fetch may find one, and pass by the place of another that commits later.
//
// Who may do that is asked for every now and then (a sample). A writer that is in one
// sample and was not in the one before began to write in between, so all of its IDs
// are above everything that had been seen by the one before: its floor. What is below the mark
// is thus looked at again from the floors of those that have ended since the last look, and from
// the last sample on, since whoever came and went between two samples is in none.
//
// The look is part of the statement that reads above the mark, and reaches down to the
// floors of those that still write as well. That keeps the order of keys: the
// event below the mark may be an earlier one of a key whose next event is above it;
// whoever sees the later one sees the earlier one too, if he looks in one snapshot. Reading
// the two apart was tried, and sent the later one first.
//
// A writer that goes on for long would have every look wade through all that was delivered
// since it began. So looks do not reach down to its floor; what they bring is held instead until
// a later sample says that it still writes. If it does not, the queue is read again from its floor.
type lateness struct {
	seen    int64 // highest Seq that was read
	read    int   // how many events were read
	sampled int64 // seen, at the last sample
	readBy  int   // read, at the last sample
	writers map[string]writer

	sampleAt time.Duration // of the next sample, 0: none is needed
	pause    time.Duration
	held     *call // a fetch that waits for a sample
}

// writer is a transaction that may commit events.
type writer struct {
	floor int64 // its events are above
	since time.Duration
	read  int // how many events had been read when it was first seen
}

// sweep is a pass over all of a shard's queue below the mark. It should find
// nothing: it is there for what nobody has thought of.
type sweep struct {
	active  bool
	at      int64 // it has read up to here
	through int64 // and ends here
}

const (
	samplePause   = 20 * time.Millisecond
	sampleLongest = 250 * time.Millisecond
)

// sampleSoon plans a sample, since a low-water mark has moved.
func (c *relayCore) sampleSoon() {
	if l := &c.late; l.sampleAt == 0 {
		l.pause = samplePause
		l.sampleAt = c.now + samplePause
	}
}

// sampleCall asks who is writing, until no shard has anything to look for.
func (c *relayCore) sampleCall() *call {
	l := &c.late
	if l.held != nil || l.read-l.readBy >= c.limits.readsLong {
		return &call{op: opWriters}
	}
	if l.sampleAt == 0 {
		return nil
	}
	if c.now < l.sampleAt {
		c.at(l.sampleAt)
		return nil
	}
	wanted := len(l.writers) > 0
	for _, sh := range c.shards {
		wanted = wanted || c.readable(sh) && sh.known < sh.low
	}
	if !wanted {
		l.sampleAt = 0
		return nil
	}
	return &call{op: opWriters}
}

// sampled takes over who is writing.
func (c *relayCore) sampled(cl *call) {
	l := &c.late
	l.pause = min(2*l.pause, sampleLongest) // as long as somebody writes on and on
	l.sampleAt = c.now + l.pause
	if cl.err != nil {
		return
	}
	before, changed := l.sampled, l.sampled != l.seen
	l.sampled, l.readBy = l.seen, l.read
	names := make(map[string]writer, len(cl.names))
	ended := before
	for name, w := range l.writers {
		if !slices.Contains(cl.names, name) {
			ended = min(ended, w.floor)
		}
	}
	for _, name := range cl.names {
		w, ok := l.writers[name]
		if !ok {
			w, changed = writer{floor: before, since: c.now, read: l.read}, true
			if strings.HasPrefix(name, "p ") { // prepared: it may be any of those that have ended
				w.floor = ended
			}
		}
		names[name] = w
	}
	for name, w := range l.writers {
		if _, ok := names[name]; !ok {
			changed = true
			c.ended(w)
		}
	}
	l.writers = names
	if changed {
		l.pause = samplePause
		l.sampleAt = c.now + samplePause
		c.reading.pollAt = min(c.reading.pollAt, max(c.now, c.reading.spacing.next()))
	}
	if held := l.held; held != nil {
		l.held = nil
		c.takeFetched(held)
	}
}

// ended has the shards looked through from the floor of a writer on.
func (c *relayCore) ended(w writer) {
	for _, sh := range c.shards {
		if sh != nil {
			sh.known = min(sh.known, w.floor)
		}
	}
}

// floor returns the lowest floor of the writers that looks reach down to, and of those that
// write for too long for that.
func (c *relayCore) floor() (young, old int64) {
	l := &c.late
	young, old = math.MaxInt64, math.MaxInt64
	for _, w := range l.writers {
		if c.now-w.since < c.limits.writesLong && l.read-w.read < c.limits.readsLong {
			young = min(young, w.floor)
		} else {
			old = min(old, w.floor)
		}
	}
	return young, old
}

// look adds the range below the mark of sh to a fetch, if there is something to
// look for. What is in memory is left out: it is most of what there is.
func (c *relayCore) look(cl *call, sh *shardState, from int64) {
	from = min(from, sh.known)
	cl.looks, cl.known = append(cl.looks, from), append(cl.known, sh.known)
	if from >= sh.low {
		return
	}
	var except []int64
	for seq := range sh.index {
		if seq > from && seq <= sh.low {
			except = append(except, seq)
		}
	}
	slices.Sort(except)
	cl.ranges = append(cl.ranges, Range{Shard: sh.no, After: from, Through: sh.low, Limit: c.lookLimit(), Except: except})
}

// lookLimit is how many rows a look may bring before it counts as cut short. What was
// read above the floor that it reaches down to and passed over comes once more, which must not.
func (c *relayCore) lookLimit() int {
	return c.limits.late + 2*(c.limits.readsLong+max(c.cfg.FetchSize, c.limits.cold))
}

// sweepCall issues the next page of a sweep.
func (c *relayCore) sweepCall() *call {
	r := &c.reading
	if r.sweepAt == 0 {
		r.sweepAt = c.now + c.limits.sweep
	}
	if c.now >= r.sweepAt {
		r.sweepAt = c.now + c.limits.sweep
		c.rotate()
		for _, sh := range c.shards {
			if c.readable(sh) {
				sh.sweep = sweep{active: sh.low > 0, through: sh.low} // through 0 would have no end
			}
		}
	}
	c.at(r.sweepAt)
	if c.room() < c.cfg.Window {
		return nil // outcomes make room
	}
	for _, sh := range c.shards {
		if c.readable(sh) && sh.sweep.active {
			return &call{
				op: opFetch, sweep: true, shards: []*shardState{sh}, versions: []uint32{sh.version},
				ranges: []Range{{Shard: sh.no, After: sh.sweep.at, Through: sh.sweep.through, Limit: c.cfg.FetchSize}},
			}
		}
	}
	return nil
}

// swept takes over a page of a sweep.
func (c *relayCore) swept(cl *call) {
	sh := cl.shards[0]
	if cl.err != nil || c.byShard(cl)[sh.no] < 0 {
		return
	}
	for i := range cl.rows {
		row := &cl.rows[i]
		sh.sweep.at = max(sh.sweep.at, row.Seq)
		if sh.putBack(row) {
			sh.rewind(0)
			return
		}
		if c.take(sh, row); sh.gone {
			return
		}
	}
	sh.sweep.active = len(cl.rows) >= cl.ranges[0].Limit
}
