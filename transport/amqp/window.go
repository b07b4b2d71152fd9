package amqp

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// confirmChannel is one instance of a channel in confirm mode, with its unconfirmed messages. Its
// delivery tags are meaningless on another instance. The publisher's mu guards its fields.
type confirmChannel struct {
	conn    *connection
	ch      *amqp091.Channel
	returns chan amqp091.Return
	ended   chan *amqp091.Error
	failure error // the reason for which the channel ended

	first, last *slot          // unconfirmed, in the order of publishing
	packets     int            // number of AMQP messages with unconfirmed slots
	pending     pendingPackets // not published yet
	abandoned   int            // slots, unconfirmed or pending, that were reported as unavailable
	lastAnswer  time.Time      // when the broker last answered for a message
	handled     uint64         // the highest delivery tag that the broker has certainly handled

	prepared  map[string]time.Time // time of the declaration, by topic
	missing   map[string]time.Time // time of the last return, by topic that is to be declared again
	preparing map[string]*preparation
}

// slot is the message or batch of one call of Send or SendBatch.
type slot struct {
	next, prev *slot
	in         *packet
	own        packet // used if the slot is published alone
	topic      string
	msg        *message.Message   // to be published again if needed; nil for publishRaw
	msgs       []*message.Message // of SendBatch, instead of msg
	messages   int
	done       func(transport.Result) // nil once the outcome was reported
	watched    *watchedContext        // nil if the context never ends
	written    time.Time              // when the slot was written, or gathered while it is pending
	bytes      int
}

func (c *confirmChannel) frameSize() int {
	if c.conn.Config.FrameSize > 0 {
		return c.conn.Config.FrameSize
	}
	return maxHeaderBytes + frameOverhead
}

// newSlot returns a slot that is on no list yet. Called with mu locked.
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

// addUnconfirmed adds s, which was published, to the unconfirmed slots of c. Called with mu locked.
func (p *Publisher) addUnconfirmed(c *confirmChannel, s *slot) {
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

// release removes s from c and frees its place in the window. Called with mu locked.
func (p *Publisher) release(c *confirmChannel, s *slot) {
	p.unlink(c, s)
	p.drop(s)
}

// unlink removes s from the unconfirmed slots of c. Called with mu locked.
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

// drop frees s, which is on no list, and its place in the window. Called with mu locked.
func (p *Publisher) drop(s *slot) {
	p.bytes -= s.bytes
	p.unwatchContext(s.watched)
	*s = slot{next: p.freeSlots}
	p.freeSlots = s
	<-p.window
}

// contextWatches notices the end of contexts of unconfirmed messages, with one callback per
// context, however many messages share the context.
type contextWatches struct {
	byDone map[<-chan struct{}]*watchedContext
	last   *watchedContext // most messages have the context of the message before
}

type watchedContext struct {
	ctx  context.Context
	refs int
	stop func() bool
}

// watchContext wakes the judge when ctx ends. Called with mu locked.
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

// unwatchContext undoes one call of watchContext. Called with mu locked.
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

// context returns the context of s, or a background context if the context of s never ends.
func (s *slot) context() context.Context {
	if s.watched == nil {
		return context.Background()
	}
	return s.watched.ctx
}
