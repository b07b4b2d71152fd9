package amqp

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
)

// delivery is a message of the broker, from its arrival to its ack, or one of those in a batch.
type delivery struct {
	raw    amqp091.Delivery
	from   *source
	number uint64 // of its arrival
	key    string
	after  *delivery // the next one of the same key

	whole *delivery // the batch that it is part of, or nil
	left  int       // how many parts of a batch are not finished

	msg         *message.Message   // what is handed out; another one after a nack
	cancel      context.CancelFunc // of the context of msg; nil before the hand-out
	redelivered bool
	nacks       int
	due         time.Time // when a nacked one is handed out again

	acked    bool // by the handler
	finished bool // the broker may be told
	settled  bool // the broker has been told
}

// acks are the deliveries of one channel, batches as a whole, that the broker has not been told of, in
// the order of their tags. A bulk ack covers every tag up to its own, so it is
// only ever sent for a prefix that has finished as a whole.
type acks struct {
	list []*delivery
	open int // finished, and not settled
}

func (a *acks) add(d *delivery) { a.list = append(a.list, d) }

func (a *acks) finish(d *delivery) {
	if d.whole != nil {
		d = d.whole
		if d.left--; d.left > 0 {
			return
		}
	}
	d.finished = true
	a.open++
}

// flush acknowledges the finished prefix in bulk. When at least limit deliveries
// have finished beyond the gap, it acknowledges those too, one by one.
func (a *acks) flush(limit int, ack func(tag uint64, multiple bool) error) error {
	prefix, open, tag := 0, 0, uint64(0)
	for _, d := range a.list {
		if !d.finished {
			break
		}
		prefix++
		if !d.settled {
			open++
			tag = d.raw.DeliveryTag // the broker knows no tag that was settled singly
		}
	}
	if open > 0 {
		if err := fault.Reach(fault.C10); err != nil {
			return err
		}
		if err := ack(tag, open > 1); err != nil {
			return err
		}
		a.open -= open
	}
	clear(a.list[:prefix])
	a.list = a.list[prefix:]
	if a.open < limit {
		return nil
	}
	for _, d := range a.list {
		if a.open == 0 {
			break
		}
		if !d.finished || d.settled {
			continue
		}
		if err := ack(d.raw.DeliveryTag, false); err != nil {
			return err
		}
		d.settled = true
		a.open--
	}
	return nil
}
