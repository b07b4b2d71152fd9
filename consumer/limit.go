package consumer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
)

const (
	// takeEvery is the time between two takes of tokens by a busy handler.
	takeEvery = 200 * time.Millisecond
	// tokensLast is how long a process may use taken tokens. After a quiet time old tokens would let
	// a burst pass that the bucket does not know of.
	tokensLast = time.Second
	// bucketPrefix begins the name of a bucket. The consumer's name follows.
	bucketPrefix = "consumer "
	maxBucket    = 255
)

// limit keeps the tokens that a handler has taken from the bucket that it shares with other
// processes. Messages get tokens in the order in which they ask.
type limit struct {
	turn    chan struct{} // held by the goroutine that takes a token
	waiting atomic.Int64  // messages without a token
	naps    atomic.Int64  // begun and ended waits for tokens: odd while the holder of the turn waits

	// The rest belongs to the holder of the turn.
	tokens    int
	until     time.Time // when the tokens expire
	want      int       // tokens that the latest take asked for
	short     bool      // the latest take got fewer
	taken     time.Time // the time of the latest take
	notBefore time.Time // the time of the next take
}

// takeToken waits for a token, or until the message was held for Config.MaxHold.
func (pm *permits[TX]) takeToken(ctx context.Context, p *progress) error {
	l := &pm.limit
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	for {
		if err := pm.waitForTurn(ctx, p); err != nil {
			return err
		}
		err := pm.nextToken(ctx, p)
		<-l.turn
		var failed *takeError
		if !errors.As(err, &failed) || !pm.waitForDatabase(ctx, p, failed.err) {
			return err
		}
	}
}

// takeError is an error of the database.
type takeError struct{ err error }

func (e *takeError) Error() string { return "take tokens: " + e.err.Error() }
func (e *takeError) Unwrap() error { return e.err }

func (pm *permits[TX]) waitForTurn(ctx context.Context, p *progress) error {
	select {
	case pm.limit.turn <- struct{}{}:
		return nil
	default:
	}
	naps := pm.limit.naps.Load()
	defer func() {
		if naps%2 == 1 || pm.limit.naps.Load() != naps { // and not only until others had asked the database
			pm.held(p)
		}
	}()
	timer := time.NewTimer(pm.hold(p))
	defer timer.Stop()
	select {
	case pm.limit.turn <- struct{}{}:
		return nil
	case <-timer.C:
		return pm.rateLimited()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (pm *permits[TX]) rateLimited() error {
	return fmt.Errorf("%w: %v a second", ErrRateLimited, pm.cfg.MaxPerSecond)
}

// nextToken uses a token of the process, or takes tokens from the bucket. The caller holds the turn.
func (pm *permits[TX]) nextToken(ctx context.Context, p *progress) error {
	l := &pm.limit
	for {
		now := time.Now()
		if l.tokens > 0 && now.Before(l.until) {
			l.tokens--
			return nil
		}
		if wait := l.notBefore.Sub(now); wait > 0 {
			left := pm.hold(p)
			pm.held(p)
			if left <= 0 {
				return pm.rateLimited()
			}
			l.naps.Add(1)
			err := pace.Sleep(ctx, min(wait, left))
			l.naps.Add(1)
			if err != nil {
				return err
			}
			continue
		}
		l.adapt(now, pm.cfg.MaxPerSecond)
		if err := pm.take(ctx); err != nil {
			return &takeError{err}
		}
	}
}

// take takes tokens. If the bucket had too few, this time or the time before, the next take waits
// until the bucket has more.
func (pm *permits[TX]) take(ctx context.Context) error {
	l := &pm.limit
	ctx, cancel := pm.operation(ctx)
	defer cancel()
	granted, next, err := pm.inbox.store.TakeTokens(ctx, bucketPrefix+pm.name, pm.cfg.MaxPerSecond, l.want)
	if err != nil {
		return err
	}
	now := time.Now()
	l.tokens, l.until = granted, now.Add(tokensLast)
	before := l.short
	l.short = granted < l.want
	if l.short || before {
		l.notBefore = now.Add(max(next, takeEvery))
	}
	return nil
}

// adapt sets how many tokens the next take asks for: those that the handler needs in takeEvery, up to
// those of the limit. So a handler takes about five times a second, whatever its rate. Without
// waiting messages the need is known from the last take: more tokens if the taken ones were soon
// gone, fewer otherwise.
func (l *limit) adapt(now time.Time, perSecond float64) {
	chunk := max(1, int(math.Ceil(min(perSecond*takeEvery.Seconds(), math.MaxInt32))))
	if now.Sub(l.taken) < takeEvery*3/2 {
		l.want *= 2
	} else {
		l.want /= 2
	}
	l.want = min(max(l.want, int(l.waiting.Load()), 1), chunk)
	l.taken = now
}
