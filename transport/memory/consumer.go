package memory

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// consumer is one Subscribe call. Its workers take turns: the leading worker hands out the next
// message, passes the lead on, and waits for the answer itself. So a message is claimed only when
// the channel's reader is about to receive it, a message needs no goroutine except its worker, and
// an idle consumer has one goroutine.
type consumer struct {
	b      *Broker
	sub    *subscription
	owner  *Subscriber
	cancel context.CancelFunc // starts its end

	out   chan *message.Message
	lead  chan struct{} // holds one token; the worker that put it there leads
	wake  chan struct{} // a delivery is ready, or the offered one was withdrawn
	abort chan struct{} // closed when messages in flight have to be given back
	done  chan struct{} // closed when the consumer has ended

	workers sync.WaitGroup

	// Guarded by the broker's lock.
	idle    bool      // in sub.idle
	offered *delivery // claimed, but not yet received by the reader of out
	busy    int       // workers that wait for an answer
	started int       // workers in all
}

// answer tells how the reader answered a message that was handed out.
type answer uint8

const (
	unanswered answer = iota // no answer: the consumer ended
	acked
	nacked
)

// work runs one worker until ctx ends.
func (c *consumer) work(ctx context.Context) {
	for {
		select {
		case c.lead <- struct{}{}:
		case <-ctx.Done():
			return
		}
		d, msg, cancel := c.handOut(ctx)
		<-c.lead
		if d == nil {
			return
		}
		a := c.await(msg)
		cancel()
		c.b.answered(c, d, a)
	}
}

// handOut hands out the next message and returns it, or nil when ctx has ended. Sending is safe,
// since the channel is closed only after the end of ctx. Only the leading worker calls handOut.
func (c *consumer) handOut(ctx context.Context) (*delivery, *message.Message, context.CancelFunc) {
	for ctx.Err() == nil {
		d, msg := c.b.claim(c)
		if d == nil {
			select {
			case <-c.wake:
			case <-ctx.Done():
			}
			continue
		}
		msgCtx, cancel := context.WithCancel(transport.WithOrderingKey(ctx, d.key))
		if d.redelivered {
			msgCtx = transport.WithRedelivered(msgCtx)
		}
		msg.SetContext(msgCtx)
		if c.offer(ctx, msg) {
			if c.b.received(c) {
				c.workers.Go(func() { c.work(ctx) })
			}
			return d, msg, cancel
		}
		cancel()
	}
	return nil, nil, nil
}

// offer waits until the reader of the channel receives msg. It reports false if the offer is
// withdrawn because the publish was given up or ctx has ended.
func (c *consumer) offer(ctx context.Context, msg *message.Message) bool {
	for {
		select {
		case c.out <- msg:
			return true
		case <-c.wake:
			if c.b.withdrawOffer(c, false) {
				return false
			}
		case <-ctx.Done():
			c.b.withdrawOffer(c, true)
			return false
		}
	}
}

// await returns the answer to msg.
func (c *consumer) await(msg *message.Message) answer {
	select {
	case <-msg.Acked():
		return acked
	case <-msg.Nacked():
		return nacked
	case <-c.abort:
	}
	select {
	case <-msg.Acked(): // an answer at the last moment
		return acked
	default:
		return unanswered
	}
}

// drain ends c after its context has ended: it hands out no further message, and waits for the
// answers to the messages in flight, at most for the close timeout.
func (c *consumer) drain() {
	c.lead <- struct{}{}
	close(c.out)
	<-c.lead
	c.b.retire(c)
	timer := time.AfterFunc(c.b.cfg.CloseTimeout, func() { close(c.abort) })
	c.workers.Wait()
	timer.Stop()
	c.b.forget(c)
	close(c.done)
}

// end ends the consumers at once and returns when they have ended.
func end(consumers []*consumer) {
	for _, c := range consumers {
		c.cancel()
	}
	for _, c := range consumers {
		<-c.done
	}
}
