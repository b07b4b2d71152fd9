package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

// delivery is the handling of one delivered message, from its arrival to its
// acknowledgement.
type delivery struct {
	in          *incoming
	who         subject // once it is known
	redelivered bool    // the transport says so
	suspect     bool    // it may have been begun before, without coming back
	attempted   bool

	term    dedupe.Term
	quick   int  // counted attempts
	unknown bool // the outcome of a commit was not known
	ended   bool // a handler has ended the transaction of the claim: if that is committed, nobody knows what else is

	since time.Time // of the first wait for the database
	waits int
}

// handle applies the message or parks it. On an error it did neither.
func (h *Handler[TX]) handle(ctx context.Context, d *delivery) error {
	if h.groups == nil {
		return h.handleAlone(ctx, d)
	}
	m := newMember(ctx, d)
	defer close(m.done)
	m.err = h.groups.handle(m)
	return m.err
}

// handleAlone is handle in transactions for the message alone.
func (h *Handler[TX]) handleAlone(ctx context.Context, d *delivery) error {
	if err := h.ensureRegistered(ctx, d); err != nil {
		return err
	}
	d.term = h.term()
	return h.retryLoop(ctx, d, h.begin(ctx, d))
}

// retryLoop is what follows the first attempt.
func (h *Handler[TX]) retryLoop(ctx context.Context, d *delivery, a attempt) error {
	for {
		if a.ended {
			return a.err
		}
		if a.ran {
			d.ended = false // the claim was free: what a handler has ended before was not committed
		}
		f := h.judge(a, d)
		switch f {
		case settled:
			return h.settle(ctx, d, a)
		case unknown:
			again := d.unknown
			d.unknown = true
			h.counts.unknown.Add(1)
			h.log.WarnContext(ctx, "outcome of a commit is unknown: asking again", h.attrs(d.in, "error", a.err)...)
			if !again { // at once, on another connection: the claim waits for the old one and tells
				h.trouble(d, a.err)
			} else if !h.hold(ctx, d, a.err) {
				return a.err
			}
		case troubled:
			if !h.hold(ctx, d, a.err) {
				return a.err
			}
		case killed:
			h.log.ErrorContext(ctx, "message kills the process", h.attrs(d.in, "error", a.err)...)
			return h.park(ctx, d, inbox.Parking{State: inbox.Dead, LastError: text(a.err)})
		default:
			if done, err := h.fail(ctx, d, a, f); done {
				return err
			}
		}
		if err := h.ensureRegistered(ctx, d); err != nil {
			return err
		}
		d.term = h.term()
		a = h.begin(ctx, d)
	}
}

// begin makes one attempt.
func (h *Handler[TX]) begin(ctx context.Context, d *delivery) attempt {
	if d.suspect {
		a := h.suspected(ctx, d.in.event.ID, 0, func(starts int) attempt { return h.apply(ctx, d.in, false, starts) })
		d.suspect = !a.ran && a.err != nil // else it came back
		return a
	}
	inside, err := h.gate.enter(ctx, besideOthers, h.cfg.Timeout)
	if err != nil {
		return attempt{err: err, ended: true}
	}
	defer h.gate.leave(inside)
	// What comes again may have been applied, and the handler would run in vain.
	optimistic := h.cfg.Optimistic && !d.redelivered && !d.attempted
	d.attempted = true
	return h.apply(ctx, d.in, optimistic, 0)
}

func (h *Handler[TX]) apply(ctx context.Context, in *incoming, optimistic bool, starts int) attempt {
	return h.try(ctx, optimistic, func(ctx context.Context, fn begun[TX]) (inbox.Verdict, error) {
		c := h.claim(in)
		c.Optimistic, c.Started = optimistic, starts > 0
		return h.inbox.store.Apply(ctx, c, func(ctx context.Context, tx TX) error {
			if err := h.tooManyStarts(starts); err != nil {
				return err
			}
			return fn(ctx, tx, in)
		})
	})
}

func (h *Handler[TX]) claim(in *incoming) inbox.Claim {
	c := inbox.Claim{
		Consumer: h.consumer(), ID: in.event.ID, Digest: in.event.Digest, Stamp: in.event.Stamp,
		Isolation: h.cfg.Isolation, IdleTimeout: h.cfg.Timeout + idleGrace, LockTimeout: h.cfg.LockTimeout,
	}
	if h.cfg.Ordered && in.order != "" {
		c.Key, c.Message = in.order, in.stored()
	}
	return c
}

// settle does what a verdict asks for.
func (h *Handler[TX]) settle(ctx context.Context, d *delivery, a attempt) error {
	id, digest := d.in.event.ID, d.in.event.Digest
	switch a.verdict {
	case inbox.Applied:
		if err := fault.Hit(ctx, fault.BeforeWindow); err != nil {
			return err
		}
		h.applied(d.who, a.wrote)
		h.remember(d.term, id, digest)
	case inbox.Duplicate:
		if d.ended {
			return h.parkEnded(ctx, d)
		}
		if d.unknown { // the attempt before it was committed
			h.applied(d.who, true)
		} else {
			h.inbox.outages.success(d.who)
			h.counts.table.Add(1)
		}
		// What was claimed may have a digest that this copy does not know. Remembered
		// without it, an altered copy would pass for a duplicate.
		if !digest.IsZero() {
			h.remember(d.term, id, digest)
		}
	case inbox.Followed:
		h.inbox.outages.success(d.who)
		h.counts.followed.Add(1)
		h.remember(d.term, id, digest)
		h.inbox.reportIdle(ctx)
	case inbox.Altered:
		h.log.ErrorContext(ctx, "dispatch ID was claimed with other content: message set aside", h.attrs(d.in)...)
		return h.park(ctx, d, inbox.Parking{State: inbox.AlteredState, LastError: "dispatch ID was claimed with other content"})
	case inbox.TooOld:
		h.log.ErrorContext(ctx, "message is from a time that the consumer has forgotten: set aside", h.attrs(d.in)...)
		return h.park(ctx, d, inbox.Parking{State: inbox.TooOldState, LastError: "older than what the consumer remembers"})
	default:
		return fmt.Errorf("store gave the verdict %d", a.verdict)
	}
	return nil
}

