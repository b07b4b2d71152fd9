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

// slots keeps the slots of a publisher.
type slots struct {
	*Publisher

	free     *slot // for reuse
	contexts contextWatches
}

// newSlot returns a slot that is on no list yet. Called with mu locked.
func (sl *slots) newSlot(ctx context.Context, out *outgoing, done func(transport.Result)) *slot {
	s := sl.free
	if s == nil {
		s = &slot{}
	} else {
		sl.free = s.next
	}
	*s = slot{
		topic: out.topic, msg: out.msg, msgs: out.msgs, messages: out.messages, done: done, watched: sl.watchContext(ctx),
		written: time.Now(), bytes: len(out.pub.Body),
	}
	sl.bytes += s.bytes
	return s
}

// addUnconfirmed adds s, which was published, to the unconfirmed slots of c. Called with mu locked.
func (sl *slots) addUnconfirmed(c *confirmChannel, s *slot) {
	s.in.slots++
	s.prev = c.last
	if c.last == nil {
		c.first = s
		sl.judge.wakeUp()
	} else {
		c.last.next = s
	}
	c.last = s
}

// release removes s from c and frees its place in the window. Called with mu locked.
func (sl *slots) release(c *confirmChannel, s *slot) {
	sl.unlink(c, s)
	sl.drop(s)
}

// unlink removes s from the unconfirmed slots of c. Called with mu locked.
func (sl *slots) unlink(c *confirmChannel, s *slot) {
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
func (sl *slots) drop(s *slot) {
	sl.bytes -= s.bytes
	sl.unwatchContext(s.watched)
	*s = slot{next: sl.free}
	sl.free = s
	<-sl.window
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
func (sl *slots) watchContext(ctx context.Context) *watchedContext {
	done := ctx.Done()
	if done == nil {
		return nil
	}
	w := sl.contexts.last
	if w == nil || w.ctx != ctx {
		w = sl.contexts.byDone[done]
	}
	if w == nil {
		w = &watchedContext{ctx: ctx}
		w.stop = context.AfterFunc(ctx, func() {
			sl.judge.ctxEnded.Store(true)
			sl.judge.wakeUp()
		})
		if sl.contexts.byDone == nil {
			sl.contexts.byDone = make(map[<-chan struct{}]*watchedContext)
		}
		sl.contexts.byDone[done] = w
	}
	w.refs++
	sl.contexts.last = w
	return w
}

// unwatchContext undoes one call of watchContext. Called with mu locked.
func (sl *slots) unwatchContext(w *watchedContext) {
	if w == nil {
		return
	}
	if w.refs--; w.refs > 0 {
		return
	}
	w.stop()
	delete(sl.contexts.byDone, w.ctx.Done())
	if sl.contexts.last == w {
		sl.contexts.last = nil
	}
}

// context returns the context of s, or a background context if the context of s never ends.
func (s *slot) context() context.Context {
	if s.watched == nil {
		return context.Background()
	}
	return s.watched.ctx
}
