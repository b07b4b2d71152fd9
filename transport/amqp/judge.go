package amqp

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/transport"
)

const (
	// sweepInterval is how long the judge waits for the oldest confirm before it looks at all
	// messages. Confirms come nearly in the order of the publishes. If one is missing, for example
	// from a queue without a leader, the other messages must not wait for it.
	sweepInterval = 5 * time.Millisecond
	// maxSkippedSweeps is how often in a row the judge does not look at all messages because the
	// oldest message is another each time. It delays the detection of overdue messages.
	maxSkippedSweeps = 20
)

// judgement is an outcome on its way to the caller of Send.
type judgement struct {
	done   func(transport.Result)
	result transport.Result
}

// judge finds the outcomes of a publisher's messages. Its methods are called by the goroutine that
// keeps the channel open.
type judge struct {
	*Publisher

	wake          chan struct{} // capacity 1: the judge has to look
	ctxEnded      atomic.Bool   // the context of an unconfirmed message has ended
	unblocked     time.Time     // when the broker last stopped blocking the connection
	confirmsAhead uint64        // the constant, except in tests

	// Scratch space of settle.
	answered []*slot
	judged   []judgement
}

// wakeUp has the judge look.
func (jd *judge) wakeUp() {
	select {
	case jd.wake <- struct{}{}:
	default:
	}
}

// watch reports outcomes until all messages on c are answered, and c is closed or the publisher is
// closing.
func (jd *judge) watch(c *confirmChannel, blocked <-chan amqp091.Blocking) {
	timer := time.NewTimer(sweepInterval)
	defer timer.Stop()
	armed, ended, closing := true, c.ended, jd.closing
	var closeBy time.Time
	var sweeps sweeps
	for {
		confirmed, oldest, idle := jd.oldest(c)
		if idle && (ended == nil || closing == nil) {
			return
		}
		if !idle && !armed {
			timer.Reset(sweepInterval)
			armed = true
		}
		all := false
		select {
		case <-confirmed:
		case <-timer.C:
			armed, all = false, sweeps.due(oldest)
		case <-jd.wake:
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
			}
			jd.setBlocked(ok && b.Active, b.Reason)
		case err := <-ended: // nil if this side closed the channel
			jd.recordEnd(c, err)
			ended, all = nil, true
		case <-closing:
			closing, closeBy = nil, time.Now().Add(jd.config.ConfirmTimeout)
		}
		if jd.ctxEnded.Swap(false) {
			all = true
		}
		if !closeBy.IsZero() && time.Now().After(closeBy) {
			jd.mu.Lock()
			jd.fail(c, ErrClosed)
			jd.mu.Unlock()
		}
		jd.settle(c, all)
	}
}

// oldest returns the confirm and the number of the oldest unconfirmed packet. It reports idle if no
// packet is unconfirmed or pending.
func (jd *judge) oldest(c *confirmChannel) (confirmed <-chan struct{}, seq string, idle bool) {
	jd.mu.Lock()
	defer jd.mu.Unlock()
	if c.first == nil {
		return nil, "", len(c.pending.order) == 0
	}
	return c.first.in.confirm.Done(), c.first.in.seq, false
}

// sweeps decides when to look at all slots. While confirms come in order, such a sweep finds
// nothing, and a sweep of a full window takes as long as judging a hundred messages.
type sweeps struct {
	oldest  string // seq of the oldest slot at the last call
	skipped int
}

func (s *sweeps) due(oldest string) bool {
	if oldest != s.oldest && s.skipped < maxSkippedSweeps {
		s.oldest = oldest
		s.skipped++
		return false
	}
	s.oldest, s.skipped = oldest, 0
	return true
}

// recordEnd records why c was closed.
func (jd *judge) recordEnd(c *confirmChannel, err *amqp091.Error) {
	jd.mu.Lock()
	defer jd.mu.Unlock()
	if jd.current == c {
		jd.current = nil
	}
	if c.failure == nil && err != nil {
		c.failure = err
	}
}

