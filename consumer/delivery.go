package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

// delivery is the state of one delivered message, from its arrival to its acknowledgement.
type delivery struct {
	progress

	in          *incoming
	redelivered bool // the transport marked the message as redelivered
	suspect     bool // an earlier run of the handler may have died with its process
	attempted   bool

	term  dedupe.Term
	quick int   // counted attempts of this delivery
	cause error // the error of the last attempt, to be logged with what follows it

	result string // what has become of the message, for the log
}

// handle applies or parks the message. After an error the message was neither applied nor parked.
func (h *Handler[TX]) handle(ctx context.Context, d *delivery) error {
	if h.cfg.StoreFirst {
		if err := h.inbox.awaitRun(ctx); err != nil {
			return err
		}
	}
	defer h.groups.handled()
	if !h.groups.wants(d) {
		return h.handleAlone(ctx, d)
	}
	m := newMember(ctx, d)
	defer close(m.done)
	m.err = h.groups.handle(m)
	return m.err
}

// handleAlone handles the message without a group.
func (h *Handler[TX]) handleAlone(ctx context.Context, d *delivery) error {
	m := freshMessage[TX]{h, d}
	return h.retryLoop(ctx, &d.progress, m, m.begin(ctx))
}

// handleFrom goes on after an attempt in a group.
func (h *Handler[TX]) handleFrom(ctx context.Context, d *delivery, a attempt) error {
	return h.retryLoop(ctx, &d.progress, freshMessage[TX]{h, d}, a)
}

// freshMessage handles a delivered message: the message is applied, parked, or returned to the
// transport.
type freshMessage[TX any] struct {
	h *Handler[TX]
	d *delivery
}

func (m freshMessage[TX]) begin(ctx context.Context) attempt {
	if err := m.h.registry.ensure(ctx, &m.d.progress); err != nil {
		return attempt{err: err, notBegun: true}
	}
	stores := m.h.cfg.StoreFirst
	if !stores { // a pause and a limit hold up the handling, and not the storing
		if err := m.h.permits.permit(ctx, &m.d.progress); err != nil {
			return attempt{err: err, notBegun: true}
		}
	}
	m.d.term = m.h.registry.term()
	if stores {
		return m.h.store(ctx, m.d)
	}
	return m.h.begin(ctx, m.d)
}

func (m freshMessage[TX]) settle(ctx context.Context, a attempt) error {
	return m.h.settle(ctx, m.d, a)
}

func (m freshMessage[TX]) attrs(args ...any) []any { return m.h.attrs(m.d.in, args...) }

func (m freshMessage[TX]) failed(ctx context.Context, a attempt, step nextStep) (again bool, err error) {
	h, d := m.h, m.d
	switch {
	case step == askAgain && !d.commitUnknown:
		// Without a pause: the new claim, on another connection, waits for the end of the old
		// transaction.
		h.noteDatabaseError(&d.progress, a.err)
		return true, nil
	case step == askAgain, step == retryUncounted:
		return h.waitForDatabase(ctx, &d.progress, a.err), a.err
	case step == makeDeadUnrun:
		h.log.ErrorContext(ctx, "message kills the process", h.attrs(d.in, "error", a.err)...)
		return false, h.park(ctx, d, inbox.Parking{State: inbox.Dead, LastError: field.Error(a.err)})
	}
	return h.fail(ctx, d, a, step)
}

// begin makes one attempt.
func (h *Handler[TX]) begin(ctx context.Context, d *delivery) attempt {
	if d.suspect {
		a := h.suspects.run(ctx, d.in.event.ID, 0, func(starts int) attempt { return h.apply(ctx, d.in, false, starts) })
		d.suspect = !a.ran && a.err != nil // unless the handler has returned
		return a
	}
	// A message that was tried before may be applied: the handler would run in vain.
	optimistic := h.cfg.Optimistic && !d.redelivered && !d.attempted
	return h.runShared(ctx, func() attempt {
		d.attempted = true
		return h.apply(ctx, d.in, optimistic, 0)
	})
}

