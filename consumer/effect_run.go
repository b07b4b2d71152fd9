package consumer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// effects carries out what a handler has to do outside the database.
type effects[TX any] struct {
	h     *Handler[TX]
	store inbox.EffectStore[TX]
	cfg   EffectConfig
	again bool // what may have been carried out is tried again
	wake  chan struct{}

	do     func(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error)
	probe  func(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error) // nil: there is none; nil result: not found
	finish func(ctx context.Context, w *Work[TX], intent, result []byte) error
}

// prepare records what is to be done.
func (x *effects[TX]) prepare(ctx context.Context, w *Work[TX], intent any) error {
	b, err := encodeEffect("intent", intent)
	if err != nil {
		return Reject(err)
	}
	e, h := w.Event(), x.h
	err = x.store.PrepareEffect(ctx, w.DB(), inbox.EffectIntent{
		Consumer: h.consumer(), ID: e.ID, Key: EffectKey(h.name, e.ID),
		Topic: clean(e.Topic, maxKey), OrderKey: orderKey(e.Key), Ordered: h.cfg.Ordered && e.Key != "",
		Metadata: w.Message().Metadata, Intent: b,
	})
	if errors.Is(err, inbox.ErrEffectConflict) {
		return Reject(err)
	}
	if err == nil {
		h.inbox.reportIdle(ctx)
	}
	return err
}

// run carries out what is due until ctx ends, and then waits for what it has begun.
func (x *effects[TX]) run(ctx context.Context) {
	done := make(chan struct{})
	running, failures := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := x.h.inbox.cfg.PollInterval
		if room := x.cfg.Concurrency - running; room > 0 && ctx.Err() == nil {
			runs, next, err := x.take(ctx, room)
			switch {
			case err != nil:
				wait = x.h.dueWait(failures)
				failures++
				x.h.distrust(err)
				x.h.log.WarnContext(ctx, "effects cannot be taken up", "error", err)
			case next > 0:
				wait = min(wait, next)
			}
			for n := range runs {
				running++
				go func() {
					defer func() { done <- struct{}{} }()
					x.carryOut(ctx, &runs[n])
				}()
			}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			for ; running > 0; running-- {
				<-done
			}
			return
		case <-done:
			running--
			failures = 0
		case <-x.wake:
		case <-timer.C:
		}
	}
}

// once carries out what is due, one after another, until nothing is or one comes a second time.
func (x *effects[TX]) once(ctx context.Context) error {
	tried := make(map[int64]bool)
	for again := false; !again && ctx.Err() == nil; {
		runs, _, err := x.take(ctx, 1)
		if err != nil || len(runs) == 0 {
			return err
		}
		again = tried[runs[0].Seq]
		tried[runs[0].Seq] = true
		x.carryOut(ctx, &runs[0])
	}
	return context.Cause(ctx)
}

func (x *effects[TX]) take(ctx context.Context, limit int) ([]inbox.EffectRun, time.Duration, error) {
	if err := x.h.register(ctx); err != nil {
		return nil, 0, err
	}
	if err := fault.Hit(ctx, fault.BeforeEffect); err != nil {
		return nil, 0, err
	}
	op, cancel := x.h.operation(ctx)
	defer cancel()
	runs, next, err := x.store.TakeEffects(op, inbox.EffectTake{
		Consumer: x.h.consumer(), Limit: limit, Again: x.again, MaxAttempts: x.cfg.MaxAttempts,
		Lease: x.cfg.Lease,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("take up effects: %w", err)
	}
	return runs, next, nil
}

// carryOut does what is left of an effect. Its context does not end with ctx: what was begun is
// finished.
func (x *effects[TX]) carryOut(ctx context.Context, r *inbox.EffectRun) {
	defer signal(x.wake) // the next of its key
	if r.Result != nil {
		x.finishRun(ctx, r, r.Result)
		return
	}
	result, err := x.call(ctx, r)
	if err != nil {
		x.failed(ctx, r, err)
		return
	}
	x.finishRun(ctx, r, result)
}

// call asks the other side, outside any transaction.
func (x *effects[TX]) call(ctx context.Context, r *inbox.EffectRun) (result []byte, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.cfg.Timeout)
	defer cancel()
	err = guard(func() error {
		if err := fault.Hit(ctx, fault.EffectTaken); err != nil {
			return NotDone(err)
		}
		var err error
		if r.Uncertain && x.probe != nil {
			if result, err = x.probe(ctx, r.Key, r.Intent); err != nil {
				return fmt.Errorf("probe: %w", err)
			}
		}
		if result == nil {
			if result, err = x.do(ctx, r.Key, r.Intent); err != nil {
				return err
			}
		}
		return fault.Hit(ctx, fault.EffectAnswered)
	})
	return result, err
}

