package amqp

import (
	"context"
	"math"
	"math/rand/v2"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
)

// backoff computes growing delays. A random factor spreads them, so that clients which failed
// together do not come back together.
type backoff struct {
	min, max time.Duration
	factor   float64
	spread   float64 // 0.5 means between half and one and a half of the delay
}

// reconnectBackoff returns watermill-amqp's settings, or the defaults.
func reconnectBackoff(c *wamqp.ReconnectConfig) backoff {
	b := backoff{min: 100 * time.Millisecond, max: 10 * time.Second, factor: 2, spread: 0.5}
	if c == nil {
		return b
	}
	if c.BackoffInitialInterval > 0 {
		b.min = c.BackoffInitialInterval
	}
	if c.BackoffMaxInterval > 0 {
		b.max = c.BackoffMaxInterval
	}
	if c.BackoffMultiplier > 1 {
		b.factor = c.BackoffMultiplier
	}
	if c.BackoffRandomizationFactor > 0 && c.BackoffRandomizationFactor <= 1 {
		b.spread = c.BackoffRandomizationFactor
	}
	return b
}

// delay returns the delay after a number of failures; the first failure is attempt 0.
func (b backoff) delay(attempt int) time.Duration {
	d := float64(b.min) * math.Pow(b.factor, float64(min(attempt, 64)))
	d = min(d, float64(b.max))
	return time.Duration(d * (1 - b.spread + 2*b.spread*rand.Float64()))
}

// tells tells whether failure number attempt, from 0, is worth a record: the first, second, fourth and
// so on, and every 64th.
func tells(attempt int) bool {
	n := attempt + 1
	return n&(n-1) == 0 || n%64 == 0
}

// wait waits for delay(attempt) and tells whether ctx has not ended.
func (b backoff) wait(ctx context.Context, attempt int) bool {
	timer := time.NewTimer(b.delay(attempt))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
