package amqp

import (
	"errors"
	"fmt"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/transport"
)

const (
	// sweepInterval is how long the judge waits for the oldest confirm before it
	// looks at all of them. Confirms come in nearly the order of the publishes; when
	// one is missing, as from a queue without a leader, the others go on.
	sweepInterval = 5 * time.Millisecond
	// maxSkippedSweeps is how many times in a row it does not look at all of them, since the oldest
	// one is another each time. What is overdue is seen so much later.
	maxSkippedSweeps = 20
)

// judgement is an outcome on its way to who asked for it.
type judgement struct {
	done   func(transport.Result)
	result transport.Result
}

func (p *Publisher) wakeJudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// judge reports outcomes until c is closed and nothing is unconfirmed on it, or
// the publisher is closing and nothing is unconfirmed.
func (p *Publisher) judge(c *confirmChannel, blocked <-chan amqp091.Blocking) {
	timer := time.NewTimer(sweepInterval)
	defer timer.Stop()
	armed, ended, closing := true, c.ended, p.closing
	var closeBy time.Time
	var sweeps sweeps
	for {
		confirmed, oldest, idle := p.oldest(c)
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
		case <-p.wake:
		case b, ok := <-blocked:
			if !ok {
				blocked = nil
			}
			p.setBlocked(ok && b.Active, b.Reason)
		case err := <-ended: // nil when it was closed from here
			p.end(c, err)
			ended, all = nil, true
		case <-closing:
			closing, closeBy = nil, time.Now().Add(p.config.ConfirmTimeout)
		}
		if p.ctxEnded.Swap(false) {
			all = true
		}
		if !closeBy.IsZero() && time.Now().After(closeBy) {
			p.mu.Lock()
			p.fail(c, ErrClosed)
			p.mu.Unlock()
		}
		p.settle(c, all)
	}
}

// oldest tells which packet was published first of those that are unconfirmed, and when it is
// confirmed; and whether nothing is unconfirmed or gathered.
func (p *Publisher) oldest(c *confirmChannel) (confirmed <-chan struct{}, seq string, idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.first == nil {
		return nil, "", len(c.pending.order) == 0
	}
	return c.first.in.confirm.Done(), c.first.in.seq, false
}

// sweeps tells when to look at all slots. While confirms come in their order there is nothing to be
// found, and a look at a full window takes as long as to judge a hundred messages.
type sweeps struct {
	oldest  string // seq of the oldest slot, the last time
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

// end notes why c was closed.
func (p *Publisher) end(c *confirmChannel, err *amqp091.Error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.current == c {
		p.current = nil
	}
	if c.failure == nil && err != nil {
		c.failure = err
	}
}

func (p *Publisher) setBlocked(active bool, reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !active {
		reason = ""
	} else if reason == "" {
		reason = "no reason given"
	}
	if reason != "" && p.blocked == "" {
		p.config.Logger.Warn("broker blocks the connection", "broker", p.broker.name, "reason", reason)
		_ = fault.Reach(fault.BrokerBlocked)
	} else if reason == "" && p.blocked != "" {
		p.config.Logger.Info("broker no longer blocks the connection", "broker", p.broker.name)
		p.unblocked = time.Now()
	}
	p.blocked = reason
	p.broadcast()
}

// settle judges what has been confirmed: from the oldest up to the first that has
// not, or all. Outcomes are reported without the lock.
func (p *Publisher) settle(c *confirmChannel, all bool) {
	p.mu.Lock()
	// First see what is confirmed, then take in the returns, then decide. The
	// returns of what was confirmed are in the channel by now, since the broker
	// sends them before; those of what is confirmed later may not be.
	answered := c.answered(p.answered[:0], all)
	unanswered, closed := 0, c.ch.IsClosed()
	if closed {
		// All are answered now or in a moment, with a nack if nobody knows better;
		// how many those are tells whether the culprit is known.
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
		c.noteEnd()
	}
	c.takeReturns()
	judged := p.judged[:0]
	for _, s := range answered {
		c.noteHandled(s, !closed)
		if unanswered > 1 && !s.in.confirm.Acked() && s.in.returned == nil && c.isSuspect(s) {
			p.unlink(c, s)
			p.suspects = append(p.suspects, s)
			continue
		}
		if s.done != nil {
			judged = append(judged, judgement{s.done, p.outcome(c, s, closed, unanswered)})
		} else {
			c.abandoned--
		}
		p.release(c, s)
	}
	if len(answered) > 0 {
		c.lastAnswer = time.Now()
	}
	if closed {
		judged = p.endPending(c, judged)
	} else {
		p.publishDue(c)
	}
	if all {
		judged = p.overdue(c, judged)
	}
	if len(answered) > 0 && p.waiting > 0 {
		p.broadcast()
	}
	clear(answered)
	p.answered = answered
	p.mu.Unlock()

	for i := range judged {
		if err := fault.Reach(fault.BrokerConfirmed); err != nil {
			judged[i].result = *unavailable(err)
		}
		judged[i].done(judged[i].result)
	}
	clear(judged)
	p.judged = judged
}

// answered appends the slots whose confirm has come: from the oldest up to the
// first that has none, or all.
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

// takeReturns books what the broker has returned.
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

// noteEnd notes why c was closed, if the judge has not seen it yet.
func (c *confirmChannel) noteEnd() {
	select {
	case err := <-c.ended:
		if c.failure == nil && err != nil {
			c.failure = err
		}
	default:
	}
}

// outcome judges an answered message. When the channel has closed, lost is how
// many calls were not answered on it and may be why.
func (p *Publisher) outcome(c *confirmChannel, s *slot, closed bool, unanswered int) transport.Result {
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
		return p.exceptionOutcome(c.failure, s)
	}
}

