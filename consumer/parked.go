package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/store/inbox"
)

// retries handles the parked messages of a handler when they are due.
type retries[TX any] struct {
	*Handler[TX]

	wake chan struct{} // parked messages may be due
}

// drain handles all parked messages that are due, or become due meanwhile, each at most once.
func (rt *retries[TX]) drain(ctx context.Context) error {
	if err := rt.registry.register(ctx); err != nil {
		return err
	}
	tried := make(map[int64]struct{})
	for ctx.Err() == nil {
		seqs, _, err := rt.due(ctx, len(tried)+dueBatch)
		if err != nil {
			return err
		}
		before := len(tried)
		for _, seq := range seqs {
			if _, ok := tried[seq]; ok || ctx.Err() != nil {
				continue
			}
			if rt.permits.isPaused(ctx) {
				return nil
			}
			tried[seq] = struct{}{}
			if _, err := rt.retry(ctx, seq); err != nil {
				return err
			}
		}
		if len(tried) == before {
			return nil
		}
	}
	return context.Cause(ctx)
}

// due reads at least limit due messages, unless fewer are due, and how long from now the next
// message is due. The deadline gives up a dead connection.
func (rt *retries[TX]) due(ctx context.Context, limit int) (seqs []int64, next time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, rt.cfg.Timeout)
	defer cancel()
	left := &rt.suspects.leftovers
	limit = left.limit(limit, leftoverShare*rt.cfg.Parked.Concurrency)
	seqs, next, err = rt.inbox.dueMessages(ctx, rt.registry.consumer(), limit)
	if errors.Is(err, errAnotherDatabase) { // the consumer may have another number there
		if err = rt.registry.register(ctx); err == nil {
			seqs, next, err = rt.inbox.store.DueMessages(ctx, rt.registry.consumer(), limit)
		}
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read due messages: %w", err)
	}
	left.update(seqs, len(seqs) < limit, leftoverShare*rt.cfg.Parked.Concurrency)
	return seqs, next, nil
}

// retry handles one parked message. It returns false if the message is no longer due, or
// another process has locked the message. An error is an error of the database: the message is
// unchanged.
func (rt *retries[TX]) retry(ctx context.Context, seq int64) (bool, error) {
	m := &parkedMessage[TX]{h: rt.Handler, seq: seq, suspect: rt.suspects.leftovers.has(seq)}
	rt.counts.inFlight.Add(1)
	defer rt.counts.inFlight.Add(-1)
	log := rt.beginLog(ctx)
	err := rt.retryLoop(ctx, &m.progress, m, m.begin(ctx))
	log.retried(m, err)
	if err == nil && !m.gone {
		rt.suspects.leftovers.remove(seq)
	}
	return !m.gone, err
}

// parkedMessage handles a parked message: the message is applied, or stays parked.
type parkedMessage[TX any] struct {
	progress

	h         *Handler[TX]
	seq       int64
	message   *inbox.Parked // nil unless the latest attempt has locked the message
	suspect   bool          // the message may have killed an earlier process
	uncounted int           // attempts that did not count
	gone      bool          // the message is no longer due, or another process has locked the message
	applied   bool
}

func (m *parkedMessage[TX]) begin(ctx context.Context) attempt {
	h := m.h
	m.message = nil
	if err := h.permits.permit(ctx, &m.progress); err != nil {
		return attempt{err: err, notBegun: true}
	}
	if !m.suspect {
		return h.runShared(ctx, func() attempt { return m.apply(ctx, 0) })
	}
	m.suspect = false // unless the process dies now
	id, err := h.retries.parkedID(ctx, m.seq)
	switch {
	case err != nil:
		return attempt{err: err}
	case id == uuid.Nil:
		return attempt{verdict: inbox.Duplicate}
	}
	return h.suspects.run(ctx, id, startGap, func(starts int) attempt { return m.apply(ctx, starts) })
}

func (m *parkedMessage[TX]) settle(_ context.Context, a attempt) error {
	if m.gone = a.verdict == inbox.Duplicate && !m.commitUnknown; !m.gone {
		m.h.applied(m.ref, a.wrote || m.commitUnknown)
		m.applied = true
	}
	return nil
}

func (m *parkedMessage[TX]) attrs(args ...any) []any {
	if m.message == nil {
		return append([]any{"seq", m.seq}, args...)
	}
	return m.h.attrs(m.h.fromParked(m.message), args...)
}

