package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
)

// forgetter removes the dispatch IDs, messages and attempts of a handler that are older than the
// window.
type forgetter[TX any] struct{ *Handler[TX] }

// run forgets at intervals until ctx ends.
func (fg *forgetter[TX]) run(ctx context.Context) {
	for {
		if err := fg.once(ctx); err != nil && ctx.Err() == nil {
			fg.log.ErrorContext(ctx, "forgetting failed", "error", err)
		}
		if pace.Sleep(ctx, fg.inbox.cfg.ForgetInterval) != nil {
			return
		}
	}
}

// once advances the time up to which dispatch IDs are forgotten. Then it removes the dispatch IDs
// that were forgotten longer ago than a handler may take: every handler that may have read an
// earlier time has ended.
func (fg *forgetter[TX]) once(ctx context.Context) error {
	if err := fg.registry.register(ctx); err != nil {
		return err
	}
	cfg := &fg.inbox.cfg
	_, err := fg.inbox.store.AdvanceForgotten(ctx, fg.registry.consumer(), cfg.Window, cfg.MaxClockStep)
	if jump, is := errors.AsType[*inbox.ClockJumpError](err); is {
		// The service may have stood still: the clock of this process tells.
		passed := time.Since(jump.Since) + aheadTolerance
		_, err = fg.inbox.store.AdvanceForgotten(ctx, fg.registry.consumer(), cfg.Window, max(passed, cfg.MaxClockStep))
	}
	if err != nil {
		err = fmt.Errorf("advance what is forgotten: %w", err)
		if !errors.Is(err, inbox.ErrClockJump) { // after a clock jump, older IDs can still be removed
			return err
		}
	}
	var after time.Time
	ferr := fg.inBatches(ctx, func(limit int) (int, error) {
		f, err := fg.inbox.store.Forget(ctx, fg.registry.consumer(), fg.cfg.Timeout+forgetGrace, after, limit)
		fg.counts.forgotten.Add(int64(f.IDs))
		after = f.Through
		return f.IDs, err
	})
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("remove forgotten dispatch IDs: %w", ferr))
	}
	ferr = fg.inBatches(ctx, func(limit int) (int, error) {
		return fg.inbox.store.ForgetDiscarded(ctx, fg.registry.consumer(), cfg.Window, limit)
	})
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("remove discarded messages: %w", ferr))
	}
	ferr = fg.inBatches(ctx, func(limit int) (int, error) {
		return fg.inbox.store.ForgetHistory(ctx, fg.registry.consumer(), cfg.HistoryFor, limit)
	})
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("remove old attempts: %w", ferr))
	}
	if fg.extension == nil {
		return err
	}
	return errors.Join(err, fg.inBatches(ctx, func(limit int) (int, error) {
		return fg.extension.Forget(ctx, cfg.Window, limit)
	}))
}

// inBatches calls remove until a batch is not full. The size of batches adapts to their duration.
// After each full batch follows a pause of the same length, for messages that are being handled.
func (fg *forgetter[TX]) inBatches(ctx context.Context, remove func(limit int) (int, error)) error {
	p := pace.New(forgetMost, forgetTime, forgetShare)
	for {
		if err := fault.Hit(ctx, fault.BeforeDelete); err != nil {
			return err
		}
		begun := time.Now()
		limit := p.Size()
		n, err := remove(limit)
		if err != nil || n < limit {
			return err
		}
		if pace.Sleep(ctx, p.Took(time.Since(begun), true)) != nil {
			return context.Cause(ctx)
		}
	}
}
