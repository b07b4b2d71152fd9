package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// drain takes up what is due, and what becomes due meanwhile, each message at most once.
func (h *Handler[TX]) drain(ctx context.Context) error {
	if err := h.register(ctx); err != nil {
		return err
	}
	tried := make(map[int64]struct{})
	for ctx.Err() == nil {
		seqs, _, err := h.due(ctx, len(tried)+dueBatch)
		if err != nil {
			return err
		}
		before := len(tried)
		for _, seq := range seqs {
			if _, ok := tried[seq]; ok || ctx.Err() != nil {
				continue
			}
			tried[seq] = struct{}{}
			if _, err := h.retryParked(ctx, seq); err != nil {
				return err
			}
		}
		if len(tried) == before {
			return nil
		}
	}
	return context.Cause(ctx)
}

// due reads what is due. It is bounded, so that a connection on which no answer comes is given up.
func (h *Handler[TX]) due(ctx context.Context, limit int) (seqs []int64, next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	seqs, next, err = h.inbox.store.DueMessages(ctx, h.consumer(), limit)
	if err != nil {
		return nil, 0, fmt.Errorf("read due messages: %w", err)
	}
	h.left.saw(seqs, len(seqs) < limit)
	return seqs, next, nil
}

// retryParked handles one parked message. It tells whether the message was there to be
// handled. An error is the database's; then nothing changed for the message.
func (h *Handler[TX]) retryParked(ctx context.Context, seq int64) (bool, error) {
	suspect := h.left.has(seq)
	there, err := h.takeUpAs(ctx, seq, suspect)
	if suspect && there && err == nil {
		h.left.ended(seq)
	}
	return there, err
}

func (h *Handler[TX]) takeUpAs(ctx context.Context, seq int64, suspect bool) (bool, error) {
	d := &delivery{}
	for tries := 1; ; tries++ {
		a, m := h.beginParked(ctx, seq, suspect)
		if a.ended {
			return false, a.err
		}
		suspect = false // it came back
		if m != nil {
			d.who = subject{h.name, m.ID}
		}
		switch f := h.judge(a, d); f {
		case settled:
			if a.verdict == inbox.Duplicate && !d.unknown { // gone, or in the hands of another process
				return false, nil
			}
			h.applied(d.who, a.wrote || d.unknown)
			return true, nil
		case unknown, troubled:
			d.unknown = d.unknown || f == unknown
			h.noteTrouble(ctx, f, a.err)
			if !a.ran || tries >= troublesPerAttempt || !h.hold(ctx, d, a.err) {
				return true, h.putBack(ctx, m, a.err)
			}
		default:
			return true, h.failParked(ctx, m, a.err, f)
		}
	}
}

func (h *Handler[TX]) noteTrouble(ctx context.Context, f nextStep, err error) {
	if f == unknown {
		h.counts.unknown.Add(1)
		h.log.WarnContext(ctx, "outcome of a commit is unknown: asking again", "error", err)
	}
}

// beginParked makes one attempt.
func (h *Handler[TX]) beginParked(ctx context.Context, seq int64, suspect bool) (a attempt, m *inbox.Parked) {
	if !suspect {
		inside, err := h.gate.enter(ctx, besideOthers, h.cfg.Timeout)
		if err != nil {
			return attempt{err: err, ended: true}, nil
		}
		defer h.gate.leave(inside)
		return h.applyParked(ctx, seq, 0)
	}
	id, err := h.parkedID(ctx, seq)
	switch {
	case err != nil:
		return attempt{err: err}, nil
	case id == uuid.Nil:
		return attempt{verdict: inbox.Duplicate}, nil
	}
	a = h.suspected(ctx, id, startGap, func(starts int) (a attempt) {
		a, m = h.applyParked(ctx, seq, starts)
		return a
	})
	return a, m
}

// parkedID returns the dispatch ID of a message that is still retrying, or none.
func (h *Handler[TX]) parkedID(ctx context.Context, seq int64) (uuid.UUID, error) {
	ctx, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	found, err := h.inbox.store.ListParkedMessages(ctx, inbox.Filter{Consumer: h.name, States: []inbox.State{inbox.Retrying}, After: seq - 1, Limit: 1})
	if err != nil {
		return uuid.Nil, fmt.Errorf("read a parked message: %w", err)
	}
	if len(found) == 0 || found[0].Seq != seq {
		return uuid.Nil, nil
	}
	return found[0].ID, nil
}

// applyParked locks a parked message and runs it.
func (h *Handler[TX]) applyParked(ctx context.Context, seq int64, starts int) (attempt, *inbox.Parked) {
	var parked *inbox.Parked
	claim := inbox.Claim{
		Consumer: h.consumer(), Isolation: h.cfg.Isolation,
		IdleTimeout: h.cfg.Timeout + idleGrace, LockTimeout: h.cfg.LockTimeout,
	}
	a := h.try(ctx, false, func(ctx context.Context, fn begun[TX]) (inbox.Verdict, error) {
		done, err := h.inbox.store.ApplyParked(ctx, claim, seq, func(ctx context.Context, tx TX, m *inbox.Parked) error {
			parked = m
			if err := h.tooManyStarts(starts); err != nil {
				return err
			}
			if m.Unreadable != nil {
				return Reject(m.Unreadable)
			}
			return fn(ctx, tx, h.restore(m))
		})
		switch {
		case err != nil:
			return inbox.None, err
		case done:
			return inbox.Applied, nil
		default:
			return inbox.Duplicate, nil
		}
	})
	return a, parked
}

// putBack leaves a parked message that could not be judged for later, without
// counting an attempt. If its handler was not even begun, the error is returned.
func (h *Handler[TX]) putBack(ctx context.Context, m *inbox.Parked, cause error) error {
	if m == nil {
		return cause
	}
	op, cancel := h.operation(ctx)
	defer cancel()
	retryIn := h.inbox.jitter(h.cfg.MinBackoff)
	if err := h.inbox.store.RetryMessage(op, m.Seq, m.Attempts, retryIn, false, text(cause)); err != nil {
		return fmt.Errorf("put a parked message back: %w", err)
	}
	h.log.WarnContext(ctx, "parked message put back", h.attrs(h.restore(m), "attempts", m.Attempts, "retry_in", retryIn, "error", cause)...)
	return nil
}

// failParked counts a failed attempt of a parked message.
func (h *Handler[TX]) failParked(ctx context.Context, m *inbox.Parked, cause error, f nextStep) error {
	if m == nil {
		return cause
	}
	attempts, retryIn := m.Attempts, time.Duration(0)
	if f != killed {
		attempts++
	}
	dead := f == buried || f == killed || attempts >= h.cfg.MaxAttempts
	switch {
	case dead:
	case f == postponed:
		retryIn = postponedFor(cause)
	default:
		retryIn = h.backoff(attempts)
	}
	op, cancel := h.operation(ctx)
	defer cancel()
	if err := h.inbox.store.RetryMessage(op, m.Seq, attempts, retryIn, dead, text(cause)); err != nil {
		return fmt.Errorf("count the attempt of a parked message: %w", err)
	}
	in := h.restore(m)
	if f == killed {
		h.log.ErrorContext(ctx, "message kills the process", h.attrs(in, "error", cause)...)
	} else {
		h.counts.failed.Add(1)
		h.logFailure(ctx, in, attempts, cause)
	}
	if dead {
		h.counts.dead.Add(1)
		h.log.ErrorContext(ctx, "message is dead", h.attrs(in, "attempts", attempts)...)
	}
	return nil
}