func (jd *judge) setBlocked(active bool, reason string) {
	jd.mu.Lock()
	defer jd.mu.Unlock()
	if !active {
		reason = ""
	} else if reason == "" {
		reason = "no reason given"
	}
	if reason != "" && jd.blocked == "" {
		jd.config.Logger.Warn("broker blocks the connection", "broker", jd.broker.name, "reason", reason)
		_ = fault.Reach(fault.BrokerBlocked)
	} else if reason == "" && jd.blocked != "" {
		jd.config.Logger.Info("broker no longer blocks the connection", "broker", jd.broker.name)
		jd.unblocked = time.Now()
	}
	jd.blocked = reason
	jd.broadcast()
}

// settle judges answered messages, either all or only those before the first unanswered message. It
// reports outcomes without the lock.
func (jd *judge) settle(c *confirmChannel, all bool) {
	jd.mu.Lock()
	// The order matters: first see which messages are confirmed, then take in the returns, then
	// judge. The broker sends a return before its confirm, so the returns of the confirmed messages
	// have arrived by now; returns of later confirms may be missing.
	answered := c.answered(jd.answered[:0], all)
	unanswered, closed := 0, c.ch.IsClosed()
	if closed {
		// Every message is answered now or in a moment: the client nacks each publish that is still
		// unanswered. If only one message was unanswered, it caused the exception.
		answered = answered[:0]
		for s := c.first; s != nil; s = s.next {
			<-s.in.confirm.Done()
			answered = append(answered, s)
			c.noteHandled(s, s.in.confirm.Acked())
		}
		for _, s := range answered {
			if !c.cleared(s) {
				unanswered++
			}
		}
		c.takeEnd()
	}
	c.takeReturns()
	judged := jd.judged[:0]
	for _, s := range answered {
		c.noteHandled(s, !closed)
		if unanswered > 1 && !s.in.confirm.Acked() && s.in.returned == nil && c.isSuspect(s) {
			jd.slots.unlink(c, s)
			jd.suspects.list = append(jd.suspects.list, s)
			continue
		}
		if s.done != nil {
			judged = append(judged, judgement{s.done, jd.outcome(c, s, closed, unanswered)})
		} else {
			c.abandoned--
		}
		jd.slots.release(c, s)
	}
	if len(answered) > 0 {
		c.lastAnswer = time.Now()
	}
	if closed {
		judged = jd.packets.end(c, judged)
	} else {
		jd.packets.publishDue(c)
	}
	if all {
		judged = jd.overdue(c, judged)
	}
	if len(answered) > 0 && jd.waiting > 0 {
		jd.broadcast()
	}
	clear(answered)
	jd.answered = answered
	jd.mu.Unlock()

	for i := range judged {
		if err := fault.Reach(fault.BrokerConfirmed); err != nil {
			judged[i].result = *unavailable(err)
		}
		judged[i].done(judged[i].result)
	}
	clear(judged)
	jd.judged = judged
}

// answered appends the slots that the broker has answered, either all or only those before the
// first unanswered slot.
func (c *confirmChannel) answered(slots []*slot, all bool) []*slot {
	for s := c.first; s != nil; s = s.next {
		select {
		case <-s.in.confirm.Done():
			slots = append(slots, s)
			continue
		default:
		}
		if !all {
			break
		}
	}
	return slots
}

// takeReturns assigns the broker's returns to their slots.
func (c *confirmChannel) takeReturns() {
	for {
		select {
		case r, ok := <-c.returns:
			if !ok {
				c.returns = nil
				return
			}
			seq := seqOf(&r)
			r.Body = nil
			for s := c.first; s != nil; s = s.next {
				if s.in.seq == seq {
					s.in.returned = &r
					break
				}
			}
		default:
			return
		}
	}
}

