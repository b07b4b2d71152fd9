package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

// horizon is the longest time for which producers may send events again, as told by messages.
type horizon struct {
	mu       sync.Mutex
	longest  time.Duration
	until    time.Time // the latest time at which an event may be sent again
	reported time.Duration
	noting   bool // a goroutine is writing the horizon to the database
}

// logLimiter limits a log record to once in reportPause.
type logLimiter struct {
	mu   sync.Mutex
	last time.Time
}

func (r *logLimiter) allow(now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.last.IsZero() && now.Sub(r.last) < reportPause {
		return false
	}
	r.last = now
	return true
}

// Check registers all handlers with the database and tells whether the handlers may run, for a
// check before the service subscribes. The error wraps [ErrShortWindow] if producers may send
// events again for longer than Config.Window.
func (i *Inbox[TX]) Check(ctx context.Context) error {
	var errs []error
	for _, h := range i.all() {
		if err := h.registry.register(ctx); err != nil {
			errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
		}
	}
	return errors.Join(errs...)
}

// checkWindow compares the horizon in the database with the window.
func (rg *registry[TX]) checkWindow(ctx context.Context, r inbox.Registration) error {
	cfg := &rg.inbox.cfg
	rg.horizon.mu.Lock()
	rg.horizon.longest, rg.horizon.until = r.Horizon, r.HorizonUntil
	rg.horizon.mu.Unlock()
	if r.Horizon <= cfg.Window {
		return nil
	}
	if cfg.ShortWindow == RefuseShortWindow && cfg.Verifier != nil {
		return fmt.Errorf("window of %v, events may be sent again for %v, until %s: %w",
			cfg.Window, r.Horizon, r.HorizonUntil.Format(time.RFC3339), ErrShortWindow)
	}
	rg.reportShortWindow(ctx, r.Horizon)
	return nil
}

func (rg *registry[TX]) reportShortWindow(ctx context.Context, longest time.Duration) {
	rg.horizon.mu.Lock()
	longer := longest > rg.horizon.reported
	rg.horizon.reported = max(rg.horizon.reported, longest)
	rg.horizon.mu.Unlock()
	if longer {
		rg.log.ErrorContext(ctx, "window is shorter than a producer may send events again: late copies will be set aside as too old",
			"window", rg.inbox.cfg.Window, "horizon", longest)
	}
}

// checkStamp records the stamp and the horizon of a message. The message is handled in any case:
// the claim decides whether the message is too old.
func (rg *registry[TX]) checkStamp(ctx context.Context, in *incoming) {
	stamp, until := in.event.Stamp, in.event.ResendUntil
	if stamp.IsZero() {
		rg.counts.unstamped.Add(1)
		return
	}
	now := time.Now()
	if stamp.Sub(now) > aheadTolerance {
		rg.counts.ahead.Add(1)
		if rg.aheadLog.allow(now) {
			rg.log.WarnContext(ctx, "message is stamped in the future: is a clock wrong?", rg.attrs(in, "stamp", stamp)...)
		}
	}
	if until.After(stamp) {
		rg.checkHorizon(ctx, until.Sub(stamp), until, now)
	}
}

// checkHorizon stores the horizon, and reports a horizon beyond the window. A stored horizon beyond
// the window keeps the service from starting, and every sender can claim a long horizon. So without
// signatures the window is stored instead.
func (rg *registry[TX]) checkHorizon(ctx context.Context, claimed time.Duration, until, now time.Time) {
	cfg := &rg.inbox.cfg
	longest := min(claimed, cfg.MaxHorizon)
	if longest > cfg.Window {
		rg.counts.short.Add(1)
		rg.reportShortWindow(ctx, longest)
		if cfg.Verifier == nil {
			longest = cfg.Window
		}
	}
	rg.storeHorizon(ctx, longest, earlier(until, now.Add(longest)))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// storeHorizon stores the longest horizon in the database: a longer horizon at once, and an equal
// horizon when its end has moved by horizonStep. Any horizon replaces a horizon that is over. After
// an error, the next message tries again.
func (rg *registry[TX]) storeHorizon(ctx context.Context, longest time.Duration, until time.Time) {
	k := &rg.horizon
	k.mu.Lock()
	over := !k.until.IsZero() && k.until.Before(time.Now())
	longer := longest > k.longest || over || longest == k.longest && until.Sub(k.until) > horizonStep
	if !longer || k.noting {
		k.mu.Unlock()
		return
	}
	k.noting = true
	k.mu.Unlock()
	ctx, cancel := rg.operation(ctx)
	defer cancel()
	err := rg.inbox.store.NoteHorizon(ctx, rg.consumer(), longest, until)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.noting = false
	if err != nil {
		rg.log.DebugContext(ctx, "horizon not noted, the next message tries again", "error", err)
		return
	}
	k.longest, k.until = longest, until
}

// await waits until the handler is registered, and returns an error if the handler is
// refused. Other errors are logged by retries.run and forgetter.run, which meet them too.
func (rg *registry[TX]) await(ctx context.Context) error {
	for failures := 0; ; failures++ {
		err := rg.register(ctx)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, ErrShortWindow) {
			return fmt.Errorf("consumer %s: %w", rg.name, err)
		}
		if pace.Sleep(ctx, rg.retries.failureWait(failures)) != nil {
			return nil
		}
	}
}
