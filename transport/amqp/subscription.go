package amqp

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/transport"
)

// ackDelay is how long an ack waits for further acks to be sent with it, and for the gap before it
// to close. An ack per message costs the broker more than the delivery. A quorum queue that gets
// too many acks at once puts some aside, and forgets them when the channel is closed.
const ackDelay = 5 * time.Millisecond

// lookAhead is the number of admitted messages as a multiple of InFlight, and the default of
// Prefetch. A batch has many messages: deliveries beyond that number are not parsed yet.
const lookAhead = 4

// subscription hands out the messages of one queue. Its fields belong to the goroutine of run,
// unless a comment says otherwise.
type subscription struct {
	s         *Subscriber
	layout    layout
	topic     string
	queue     string
	partition int // from 1; 0 is a topic without partitions
	logger    *slog.Logger

	out chan *message.Message
	// A goroutine waits for the answer to each message that is handed out, then for the next
	// message. These goroutines receive from handed, send to finished, and end when abandoned is
	// closed.
	handed    chan *delivery
	finished  chan *delivery // has room for all messages in flight
	aside     chan *delivery // undecodable messages that were published to another queue
	abandoned chan struct{}
	waiters   int
	tasks     sync.WaitGroup

	inFlight map[*delivery]struct{} // handed out and not finished, of all channels
	ready    readyQueue             // to be handed out
	arrived  uint64                 // number of messages that have arrived
	admitted int                    // number of arrived messages that are not finished
	delayed  []*delivery            // nacked; to be handed out again when due
	tails    map[string]*delivery   // the last admitted message of each key
	wakeAt   time.Time              // when to look at delayed and acks, or zero

	state atomic.Pointer[consumeState] // nil before the first attempt to consume

	active    atomic.Bool   // the present channel has delivered a message
	excess    chan struct{} // capacity 1: the partition is beyond this process's share
	keepUntil atomic.Int64  // until then the partition is not given back; nanoseconds since 1970
}

// run hands out messages until scope ends, then drains. It does not close out. The contexts of the
// messages are derived from ctx.
func (sub *subscription) run(ctx, scope context.Context) {
	ctx, cancel := context.WithCancel(transport.WithBacklog(ctx, sub))
	defer cancel()
	var consumer *consumerChannel
	for attempt := 0; scope.Err() == nil; attempt++ {
		var err error
		begin := time.Now()
		if consumer, err = sub.consume(scope); err == nil {
			sub.logger.Info("consuming")
			sub.state.Store(&consumeState{consuming: true})
			err = sub.deliver(ctx, scope, consumer)
			if scope.Err() != nil {
				break
			}
			sub.discard(consumer)
			consumer = nil
			if errors.Is(err, errGivenBack) {
				sub.logger.Info("gave a partition back to another process")
				attempt = -1
				continue
			}
			if time.Since(begin) > stableAfter {
				attempt = 0
			}
		}
		if scope.Err() != nil {
			break
		}
		sub.s.connections.dedicate(sub.queue, err)
		sub.state.Store(&consumeState{err: err})
		if tells(attempt) {
			sub.logger.Warn("consuming stopped", "attempt", attempt+1, "error", err)
		}
		if !sub.s.connections.broker.backoff.wait(scope, attempt) {
			break
		}
	}
	sub.drain(consumer)
	cancel()
	close(sub.abandoned)
	sub.tasks.Wait()
}