// confirmsAhead is how many later confirms one unanswered message may hold up in the client, some
// 20 MB: amqp091 keeps each of them until it can tell them in their order.
const confirmsAhead = 1 << 18

// overdue reports messages whose context or ConfirmTimeout has ended. The connection is cut if the
// broker has answered nothing since such a message, if half of the window is taken by messages that
// nobody waits for, or if the client keeps too many confirms behind it: a queue that answers
// nothing must not stop the others. While the broker blocks the connection it answers nothing, and
// nothing would be won.
func (p *Publisher) overdue(c *confirmChannel, judged []judgement) []judgement {
	since := time.Now().Add(-p.config.ConfirmTimeout)
	for _, b := range c.pending.order {
		for _, s := range b.slots {
			judged = p.giveUp(c, s, s.written.Before(since), judged)
		}
	}
	for s := c.first; s != nil; s = s.next {
		timedOut := s.written.Before(since)
		judged = p.giveUp(c, s, timedOut, judged)
		if timedOut && p.blocked == "" && p.unblocked.Before(since) &&
			(c.lastAnswer.Before(s.written) || c.abandoned > p.config.Window/2 || c.handled > s.in.confirm.DeliveryTag+p.confirmsAhead) {
			p.fail(c, fmt.Errorf("%w: nothing for %v", ErrConfirmTimeout, p.config.ConfirmTimeout))
			break
		}
	}
	return judged
}

// giveUp reports s if nobody waits for it any more.
func (p *Publisher) giveUp(c *confirmChannel, s *slot, timedOut bool, judged []judgement) []judgement {
	if s.done == nil {
		return judged
	}
	err := p.overdueError(s, timedOut)
	if err == nil {
		return judged
	}
	judged = append(judged, judgement{s.done, *unavailable(err)})
	s.done = nil
	c.abandoned++
	return judged
}

// overdueError says why nobody waits for s any more, or nil.
func (p *Publisher) overdueError(s *slot, timedOut bool) error {
	var err error
	switch {
	case s.watched != nil && s.watched.ctx.Err() != nil:
		err = fmt.Errorf("not confirmed yet: %w", s.watched.ctx.Err())
	case timedOut:
		err = ErrConfirmTimeout
	default:
		return nil
	}
	if p.blocked != "" {
		return fmt.Errorf("%w (%w)", p.blockedError(), err)
	}
	return err
}
