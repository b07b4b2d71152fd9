package consumer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// resume deals with what is due when this process begins, one message after
// another: an earlier process may have died of one of them.
func (h *Handler[TX]) resume(ctx context.Context) error {
	if h.resumed.Load() {
		return h.register(ctx)
	}
	if err := h.drain(ctx, true); err != nil {
		return err
	}
	h.resumed.Store(true)
	return nil
}

// drain takes up what is due, each message at most once: with leftover what is due
// now, and otherwise also what becomes due meanwhile.
func (h *Handler[TX]) drain(ctx context.Context, leftover bool) error {
	if err := h.register(ctx); err != nil {
		return err
	}
	tried := make(map[int64]struct{})
	for ctx.Err() == nil {
		limit := len(tried) + dueBatch
		seqs, _, err := h.due(ctx, limit)
		if err != nil {
			return err
		}
		before := len(tried)
		for _, seq := range seqs {
			if _, ok := tried[seq]; ok || ctx.Err() != nil {
				continue
			}
			tried[seq] = struct{}{}
			if _, err := h.takeUp(ctx, seq, leftover); err != nil {
				return err
			}
		}
		if len(tried) == before || leftover && len(seqs) < limit && ctx.Err() == nil {
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
	return seqs, next, nil
}

// takeUp handles one parked message. It tells whether the message was there to be
// handled. An error is the database's; then nothing changed for the message.
func (h *Handler[TX]) takeUp(ctx context.Context, seq int64, leftover bool) (bool, error) {
	d := &delivery{}
	var recorded start
	if leftover {
		var err error
		if recorded, err = h.restart(ctx, seq); err != nil || recorded.count == 0 {
			return false, err
		}
	}
	for tries := 1; ; tries++ {
		a, m := h.applyParked(ctx, seq, recorded)
		recorded = start{} // it came back
		if m != nil {
			d.who = subject{h.name, m.ID}
		}
		switch f := h.judge(a, d); f {
		case settled:
			if a.verdict == Duplicate && !d.unknown { // gone, or in the hands of another process
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

func (h *Handler[TX]) noteTrouble(ctx context.Context, f fate, err error) {
	if f == unknown {
		h.counts.unknown.Add(1)
		h.log.WarnContext(ctx, "outcome of a commit is unknown: asking again", "error", err)
	}
}

// start is a recorded start of a parked message.
type start struct {
	id    uuid.UUID
	count int // 0: there is none
}

// restart records that a message which may have killed a process is begun
// again, unless it is not there. One that did so too often is buried instead.
func (h *Handler[TX]) restart(ctx context.Context, seq int64) (start, error) {
	read, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
	defer cancel()
	found, err := h.inbox.store.ListParkedMessages(read, Filter{Consumer: h.name, States: []State{Retrying}, After: seq - 1, Limit: 1})
	if err != nil {
		return start{}, fmt.Errorf("read a parked message: %w", err)
	}
	if len(found) == 0 || found[0].Seq != seq {
		return start{}, nil
	}
	m := &found[0]
	in := h.restore(m)
	op, cancel := h.operation(ctx)
	defer cancel()
	starts, err := h.inbox.store.Started(op, h.consumer(), m.ID)
	if err != nil {
		return start{}, fmt.Errorf("record the start: %w", err)
	}
	h.counts.starts.Add(1)
	// The first recorded start may be the first at all.
	if starts <= h.cfg.MaxSoloStarts+1 {
		return start{m.ID, starts}, nil
	}
	cause := fmt.Errorf("begun %d times: %w", starts-1, ErrNeverCameBack)
	h.log.ErrorContext(ctx, "message kills the process", h.attrs(in, "error", cause)...)
	return start{}, h.failParked(ctx, m, cause, killed)
}

// applyParked makes one attempt: beside others, or alone in the inbox from the second
// recorded start on.
func (h *Handler[TX]) applyParked(ctx context.Context, seq int64, recorded start) (attempt, *ParkedMessage) {
	if recorded.count > 1 {
		h.inbox.solo.enterAlone()
		defer h.inbox.solo.leaveAlone()
	} else {
		h.inbox.solo.enter()
		defer h.inbox.solo.leave()
	}
	var parked *ParkedMessage
	claim := Claim{
		Consumer: h.consumer(), Isolation: h.cfg.Isolation,
		IdleTimeout: h.cfg.Timeout + idleGrace, LockTimeout: h.cfg.LockTimeout,
	}
	a := h.try(ctx, false, func(ctx context.Context, fn begun[TX]) (Verdict, error) {
		done, err := h.inbox.store.ApplyParked(ctx, claim, seq, func(ctx context.Context, tx TX, m *ParkedMessage) error {
			parked = m
			return fn(ctx, tx, h.restore(m))
		})
		switch {
		case err != nil:
			return None, err
		case done:
			return Applied, nil
		default:
			return Duplicate, nil
		}
	})
	if recorded.count > 0 && (a.err != nil || !a.ran) {
		_ = h.unstart(ctx, recorded.id) // if that fails, it has one start fewer to go
	}
	return a, parked
}

// putBack leaves a parked message that could not be judged for later, without
// counting an attempt. If its handler was not even begun, the error is returned.
func (h *Handler[TX]) putBack(ctx context.Context, m *ParkedMessage, cause error) error {
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
func (h *Handler[TX]) failParked(ctx context.Context, m *ParkedMessage, cause error, f fate) error {
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
	if f != killed {
		h.counts.failed.Add(1)
		h.logFailure(ctx, in, attempts, cause)
	}
	if dead {
		h.counts.dead.Add(1)
		h.log.ErrorContext(ctx, "message is dead", h.attrs(in, "attempts", attempts)...)
	}
	return nil
}
