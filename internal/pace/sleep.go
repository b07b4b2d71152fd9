package pace

import (
	"context"
	"time"
)

// Sleep waits for d, or until ctx ends, and then returns the cause of that.
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
