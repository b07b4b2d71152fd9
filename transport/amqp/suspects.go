package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// The broker ends a channel, or a connection, with an exception for one message, and does not say
// for which. All that it had not answered for, nor for a later one, are suspects then, and keep
// their places in the window. They are published again one by one on the next channel, before
// anything else, each followed by a request: the broker handles both in this order, so that an
// answer to the request clears the message, whatever its queue does, and another exception names
// the culprit. What was gathered and not published yet goes behind them in the same way, so that it
// does not overtake them.

// isException tells whether err is an exception that a message may have caused.
func isException(err error) bool {
	code := errorCode(err)
	return code != 0 && code != amqp091.ConnectionForced
}

// noteHandled notes that the broker has answered for s, if it has. It handles messages in the order
// in which they were published.
func (c *confirmChannel) noteHandled(s *slot, answered bool) {
	if answered {
		c.handled = max(c.handled, s.in.confirm.DeliveryTag)
	}
}

// cleared tells whether s cannot have closed the channel.
func (c *confirmChannel) cleared(s *slot) bool { return s.in.confirm.DeliveryTag <= c.handled }

// isSuspect tells whether s, which was not answered before c closed, is to be published again to
// find the culprit.
func (c *confirmChannel) isSuspect(s *slot) bool {
	return s.done != nil && !c.cleared(s) && isException(c.failure) && (s.msg != nil || s.msgs != nil)
}

// exceptionOutcome judges a message that was alone unanswered when its channel closed.
func (p *Publisher) exceptionOutcome(cause error, s *slot) transport.Result {
	if cause == nil {
		cause = errNotConnected
	}
	if !isException(cause) {
		return *unavailable(fmt.Errorf("connection lost before the confirm: %w", cause))
	}
	err := fmt.Errorf("exchange %q, routing key %q: %w", s.in.exchange, s.in.key, cause)
	switch errorCode(cause) {
	case amqp091.NotFound:
		if p.config.Topology == Declare {
			return *unavailable(err) // it is declared again before the next publish
		}
		return transport.Result{Outcome: transport.Returned, Err: fmt.Errorf("%w: %w", ErrUnroutable, err)}
	case amqp091.PreconditionFailed:
		return transport.Result{Outcome: transport.Invalid, Err: err}
	default: // and what the broker may take another time, as after a failure of its own
		return transport.Result{Outcome: transport.Refused, Err: err}
	}
}

// clearedTimeout is for how long at most the answers for all messages that were cleared on a
// channel are waited for, before the next message may end it.
const clearedTimeout = time.Second

// retrySuspects publishes suspects on c until there are none, and tells whether c is still to be used.
// Nobody else publishes on it meanwhile. Topologies are not declared: a queue that answers nothing
// would hold up all others.
func (p *Publisher) retrySuspects(c *confirmChannel) bool {
	bounded, cancel := context.WithTimeout(context.Background(), min(clearedTimeout, p.config.ConfirmTimeout/8))
	defer cancel()
	for {
		p.mu.Lock()
		if len(p.suspects) == 0 {
			p.mu.Unlock()
			return true
		}
		s := p.suspects[0]
		p.suspects = p.suspects[1:]
		p.mu.Unlock()
		r := p.retryAlone(c, s, bounded.Done())
		if !c.ch.IsClosed() {
			if r != nil {
				p.reportSlot(s, *r)
			}
			continue
		}
		p.attributeException(c, s, r)
		return false
	}
}

// retryAlone publishes s, and waits until the broker has handled it, and answered or patience is
// over. It returns an outcome if s was not published.
func (p *Publisher) retryAlone(c *confirmChannel, s *slot, expired <-chan struct{}) *transport.Result {
	if err := s.context().Err(); err != nil {
		return unavailable(fmt.Errorf("not confirmed yet: %w", err))
	}
	if p.isClosed() {
		return unavailable(ErrClosed)
	}
	out := outgoing{topic: s.topic, seq: p.nextSeq(), messages: s.messages}
	used, err := p.encode(s, &out)
	if err != nil {
		return &transport.Result{Outcome: transport.Invalid, Err: err}
	}
	confirm, err := c.ch.PublishWithDeferredConfirm(out.exchange, out.key, true, false, out.pub)
	if used != nil {
		used.release()
	}
	if err != nil {
		c.conn.raw.abort() // half a message may have been written
		return unavailable(fmt.Errorf("publish: %w", err))
	}
	p.mu.Lock()
	s.own = packet{seq: out.seq, exchange: out.exchange, key: out.key, confirm: confirm}
	s.in, s.written = &s.own, time.Now()
	p.await(c, s)
	c.packets++
	p.mu.Unlock()
	stop := c.conn.cutAfter(p.config.ConfirmTimeout)
	err = c.ch.Qos(0, 0, false) // any request will do
	stop()
	if err != nil {
		return nil
	}
	p.mu.Lock()
	c.noteHandled(s, true)
	p.mu.Unlock()
	select {
	case <-confirm.Done():
	case <-expired:
	}
	return nil
}

// attributeException judges s, on which c has ended, unless it has an outcome already; those that share its
// fate; and those that were cleared on c and not answered. When the end says nothing of a message,
// all suspects are unavailable.
func (p *Publisher) attributeException(c *confirmChannel, s *slot, r *transport.Result) {
	p.end(c, <-c.ended) // at the latest when the client has seen the end
	var convicted *packet
	if r == nil && !c.cleared(s) {
		p.mu.Lock()
		verdict := p.exceptionOutcome(c.failure, s)
		in := *s.in
		p.unlink(c, s)
		p.mu.Unlock()
		r, convicted = &verdict, &in
	}
	if r != nil {
		p.reportSlot(s, *r)
	}
	p.settle(c, true)
	switch {
	case !isException(c.failure):
		p.giveUpSuspects(errors.Join(errNotConnected, c.failure))
	case convicted != nil:
		code := errorCode(c.failure)
		p.reportSuspects(*r, func(s *slot) bool { return sameException(code, convicted, s.in) })
	}
}

// sameException tells whether the broker answers for b as for a, which it has closed a channel for with
// this code.
func sameException(code int, a, b *packet) bool {
	switch code {
	case amqp091.NotFound: // of the exchange
		return a.exchange == b.exchange
	case amqp091.AccessRefused: // to the exchange, or to this key of it
		return a.exchange == b.exchange && a.key == b.key
	default:
		return false
	}
}

// reportSlot reports s, which is in nothing.
func (p *Publisher) reportSlot(s *slot, r transport.Result) {
	p.mu.Lock()
	done := s.done
	p.drop(s)
	p.broadcast()
	p.mu.Unlock()
	done(r)
}

// reportSuspects reports the suspects of which that is true.
func (p *Publisher) reportSuspects(r transport.Result, concerns func(*slot) bool) {
	p.mu.Lock()
	var concerned, others []*slot
	for _, s := range p.suspects {
		if concerns(s) {
			concerned = append(concerned, s)
		} else {
			others = append(others, s)
		}
	}
	p.suspects = others
	p.mu.Unlock()
	for _, s := range concerned {
		p.reportSlot(s, r)
	}
}

// giveUpSuspects reports all suspects as unavailable.
func (p *Publisher) giveUpSuspects(cause error) {
	p.reportSuspects(*unavailable(cause), func(*slot) bool { return true })
}