func (h *Handler[TX]) apply(ctx context.Context, in *incoming, optimistic bool, starts int) attempt {
	return h.try(ctx, optimistic, func(ctx context.Context, fn claimedFunc[TX]) (inbox.Verdict, error) {
		c := h.claim(in)
		c.Optimistic, c.Started = optimistic, starts > 0
		return h.inbox.store.Apply(ctx, c, func(ctx context.Context, tx TX) error {
			if err := h.suspects.tooManyStarts(starts); err != nil {
				return err
			}
			return fn(ctx, tx, in)
		})
	})
}

func (h *Handler[TX]) claim(in *incoming) inbox.Claim {
	c := h.bounds()
	c.ID, c.Digest, c.Stamp = in.event.ID, in.event.Digest, in.event.Stamp
	if h.cfg.Order.ByKey && in.order != "" {
		c.Key, c.Message = in.order, in.toStore()
	}
	return c
}

// bounds returns a claim without a message: the consumer, and the bounds of its transactions.
func (h *Handler[TX]) bounds() inbox.Claim {
	return inbox.Claim{
		Consumer: h.registry.consumer(), Isolation: h.cfg.Isolation,
		IdleTimeout: h.cfg.Timeout + idleGrace, LockTimeout: h.cfg.LockTimeout,
	}
}

