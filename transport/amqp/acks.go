package amqp

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
)

// delivery is a message of the broker, from its arrival to its ack, or one of those in a batch.
type delivery struct {
	raw    amqp091.Delivery
	from   *consumerChannel
	number uint64 // of its arrival
	key    string
	next   *delivery // the next one of the same key

	batch      *delivery // the batch that it is part of, or nil
	unfinished int       // how many parts of a batch are not finished

	msg         *message.Message   // what is handed out; another one after a nack
	cancel      context.CancelFunc // of the context of msg; nil before the hand-out
	redelivered bool
	nacks       int
	due         time.Time // when a nacked one is handed out again

	acked bool // by the handler
}

// acks are the deliveries of one channel, batches as a whole, that the broker has not been told of,
// in the order of their tags: no more than it prefetches. A bulk ack covers every tag up to its
// own, so it is only ever sent for a prefix that has finished as a whole.
type acks struct {
	list   []ack
	unsent int // finished ones
}

// ack is an acknowledgement to be sent. It refers to no delivery, whose body may be large, and
// which may be long finished.
type ack struct {
	tag      uint64
	finished bool
}

func (a *acks) add(d *delivery) { a.list = append(a.list, ack{tag: d.raw.DeliveryTag}) }

func (a *acks) finish(d *delivery) {
	if d.batch != nil {
		d = d.batch
		if d.unfinished--; d.unfinished > 0 {
			return
		}
	}
	i, there := slices.BinarySearchFunc(a.list, d.raw.DeliveryTag, func(k ack, tag uint64) int { return cmp.Compare(k.tag, tag) })
	if there && !a.list[i].finished {
		a.list[i].finished = true
		a.unsent++
	}
}

// flush acknowledges the finished prefix in bulk. When at least limit deliveries
// have finished beyond the gap, it acknowledges those too, one by one.
func (a *acks) flush(limit int, send func(tag uint64, multiple bool) error) error {
	prefix := slices.IndexFunc(a.list, func(k ack) bool { return !k.finished })
	if prefix < 0 {
		prefix = len(a.list)
	}
	if prefix > 0 {
		if err := fault.Reach(fault.BeforeAck); err != nil {
			return err
		}
		if err := send(a.list[prefix-1].tag, prefix > 1); err != nil {
			return err
		}
		a.list = slices.Delete(a.list, 0, prefix)
		a.unsent -= prefix
	}
	if a.unsent == 0 || a.unsent < limit {
		return nil
	}
	gap := a.list[:0]
	for _, k := range a.list {
		if !k.finished {
			gap = append(gap, k)
			continue
		}
		if err := send(k.tag, false); err != nil {
			return err // and the channel is at its end
		}
	}
	a.list, a.unsent = gap, 0
	return nil
}
