package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/internal/schema"
	"github.com/boxpair/boxpair/store/inbox"
)

// Run handles parked messages that are due, runs the extensions of handlers, and forgets old
// dispatch IDs, for all handlers, until ctx ends. Then Run waits for the handlers that it has begun
// and returns nil. Run needs no broker. Several processes of a service may call Run at the same
// time. While the database is down, Run waits and logs. Run returns [ErrRunning] if the inbox runs
// already, and an error that wraps [ErrShortWindow] if a handler is refused.
func (i *Inbox[TX]) Run(ctx context.Context) error {
	if !i.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer i.running.Store(false)
	i.runCalled.Store(true)
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { i.watchIdentity(ctx) })
	wg.Go(func() {
		if pace.Sleep(ctx, i.cfg.PollInterval) == nil { // handlers may be added after Run
			i.reportOrphans(ctx)
		}
	})
	wg.Go(func() {
		schema.Await(ctx, i.store, func(err error) {
			if err != nil {
				i.log.ErrorContext(ctx, "tables of the inbox are not as they should be, or cannot be reached", "service", i.cfg.Service, "error", err)
			}
		})
	})
	started := make(map[*Handler[TX]]struct{})
	for {
		for _, h := range i.all() {
			if _, ok := started[h]; ok {
				continue
			}
			started[h] = struct{}{}
			wg.Go(func() {
				if err := h.awaitRegistered(ctx); err != nil {
					refuse(err)
				}
			})
			wg.Go(func() { h.runParked(ctx) })
			wg.Go(func() { h.runForget(ctx) })
			if h.extension != nil {
				wg.Go(func() { h.extension.Run(ctx) })
			}
		}
		select {
		case <-ctx.Done():
			if err := context.Cause(ctx); errors.Is(err, ErrShortWindow) {
				return err
			}
			return nil
		case <-i.added:
		}
	}
}

// RunOnce does the work of [Inbox.Run] once, for one handler after another: it handles every parked
// message that is due, each at most once, does the work of the extension, and forgets. RunOnce
// returns the errors of all handlers.
func (i *Inbox[TX]) RunOnce(ctx context.Context) error {
	i.runCalled.Store(true)
	var errs []error
	for _, h := range i.all() {
		if h.isReady() {
			if err := h.drain(ctx); err != nil {
				errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
				continue
			}
		}
		if h.extension != nil {
			if err := h.extension.RunOnce(ctx); err != nil {
				errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
				continue
			}
		}
		if err := h.forget(ctx); err != nil {
			errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
		}
	}
	return errors.Join(errs...)
}

func (h *Handler[TX]) isReady() bool {
	if h.cfg.Ready == nil {
		return true
	}
	select {
	case <-h.cfg.Ready:
		return true
	default:
		return false
	}
}

// runParked handles parked messages until ctx ends.
func (h *Handler[TX]) runParked(ctx context.Context) {
	if h.cfg.Ready != nil {
		select {
		case <-h.cfg.Ready:
		case <-ctx.Done():
			return
		}
	}
	p := parkedPool[TX]{
		h:        h,
		inFlight: make(map[int64]struct{}),
		skipped:  make(map[int64]time.Time),
		done:     make(chan parkedResult),
	}
	p.run(ctx)
}

// parkedPool handles parked messages of one handler, several at once. Only the goroutine of run
// uses its fields.
type parkedPool[TX any] struct {
	h         *Handler[TX]
	inFlight  map[int64]struct{}
	skipped   map[int64]time.Time // until when messages that could not be handled are skipped
	done      chan parkedResult
	failures  int
	notBefore time.Time
}

type parkedResult struct {
	seq   int64
	found bool
	err   error
}

func (p *parkedPool[TX]) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(p.fill(ctx))
		select {
		case <-ctx.Done():
			for len(p.inFlight) > 0 {
				p.finished(ctx, <-p.done)
			}
			return
		case t := <-p.done:
			p.finished(ctx, t)
		case <-p.h.wake:
		case <-timer.C:
		}
	}
}