// failed records that an attempt gave no result.
func (x *effects[TX]) failed(ctx context.Context, r *inbox.EffectRun, cause error) {
	var (
		certain  *notDone
		rejected *rejection
		last     = r.Attempts >= x.cfg.MaxAttempts
		// Where it is not tried again by itself, an operator who had it redriven has said that no
		// attempt before was carried out.
		before = r.Uncertain && x.again
		o      = inbox.EffectOutcome{State: inbox.EffectPending, Uncertain: before, Attempts: r.Attempts, Noted: "effect_failed", LastError: text(cause)}
	)
	final := errors.As(cause, &rejected)
	if !final && !errors.As(cause, &certain) {
		o.Uncertain, o.Noted = true, "effect_uncertain"
	}
	switch {
	case o.Uncertain && (last || final || !x.again):
		o.State = inbox.EffectUncertain
	case last || final:
		o.State = inbox.EffectDead
	default:
		o.In = x.wait(cause, r.Attempts)
	}
	x.h.counts.effectsFailed.Add(1)
	x.h.log.WarnContext(ctx, "effect failed", x.attrs(r, "state", o.State, "retry_in", o.In, "error", cause)...)
	x.settle(ctx, r, o)
}

// wait returns when to try again.
func (x *effects[TX]) wait(cause error, attempts int) time.Duration {
	var p *postponement
	if errors.As(cause, &p) {
		return p.after
	}
	d := x.cfg.MinBackoff
	for n := 1; n < attempts && d < x.cfg.MaxBackoff; n++ {
		d = min(d*backoffGrowth, x.cfg.MaxBackoff)
	}
	return x.h.inbox.jitter(d)
}

// finishRun does what follows from a result, or keeps the result for later.
func (x *effects[TX]) finishRun(ctx context.Context, r *inbox.EffectRun, result []byte) {
	m := &finishing[TX]{progress{who: subject{x.h.name, r.Key}}, x, r, result}
	_ = x.h.retryLoop(ctx, &m.progress, m, m.begin(ctx))
}

// finishing is the handling of an effect that was carried out.
type finishing[TX any] struct {
	progress

	x      *effects[TX]
	r      *inbox.EffectRun
	result []byte
}

func (m *finishing[TX]) begin(ctx context.Context) attempt {
	return m.x.finishOnce(ctx, m.r, m.result)
}

func (m *finishing[TX]) settle(ctx context.Context, a attempt) error {
	h := m.x.h
	if a.verdict == inbox.Duplicate && !m.unknown {
		h.log.WarnContext(ctx, "effect was taken over before it was finished", m.x.attrs(m.r)...)
		return nil
	}
	h.inbox.outages.success(m.who)
	h.counts.effectsDone.Add(1)
	if h.inbox.outbox != nil {
		h.inbox.outbox.Committed()
	}
	return nil
}

func (m *finishing[TX]) failed(ctx context.Context, a attempt, step nextStep) (again bool, err error) {
	if (step == unknown || step == troubled) && m.x.h.hold(ctx, &m.progress, a.err) {
		return true, nil
	}
	m.x.answered(ctx, m.r, m.result, a.err, step)
	return false, nil
}