// settle acts on the verdict of an attempt. After nil the message is acknowledged.
func (h *Handler[TX]) settle(ctx context.Context, d *delivery, a attempt) error {
	id, digest := d.in.event.ID, d.in.event.Digest
	switch a.verdict {
	case inbox.Applied:
		if err := fault.Hit(ctx, fault.BeforeWindow); err != nil {
			return err
		}
		h.applied(d.ref, a.wrote)
		d.result = resultApplied
		h.registry.remember(d.term, id, digest)
	case inbox.Duplicate:
		if d.txEnded {
			return h.parkEndedTx(ctx, d)
		}
		if d.commitUnknown && h.cfg.StoreFirst {
			h.stored(ctx, d)
			return nil
		}
		if d.commitUnknown { // the transaction of the previous attempt was committed
			h.applied(d.ref, true)
			d.result = resultApplied
		} else {
			h.succeeded(d.ref)
			d.result = resultDuplicate
			h.counts.table.Add(1)
		}
		// Without a digest in the window, an altered copy would pass for a duplicate.
		if !digest.IsZero() {
			h.registry.remember(d.term, id, digest)
		}
	case inbox.Followed:
		if h.cfg.StoreFirst {
			h.stored(ctx, d)
			return nil
		}
		h.succeeded(d.ref)
		d.result = string(inbox.Following)
		h.counts.followed.Add(1)
		h.notifyState(d.in, &inbox.Parking{State: inbox.Following})
		h.registry.remember(d.term, id, digest)
		h.inbox.reportNotRunning(ctx)
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

func (h *Handler[TX]) applied(ref messageRef, wrote bool) {
	h.succeeded(ref)
	h.counts.succeeded()
	if h.extension != nil {
		h.extension.Wake()
	}
	if wrote && h.inbox.outbox != nil {
		h.inbox.outbox.Committed()
	}
}

// fail counts a failed attempt, and parks the message unless quick attempts are left.
func (h *Handler[TX]) fail(ctx context.Context, d *delivery, a attempt, step nextStep) (again bool, err error) {
	attempts, err := h.count(ctx, d.in, a.err)
	if err != nil { // the attempt could not be counted
		return h.waitForDatabase(ctx, &d.progress, err), errors.Join(a.err, err)
	}
	d.quick++
	if step == countAttempt && attempts < h.cfg.Retry.MaxAttempts && d.quick < h.cfg.Retry.QuickAttempts {
		h.logFailure(ctx, d.in, attempts, a.err, tryAgain)
		if pace.Sleep(ctx, h.inbox.jitter(doubled(h.cfg.Retry.QuickBackoff, d.quick-1))) == nil {
			return true, nil
		}
	} else {
		d.cause = a.err
	}
	p := inbox.Parking{Attempts: attempts, LastError: field.Error(a.err)}
	p.State, p.RetryIn = h.afterFailure(step, attempts, a.err)
	err = h.park(ctx, d, p)
	if err != nil && d.cause != nil {
		h.logFailure(ctx, d.in, attempts, d.cause, notParked)
	}
	return false, err
}

func (h *Handler[TX]) count(ctx context.Context, in *incoming, cause error) (int, error) {
	ctx, cancel := h.operation(ctx)
	defer cancel()
	attempts, err := h.inbox.store.Failed(ctx, h.registry.consumer(), in.event.ID, field.Error(cause))
	if err != nil {
		return 0, fmt.Errorf("count the attempt: %w", err)
	}
	h.counts.failedBy(cause)
	return attempts, nil
}

// refuse parks a message that must not be handled.
func (h *Handler[TX]) refuse(ctx context.Context, d *delivery, why error) error {
	d.term = h.registry.term()
	h.counts.refused.Add(1)
	h.log.ErrorContext(ctx, "message cannot be handled", h.attrs(d.in, "error", why)...)
	return h.park(ctx, d, inbox.Parking{State: inbox.Dead, LastError: field.Error(why)})
}

// park keeps the message in the database, ready to be acknowledged. After an error the message may
// not be kept.
func (h *Handler[TX]) park(ctx context.Context, d *delivery, p inbox.Parking) error {
	p.Consumer, p.Message = h.registry.consumer(), d.in.toStore()
	p.Ordered = h.cfg.Order.ByKey && p.Message.Key != ""
	unsure := false // an earlier try may have been committed
	for {
		verdict, err := h.parkOnce(ctx, p)
		if err == nil && verdict == inbox.Duplicate && d.txEnded && p.State != inbox.AlteredState {
			return h.parkEndedTx(ctx, d)
		}
		if err == nil {
			h.works()
			h.parked(ctx, d, p, verdict == inbox.Duplicate && !unsure)
			observe.Parked(ctx, string(p.State), p.LastError)
			return nil
		}
		unsure = unsure || h.inbox.store.Classify(err) == inbox.CommitUnknown
		if !h.waitForDatabase(ctx, &d.progress, err) {
			return fmt.Errorf("park as %s: %w", p.State, err)
		}
	}
}

// parkEndedTx parks a message whose claim was committed by its handler, or by the handler of
// another message of its group. An operator decides: the claim does not prove that the effect is
// whole.
func (h *Handler[TX]) parkEndedTx(ctx context.Context, d *delivery) error {
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

// parked records that the message was parked, or that another copy was parked or applied before.
func (h *Handler[TX]) parked(ctx context.Context, d *delivery, p inbox.Parking, duplicate bool) {
	claimed := p.State == inbox.Retrying || p.State == inbox.Dead
	if claimed && (!duplicate || !d.in.event.Digest.IsZero()) {
		h.registry.remember(d.term, d.in.event.ID, d.in.event.Digest)
	}
	if duplicate {
		if d.cause != nil {
			h.logFailure(ctx, d.in, p.Attempts, d.cause, isKnown)
		}
		h.counts.table.Add(1)
		d.result = resultDuplicate
		return
	}
	d.result = string(p.State)
	h.counts.parkedAs(p.State)
	h.notifyState(d.in, &p)
	switch {
	case p.State == inbox.Retrying && d.cause == nil: // the last attempt is in the log
		h.log.WarnContext(ctx, "message parked", h.attrs(d.in, "attempts", p.Attempts, "retry_in", p.RetryIn)...)
	case p.State == inbox.Retrying:
		h.logFailure(ctx, d.in, p.Attempts, d.cause, isParked, "retry_in", p.RetryIn)
	case p.State == inbox.Dead && d.cause != nil:
		h.logFailure(ctx, d.in, p.Attempts, d.cause, isDead)
	}
	if p.State == inbox.Retrying {
		h.inbox.reportNotRunning(ctx)
		signal(h.retries.wake)
	}
}
