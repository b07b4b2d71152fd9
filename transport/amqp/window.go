package amqp

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// confirmChannel is one instance of a channel in confirm mode and what is
// unconfirmed on it. Delivery tags mean nothing beyond it. Its fields are guarded
// by the publisher's mu.
type confirmChannel struct {
	conn    *connection
	ch      *amqp091.Channel
	returns chan amqp091.Return
	ended   chan *amqp091.Error
	failure error // why it was closed from here

	first, last *slot          // unconfirmed, in the order of their publishing
	packets     int            // what they were published in
	pending     pendingPackets // not published yet
	abandoned   int            // of both, reported as unavailable already
	lastAnswer  time.Time      // when the broker last answered for a message
	handled     uint64         // the highest tag that the broker has handled for certain

	prepared  map[string]time.Time // topics whose topology was declared, and when
	missing   map[string]time.Time // topics of which it is not prepared because a message came back, and when
	preparing map[string]*preparation
}

// slot is what one call of Send or SendBatch has sent.
type slot struct {
	next, prev *slot
	in         *packet
	own        packet // unless it goes with others
	topic      string
	msg        *message.Message   // to be published again if need be; nil for what is not a message of ours
	msgs       []*message.Message // instead of msg, of a call of SendBatch
	messages   int
	done       func(transport.Result) // nil once the outcome was reported
	watched    *watchedContext        // nil for a context that never ends
	written    time.Time              // or gathered, as long as it is not
	bytes      int
}

func (c *confirmChannel) frameSize() int {
	if c.conn.Config.FrameSize > 0 {
		return c.conn.Config.FrameSize
	}
	return maxHeaderBytes + frameOverhead
}

// newSlot returns a slot that is in nothing yet. Called with mu locked.
func (p *Publisher) newSlot(ctx context.Context, out *outgoing, done func(transport.Result)) *slot {
	s := p.freeSlots
	if s == nil {
		s = &slot{}
	} else {
		p.freeSlots = s.next
	}
	*s = slot{
		topic: out.topic, msg: out.msg, msgs: out.msgs, messages: out.messages, done: done, watched: p.watchContext(ctx),
		written: time.Now(), bytes: len(out.pub.Body),
	}
	p.bytes += s.bytes
	return s
}

// await adds s, which was published, to what is unconfirmed. Called with mu locked.
func (p *Publisher) await(c *confirmChannel, s *slot) {
	s.in.slots++
	s.prev = c.last
	if c.last == nil {
		c.first = s
		p.wakeJudge()
	} else {
		c.last.next = s
	}
	c.last = s
}

// release takes s out of c and its place in the window. Called with mu locked.
func (p *Publisher) release(c *confirmChannel, s *slot) {
	p.unlink(c, s)
	p.drop(s)
}

// unlink takes s out of c. Called with mu locked.
func (p *Publisher) unlink(c *confirmChannel, s *slot) {
	if s.prev == nil {
		c.first = s.next
	} else {
		s.prev.next = s.next
	}
	if s.next == nil {
		c.last = s.prev
	} else {
		s.next.prev = s.prev
	}
	s.next, s.prev = nil, nil
	if s.in.slots--; s.in.slots == 0 {
		c.packets--
	}
}

// drop ends s, which is in nothing. Called with mu locked.
func (p *Publisher) drop(s *slot) {
	p.bytes -= s.bytes
	p.unwatchContext(s.watched)
	*s = slot{next: p.freeSlots}
	p.freeSlots = s
	<-p.window
}

// contextWatches tells when contexts of unconfirmed messages end, with one callback per
// context, however many messages share it.
type contextWatches struct {
	byDone map[<-chan struct{}]*watchedContext
	last   *watchedContext // most messages share the context of the one before
}

type watchedContext struct {
	ctx  context.Context
	refs int
	stop func() bool
}

// watchContext makes the judge look when ctx ends. Called with mu locked.
func (p *Publisher) watchContext(ctx context.Context) *watchedContext {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	w := p.contexts.last
	if w == nil || w.ctx != ctx {
		w = p.contexts.byDone[done]
	}
	if w == nil {
		w = &watchedContext{ctx: ctx}
		w.stop = context.AfterFunc(ctx, func() {
			p.ctxEnded.Store(true)
			p.wakeJudge()
		})
		if p.contexts.byDone == nil {
			p.contexts.byDone = make(map[<-chan struct{}]*watchedContext)
		}
		p.contexts.byDone[done] = w
	}
	w.refs++
	p.contexts.last = w
	return w
}

// unwatchContext undoes one call of watch. Called with mu locked.
func (p *Publisher) unwatchContext(w *watchedContext) {
	if w == nil {
		return
	}
	if w.refs--; w.refs > 0 {
		return
	}
	w.stop()
	delete(p.contexts.byDone, w.ctx.Done())
	if p.contexts.last == w {
		p.contexts.last = nil
	}
}

// context returns the context of s, as far as it can end.
func (s *slot) context() context.Context {
	if s.watched == nil {
		return context.Background()
	}
	return s.watched.ctx
}