func (m *parkedMessage[TX]) failed(ctx context.Context, a attempt, step nextStep) (again bool, err error) {
	if m.message == nil { // no attempt to count: the error goes to the caller
		return false, a.err
	}
	if step != askAgain && step != retryUncounted {
		return false, m.fail(ctx, a.err, step)
	}
	m.uncounted++
	if a.ran && m.uncounted < databaseErrorLimit && m.h.waitForDatabase(ctx, &m.progress, a.err) {
		return true, nil
	}
	return false, m.putBack(ctx, a.err)
}

// apply locks the message and runs the handler.
func (m *parkedMessage[TX]) apply(ctx context.Context, starts int) attempt {
	h := m.h
	return h.try(ctx, false, func(ctx context.Context, fn claimedFunc[TX]) (inbox.Verdict, error) {
		done, err := h.inbox.store.ApplyParked(ctx, h.bounds(), m.seq, func(ctx context.Context, tx TX, p *inbox.Parked) error {
			m.message, m.ref = p, messageRef{h.name, p.ID}
			h.counts.received(p.Topic)
			if err := h.suspects.tooManyStarts(starts); err != nil {
				return err
			}
			if p.Unreadable != nil {
				return Reject(p.Unreadable)
			}
			return fn(ctx, tx, h.fromParked(p))
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
}

// putBack leaves the message parked for a while, without counting an attempt.
func (m *parkedMessage[TX]) putBack(ctx context.Context, cause error) error {
	h, p := m.h, m.message
	retryIn := h.inbox.jitter(h.cfg.Parked.MinBackoff)
	if err := m.retry(ctx, p.Attempts, retryIn, false, cause); err != nil {
		return fmt.Errorf("put a parked message back: %w", err)
	}
	h.log.WarnContext(ctx, "parked message put back", h.attrs(h.fromParked(p), "attempts", p.Attempts, "retry_in", retryIn, "error", cause)...)
	return nil
}

// fail counts a failed attempt: the message stays parked for a while, or is dead.
func (m *parkedMessage[TX]) fail(ctx context.Context, cause error, step nextStep) error {
	h, attempts := m.h, m.message.Attempts
	if step != makeDeadUnrun {
		attempts++
	}
	state, retryIn := h.afterFailure(step, attempts, cause)
	if h.cfg.StoreFirst && step == countAttempt && attempts < min(h.cfg.Retry.QuickAttempts, h.cfg.Retry.MaxAttempts) {
		retryIn = h.inbox.jitter(doubled(h.cfg.Retry.QuickBackoff, attempts-1))
	}
	if err := m.retry(ctx, attempts, retryIn, state == inbox.Dead, cause); err != nil {
		return fmt.Errorf("count the attempt of a parked message: %w", err)
	}
	in := h.fromParked(m.message)
	h.works()
	h.notifyState(in, &inbox.Parking{State: state, Attempts: attempts, RetryIn: retryIn, LastError: field.Error(cause)})
	if state == inbox.Dead {
		h.counts.dead.Add(1)
	}
	switch {
	case step == makeDeadUnrun:
		h.log.ErrorContext(ctx, "message kills the process", h.attrs(in, "error", cause)...)
		return nil
	case state == inbox.Dead:
		h.logFailure(ctx, in, attempts, cause, isDead)
	default:
		h.logFailure(ctx, in, attempts, cause, isParked, "retry_in", retryIn)
	}
	h.counts.failedBy(cause)
	return nil
}

func (m *parkedMessage[TX]) retry(ctx context.Context, attempts int, retryIn time.Duration, dead bool, cause error) error {
	ctx, cancel := m.h.operation(ctx)
	defer cancel()
	return m.h.inbox.store.RetryMessage(ctx, m.seq, attempts, retryIn, dead, field.Error(cause))
}

// parkedID returns the dispatch ID of a message, or uuid.Nil if the message is no longer retrying.
func (rt *retries[TX]) parkedID(ctx context.Context, seq int64) (uuid.UUID, error) {
	ctx, cancel := context.WithTimeout(ctx, rt.cfg.Timeout)
	defer cancel()
	found, err := rt.inbox.store.ListParkedMessages(ctx, inbox.Filter{Consumer: rt.name, States: []inbox.State{inbox.Retrying}, After: seq - 1, Limit: 1})
	if err != nil {
		return uuid.Nil, fmt.Errorf("read a parked message: %w", err)
	}
	if len(found) == 0 || found[0].Seq != seq {
		return uuid.Nil, nil
	}
	return found[0].ID, nil
}
