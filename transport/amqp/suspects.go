package amqp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// The broker ends a channel or a connection with an exception because of one message, and does not
// tell which. Suspects are the unanswered messages behind the last answered message. They keep
// their places in the window, and are published again singly on the next channel, before new
// messages. A request follows each suspect. The broker handles message and request in order: an
// answer to the request clears the message, whatever its queue does, and an exception identifies
// the message as the cause. Pending messages queue behind the suspects, so as not to overtake them,
// and are treated alike.

// isException tells whether err is an exception that a message may have caused.
func isException(err error) bool {
	code := errorCode(err)
	return code != 0 && code != amqp091.ConnectionForced
}

// noteHandled records that the broker has answered s, if answered is true. The broker handles
// messages in the order of publishing.
func (c *confirmChannel) noteHandled(s *slot, answered bool) {
	if answered {
		c.handled = max(c.handled, s.in.confirm.DeliveryTag)
	}
}

// cleared tells whether s cannot be the cause of the channel's end.
func (c *confirmChannel) cleared(s *slot) bool { return s.in.confirm.DeliveryTag <= c.handled }

// isSuspect tells whether s, which was unanswered when c closed, has to be published again to find
// the cause.
func (c *confirmChannel) isSuspect(s *slot) bool {
	return s.done != nil && !c.cleared(s) && isException(c.failure) && (s.msg != nil || s.msgs != nil)
}

// exceptionOutcome returns the outcome of the only message that was unanswered when its channel
// closed.
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
			return *unavailable(err) // the next publish declares the exchange again
		}
		return transport.Result{Outcome: transport.Returned, Err: fmt.Errorf("%w: %w", ErrUnroutable, err)}
	case amqp091.PreconditionFailed:
		return transport.Result{Outcome: transport.Invalid, Err: err}
	default: // also errors of the broker itself, after which it may accept the message later
		return transport.Result{Outcome: transport.Refused, Err: err}
	}
}

// clearedTimeout bounds the wait for the answers to all cleared messages of a channel. After that
// the next suspect is published, which may end the channel.
const clearedTimeout = time.Second

// retrySuspects publishes the suspects on c one by one, and tells whether c can still be used. No
// other message is published on c meanwhile. No topology is declared: a queue that does not answer
// would hold up all suspects.
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

// retryAlone publishes s and waits until the broker has handled it, then for its answer until
// expired is closed. It returns an outcome if s was not published.
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
		c.conn.raw.abort() // the message may have been written in part
		return unavailable(fmt.Errorf("publish: %w", err))
	}
	p.mu.Lock()
	s.own = packet{seq: out.seq, exchange: out.exchange, key: out.key, confirm: confirm}
	s.in, s.written = &s.own, time.Now()
	p.addUnconfirmed(c, s)
	c.packets++
	p.mu.Unlock()
	stop := c.conn.cutAfter(p.config.ConfirmTimeout)
	err = c.ch.Qos(0, 0, false) // any request with an answer will do
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

// attributeException is called when c has ended after the retry of s. It reports s, with r or with
// the outcome of the exception, then the cleared messages of c that were not answered, then the
// suspects that would cause the same exception. If c did not end with an exception, it reports all
// suspects as unavailable.
func (p *Publisher) attributeException(c *confirmChannel, s *slot, r *transport.Result) {
	p.recordEnd(c, <-c.ended) // c.ended receives at the latest when the client has seen the end
	var culprit *packet
	if r == nil && !c.cleared(s) {
		p.mu.Lock()
		outcome := p.exceptionOutcome(c.failure, s)
		in := *s.in
		p.unlink(c, s)
		p.mu.Unlock()
		r, culprit = &outcome, &in
	}
	if r != nil {
		p.reportSlot(s, *r)
	}
	p.settle(c, true)
	switch {
	case !isException(c.failure):
		p.giveUpSuspects(errors.Join(errNotConnected, c.failure))
	case culprit != nil:
		code := errorCode(c.failure)
		p.reportSuspects(*r, func(s *slot) bool { return sameException(code, culprit, s.in) })
	}
}

// sameException tells whether b would cause the same exception as a, which closed a channel with
// this code.
func sameException(code int, a, b *packet) bool {
	switch code {
	case amqp091.NotFound: // the exchange does not exist
		return a.exchange == b.exchange
	case amqp091.AccessRefused: // no permission for the exchange, or for this routing key of it
		return a.exchange == b.exchange && a.key == b.key
	default:
		return false
	}
}

// reportSlot reports the outcome of s, which was removed from its channel and from the suspects.
func (p *Publisher) reportSlot(s *slot, r transport.Result) {
	p.mu.Lock()
	done := s.done
	p.drop(s)
	p.broadcast()
	p.mu.Unlock()
	done(r)
}

// reportSuspects reports r for the suspects for which concerns is true.
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
