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
	ready    readiness              // to be handed out
	arrived  uint64                 // how many have arrived
	opened   int                    // of them, not finished
	delayed  []*delivery            // nacked, to be handed out when due
	tails    map[string]*delivery   // the last of each key that is under way
	wakeAt   time.Time              // when to look at delayed and acks, or zero

	condition atomic.Pointer[condition] // nil before it has first consumed, or failed to

	active atomic.Bool   // something was delivered on the present channel
	excess chan struct{} // capacity 1: the partition is another process's share
	busy   atomic.Int64  // until when it is not to be given back, in nanoseconds since 1970
}

// run hands out messages until scope ends, then drains. It does not close out. The messages'
// contexts are derived from ctx.
func (sub *subscription) run(ctx, scope context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var src *source
	for attempt := 0; scope.Err() == nil; attempt++ {
		var err error
		begin := time.Now()
		if src, err = sub.open(scope); err == nil {
			sub.logger.Info("consuming")
			sub.condition.Store(&condition{consuming: true})
			err = sub.consume(ctx, scope, src)
			if scope.Err() != nil {
				break
			}
			sub.forget(src)
			src = nil
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
		sub.s.links.blame(sub.queue, err)
		sub.condition.Store(&condition{err: err})
		sub.logger.Warn("consuming stopped", "attempt", attempt+1, "error", err)
		if !sub.s.links.broker.backoff.wait(scope, attempt) {
			break
		}
	}
	sub.drain(src)
	cancel()
	close(sub.abandoned)
	sub.tasks.Wait()
}

// consume hands out what src delivers, until scope ends or src does.
func (sub *subscription) consume(ctx, scope context.Context, src *source) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	armed := time.Time{}
	for scope.Err() == nil { // select might hand out another one
		var out chan<- *message.Message
		var msg *message.Message
		deliveries, closed, cancelled := sub.inputs(src)
		// What was nacked keeps its place, or with one in flight there would be no order in a
		// batch.
		if len(sub.ready) > 0 && len(sub.inFlight)+len(sub.delayed) < sub.s.config.InFlight {
			out, msg = sub.out, sub.ready[0].prepare(ctx)
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
				return src.err()
			}
			sub.arrive(src, raw)
		case out <- msg:
			sub.handOut()
		case d := <-sub.finished:
			sub.finish(src, d)
			if err := sub.flush(src); err != nil {
				return err
			}
		case d := <-sub.aside:
			sub.putAside(src, d)
			if err := sub.flush(src); err != nil {
				return err
			}
		case err := <-closed:
			return closedBy(err)
		case <-cancelled:
			return src.err()
		case <-timer.C:
			if err := sub.wake(src); err != nil {
				return err
			}
		case <-sub.excess:
			if err := sub.giveBack(scope, src); err != nil {
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
func (sub *subscription) inputs(src *source) (deliveries <-chan amqp091.Delivery, closed <-chan *amqp091.Error, cancelled <-chan string) {
	if c := &sub.s.config; sub.opened >= max(lookAhead*c.InFlight, c.Prefetch) {
		return nil, src.closed, src.cancelled
	}
	return src.deliveries, nil, nil
}

// arrive takes a delivery in, which may be a batch.
func (sub *subscription) arrive(src *source, raw amqp091.Delivery) {
	sub.active.Store(true)
	d := &delivery{raw: raw, from: src, redelivered: raw.Redelivered}
	src.acks.add(d)
	if raw.ContentEncoding == sentinelEncoding {
		src.acks.finish(d)
		sub.schedule(time.Now().Add(ackDelay))
		return
	}
	if raw.ContentEncoding == batchEncoding && sub.unbatch(d) {
		return
	}
	sub.admit(d)
}

// admit takes a message in. It is ready if no other of its key is under way.
func (sub *subscription) admit(d *delivery) {
	sub.arrived++
	sub.opened++
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
			tail.after = d
			sub.tails[d.key] = d
			return
		}
		sub.tails[d.key] = d
	}
	sub.ready.add(d)
}

// prepare gives the message of d its context, once.
func (d *delivery) prepare(ctx context.Context) *message.Message {
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
func (sub *subscription) finish(src *source, d *delivery) {
	for {
		delete(sub.inFlight, d)
		switch {
		case d.acked && d.from == src:
			sub.opened--
			src.acks.finish(d)
			sub.advance(d)
		case d.acked || d.from != src: // the broker delivers it again
			sub.opened--
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

// putAside ends a message that is safe elsewhere. One of a source that has ended is delivered
// again.
func (sub *subscription) putAside(src *source, d *delivery) {
	if d.from != src {
		return
	}
	sub.opened--
	src.acks.finish(d)
}

// advance makes the next message of d's key ready.
func (sub *subscription) advance(d *delivery) {
	switch {
	case d.key == "":
	case d.after != nil:
		sub.ready.add(d.after)
		d.after = nil
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

// wake makes due messages ready and acknowledges what has finished.
func (sub *subscription) wake(src *source) error {
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
	return src.acks.flush(1, src.ch.Ack)
}

// flush tells the broker what has finished, when that is enough to make it worth
// while: then there is room for new deliveries.
func (sub *subscription) flush(src *source) error {
	var err error
	n := sub.s.config.InFlight
	if src.acks.open >= max(1, n/4) {
		err = src.acks.flush(max(1, n/2), src.ch.Ack)
	}
	if src.acks.open > 0 {
		sub.schedule(time.Now().Add(ackDelay))
	}
	return err
}

// forget drops what src has delivered and was not handed out: the broker delivers
// it again. Keys whose message is with a handler stay taken.
func (sub *subscription) forget(src *source) {
	for _, d := range sub.ready {
		if d.cancel != nil {
			d.cancel()
		}
	}
	sub.ready, sub.delayed, sub.wakeAt = nil, nil, time.Time{}
	clear(sub.tails)
	sub.opened = len(sub.inFlight)
	for d := range sub.inFlight {
		d.after = nil
		if d.key != "" {
			sub.tails[d.key] = d
		}
	}
	src.close()
}

// drain waits for the messages in flight, for CloseTimeout at most, tells the
// broker of those that were acknowledged, and closes the channel. Nothing is told
// before the end: an ack makes room for a delivery that would only go back.
func (sub *subscription) drain(src *source) {
	timer := time.NewTimer(sub.s.config.CloseTimeout)
	defer timer.Stop()
	for len(sub.inFlight) > 0 {
		select {
		case d := <-sub.finished:
			delete(sub.inFlight, d)
			if d.acked && d.from == src {
				src.acks.finish(d)
			}
		case <-timer.C:
			sub.logger.Warn("closing with messages in flight", "messages", len(sub.inFlight))
			clear(sub.inFlight)
		}
	}
	if src == nil {
		return
	}
	if err := src.acks.flush(1, src.ch.Ack); err != nil {
		sub.logger.Warn("cannot acknowledge", "error", err)
	}
	sub.forget(src)
}
