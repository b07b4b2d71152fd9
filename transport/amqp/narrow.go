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

// exception tells whether err is an exception that a message may have caused.
func exception(err error) bool {
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
	return s.done != nil && !c.cleared(s) && exception(c.failure) && (s.msg != nil || s.msgs != nil)
}

// lost judges a message that was alone unanswered when its channel closed.
func (p *Publisher) lost(cause error, s *slot) transport.Result {
	if cause == nil {
		cause = errNotConnected
	}
	if !exception(cause) {
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

// patienceWithCleared is for how long at most the answers for all messages that were cleared on a
// channel are waited for, before the next message may end it.
const patienceWithCleared = time.Second

// narrow publishes suspects on c until there are none, and tells whether c is still to be used.
// Nobody else publishes on it meanwhile. Topologies are not declared: a queue that answers nothing
// would hold up all others.
func (p *Publisher) narrow(c *confirmChannel) bool {
	patience, cancel := context.WithTimeout(context.Background(), min(patienceWithCleared, p.config.ConfirmTimeout/8))
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
		r := p.tryAlone(c, s, patience.Done())
		if !c.ch.IsClosed() {
			if r != nil {
				p.finish(s, *r)
			}
			continue
		}
		p.convict(c, s, r)
		return false
	}
}

// tryAlone publishes s, and waits until the broker has handled it, and answered or patience is
// over. It returns an outcome if s was not published.
func (p *Publisher) tryAlone(c *confirmChannel, s *slot, patience <-chan struct{}) *transport.Result {
	if err := s.ctx().Err(); err != nil {
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
	stop := c.conn.guard(p.config.ConfirmTimeout)
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
	case <-patience:
	}
	return nil
}

// convict judges s, on which c has ended, unless it has an outcome already; those that share its
// fate; and those that were cleared on c and not answered. When the end says nothing of a message,
// all suspects are unavailable.
func (p *Publisher) convict(c *confirmChannel, s *slot, r *transport.Result) {
	p.end(c, <-c.ended) // at the latest when the client has seen the end
	var convicted *packet
	if r == nil && !c.cleared(s) {
		p.mu.Lock()
		verdict := p.lost(c.failure, s)
		in := *s.in
		p.unlink(c, s)
		p.mu.Unlock()
		r, convicted = &verdict, &in
	}
	if r != nil {
		p.finish(s, *r)
	}
	p.settle(c, true)
	switch {
	case !exception(c.failure):
		p.acquit(errors.Join(errNotConnected, c.failure))
	case convicted != nil:
		code := errorCode(c.failure)
		p.report(*r, func(s *slot) bool { return sameFate(code, convicted, s.in) })
	}
}

// sameFate tells whether the broker answers for b as for a, which it has closed a channel for with
// this code.
func sameFate(code int, a, b *packet) bool {
	switch code {
	case amqp091.NotFound: // of the exchange
		return a.exchange == b.exchange
	case amqp091.AccessRefused: // to the exchange, or to this key of it
		return a.exchange == b.exchange && a.key == b.key
	default:
		return false
	}
}

// finish reports s, which is in nothing.
func (p *Publisher) finish(s *slot, r transport.Result) {
	p.mu.Lock()
	done := s.done
	p.drop(s)
	p.broadcast()
	p.mu.Unlock()
	done(r)
}

// report reports the suspects of which that is true.
func (p *Publisher) report(r transport.Result, concerns func(*slot) bool) {
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
		p.finish(s, r)
	}
}

// acquit reports all suspects as unavailable.
func (p *Publisher) acquit(cause error) {
	p.report(*unavailable(cause), func(*slot) bool { return true })
}

// dial connects, and reports suspects whose context ends meanwhile.
func (p *Publisher) dial(ctx context.Context) (conn *connection, err error) {
	connected := make(chan struct{})
	p.tasks.Go(func() {
		defer close(connected)
		conn, err = p.broker.dial(ctx)
	})
	for {
		select {
		case <-connected:
			return conn, err
		case <-p.nudge:
		}
		for _, cause := range []error{context.Canceled, context.DeadlineExceeded} {
			p.report(*unavailable(fmt.Errorf("not confirmed yet: %w", cause)), func(s *slot) bool { return errors.Is(s.ctx().Err(), cause) })
		}
	}
}

// ctx returns the context of s, as far as it can end.
func (s *slot) ctx() context.Context {
	if s.watch == nil {
		return context.Background()
	}
	return s.watch.ctx
}

func (p *Publisher) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