func (h *Handler[TX]) applied(who subject, wrote bool) {
	h.inbox.outages.success(who)
	h.counts.applied.Add(1)
	if h.effects != nil {
		signal(h.effects.wake)
	}
	if wrote && h.inbox.outbox != nil {
		h.inbox.outbox.Committed()
	}
}

// fail counts a failed attempt. It tells whether the delivery has come to its end,
// and how.
func (h *Handler[TX]) fail(ctx context.Context, d *delivery, a attempt, f nextStep) (done bool, err error) {
	attempts, err := h.count(ctx, d.in, a.err)
	if err != nil { // not even that could be kept
		if h.hold(ctx, d, err) {
			return false, nil
		}
		return true, errors.Join(a.err, err)
	}
	h.logFailure(ctx, d.in, attempts, a.err)
	p := inbox.Parking{State: inbox.Retrying, Attempts: attempts, LastError: text(a.err)}
	d.quick++
	switch {
	case f == buried, attempts >= h.cfg.MaxAttempts:
		p.State = inbox.Dead
	case f == postponed:
		p.RetryIn = postponedFor(a.err)
	case d.quick < h.cfg.QuickAttempts && pace.Sleep(ctx, h.inbox.jitter(doubled(h.cfg.QuickBackoff, d.quick-1))) == nil:
		return false, nil
	default:
		p.RetryIn = h.backoff(attempts)
	}
	return true, h.park(ctx, d, p)
}

func (h *Handler[TX]) count(ctx context.Context, in *incoming, cause error) (int, error) {
	ctx, cancel := h.operation(ctx)
	defer cancel()
	attempts, err := h.inbox.store.Failed(ctx, h.consumer(), in.event.ID, text(cause))
	if err != nil {
		return 0, fmt.Errorf("count the attempt: %w", err)
	}
	h.counts.failed.Add(1)
	return attempts, nil
}

// refuse parks a message that must not be handled.
func (h *Handler[TX]) refuse(ctx context.Context, d *delivery, why error) error {
	d.term = h.term()
	h.counts.refused.Add(1)
	h.log.ErrorContext(ctx, "message cannot be handled", h.attrs(d.in, "error", why)...)
	return h.park(ctx, d, inbox.Parking{State: inbox.Dead, LastError: text(why)})
}

// park keeps the message in the database, so that it can be acknowledged. On an
// error that could not be done.
func (h *Handler[TX]) park(ctx context.Context, d *delivery, p inbox.Parking) error {
	p.Consumer, p.Message = h.consumer(), d.in.stored()
	p.Ordered = h.cfg.Ordered && p.Message.Key != ""
	asked := false // an earlier try may have been committed
	for {
		verdict, err := h.parkOnce(ctx, p)
		if err == nil && verdict == inbox.Duplicate && d.ended && p.State != inbox.AlteredState {
			return h.parkEnded(ctx, d)
		}
		if err == nil {
			h.parked(ctx, d, p, verdict == inbox.Duplicate && !asked)
			return nil
		}
		asked = asked || h.inbox.store.Classify(err) == inbox.CommitUnknown
		if !h.hold(ctx, d, err) {
			return fmt.Errorf("park as %s: %w", p.State, err)
		}
	}
}

// parkEnded keeps a message whose claim was committed by the handler, or by that of another message
// of its group. A claim alone says nothing about the effect any more, so an operator decides.
func (h *Handler[TX]) parkEnded(ctx context.Context, d *delivery) error {
	h.log.ErrorContext(ctx, "transaction of a message was committed by a handler: message set aside", h.attrs(d.in)...)
	return h.park(ctx, d, inbox.Parking{State: inbox.AlteredState, LastError: inbox.ErrEnded.Error() + ": the claim is committed; look whether the effect is whole, then discard the message or redrive it by force"})
}

func (h *Handler[TX]) parkOnce(ctx context.Context, p inbox.Parking) (inbox.Verdict, error) {
	ctx, cancel := h.operation(ctx)
	defer cancel()
	if err := fault.Hit(ctx, fault.BeforeMessageParked); err != nil {
		return inbox.None, err
	}
	verdict, err := h.inbox.store.ParkMessage(ctx, p)
	if err == nil && fault.Hit(ctx, fault.MessageParked) != nil {
		err = fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
	}
	return verdict, err
}

// parked takes note of what was parked, or of another copy that was first.
func (h *Handler[TX]) parked(ctx context.Context, d *delivery, p inbox.Parking, duplicate bool) {
	claimed := p.State == inbox.Retrying || p.State == inbox.Dead
	if claimed && (!duplicate || !d.in.event.Digest.IsZero()) {
		h.remember(d.term, d.in.event.ID, d.in.event.Digest)
	}
	if duplicate {
		h.counts.table.Add(1)
		return
	}
	h.counts.parkedAs(p.State)
	if p.State == inbox.Retrying {
		h.log.WarnContext(ctx, "message parked", h.attrs(d.in, "attempts", p.Attempts, "retry_in", p.RetryIn)...)
		h.inbox.reportIdle(ctx)
		signal(h.wake)
	}
	if p.State == inbox.Dead {
		h.log.ErrorContext(ctx, "message is dead", h.attrs(d.in, "attempts", p.Attempts)...)
	}
}
