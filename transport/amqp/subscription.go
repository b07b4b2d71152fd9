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

// ackDelay is how long an ack waits for others to be sent with it, and for the gap
// before it to close. An ack per message costs the broker more than the delivery;
// a quorum queue that gets too many at a time sets them aside, and forgets those
// when the channel is closed.
const ackDelay = 5 * time.Millisecond

// lookAhead is how many times InFlight messages are opened, and prefetched by default. A batch has
// many; what the broker delivers beyond that stays packed.
const lookAhead = 4

// subscription hands out the messages of one queue. What is not said to be used
// by others belongs to the goroutine that calls run.
type subscription struct {
	s         *Subscriber
	layout    layout
	topic     string
	queue     string
	partition int // 0 is a topic without them
	logger    *slog.Logger

	out chan *message.Message
	// A goroutine waits for each message that is handed out; it is used again for
	// another one. They take from handed, give to finished, and end when abandoned
	// is closed.
	handed    chan *delivery
	finished  chan *delivery // has room for all
	aside     chan *delivery // undecodable, and safe elsewhere
	abandoned chan struct{}
	waiters   int
	tasks     sync.WaitGroup

	inFlight map[*delivery]struct{} // handed out and not finished, of all sources
	ready    readyQueue             // to be handed out
	arrived  uint64                 // how many have arrived
	admitted int                    // of them, not finished
	delayed  []*delivery            // nacked, to be handed out when due
	tails    map[string]*delivery   // the last of each key that is under way
	wakeAt   time.Time              // when to look at delayed and acks, or zero

	state atomic.Pointer[consumeState] // nil before it has first consumed, or failed to

	active    atomic.Bool   // something was delivered on the present channel
	excess    chan struct{} // capacity 1: the partition is another process's share
	keepUntil atomic.Int64  // until when it is not to be given back, in nanoseconds since 1970
}

// run hands out messages until scope ends, then drains. It does not close out. The messages'
// contexts are derived from ctx.
func (sub *subscription) run(ctx, scope context.Context) {
	ctx, cancel := context.WithCancel(ctx)
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
				sub.logger.Info("gave a partition back, which is another process's share")
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
		sub.logger.Warn("consuming stopped", "attempt", attempt+1, "error", err)
		if !sub.s.connections.broker.backoff.wait(scope, attempt) {
			break
		}
	}
	sub.drain(consumer)
	cancel()
	close(sub.abandoned)
	sub.tasks.Wait()
}

// deliver hands out what src delivers, until scope ends or src does.
func (sub *subscription) deliver(ctx, scope context.Context, consumer *consumerChannel) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	armed := time.Time{}
	for scope.Err() == nil { // select might hand out another one
		var out chan<- *message.Message
		var msg *message.Message
		deliveries, closed, cancelled := sub.inputs(consumer)
		// What was nacked keeps its place, or with one in flight there would be no order in a
		// batch.
		if len(sub.ready) > 0 && len(sub.inFlight)+len(sub.delayed) < sub.s.config.InFlight {
			out, msg = sub.out, sub.ready[0].withContext(ctx)
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

// inputs returns what src is to be asked for: deliveries, or if enough is open the ends that the
// deliveries would tell otherwise.
func (sub *subscription) inputs(consumer *consumerChannel) (deliveries <-chan amqp091.Delivery, closed <-chan *amqp091.Error, cancelled <-chan string) {
	if c := &sub.s.config; sub.admitted >= max(lookAhead*c.InFlight, c.Prefetch) {
		return nil, consumer.closed, consumer.cancelled
	}
	return consumer.deliveries, nil, nil
}

// withContext gives the message of d its context, once.
func (d *delivery) withContext(ctx context.Context) *message.Message {
	if d.cancel == nil {
		if d.redelivered {
			ctx = transport.WithRedelivered(ctx)
		}
		ctx, d.cancel = context.WithCancel(transport.WithOrderingKey(ctx, d.key))
		d.msg.SetContext(ctx)
	}
	return d.msg
}

// handOut has somebody wait for the first ready message, which has just been
// handed out.
func (sub *subscription) handOut() {
	d := sub.ready.take()
	sub.inFlight[d] = struct{}{}
	_ = fault.Reach(fault.BrokerDelivered)
	select {
	case sub.handed <- d:
		return
	default:
	}
	if sub.waiters == sub.s.config.InFlight {
		// One of them is about to be free, since no more are in flight.
		sub.handed <- d
		return
	}
	sub.waiters++
	sub.tasks.Go(func() { sub.await(d) })
}

// await waits until d is acknowledged or nacked, then for another one.
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

// finish takes a message back from its handler, and whatever else is finished by
// now.
func (sub *subscription) finish(consumer *consumerChannel, d *delivery) {
	for {
		delete(sub.inFlight, d)
		switch {
		case d.acked && d.from == consumer:
			sub.admitted--
			consumer.acks.finish(d)
			sub.advance(d)
		case d.acked || d.from != consumer: // the broker delivers it again
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

// finishSetAside ends a message that is safe elsewhere. One of a source that has ended is delivered
// again.
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

// delay has a nacked message handed out again later. The rest of its key waits.
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

// onTimer makes due messages ready and acknowledges what has finished.
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
		// Decoded again: a message is acknowledged or nacked once, and handlers
		// change metadata.
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

// flush tells the broker what has finished, when that is enough to make it worth
// while: then there is room for new deliveries.
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

// discard drops what src has delivered and was not handed out: the broker delivers
// it again. Keys whose message is with a handler stay taken.
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

// drain waits for the messages in flight, for CloseTimeout at most, tells the
// broker of those that were acknowledged, and closes the channel. Nothing is told
// before the end: an ack makes room for a delivery that would only go back.
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
