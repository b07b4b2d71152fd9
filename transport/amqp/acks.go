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

// delivery is an AMQP message from its arrival to its ack, or one message of a batch.
type delivery struct {
	raw    amqp091.Delivery
	from   *consumerChannel
	number uint64 // counts arrivals
	key    string
	next   *delivery // the next delivery with the same key

	batch      *delivery // the batch that the message belongs to, or nil
	unfinished int       // of a batch: messages that are not finished

	msg         *message.Message   // decoded again after a nack
	cancel      context.CancelFunc // cancels the context of msg; nil before the hand-out
	redelivered bool
	nacks       int
	due         time.Time // when a nacked delivery is handed out again

	acked bool // by the handler, rather than nacked
}

// acks holds the deliveries of one channel for which no ack was sent, in tag order, and batches as
// a whole. Prefetch bounds their number. A bulk ack covers all lower tags, so acks are sent in bulk
// only for a prefix of finished deliveries.
type acks struct {
	list   []ack
	unsent int // finished deliveries
}

// ack is an ack to be sent. It does not refer to the delivery: the body may be large, and is no
// longer needed when the delivery has finished.
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

// flush acknowledges the finished prefix in bulk. If at least limit deliveries behind the first
// unfinished delivery have finished, flush acknowledges these deliveries singly.
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
			return err // the channel has ended
		}
	}
	a.list, a.unsent = gap, 0
	return nil
}
