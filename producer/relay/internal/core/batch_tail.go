package core

import "github.com/boxpair/boxpair/transport"

// BatchLimit returns how many messages of a topic, and how many bytes of payload, a sender takes
// over as one batch. Below two messages, the sender takes no batches.
type BatchLimit func(topic string) (messages, bytes int)

// fillBatch sends further events of e's key in one batch with e, which has just been sent, as far
// as there is room. It returns how many. The transport takes the batch over as a whole, in its
// order, so it needs no confirm between two events of the key.
//
// When anything is in doubt, events go one by one: only then does an outcome say something about an
// event.
func (dp *dispatcher) fillBatch(e *Entry, room int) int {
	l, r, sh := e.line, e.route, e.shard
	if r.batch < 2 || l == nil || l.blocked || e.parked || e.single || r.failing || r.stalled() {
		return 0
	}
	room = min(room, r.batch-1, dp.routeRoom()-r.inflight)
	bytes, last := r.batchBytes-len(e.Payload), e.Seq
	for next := e.next; next != nil && len(e.BatchTail) < room; next = next.next {
		bytes -= len(next.Payload)
		if bytes < 0 || next.state != entryWaiting || next.single || next.route != r || next.Topic != e.Topic || next.Seq < last {
			break // an event in flight behind a later one would not hold back events to be moved; see leads
		}
		last = next.Seq
		next.state = entryInBatch
		if sh.redeliver > 0 {
			sh.redeliver--
			next.Redelivered = true
		}
		e.BatchTail = append(e.BatchTail, next)
	}
	n := len(e.BatchTail)
	dp.inflight += n
	r.inflight += n
	sh.inflight += n
	return n
}

// unpack puts the tail of a failed batch back into the line. An event of an older transaction that
// was committed meanwhile stands behind the tail, and goes first now.
func (dp *dispatcher) unpack(tail []*Entry) {
	for _, e := range tail {
		e.state = entryWaiting
		switch l := e.line; {
		case e.shard.yielding:
			dp.keys.forget(e)
		case l.blocked:
			dp.keys.follow(e)
		default:
			l.remove(e)
			l.insert(e)
		}
	}
}

// unbatch books the failure of a batch for which each of its events may be to blame, and returns
// true: e is sent alone before an attempt of it is counted.
func (dp *dispatcher) unbatch(e *Entry, tail []*Entry) bool {
	switch e.outcome {
	case transport.Invalid, transport.Returned, transport.Refused:
		e.single = true
		for _, member := range tail {
			member.single = member.single || e.outcome == transport.Invalid
		}
		dp.requeue(e)
	default:
		return false
	}
	return true
}
