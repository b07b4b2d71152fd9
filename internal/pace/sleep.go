package pace

import (
	"context"
	"time"
)

// Sleep waits for d and returns nil, or until ctx ends and returns its cause.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