// takeEnd records why c was closed, if the judge has not seen it yet.
func (c *confirmChannel) takeEnd() {
	select {
	case err := <-c.ended:
		if c.failure == nil && err != nil {
			c.failure = err
		}
	default:
	}
}

// outcome judges an answered message. If the channel has closed, unanswered is the number of
// messages that may have caused it.
func (jd *judge) outcome(c *confirmChannel, s *slot, closed bool, unanswered int) transport.Result {
	switch {
	case s.in.confirm.Acked() && s.in.returned == nil:
		return transport.Result{Outcome: transport.Confirmed}
	case s.in.returned != nil:
		_ = fault.Reach(fault.BrokerReturned)
		c.unprepare(s.topic)
		return transport.Result{Outcome: transport.Returned, Err: fmt.Errorf("%w: exchange %q, routing key %q: %d %s",
			ErrUnroutable, s.in.exchange, s.in.key, s.in.returned.ReplyCode, s.in.returned.ReplyText)}
	case !closed:
		return transport.Result{Outcome: transport.Refused, Err: fmt.Errorf("%w: exchange %q, routing key %q",
			ErrNacked, s.in.exchange, s.in.key)}
	case unanswered > 1 || c.cleared(s):
		return *unavailable(fmt.Errorf("channel closed before the confirm: %w", errors.Join(errNotConnected, c.failure)))
	default:
		return jd.suspects.exceptionOutcome(c.failure, s)
	}
}

// confirmsAhead is how many later confirms one unanswered message may hold up in the client, some
// 20 MB: amqp091 keeps them to report confirms in order.
const confirmsAhead = 1 << 18

// overdue reports messages whose context or ConfirmTimeout has ended. After a ConfirmTimeout it
// cuts the connection in three cases: the broker has answered nothing since the message, abandoned
// messages take half of the window, or the client holds back too many confirms behind the message.
// So a queue that does not answer does not stop other queues. The connection stays while the broker
// blocks it: the broker answers nothing then, and a new connection would not help.
func (jd *judge) overdue(c *confirmChannel, judged []judgement) []judgement {
	since := time.Now().Add(-jd.config.ConfirmTimeout)
	for _, b := range c.pending.order {
		for _, s := range b.slots {
			judged = jd.giveUp(c, s, s.written.Before(since), judged)
		}
	}
	for s := c.first; s != nil; s = s.next {
		timedOut := s.written.Before(since)
		judged = jd.giveUp(c, s, timedOut, judged)
		if timedOut && jd.blocked == "" && jd.unblocked.Before(since) &&
			(c.lastAnswer.Before(s.written) || c.abandoned > jd.config.Window/2 || c.handled > s.in.confirm.DeliveryTag+jd.confirmsAhead) {
			jd.fail(c, fmt.Errorf("%w: no answer at all for %v", ErrConfirmTimeout, jd.config.ConfirmTimeout))
			break
		}
	}
	return judged
}

// giveUp reports s as unavailable if its context or time has ended.
func (jd *judge) giveUp(c *confirmChannel, s *slot, timedOut bool, judged []judgement) []judgement {
	if s.done == nil {
		return judged
	}
	err := jd.overdueError(s, timedOut)
	if err == nil {
		return judged
	}
	judged = append(judged, judgement{s.done, *unavailable(err)})
	s.done = nil
	c.abandoned++
	return judged
}

// overdueError returns the reason for which s is overdue, or nil.
func (jd *judge) overdueError(s *slot, timedOut bool) error {
	var err error
	switch {
	case s.watched != nil && s.watched.ctx.Err() != nil:
		err = fmt.Errorf("not confirmed yet: %w", s.watched.ctx.Err())
	case timedOut:
		err = ErrConfirmTimeout
	default:
		return nil
	}
	if jd.blocked != "" {
		return fmt.Errorf("%w (%w)", jd.blockedError(), err)
	}
	return err
}