// answered keeps a result whose effect could not be finished.
func (x *effects[TX]) answered(ctx context.Context, r *inbox.EffectRun, result []byte, cause error, f nextStep) {
	o := inbox.EffectOutcome{State: inbox.EffectAnswered, Attempts: 1, Result: result, Noted: "effect_answered", LastError: text(cause)}
	if r.Result != nil {
		o.Attempts = r.Attempts
	}
	switch {
	case f == unknown || f == troubled:
		o.Attempts, o.Noted = o.Attempts-1, ""
		o.In = x.wait(nil, 1)
	case f == buried || o.Attempts >= x.cfg.MaxAttempts:
		o.State = inbox.EffectDead
	default:
		o.In = x.wait(cause, o.Attempts)
	}
	x.h.log.WarnContext(ctx, "effect was carried out and not finished", x.attrs(r, "state", o.State, "retry_in", o.In, "error", cause)...)
	x.settle(ctx, r, o)
}

func (x *effects[TX]) finishOnce(ctx context.Context, r *inbox.EffectRun, result []byte) attempt {
	h := x.h
	inside, _ := h.gate.enter(context.WithoutCancel(ctx), besideOthers, h.cfg.Timeout)
	defer h.gate.leave(inside)
	c := inbox.Claim{
		Consumer: h.consumer(), ID: r.ID, Isolation: h.cfg.Isolation,
		IdleTimeout: h.cfg.Timeout + idleGrace, LockTimeout: h.cfg.LockTimeout,
	}
	ctx, cancel := h.operation(ctx)
	defer cancel()
	a := attempt{verdict: inbox.Applied}
	a.err = guard(func() error {
		done, err := x.store.FinishEffect(ctx, c, r, result, func(ctx context.Context, tx TX) error {
			a.ran = true
			return x.callFinish(ctx, tx, r, result)
		})
		switch {
		case err != nil:
			return err
		case !done:
			a.verdict = inbox.Duplicate
			return nil
		}
		if fault.Hit(ctx, fault.EffectCommitted) != nil {
			return fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
		}
		return nil
	})
	a.late = a.ran && ctx.Err() != nil
	return a
}

func (x *effects[TX]) callFinish(ctx context.Context, tx TX, r *inbox.EffectRun, result []byte) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanic(v)
		}
	}()
	w := x.h.newWork(ctx, tx, x.cause(r))
	if err := x.finish(ctx, w, r.Intent, result); err != nil {
		return err
	}
	if w.err != nil {
		return w.err
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	return fault.Hit(ctx, fault.BeforeEffectCommit)
}

// cause returns the message of an effect, without its payload and under the effect's key: what
// Finish writes must not have the dispatch IDs of what Prepare has written.
func (x *effects[TX]) cause(r *inbox.EffectRun) *incoming {
	msg := message.NewMessage(r.ID.String(), nil)
	msg.Metadata = r.Metadata
	event, _ := transport.Parse(r.Topic, msg) // it was read when it came
	event.ID, event.Payload = r.Key, nil
	if event.CorrelationID == "" {
		event.CorrelationID = r.ID.String()
	}
	return &incoming{event: event, order: r.OrderKey, metadata: r.Metadata}
}

// settle records what became of a run. While the database is in trouble it tries again for
// Config.MaxHold; after that the lease ends, and the effect counts as one whose process did not
// come back. A result is known nowhere else, so it is kept until the inbox ends.
func (x *effects[TX]) settle(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) {
	if o.State == inbox.EffectDead || o.State == inbox.EffectUncertain {
		x.h.log.ErrorContext(ctx, "effect waits for an operator", x.attrs(r, "state", o.State)...)
	}
	p := &progress{who: subject{x.h.name, r.Key}}
	for failures := 0; ; failures++ {
		err := x.settleOnce(ctx, r, o)
		if err == nil {
			return
		}
		if x.h.hold(context.WithoutCancel(ctx), p, err) {
			continue
		}
		if o.Result == nil || pace.Sleep(ctx, x.h.dueWait(failures)) != nil {
			x.h.log.ErrorContext(ctx, "what became of an effect could not be recorded", x.attrs(r, "error", err)...)
			return
		}
	}
}

func (x *effects[TX]) settleOnce(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) error {
	ctx, cancel := x.h.operation(ctx)
	defer cancel()
	_, err := x.store.SettleEffect(ctx, r, o)
	return err
}

func (x *effects[TX]) attrs(r *inbox.EffectRun, more ...any) []any {
	return append([]any{"dispatch_id", r.ID, "effect_key", r.Key, "attempts", r.Attempts}, more...)
}
