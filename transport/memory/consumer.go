package memory

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// consumer is one Subscribe call. Its workers take turns: the one that leads
// hands the next message out, lets another lead, and waits for the answer itself.
// So a message is claimed only when the reader of the channel is about to take
// it, it needs no goroutine of its own, and a consumer with nothing to do has one.
type consumer struct {
	b      *Broker
	sub    *subscription
	owner  *Subscriber
	cancel context.CancelFunc // begins its end

	out   chan *message.Message
	lead  chan struct{} // holds one token: who put it there leads
	wake  chan struct{} // something is ready, or the offer was withdrawn
	abort chan struct{} // closed when what is in flight is to be given back
	done  chan struct{} // closed when it has ended

	workers sync.WaitGroup

	// Guarded by the broker's lock.
	idle    bool      // in sub.idle
	offered *delivery // claimed and not yet taken
	busy    int       // workers that wait for an answer
	started int       // workers
}

// answer is what became of a message that was handed out.
type answer uint8

const (
	given answer = iota // back, by a consumer that ended
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

// handOut hands the next message out and returns it, or nil when ctx has ended.
// The channel is closed only after that, so sending is safe. Only the leader calls it.
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
			if c.b.taken(c) {
				c.workers.Go(func() { c.work(ctx) })
			}
			return d, msg, cancel
		}
		cancel()
	}
	return nil, nil, nil
}

// offer waits until the reader of the channel takes msg, or it is taken back
// because its sender has given it up or ctx has ended.
func (c *consumer) offer(ctx context.Context, msg *message.Message) bool {
	for {
		select {
		case c.out <- msg:
			return true
		case <-c.wake:
			if c.b.takenBack(c, false) {
				return false
			}
		case <-ctx.Done():
			c.b.takenBack(c, true)
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
	case <-msg.Acked(): // at the last moment
		return acked
	default:
		return given
	}
}

// drain ends c after its context: no further message, then the answers to those
// in flight, at most for the close timeout.
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

// end ends the consumers at once and returns when they have.
func end(consumers []*consumer) {
	for _, c := range consumers {
		c.cancel()
	}
	for _, c := range consumers {
		<-c.done
	}
}
