package relay

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// entryState says where an event in memory is.
type entryState uint8

const (
	entryWaiting   entryState = iota // behind an earlier event of its key
	entryReady                       // may be sent, in its route's queue
	entryHeld                        // may be sent when its shard's lease is renewed
	entryRefused                     // was refused, not counted yet, in its route's queue of such
	entrySending                     // in flight
	entryRiding                      // in flight, in a batch behind an earlier event of its key
	entryConfirmed                   // is to be marked, or reported as sent
	entryParking                     // has failed, which is to be recorded
	entryFollowing                   // is to be moved behind the parked head of its key
)

// underway tells whether no other event of the key may go before it any more.
func (s entryState) underway() bool {
	return s == entrySending || s == entryRiding || s == entryParking
}

// entry is an event in memory.
type entry struct {
	outbox.Queued
	shard *shardState
	line  *keyLine // nil without a key
	route *route
	state entryState

	parked      bool // it stands among the parked events, not in the queue
	redelivered bool // a consumer may have started it
	single      bool // it may make a batch invalid, and is sent in none
	counted     bool // buffered counts it
	rewritten   bool // its queue row was written again meanwhile, with another round
	early       bool // … which its shard waits to read
	doubtful    bool // a statement that parks it may have been done already

	// gen numbers the sends of this struct, which is used again for other
	// events: the outcome of an earlier one is not this one's.
	gen       uint32
	probes    int // on its route since that was paused
	sentAt    time.Duration
	batchTail []*entry // what is in flight in one batch with it, behind it

	// The last failure, and what is to be recorded about it.
	outcome transport.Outcome
	problem string
	retryIn time.Duration
	dead    bool

	next         *entry // in its line
	queue        *entryQueue
	qprev, qnext *entry
}

// shardNo is the shard that e is of.
func (e *entry) shardNo() int { return e.shard.no }

// failure returns what is to be recorded about e.
func (e *entry) failure() outbox.Failure {
	return outbox.Failure{
		Seq: e.Seq, Round: e.Round, Attempts: e.Attempts,
		RetryIn: e.retryIn, Dead: e.dead, Outcome: e.outcome, Error: e.problem,
	}
}

// mark returns the name of e's queue row.
func (e *entry) mark() outbox.Mark {
	return outbox.Mark{Lease: e.shard.lease(), Seq: e.Seq, Round: e.Round}
}

// entryQueue is a list of entries; an entry is in one at most.
type entryQueue struct {
	first, last *entry
	n           int
}

func (q *entryQueue) push(e *entry) {
	e.queue, e.qprev, e.qnext = q, q.last, nil
	if q.last == nil {
		q.first = e
	} else {
		q.last.qnext = e
	}
	q.last = e
	q.n++
}

func (q *entryQueue) pop() *entry {
	e := q.first
	if e != nil {
		e.unqueue()
	}
	return e
}

// unqueue takes e out of the queue that it is in, if any.
func (e *entry) unqueue() {
	q := e.queue
	if q == nil {
		return
	}
	if e.qprev == nil {
		q.first = e.qnext
	} else {
		e.qprev.qnext = e.qnext
	}
	if e.qnext == nil {
		q.last = e.qprev
	} else {
		e.qnext.qprev = e.qprev
	}
	q.n--
	e.queue, e.qprev, e.qnext = nil, nil, nil
}

// keyLine is what a relay knows of one key: the events that wait, and whether
// they may.
//
// A key has one source at a time. As long as it is not blocked, its events come
// from the queue, first to last. Once it is blocked, they come from the parked
// events, fifo, and everything in the queue is to be moved behind those; until
// a statement has found none left. An event of the key that is in flight,
// from either source, keeps all others waiting.
type keyLine struct {
	key   string
	shard *shardState

	first, last *entry // of the queue, not confirmed, by ascending Seq
	n           int
	inflight    *entry
	marking     int   // confirmed, but not marked yet
	parking     int   // counted failures of queue events that are not recorded yet
	hole        int64 // from this Seq on the key's events were passed over; 0: none were
	refilling   bool

	blocked   bool
	following int      // to be moved, or being moved, behind the head
	head      int64    // Seq of the first parked event, 0 if not known
	fifo      []*entry // parked events in memory, by ascending Seq
	sent      int      // parked events that were confirmed, which is not recorded yet
	retrying  int      // parked events that failed again, which is not recorded yet
	fetching  bool     // FetchParked is to be called, or is under way
	due       bool     // the first parked event is due, whatever its state
	verify    bool     // somebody may have changed the parked events
}

