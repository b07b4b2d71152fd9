package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// postpones tells whether err wraps an error of [RetryAfter].
func postpones(err error) bool {
	_, ok := RetryDelay(err)
	return ok
}

// afterFailure returns the next state of a message with the given number of counted attempts: dead,
// or retrying after a backoff.
func (h *Handler[TX]) afterFailure(step nextStep, attempts int, cause error) (inbox.State, time.Duration) {
	switch {
	case step == makeDead, step == makeDeadUnrun, attempts >= h.cfg.Retry.MaxAttempts:
		return inbox.Dead, 0
	case step == retryLater:
		wait, _ := RetryDelay(cause)
		return inbox.Retrying, wait
	default:
		return inbox.Retrying, h.inbox.backoff(h.cfg.Parked.MinBackoff, h.cfg.Parked.MaxBackoff, attempts-h.cfg.Retry.QuickAttempts)
	}
}

// backoff returns a wait that quadruples with each failure, from shortest to longest, half of it at
// random.
func (i *Inbox[TX]) backoff(shortest, longest time.Duration, failures int) time.Duration {
	d := shortest
	for ; failures > 0 && d < longest; failures-- {
		d = min(d*backoffGrowth, longest)
	}
	return i.jitter(d)
}

// doubled returns d doubled n times, up to about an hour.
func doubled(d time.Duration, n int) time.Duration {
	for ; n > 0 && d < time.Hour; n-- {
		d *= 2
	}
	return d
}

// attrs returns the log attributes of a message, followed by more.
func (h *Handler[TX]) attrs(in *incoming, more ...any) []any {
	attrs := []any{"dispatch_id", in.event.ID, "topic", in.event.Topic}
	if id := in.event.CorrelationID; id != "" {
		attrs = append(attrs, "correlation_id", id)
	}
	return append(attrs, more...)
}

// fate is what follows a failed attempt.
type fate string

const (
	tryAgain  fate = "trying again"
	isParked  fate = "message parked"
	isDead    fate = "message is dead"
	isKnown   fate = "another copy is parked or applied"
	notParked fate = "message could not be parked"
)

// logFailure logs a counted attempt and what follows it, in one record, with the stack of a panic.
func (h *Handler[TX]) logFailure(ctx context.Context, in *incoming, attempts int, err error, then fate, args ...any) {
	attrs := h.attrs(in, append([]any{"attempts", attempts, "error", err}, args...)...)
	level, what := slog.LevelWarn, "handler failed"
	if then == isDead {
		level = slog.LevelError
	}
	var p *PanicError
	switch {
	case errors.As(err, &p):
		level, what = slog.LevelError, "handler panicked"
		attrs = append(attrs, "stack", string(p.Stack))
		h.counts.panics.Add(1)
	case errors.Is(err, ErrGoexit):
		level, what = slog.LevelError, "handler ended its goroutine"
		h.counts.panics.Add(1)
	}
	h.log.Log(ctx, level, what+": "+string(then), attrs...) //nolint:sloglint // of constants
}