// deliver hands out the deliveries of the consumer, until scope or the consumer ends.
func (sub *subscription) deliver(ctx, scope context.Context, consumer *consumerChannel) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	armed := time.Time{}
	for scope.Err() == nil { // select might hand out another message after the end of scope
		var out chan<- *message.Message
		var msg *message.Message
		deliveries, closed, cancelled := sub.inputs(consumer)
		// Delayed messages count as in flight: with one in flight, the order of a batch would be
		// lost otherwise.
		if len(sub.ready) > 0 && len(sub.inFlight)+len(sub.delayed) < sub.s.config.InFlight {
			out, msg = sub.out, sub.withContext(ctx, sub.ready[0])
		}
		if sub.wakeAt != armed {
			armed = sub.wakeAt
			timer.Stop()
			if !armed.IsZero() {
				timer.Reset(time.Until(armed))
			}
		}
		select {
		case raw, ok := <-deliveries:
			if !ok {
				return consumer.err()
			}
			sub.receive(consumer, raw)
		case out <- msg:
			sub.handOut()
		case d := <-sub.finished:
			sub.finish(consumer, d)
			if err := sub.flush(consumer); err != nil {
				return err
			}
		case d := <-sub.aside:
			sub.finishSetAside(consumer, d)
			if err := sub.flush(consumer); err != nil {
				return err
			}
		case err := <-closed:
			return closedBy(err)
		case <-cancelled:
			return consumer.err()
		case <-timer.C:
			if err := sub.onTimer(consumer); err != nil {
				return err
			}
		case <-sub.excess:
			if err := sub.giveBack(scope, consumer); err != nil {
				return err
			}
		case <-scope.Done():
			return nil
		}
	}
	return nil
}

// inputs returns the channels to receive from: deliveries, or, if enough messages are admitted, the
// notifications of the end, which a closed channel of deliveries would tell otherwise.
func (sub *subscription) inputs(consumer *consumerChannel) (deliveries <-chan amqp091.Delivery, closed <-chan *amqp091.Error, cancelled <-chan string) {
	if c := &sub.s.config; sub.admitted >= max(lookAhead*c.InFlight, c.Prefetch) {
		return nil, consumer.closed, consumer.cancelled
	}
	return consumer.deliveries, nil, nil
}

// withContext returns the message of d. The first call gives the message its context.
func (sub *subscription) withContext(ctx context.Context, d *delivery) *message.Message {
	if d.cancel == nil {
		if d.redelivered {
			ctx = transport.WithRedelivered(ctx)
		}
		key := d.key
		if sub.s.config.CompetingConsumers { // other processes get other messages of the key
			key = ""
		}
		ctx, d.cancel = context.WithCancel(transport.WithOrderingKey(ctx, key))
		d.msg.SetContext(ctx)
	}
	return d.msg
}

// handOut starts the wait for the answer to the first ready message, which has just been handed
// out.
func (sub *subscription) handOut() {
	d := sub.ready.popFirst()
	sub.inFlight[d] = struct{}{}
	_ = fault.Reach(fault.BrokerDelivered)
	select {
	case sub.handed <- d:
		return
	default:
	}
	if sub.waiters == sub.s.config.InFlight {
		// A waiting goroutine is about to be free, since there are no more of them than messages in
		// flight.
		sub.handed <- d
		return
	}
	sub.waiters++
	sub.tasks.Go(func() { sub.await(d) })
}

// await waits for the answer to d, then for the next message.
func (sub *subscription) await(d *delivery) {
	for {
		select {
		case <-d.msg.Acked():
			d.acked = true
		case <-d.msg.Nacked():
		case <-sub.abandoned:
			return
		}
		d.cancel()
		sub.finished <- d
		select {
		case d = <-sub.handed:
		case <-sub.abandoned:
			return
		}
	}
}

// finish handles the answer of a handler, and all further answers that have arrived.
func (sub *subscription) finish(consumer *consumerChannel, d *delivery) {
	for {
		delete(sub.inFlight, d)
		switch {
		case d.acked && d.from == consumer:
			sub.admitted--
			consumer.acks.finish(d)
			sub.advance(d)
		case d.acked || d.from != consumer: // the broker delivers the message again
			sub.admitted--
			sub.advance(d)
		default:
			sub.delay(d)
		}
		select {
		case d = <-sub.finished:
		default:
			return
		}
	}
}

