package amqp

import (
	"container/heap"

	"github.com/ThreeDotsLabs/watermill/message"
)

// unbatch takes in each message of the batch d, and tells whether it could. The broker is told of d
// when it is told of all of them; until then it delivers all of them again, those that were
// acknowledged too.
func (sub *subscription) unbatch(d *delivery) bool {
	parts, err := splitBatch(d.raw.Body)
	if err != nil {
		return false
	}
	for _, p := range parts {
		if len(p.id) > maxShortString { // it could not be set aside
			return false
		}
	}
	raw := d.raw
	d.left = len(parts)
	for _, p := range parts {
		// As if it had come alone, to be decoded again after a nack, or set aside.
		raw.MessageId, raw.ContentEncoding, raw.Body = p.id, envelopeEncoding, p.envelope
		sub.admit(&delivery{raw: raw, from: d.from, redelivered: d.redelivered, whole: d})
	}
	return true
}

// key returns that of msg. A message for which the user's function panics is one that cannot be
// read.
func (sub *subscription) key(msg *message.Message) (key string, err error) {
	defer recovered("key", &err)
	return sub.s.config.Key(msg), nil
}

// readiness has the delivery first that arrived first. Many more than are handed out at once may be
// ready, by batches: behind all of them, the next one of a key would keep its batch from being
// acknowledged, and with InFlight 1 there would be no order.
type readiness []*delivery

func (r readiness) Len() int           { return len(r) }
func (r readiness) Less(i, k int) bool { return r[i].number < r[k].number }
func (r readiness) Swap(i, k int)      { r[i], r[k] = r[k], r[i] }

// Push is for heap.
func (r *readiness) Push(d any) { *r = append(*r, d.(*delivery)) }

// Pop is for heap.
func (r *readiness) Pop() any {
	last := len(*r) - 1
	d := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return d
}

// add makes d ready.
func (r *readiness) add(d *delivery) { heap.Push(r, d) }

// take returns the first one, which is ready no longer.
func (r *readiness) take() *delivery { return heap.Pop(r).(*delivery) }
