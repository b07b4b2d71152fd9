package amqp

import (
	"container/heap"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

// receive admits a delivery, or each message of a batch.
func (sub *subscription) receive(consumer *consumerChannel, raw amqp091.Delivery) {
	sub.active.Store(true)
	d := &delivery{raw: raw, from: consumer, redelivered: raw.Redelivered}
	consumer.acks.add(d)
	if raw.ContentEncoding == sentinelEncoding {
		consumer.acks.finish(d)
		sub.schedule(time.Now().Add(ackDelay))
		return
	}
	if raw.ContentEncoding == batchEncoding && sub.unbatch(d) {
		return
	}
	sub.admit(d)
}

// admit decodes a message and makes it ready, unless another message of its key is under way.
func (sub *subscription) admit(d *delivery) {
	sub.arrived++
	sub.admitted++
	d.number = sub.arrived
	var err error
	if d.msg, err = sub.s.codec.decode(&d.raw); err != nil {
		sub.setAside(d, err)
		return
	}
	if d.key, err = sub.key(d.msg); err != nil {
		sub.setAside(d, err)
		return
	}
	if d.key != "" {
		if tail := sub.tails[d.key]; tail != nil {
			tail.next = d
			sub.tails[d.key] = d
			return
		}
		sub.tails[d.key] = d
	}
	sub.ready.add(d)
}

// unbatch admits each message of the batch d, and tells whether d could be parsed. The batch is
// acknowledged when all of its messages are finished. Until then a redelivery brings all of them
// again, also the finished ones.
func (sub *subscription) unbatch(d *delivery) bool {
	entries, err := parseBatch(d.raw.Body)
	if err != nil {
		return false
	}
	for _, p := range entries {
		if len(p.id) > maxShortString { // too long for setting the message aside
			return false
		}
	}
	raw := d.raw
	d.unfinished = len(entries)
	for _, p := range entries {
		// As if the message had arrived alone: it may be decoded again after a nack, or set aside.
		raw.MessageId, raw.ContentEncoding, raw.Body = p.id, envelopeEncoding, p.envelope
		sub.admit(&delivery{raw: raw, from: d.from, redelivered: d.redelivered, batch: d})
	}
	return true
}

// key returns the key of msg. If the user's function panics, the message counts as undecodable.
func (sub *subscription) key(msg *message.Message) (key string, err error) {
	defer recoverAs("key", &err)
	return sub.s.config.Key(msg), nil
}

// readyQueue returns the delivery that arrived first. Batches can make many more messages ready
// than are handed out at once. If the next message of a key queued behind all of them, it would
// delay the ack of its batch, and with InFlight 1 there would be no order.
type readyQueue []*delivery

func (r readyQueue) Len() int { return len(r) }

func (r readyQueue) Less(i, k int) bool { return r[i].number < r[k].number }

func (r readyQueue) Swap(i, k int) { r[i], r[k] = r[k], r[i] }

// Push implements [heap.Interface].
func (r *readyQueue) Push(d any) { *r = append(*r, d.(*delivery)) }

// Pop implements [heap.Interface].
func (r *readyQueue) Pop() any {
	last := len(*r) - 1
	d := (*r)[last]
	(*r)[last] = nil
	*r = (*r)[:last]
	return d
}

// add makes d ready.
func (r *readyQueue) add(d *delivery) { heap.Push(r, d) }

// popFirst removes the delivery that arrived first and returns it.
func (r *readyQueue) popFirst() *delivery { return heap.Pop(r).(*delivery) }