// insert puts e where its Seq belongs, but not before the one in flight.
func (l *keyLine) insert(e *entry) {
	l.n++
	at := &l.first
	if l.last != nil && l.last.Seq < e.Seq {
		at = &l.last.next
	} else {
		for *at != nil && ((*at).Seq < e.Seq || (*at).state.underway()) {
			at = &(*at).next
		}
	}
	e.next = *at
	*at = e
	if e.next == nil {
		l.last = e
	}
}

// remove takes e out of the line.
func (l *keyLine) remove(e *entry) {
	if e.parked {
		if i := slices.Index(l.fifo, e); i >= 0 {
			l.fifo = slices.Delete(l.fifo, i, i+1)
		}
		return
	}
	var before *entry
	for at := l.first; at != nil; before, at = at, at.next {
		if at != e {
			continue
		}
		if before == nil {
			l.first = e.next
		} else {
			before.next = e.next
		}
		if l.last == e {
			l.last = before
		}
		e.next = nil
		l.n--
		return
	}
}

// idle tells whether no event of the key is in memory and no statement about it under way.
func (l *keyLine) idle() bool {
	return l.first == nil && l.inflight == nil && l.marking == 0 && l.parking == 0 && l.hole == 0 && !l.refilling &&
		l.following == 0 && l.retrying == 0 && !l.flowing()
}

// headUnknown stands for the head of a key that has one, which is not known.
const headUnknown = 1

// flowing tells whether parked events of the key are on their way out.
func (l *keyLine) flowing() bool {
	return len(l.fifo) > 0 || l.sent > 0 || l.retrying > 0 || l.fetching
}

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

	phase    phase
	again    bool                // what is being loaded is out of date already
	loaded   map[string]struct{} // blocked keys, while they are being loaded
	rewindTo int64               // where to read from once loaded, 0 if there is no rewind
	ticket   int64               // of the last rewind that was asked for
	clear    bool                // the ticket is to be cleared
	told     int64               // the ticket up to which replays are known: low was set back for them
	untold   int64               // a row of the queue is of a later one, with this ticket at least; 0: none is
	early    int                 // events that were replayed before their marks were answered

	inflight  int // sends whose outcome is not known
	marking   int // confirmed queue events that are not marked
	redeliver int // how many further events a consumer may have started
	index     map[int64]*entry
	parked    map[int64]*entry // parked events in memory
	lines     map[string]*keyLine
	resting   map[string]int64 // keyLine.head of blocked keys of which nothing else is known
	recent    map[int64]int64  // Seq → Round of what left the queue during a read
	wanted    []int64          // Seqs of rows that have come to stand below low, and are to be read
	skipped   []int64          // Seqs above known, or not far below, that were read and are not in memory
	back      revisit
	held      entryQueue

	// version changes when low is set back: what was read above the old low then
	// is no use any more.
	version uint32
	low     int64 // everything up to here was read, but for late commits
	sealed  int64 // no writer can commit up to here any more, as an earlier owner has found
	bottom  int64 // the queue has no row up to here, but for those that are known
	tail    int64 // of a shard that is given back: what it is when it was last read, see lowKeeper.tail
	kept    int64 // the bottom that the database keeps; 0: not known
	keptAt  int64 // the tail that the database keeps; 0: not known
	known   int64 // below, only what writers that are known may appear
	more    bool  // the last read did not reach the end
	look    bool  // is to be read once, whatever there is
	lane    parkedWriter
}

// line returns the line of a key, nil if it has none. That of a resting key is made.
func (ks *keys) line(sh *shardState, key string) *keyLine {
	l := sh.lines[key]
	if l != nil {
		return l
	}
	head, ok := sh.resting[key]
	if !ok {
		return nil
	}
	delete(sh.resting, key)
	l = ks.newLine(sh, key)
	l.blocked, l.head = true, head
	return l
}

func (sh *shardState) lease() outbox.Lease { return outbox.Lease{Shard: sh.no, Epoch: sh.epoch} }

// open tells whether events may be read and sent.
func (sh *shardState) open() bool { return sh.phase == phaseReady && !sh.yielding && !sh.gone }

// idle tells whether nothing is under way that the shard's next owner could
// trip over.
func (sh *shardState) idle() bool {
	return sh.inflight == 0 && sh.marking == 0 && sh.lane.idle()
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