// fill begins messages that are due, up to ParkedConcurrency, and returns the wait before the next
// call.
func (p *parkedPool[TX]) fill(ctx context.Context) time.Duration {
	now := time.Now()
	if wait := p.notBefore.Sub(now); wait > 0 {
		return wait
	}
	poll := p.h.inbox.cfg.PollInterval
	room := p.h.cfg.ParkedConcurrency - len(p.inFlight)
	if room <= 0 || ctx.Err() != nil {
		return poll
	}
	for seq, until := range p.skipped {
		if !now.Before(until) {
			delete(p.skipped, seq)
		}
	}
	if err := p.h.register(ctx); err != nil {
		return p.failed(ctx, err)
	}
	seqs, next, err := p.h.due(ctx, len(p.inFlight)+len(p.skipped)+room)
	if err != nil {
		return p.failed(ctx, err)
	}
	for _, seq := range seqs {
		_, busy := p.inFlight[seq]
		_, skipped := p.skipped[seq]
		if busy || skipped || room == 0 {
			continue
		}
		room--
		p.inFlight[seq] = struct{}{}
		go func() {
			found, err := p.h.retryParked(ctx, seq)
			p.done <- parkedResult{seq: seq, found: found, err: err}
		}()
	}
	if next > 0 {
		return min(next, poll)
	}
	return poll
}

// finished records the result of a message.
func (p *parkedPool[TX]) finished(ctx context.Context, t parkedResult) {
	delete(p.inFlight, t.seq)
	switch {
	case t.err != nil:
		p.failed(ctx, t.err)
		p.skipped[t.seq] = p.notBefore // other messages first
	case !t.found:
		p.skipped[t.seq] = time.Now().Add(p.h.inbox.cfg.PollInterval)
	default:
		p.failures = 0
	}
}

// failed records an error of the database and returns the wait before the next query.
func (p *parkedPool[TX]) failed(ctx context.Context, err error) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	wait := p.h.failureWait(p.failures)
	p.failures++
	p.h.invalidateAfter(err)
	p.notBefore = time.Now().Add(wait)
	p.h.log.WarnContext(ctx, "parked messages cannot be taken up", "error", err)
	return wait
}

// failureWait returns the wait after the given number of failures in a row.
func (h *Handler[TX]) failureWait(failures int) time.Duration {
	return h.inbox.jitter(min(doubled(dueFailureWait, failures), dueFailureWaitCeiling))
}

// runForget forgets at intervals until ctx ends.
func (h *Handler[TX]) runForget(ctx context.Context) {
	for {
		if err := h.forget(ctx); err != nil && ctx.Err() == nil {
			h.log.ErrorContext(ctx, "forgetting failed", "error", err)
		}
		if pace.Sleep(ctx, h.inbox.cfg.ForgetInterval) != nil {
			return
		}
	}
}

// forget advances the time up to which dispatch IDs are forgotten. Then it removes the dispatch IDs
// that were forgotten longer ago than a handler may take: every handler that may have read an
// earlier time has ended.
func (h *Handler[TX]) forget(ctx context.Context) error {
	if err := h.register(ctx); err != nil {
		return err
	}
	cfg := &h.inbox.cfg
	until, err := h.inbox.store.AdvanceForgotten(ctx, h.consumer(), cfg.Window, cfg.MaxClockStep)
	if errors.Is(err, inbox.ErrClockJump) && !until.IsZero() {
		// The service may have stood still: the clock of this process tells.
		passed := time.Since(until.Add(cfg.Window)) + aheadTolerance
		_, err = h.inbox.store.AdvanceForgotten(ctx, h.consumer(), cfg.Window, max(passed, cfg.MaxClockStep))
	}
	if err != nil {
		err = fmt.Errorf("advance what is forgotten: %w", err)
		if !errors.Is(err, inbox.ErrClockJump) { // after a clock jump, older IDs can still be removed
			return err
		}
	}
	var after time.Time
	ferr := h.inBatches(ctx, func(limit int) (int, error) {
		f, err := h.inbox.store.Forget(ctx, h.consumer(), h.cfg.Timeout+forgetGrace, after, limit)
		h.counts.forgotten.Add(int64(f.IDs))
		after = f.Through
		return f.IDs, err
	})
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("remove forgotten dispatch IDs: %w", ferr))
	}
	ferr = h.inBatches(ctx, func(limit int) (int, error) {
		return h.inbox.store.ForgetDiscarded(ctx, h.consumer(), cfg.Window, limit)
	})
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("remove discarded messages: %w", ferr))
	}
	ferr = h.inBatches(ctx, func(limit int) (int, error) {
		return h.inbox.store.ForgetHistory(ctx, h.consumer(), cfg.HistoryFor, limit)
	})
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("remove old attempts: %w", ferr))
	}
	if h.extension == nil {
		return err
	}
	return errors.Join(err, h.inBatches(ctx, func(limit int) (int, error) {
		return h.extension.Forget(ctx, cfg.Window, limit)
	}))
}

// inBatches calls remove until a batch is not full. The size of batches adapts to their duration.
// After each full batch follows a pause of the same length, for messages that are being handled.
func (h *Handler[TX]) inBatches(ctx context.Context, remove func(limit int) (int, error)) error {
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
