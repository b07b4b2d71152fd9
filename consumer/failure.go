package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// postpones tells whether err says when to try again.
func postpones(err error) bool {
	_, ok := RetryDelay(err)
	return ok
}

// afterFailure tells what becomes of a message with so many counted attempts: it is dead, or tried
// again after a backoff.
func (h *Handler[TX]) afterFailure(step nextStep, attempts int, cause error) (inbox.State, time.Duration) {
	switch {
	case step == makeDead, step == makeDeadUnrun, attempts >= h.cfg.MaxAttempts:
		return inbox.Dead, 0
	case step == retryLater:
		wait, _ := RetryDelay(cause)
		return inbox.Retrying, wait
	default:
		return inbox.Retrying, h.inbox.backoff(h.cfg.MinBackoff, h.cfg.MaxBackoff, attempts-h.cfg.QuickAttempts)
	}
}

// backoff returns a wait that quadruples with each of so many failures.
func (i *Inbox[TX]) backoff(shortest, longest time.Duration, failures int) time.Duration {
	d := shortest
	for ; failures > 0 && d < longest; failures-- {
		d = min(d*backoffGrowth, longest)
	}
	return i.jitter(d)
}

// doubled returns d doubled n times, as far as a duration goes.
func doubled(d time.Duration, n int) time.Duration {
	for ; n > 0 && d < time.Hour; n-- {
		d *= 2
	}
	return d
}

// attrs returns what a log line says about a message, before more of it.
func (h *Handler[TX]) attrs(in *incoming, more ...any) []any {
	attrs := []any{"dispatch_id", in.event.ID, "topic", in.event.Topic}
	if id := in.event.CorrelationID; id != "" {
		attrs = append(attrs, "correlation_id", id)
	}
	return append(attrs, more...)
}

// logFailure reports a counted attempt, with its stack if it was a panic.
func (h *Handler[TX]) logFailure(ctx context.Context, in *incoming, attempts int, err error) {
	attrs := h.attrs(in, "attempts", attempts, "error", err)
	var p *PanicError
	switch {
	case errors.As(err, &p):
		h.counts.panics.Add(1)
		h.log.ErrorContext(ctx, "handler panicked", append(attrs, "stack", string(p.Stack))...)
	case errors.Is(err, ErrGoexit):
		h.counts.panics.Add(1)
		h.log.ErrorContext(ctx, "handler ended its goroutine", attrs...)
	default:
		h.log.WarnContext(ctx, "handler failed", attrs...)
	}
}