// finishSetAside finishes a message that was published to another queue. If the message is of an
// earlier channel, the broker delivers it again.
func (sub *subscription) finishSetAside(consumer *consumerChannel, d *delivery) {
	if d.from != consumer {
		return
	}
	sub.admitted--
	consumer.acks.finish(d)
}

// advance makes the next message of d's key ready.
func (sub *subscription) advance(d *delivery) {
	switch {
	case d.key == "":
	case d.next != nil:
		sub.ready.add(d.next)
		d.next = nil
	default:
		delete(sub.tails, d.key)
	}
}

// delay delays a nacked message. Later messages of its key wait.
func (sub *subscription) delay(d *delivery) {
	c := &sub.s.config
	b := backoff{min: c.RedeliveryMin, max: c.RedeliveryMax, factor: 2, spread: 0.25}
	d.due = time.Now().Add(b.delay(d.nacks))
	d.nacks++
	d.redelivered, d.cancel = true, nil
	sub.delayed = append(sub.delayed, d)
	sub.schedule(d.due)
}

func (sub *subscription) schedule(t time.Time) {
	if sub.wakeAt.IsZero() || t.Before(sub.wakeAt) {
		sub.wakeAt = t
	}
}

// onTimer makes due messages ready and sends acks.
func (sub *subscription) onTimer(consumer *consumerChannel) error {
	now := time.Now()
	sub.wakeAt = time.Time{}
	var later []*delivery
	for _, d := range sub.delayed {
		if d.due.After(now) {
			later = append(later, d)
			sub.schedule(d.due)
			continue
		}
		// Decoded again: a message can be acknowledged or nacked once only, and handlers change
		// metadata.
		var err error
		if d.msg, err = sub.s.codec.decode(&d.raw); err != nil {
			sub.advance(d)
			sub.setAside(d, err)
			continue
		}
		sub.ready.add(d)
	}
	sub.delayed = later
	return consumer.acks.flush(1, consumer.ch.Ack)
}

// flush sends acks if there are enough of them: then the broker can deliver further messages.
func (sub *subscription) flush(consumer *consumerChannel) error {
	var err error
	n := sub.s.config.InFlight
	if consumer.acks.unsent >= max(1, n/4) {
		err = consumer.acks.flush(max(1, n/2), consumer.ch.Ack)
	}
	if consumer.acks.unsent > 0 {
		sub.schedule(time.Now().Add(ackDelay))
	}
	return err
}

// discard drops the messages of the consumer that were not handed out, and ends the consumer: the
// broker delivers them again. The keys of messages with handlers stay taken.
func (sub *subscription) discard(consumer *consumerChannel) {
	for _, d := range sub.ready {
		if d.cancel != nil {
			d.cancel()
		}
	}
	sub.ready, sub.delayed, sub.wakeAt = nil, nil, time.Time{}
	clear(sub.tails)
	sub.admitted = len(sub.inFlight)
	for d := range sub.inFlight {
		d.next = nil
		if d.key != "" {
			sub.tails[d.key] = d
		}
	}
	consumer.close()
}

// drain waits for the messages in flight, for CloseTimeout at most, acknowledges the finished ones,
// and closes the channel. Acks are sent only at the end: an ack makes room for a delivery that
// would only be returned.
func (sub *subscription) drain(consumer *consumerChannel) {
	timer := time.NewTimer(sub.s.config.CloseTimeout)
	defer timer.Stop()
	for len(sub.inFlight) > 0 {
		select {
		case d := <-sub.finished:
			delete(sub.inFlight, d)
			if d.acked && d.from == consumer {
				consumer.acks.finish(d)
			}
		case <-timer.C:
			sub.logger.Warn("closing with messages in flight", "messages", len(sub.inFlight))
			clear(sub.inFlight)
		}
	}
	if consumer == nil {
		return
	}
	if err := consumer.acks.flush(1, consumer.ch.Ack); err != nil {
		sub.logger.Warn("cannot acknowledge", "error", err)
	}
	sub.discard(consumer)
}
