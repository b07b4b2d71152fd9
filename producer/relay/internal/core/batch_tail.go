package core

import "github.com/boxpair/boxpair/transport"

// BatchLimit returns how many messages of a topic, and how many bytes of payload, a sender takes
// over as one batch. With fewer than two messages, the sender takes no batches.
type BatchLimit func(topic string) (messages, bytes int)

// fillBatch sends further events of e's key in one batch with e, which has just been sent, as far
// as room goes, and returns their number. The transport takes a batch over as a whole and in order,
// so no confirm is needed between two events of the key.
//
// In doubt, events go one by one: only then does an outcome say something about an event.
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
			break // an event in flight behind a later event would not hold back events to be moved; see leads
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
// committed meanwhile stands behind the tail, and now goes first.
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

// unbatch tells whether every event of a failed batch may be to blame. If so, e is sent alone
// before an attempt of e is counted.
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
