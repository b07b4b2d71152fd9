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

// Run handles parked messages that are due, runs the extensions of handlers, forgets old dispatch
// IDs, and reports the process's handlers to operators ([Inbox.ListHandlers]), for all handlers,
// until ctx ends. Then Run waits for the handlers that it has begun
// and returns nil. Run needs no broker. Several processes of a service may call Run at the same
// time. While the database is down, Run waits and logs. Run returns [ErrRunning] if the inbox runs
// already, and an error that wraps [ErrShortWindow] if a handler is refused.
func (i *Inbox[TX]) Run(ctx context.Context) error {
	if !i.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer i.running.Store(false)
	i.runCalled.Store(true)
	i.ranAt = time.Now()
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { i.watchIdentity(ctx) })
	wg.Go(func() { i.reportHandlers(ctx) })
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

// tick returns the wait until the next of the times that are so far apart since Run was called. Statements
// of an idle process come together: a pool hands all of them the connection of the first, and looks only
// once whether the connection lives.
func (i *Inbox[TX]) tick(apart time.Duration) time.Duration {
	return apart - time.Since(i.ranAt)%apart
}

// run handles parked messages until ctx ends.
func (rt *retries[TX]) run(ctx context.Context) {
	p := parkedPool[TX]{
		h:        rt.Handler,
		inFlight: make(map[int64]struct{}),
		skipped:  make(map[int64]skip),
		done:     make(chan parkedResult),
	}
	p.run(ctx)
}

// parkedPool handles parked messages of one handler, several at once. Only the goroutine of run
// uses its fields.
type parkedPool[TX any] struct {
	h         *Handler[TX]
	ready     []int64 // messages that were due and are not begun, the longest due first
	contended bool    // another process had a message of ready
	inFlight  map[int64]struct{}
	skipped   map[int64]skip // messages that could not be handled
	done      chan parkedResult
	failures  int
	notBefore time.Time
}

// skip tells until when a message is skipped, and for how long.
type skip struct {
	until time.Time
	wait  time.Duration
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
// call. The database is asked again when all messages that it has named are begun.
func (p *parkedPool[TX]) fill(ctx context.Context) time.Duration {
	now := time.Now()
	if wait := p.notBefore.Sub(now); wait > 0 {
		return wait
	}
	poll := p.h.inbox.cfg.PollInterval
	if ctx.Err() != nil || !p.begin(ctx) {
		return poll
	}
	if err := p.h.registry.register(ctx); err != nil {
		return p.failed(ctx, err)
	}
	seqs, next, err := p.h.retries.due(ctx, len(p.inFlight)+len(p.skipped)+(1+dueAhead)*p.h.cfg.Parked.Concurrency)
	if err != nil {
		return p.failed(ctx, err)
	}
	wait := p.sort(seqs)
	if !p.begin(ctx) {
		return poll
	}
	if next > 0 {
		wait = min(wait, next)
	}
	return wait
}

// begin begins messages that are ready, and tells whether there is room for more.
func (p *parkedPool[TX]) begin(ctx context.Context) (room bool) {
	for len(p.inFlight) < p.h.cfg.Parked.Concurrency {
		if len(p.ready) == 0 {
			return true
		}
		seq := p.ready[0]
		p.ready = p.ready[1:]
		p.inFlight[seq] = struct{}{}
		go func() {
			found, err := p.h.retries.retry(ctx, seq)
			p.done <- parkedResult{seq: seq, found: found, err: err}
		}()
	}
	return false
}

// sort makes the due messages ready that are neither in flight nor skipped, and returns the wait
// until a skipped message may be tried again, or until the next poll. Processes that are named the same
// messages would take them in one order and meet at each message, so they change the order.
func (p *parkedPool[TX]) sort(seqs []int64) time.Duration {
	now, wait := time.Now(), p.h.inbox.cfg.PollInterval
	skipped := make(map[int64]skip)
	p.ready = p.ready[:0]
	for _, seq := range seqs {
		s, ok := p.skipped[seq]
		if ok { // another message that was skipped is due no longer
			skipped[seq] = s
		}
		if _, busy := p.inFlight[seq]; busy {
			continue
		}
		if left := s.until.Sub(now); left > 0 {
			wait = min(wait, left)
			continue
		}
		p.ready = append(p.ready, seq)
	}
	p.skipped = skipped
	if len(skipped) == 0 {
		wait = p.h.inbox.tick(wait)
	}
	if p.contended {
		p.contended = false
		for n := len(p.ready) - 1; n > 0; n-- {
			other := int(p.h.inbox.random(time.Duration(n)))
			p.ready[n], p.ready[other] = p.ready[other], p.ready[n]
		}
	}
	return wait
}

// finished records the result of a message. A message that another process has is tried again
// soon, and then less and less often.
func (p *parkedPool[TX]) finished(ctx context.Context, t parkedResult) {
	delete(p.inFlight, t.seq)
	switch {
	case errors.Is(t.err, ErrPaused), errors.Is(t.err, ErrRateLimited): // due messages are read anew
	case t.err != nil:
		p.failed(ctx, t.err)
		p.skipped[t.seq] = skip{until: p.notBefore} // other messages first
	case !t.found:
		p.contended = true
		wait := min(max(2*p.skipped[t.seq].wait, firstSkip), p.h.inbox.cfg.PollInterval)
		p.skipped[t.seq] = skip{time.Now().Add(wait), wait}
	default:
		p.failures = 0
		delete(p.skipped, t.seq)
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
