package core

import (
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
	entryRefused                     // was refused, not counted yet, in its route's queue of refused events
	entrySending                     // in flight
	entryInBatch                     // in flight, in a batch behind an earlier event of its key
	entryConfirmed                   // to be marked, or reported as sent
	entryParking                     // has failed, to be recorded
	entryFollowing                   // to be moved behind the parked head of its key
)

// underway tells whether no other event of the key may go before it any more.
func (s entryState) underway() bool {
	return s == entrySending || s == entryInBatch || s == entryParking
}

// Entry is an event in memory.
type Entry struct {
	outbox.Queued
	shard   *shardState
	line    *keyLine // nil without a key
	route   *route
	state   entryState
	parked  bool // is a parked event, not in the queue
	single  bool // may make a batch invalid, and is sent in none
	counted bool // keys.buffered counts it
	turn    bool // a lap has read it in its turn to be probed

	Redelivered bool // a consumer may have started it
	// Gen numbers the sends of this struct, which is reused for other events: an outcome with
	// another number belongs to an earlier send.
	Gen       uint32
	BatchTail []*Entry // the later events of its batch in flight
	sentAt    time.Duration
	probe     int // of its route, in which it was sent last; 0: none since the route was paused

	entryDoubts
	entryFailure
	entryLinks
}

// entryDoubts is where the database may say something else of an event than memory.
type entryDoubts struct {
	rewritten bool // its queue row was written again meanwhile, with another round
	early     bool // … and its shard waits to read the new row
	doubtful  bool // a statement that parks it may have been executed already
}

// entryFailure is the last failure of an event, and what to record about it.
type entryFailure struct {
	outcome transport.Outcome
	problem string
	retryIn time.Duration
	dead    bool
}

// entryLinks are the places of an event in its line and in a queue of its route.
type entryLinks struct {
	next         *Entry // in its line
	queue        *entryQueue
	qprev, qnext *Entry
}

// failure returns the failure of e to record.
func (e *Entry) failure() outbox.Failure {
	return outbox.Failure{
		Seq: e.Seq, Round: e.Round, Attempts: e.Attempts,
		RetryIn: e.retryIn, Dead: e.dead, Outcome: e.outcome, Error: e.problem,
	}
}

// mark names e's queue row.
func (e *Entry) mark() outbox.Mark {
	return outbox.Mark{Lease: e.shard.lease(), Seq: e.Seq, Round: e.Round}
}

func failuresOf(entries []*Entry) []outbox.Failure {
	failures := make([]outbox.Failure, len(entries))
	for i, e := range entries {
		failures[i] = e.failure()
	}
	return failures
}

func marksOf(entries []*Entry) []outbox.Mark {
	marks := make([]outbox.Mark, len(entries))
	for i, e := range entries {
		marks[i] = e.mark()
	}
	return marks
}

// entryQueue is a list of entries. An entry is in one at most.
type entryQueue struct {
	first, last *Entry
	n           int
}

func (q *entryQueue) push(e *Entry) {
	e.queue, e.qprev, e.qnext = q, q.last, nil
	if q.last == nil {
		q.first = e
	} else {
		q.last.qnext = e
	}
	q.last = e
	q.n++
}

func (q *entryQueue) pop() *Entry {
	e := q.first
	if e != nil {
		e.unqueue()
	}
	return e
}

// unqueue takes e out of its queue, if any.
func (e *Entry) unqueue() {
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

// waits tells whether e is on a route whose events wait in the database, or behind such an event of its
// key.
func (e *Entry) waits() bool {
	if e.line != nil {
		return e.line.waits()
	}
	return e.route != nil && e.route.keepsBack()
}
