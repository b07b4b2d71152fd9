package consumer

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// The weights with which a gate is acquired.
const (
	shared    int64 = 1
	exclusive int64 = 1 << 30
)

// gate is a lock that many runs of a handler hold shared, or one run holds exclusively. Runs
// acquire the lock in the order of their arrival, so neither kind starves. Each wait is bounded by
// the longest time that a run may take: a handler that never returns, or calls itself, blocks no
// other run for longer.
type gate struct {
	inside *semaphore.Weighted
}

func newGate() gate { return gate{semaphore.NewWeighted(exclusive)} }

// acquire waits for the lock, for most at the longest, and returns the weight to release. After
// most the weight is 0, and the caller runs without the lock. An error says that ctx ended.
func (g gate) acquire(ctx context.Context, weight int64, most time.Duration) (int64, error) {
	if g.inside.TryAcquire(weight) {
		return weight, nil
	}
	wait, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	switch {
	case g.inside.Acquire(wait, weight) == nil:
		return weight, nil
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	default:
		return 0, nil
	}
}

// release releases a weight that acquire has returned.
func (g gate) release(weight int64) { g.inside.Release(weight) }

// runShared runs an attempt beside other runs of the handler.
func (h *Handler[TX]) runShared(ctx context.Context, run func() attempt) attempt {
	inside, err := h.gate.acquire(ctx, shared, h.cfg.Timeout)
	if err != nil {
		return attempt{err: err, notBegun: true}
	}
	defer h.gate.release(inside)
	return run()
}
