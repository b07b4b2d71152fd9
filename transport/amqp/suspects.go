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

// suspects publishes the suspects of a publisher again.
type suspects struct {
	*Publisher

	list []*slot
}

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
func (su *suspects) exceptionOutcome(cause error, s *slot) transport.Result {
	if cause == nil {
		cause = errNotConnected
	}
	if !isException(cause) {
		return *unavailable(fmt.Errorf("connection lost before the confirm: %w", cause))
	}
	err := fmt.Errorf("exchange %q, routing key %q: %w", s.in.exchange, s.in.key, cause)
	switch errorCode(cause) {
	case amqp091.NotFound:
		if su.config.Topology == Declare {
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

// retryAll publishes the suspects on c one by one, and tells whether c can still be used. No
// other message is published on c meanwhile. No topology is declared: a queue that does not answer
// would hold up all suspects.
func (su *suspects) retryAll(c *confirmChannel) bool {
	bounded, cancel := context.WithTimeout(context.Background(), min(clearedTimeout, su.config.ConfirmTimeout/8))
	defer cancel()
	for {
		su.mu.Lock()
		if len(su.list) == 0 {
			su.mu.Unlock()
			return true
		}
		s := su.list[0]
		su.list = su.list[1:]
		su.mu.Unlock()
		r := su.retryAlone(c, s, bounded.Done())
		if !c.ch.IsClosed() {
			if r != nil {
				su.reportSlot(s, *r)
			}
			continue
		}
		su.attributeException(c, s, r)
		return false
	}
}

// retryAlone publishes s and waits until the broker has handled it, then for its answer until
// expired is closed. It returns an outcome if s was not published.
func (su *suspects) retryAlone(c *confirmChannel, s *slot, expired <-chan struct{}) *transport.Result {
	if err := s.context().Err(); err != nil {
		return unavailable(fmt.Errorf("not confirmed yet: %w", err))
	}
	if su.isClosed() {
		return unavailable(ErrClosed)
	}
	out := outgoing{topic: s.topic, seq: su.nextSeq(), messages: s.messages}
	used, err := su.encode(s, &out)
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
	su.mu.Lock()
	s.own = packet{seq: out.seq, exchange: out.exchange, key: out.key, confirm: confirm}
	s.in, s.written = &s.own, time.Now()
	su.slots.addUnconfirmed(c, s)
	c.packets++
	su.mu.Unlock()
	stop := c.conn.cutAfter(su.config.ConfirmTimeout)
	err = c.ch.Qos(0, 0, false) // any request with an answer will do
	stop()
	if err != nil {
		return nil
	}
	su.mu.Lock()
	c.noteHandled(s, true)
	su.mu.Unlock()
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
func (su *suspects) attributeException(c *confirmChannel, s *slot, r *transport.Result) {
	su.judge.recordEnd(c, <-c.ended) // c.ended receives at the latest when the client has seen the end
	var culprit *packet
	if r == nil && !c.cleared(s) {
		su.mu.Lock()
		outcome := su.exceptionOutcome(c.failure, s)
		in := *s.in
		su.slots.unlink(c, s)
		su.mu.Unlock()
		r, culprit = &outcome, &in
	}
	if r != nil {
		su.reportSlot(s, *r)
	}
	su.judge.settle(c, true)
	switch {
	case !isException(c.failure):
		su.giveUp(errors.Join(errNotConnected, c.failure))
	case culprit != nil:
		code := errorCode(c.failure)
		su.report(*r, func(s *slot) bool { return sameException(code, culprit, s.in) })
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
func (su *suspects) reportSlot(s *slot, r transport.Result) {
	su.mu.Lock()
	done := s.done
	su.slots.drop(s)
	su.broadcast()
	su.mu.Unlock()
	done(r)
}

// report reports r for the suspects for which concerns is true.
func (su *suspects) report(r transport.Result, concerns func(*slot) bool) {
	su.mu.Lock()
	var concerned, others []*slot
	for _, s := range su.list {
		if concerns(s) {
			concerned = append(concerned, s)
		} else {
			others = append(others, s)
		}
	}
	su.list = others
	su.mu.Unlock()
	for _, s := range concerned {
		su.reportSlot(s, r)
	}
}

// giveUp reports all suspects as unavailable.
func (su *suspects) giveUp(cause error) {
	su.report(*unavailable(cause), func(*slot) bool { return true })
}
