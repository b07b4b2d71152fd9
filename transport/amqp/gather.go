package amqp

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

const (
	// packetsAlone is how many packets are unanswered before messages are gathered: as long as
	// there are fewer, the broker has nothing to do that a message would wait for.
	packetsAlone = 4
	// gatherFor is how long a message waits for others, about. It is not much more than a confirm
	// takes; a queue that answers nothing must not stop the others.
	gatherFor = sweepInterval
	// maxBatchBytes is how large the body of a batch may become by gathering. It fits into one
	// frame of RabbitMQ's default size.
	maxBatchBytes = 120 << 10
	// maxPooledBatches is how many bodies are kept for the next batches.
	maxPooledBatches = 16
)

// packet is an AMQP message, which the broker answers for.
type packet struct {
	seq      string
	exchange string
	key      string
	confirm  *amqp091.DeferredConfirmation
	returned *amqp091.Return
	slots    int // that are not released
}

// gathering is what is to be published on a channel in batches.
type gathering struct {
	byRoute map[destination]*batch
	order   []*batch // the oldest first
}

// destination is where AMQP messages are published to.
type destination struct{ exchange, key string }

// batch is a packet that is not published yet.
type batch struct {
	to       destination
	pub      amqp091.Publishing // of the first message
	seq      string
	slots    []*slot
	messages int
	begin    time.Time
	body     []byte
	first    int // where in body the envelope of the first message begins
}

// has tells whether messages are gathered that out may not overtake.
func (g *gathering) has(out *outgoing) bool {
	return len(g.order) > 0 && g.byRoute[destination{out.exchange, out.key}] != nil
}

func (g *gathering) remove(b *batch) {
	delete(g.byRoute, b.to)
	i := slices.Index(g.order, b)
	g.order = slices.Delete(g.order, i, i+1)
}

// gather adds out to the batch of its destination, and publishes that when it is full. It returns
// false, with out not taken, when the channel cannot go on. Called with mu locked.
func (p *Publisher) gather(ctx context.Context, c *confirmChannel, out *outgoing, done func(transport.Result)) bool {
	g := &c.gathering
	to := destination{out.exchange, out.key}
	b := g.byRoute[to]
	if b != nil && !p.fits(b, out) {
		if !p.publishBatch(c, b) {
			return false
		}
		b = nil
	}
	if b == nil {
		b = p.newBatch(to, out)
		if g.byRoute == nil {
			g.byRoute = make(map[destination]*batch)
		}
		g.byRoute[to] = b
		g.order = append(g.order, b)
		if len(g.order) == 1 {
			p.wakeJudge()
		}
	}
	b.add(out)
	b.slots = append(b.slots, p.newSlot(ctx, out, done))
	if b.messages < p.config.BatchSize && len(b.body) < maxBatchBytes {
		return true
	}
	// If this fails, out is judged with the others.
	p.publishBatch(c, b)
	return true
}

func (p *Publisher) fits(b *batch, out *outgoing) bool {
	return b.messages+out.messages <= p.config.BatchSize &&
		len(b.body)+3*len(out.pub.MessageId)+len(out.pub.Body)+len(" 123456789\n") <= min(maxBatchBytes, p.config.MaxBody)
}

func (p *Publisher) newBatch(to destination, out *outgoing) *batch {
	var b *batch
	if n := len(p.batches); n > 0 {
		b, p.batches = p.batches[n-1], p.batches[:n-1]
	} else {
		b = &batch{}
	}
	*b = batch{to: to, pub: out.pub, seq: out.seq, begin: time.Now(), slots: b.slots[:0], body: appendBatchStart(b.body[:0], out.seq)}
	b.pub.Body, b.pub.Headers = nil, nil // which are used again; an envelope has no headers
	return b
}

// add takes the messages of out over.
func (b *batch) add(out *outgoing) {
	if out.messages > 1 {
		b.body = append(b.body, out.pub.Body[batchStart(out.pub.Body):]...)
	} else {
		b.body = appendPart(b.body, out.pub.MessageId, out.pub.Body)
		if b.messages == 0 {
			b.first = len(b.body) - len(out.pub.Body)
		}
	}
	b.messages += out.messages
}

// publishBatch publishes b, which is in c's gathering until then, and returns false if the channel
// cannot go on. Called with mu locked.
func (p *Publisher) publishBatch(c *confirmChannel, b *batch) bool {
	pub := b.pub
	pub.Body = b.body
	if b.messages > 1 {
		pub.ContentEncoding = batchEncoding
	} else {
		pub.Body = b.body[b.first:]
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(b.to.exchange, b.to.key, true, false, pub)
	switch {
	case errors.Is(err, amqp091.ErrClosed): // the judge is about to notice
		if p.current == c {
			p.current = nil
		}
		return false
	case err != nil:
		p.fail(c, fmt.Errorf("publish: %w", err))
		return false
	}
	c.gathering.remove(b)
	in := &packet{seq: b.seq, exchange: b.to.exchange, key: b.to.key, confirm: confirm}
	now := time.Now()
	for _, s := range b.slots {
		s.in, s.written = in, now
		p.await(c, s)
	}
	c.packets++
	p.reuse(b)
	return true
}

func (p *Publisher) reuse(b *batch) {
	clear(b.slots)
	if len(p.batches) < maxPooledBatches && cap(b.body) <= 2*maxBatchBytes {
		p.batches = append(p.batches, b)
	}
}

// publishGathered publishes what has waited long enough, or need not wait any more. Called with mu
// locked.
func (p *Publisher) publishGathered(c *confirmChannel) {
	for len(c.gathering.order) > 0 && p.blocked == "" {
		b := c.gathering.order[0]
		if !slices.ContainsFunc(b.slots, func(s *slot) bool { return s.done != nil }) { // while the broker was blocking
			c.gathering.remove(b)
			_ = p.dropBatch(c, b, nil, nil)
			p.broadcast() // its bytes may be what somebody waits for
			continue
		}
		if c.packets >= packetsAlone && !p.closed && time.Since(b.begin) < gatherFor || !p.publishBatch(c, b) {
			return
		}
	}
}

// orphaned reports what was gathered for c, which is closed, or leaves it to the next channel: the
// broker has not seen the messages that were gathered when another one has ended c. Called with mu
// locked.
func (p *Publisher) orphaned(c *confirmChannel, judged []judgement) []judgement {
	cause := c.failure
	if cause == nil {
		cause = errNotConnected
	}
	for _, b := range c.gathering.order {
		if exception(c.failure) {
			p.postpone(b)
		}
		judged = p.dropBatch(c, b, cause, judged)
	}
	c.gathering = gathering{}
	return judged
}

// postpone takes out of b, which is in nothing, what somebody still waits for, and puts it behind
// the suspects.
func (p *Publisher) postpone(b *batch) {
	b.slots = slices.DeleteFunc(b.slots, func(s *slot) bool {
		if s.done == nil {
			return false
		}
		s.own = packet{exchange: b.to.exchange, key: b.to.key}
		s.in = &s.own
		p.suspects = append(p.suspects, s)
		return true
	})
}

// dropBatch ends b, which is in nothing, and reports those that somebody still waits for.
func (p *Publisher) dropBatch(c *confirmChannel, b *batch, cause error, judged []judgement) []judgement {
	for _, s := range b.slots {
		if s.done != nil {
			judged = append(judged, judgement{s.done, *unavailable(fmt.Errorf("connection lost before it was published: %w", cause))})
		} else {
			c.abandoned--
		}
		p.drop(s)
	}
	p.reuse(b)
	return judged
}
