package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/internal/schema"
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
				if err := h.registry.await(ctx); err != nil {
					refuse(err)
				}
			})
			wg.Go(func() { h.retries.run(ctx) })
			wg.Go(func() { h.forgetter.run(ctx) })
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
		if err := h.retries.drain(ctx); err != nil {
			errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
			continue
		}
		if h.extension != nil {
			if err := h.extension.RunOnce(ctx); err != nil {
				errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
				continue
			}
		}
		if err := h.forgetter.once(ctx); err != nil {
			errs = append(errs, fmt.Errorf("consumer %s: %w", h.name, err))
		}
	}
	return errors.Join(errs...)
}

// run handles parked messages until ctx ends.
func (rt *retries[TX]) run(ctx context.Context) {
	p := parkedPool[TX]{
		h:        rt.Handler,
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
		case <-p.h.retries.wake:
		case <-timer.C:
		}
	}
}

// fill begins messages that are due, up to Parked.Concurrency, and returns the wait before the next
// call.
func (p *parkedPool[TX]) fill(ctx context.Context) time.Duration {
	now := time.Now()
	if wait := p.notBefore.Sub(now); wait > 0 {
		return wait
	}
	poll := p.h.inbox.cfg.PollInterval
	room := p.h.cfg.Parked.Concurrency - len(p.inFlight)
	if room <= 0 || ctx.Err() != nil {
		return poll
	}
	for seq, until := range p.skipped {
		if !now.Before(until) {
			delete(p.skipped, seq)
		}
	}
	if err := p.h.registry.register(ctx); err != nil {
		return p.failed(ctx, err)
	}
	seqs, next, err := p.h.retries.due(ctx, len(p.inFlight)+len(p.skipped)+room)
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
			found, err := p.h.retries.retry(ctx, seq)
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
	case errors.Is(t.err, ErrPaused), errors.Is(t.err, ErrRateLimited): // due messages are read anew
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
	wait := p.h.retries.failureWait(p.failures)
	p.failures++
	p.h.invalidateAfter(err)
	p.notBefore = time.Now().Add(wait)
	p.h.log.WarnContext(ctx, "parked messages cannot be taken up", "error", err)
	return wait
}

// failureWait returns the wait after the given number of failures in a row.
func (rt *retries[TX]) failureWait(failures int) time.Duration {
	return rt.inbox.jitter(min(doubled(dueFailureWait, failures), dueFailureWaitCeiling))
}
