package consumer

import (
	"context"
	"time"

	"golang.org/x/sync/semaphore"
)

// What goes through a gate weighs.
const (
	shared    int64 = 1
	exclusive int64 = 1 << 30
)

// gate lets many runs of one handler in together, or one in alone, in the order in which they came:
// who wants to be alone keeps newcomers out, so neither side starves. No wait for it is longer than
// a run may take: a handler that never comes back, or calls itself, stops nobody.
type gate struct {
	inside *semaphore.Weighted
}

func newGate() gate { return gate{semaphore.NewWeighted(exclusive)} }

// acquire waits for its turn at most so long. It returns what to leave with, or 0 when the time was
// over: then the caller goes in beside whoever is there. An error says that ctx ended.
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

// release ends what acquire began.
func (g gate) release(weight int64) { g.inside.Release(weight) }

// runShared runs an attempt beside others of the handler.
func (h *Handler[TX]) runShared(ctx context.Context, run func() attempt) attempt {
	inside, err := h.gate.acquire(ctx, shared, h.cfg.Timeout)
	if err != nil {
		return attempt{err: err, notBegun: true}
	}
	defer h.gate.release(inside)
	return run()
}
