package effects

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// pauseCheck is how often Run looks whether a paused consumer goes on.
const pauseCheck = 450 * time.Millisecond

// runner carries out the effects of a handler.
type runner[TX any] struct {
	host  *consumer.Host[TX]
	store inbox.EffectStore[TX]
	cfg   Config
	again bool // an uncertain effect is tried again
	wake  chan struct{}

	do func(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error)
	// probe is nil without Effect.Probe. A nil result says that the effect was not carried out.
	probe  func(ctx context.Context, key uuid.UUID, intent []byte) ([]byte, error)
	finish func(ctx context.Context, w *consumer.Work[TX], intent, result []byte) error

	done, failures atomic.Int64
}

// prepare records the intent in the transaction of the claim.
func (x *runner[TX]) prepare(ctx context.Context, w *consumer.Work[TX], intent any) error {
	b, err := encode("intent", intent)
	if err != nil {
		return consumer.Reject(err)
	}
	e, h := w.Event(), x.host
	err = x.store.PrepareEffect(ctx, w.DB(), inbox.EffectIntent{
		Consumer: h.Consumer(), ID: e.ID, Key: Key(h.Name(), e.ID),
		Topic: text.Clean(e.Topic, field.MaxKey), OrderKey: field.Key(e.Key), Ordered: h.Config().Order.ByKey && e.Key != "",
		Metadata: w.Message().Metadata, Intent: b,
	})
	if errors.Is(err, inbox.ErrEffectConflict) {
		return consumer.Reject(err)
	}
	if err == nil {
		h.NeedsRun(ctx)
	}
	return err
}

// Run carries out due effects until ctx ends, and then waits for effects in progress.
func (x *runner[TX]) Run(ctx context.Context) {
	done := make(chan struct{})
	running, failures := 0, 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait := x.host.PollInterval()
		if x.host.Paused(ctx) {
			wait = pauseCheck
		} else if room := x.cfg.Concurrency - running; room > 0 && ctx.Err() == nil {
			runs, next, err := x.take(ctx, room)
			switch {
			case err != nil:
				wait = x.host.StoreFailed(err, failures)
				failures++
				x.host.Logger().WarnContext(ctx, "effects cannot be taken up", "error", err)
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

// RunOnce carries out effects one after another, until no effect is due or an effect was carried
// out twice.
func (x *runner[TX]) RunOnce(ctx context.Context) error {
	tried := make(map[int64]bool)
	for again := false; !again && ctx.Err() == nil; {
		if x.host.Paused(ctx) {
			return nil
		}
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

// Wake makes Run look for due effects at once.
func (x *runner[TX]) Wake() {
	select {
	case x.wake <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// Forget removes effects that have ended.
func (x *runner[TX]) Forget(ctx context.Context, age time.Duration, limit int) (int, error) {
	n, err := x.store.ForgetEffects(ctx, x.host.Consumer(), age, limit)
	if err != nil {
		return n, fmt.Errorf("remove ended effects: %w", err)
	}
	return n, nil
}

// AddStats counts the effects that have not ended.
func (x *runner[TX]) AddStats(ctx context.Context, stats *inbox.Stats) (err error) {
	stats.Effects, err = x.store.EffectStats(ctx, x.host.Consumer())
	return err
}

func (x *runner[TX]) take(ctx context.Context, limit int) ([]inbox.EffectRun, time.Duration, error) {
	number, err := x.host.Register(ctx)
	if err != nil {
		return nil, 0, err
	}
	if err := fault.Hit(ctx, fault.BeforeEffect); err != nil {
		return nil, 0, err
	}
	op, cancel := x.host.Operation(ctx)
	defer cancel()
	runs, next, err := x.store.TakeEffects(op, inbox.EffectTake{
		Consumer: number, Limit: limit, Again: x.again, MaxAttempts: x.cfg.MaxAttempts,
		Lease: x.cfg.Lease,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("take up effects: %w", err)
	}
	return runs, next, nil
}

// carryOut makes the call of an effect, unless the result is known, and finishes the effect. The
// end of ctx does not cut an effect short.
func (x *runner[TX]) carryOut(ctx context.Context, r *inbox.EffectRun) {
	defer x.Wake() // the next effect of the key may be due
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
func (x *runner[TX]) call(ctx context.Context, r *inbox.EffectRun) (result []byte, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), x.cfg.Timeout)
	defer cancel()
	err = x.host.RunIsolated(func() error {
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

// failed records an attempt without a result.
func (x *runner[TX]) failed(ctx context.Context, r *inbox.EffectRun, cause error) {
	var (
		certain *notDone
		last    = r.Attempts >= x.cfg.MaxAttempts
		// Without x.again only an operator redrives an uncertain effect, and so says that no
		// earlier attempt was carried out.
		before = r.Uncertain && x.again
		o      = inbox.EffectOutcome{State: inbox.EffectPending, Uncertain: before, Attempts: r.Attempts, Noted: "effect_failed", LastError: field.Error(cause)}
	)
	final := consumer.Rejected(cause)
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
	x.failures.Add(1)
	x.host.Logger().WarnContext(ctx, "effect failed", x.attrs(r, "state", o.State, "retry_in", o.In, "error", cause)...)
	x.settle(ctx, r, o)
}

// wait returns the wait before the next attempt.
func (x *runner[TX]) wait(cause error, attempts int) time.Duration {
	if delay, ok := consumer.RetryDelay(cause); ok {
		return delay
	}
	return x.host.Backoff(x.cfg.MinBackoff, x.cfg.MaxBackoff, attempts-1)
}

// finishRun runs Finish with a result. If Finish fails, the ledger keeps the result for later.
func (x *runner[TX]) finishRun(ctx context.Context, r *inbox.EffectRun, result []byte) {
	outcome, err := x.host.Task(r.Key).Run(ctx, consumer.Transaction[TX]{
		Event: cause(r), Metadata: r.Metadata,
		Apply: func(ctx context.Context, c inbox.Claim, fn func(context.Context, TX) error) (bool, error) {
			return x.commit(ctx, c, r, result, fn)
		},
		Run: func(ctx context.Context, w *consumer.Work[TX]) error { return x.finish(ctx, w, r.Intent, result) },
	})
	switch outcome {
	case consumer.TaskCommitted:
		x.done.Add(1)
	case consumer.TaskGone:
		x.host.Logger().WarnContext(ctx, "effect was taken over before it was finished", x.attrs(r)...)
	default:
		x.answered(ctx, r, result, err, outcome)
	}
}

// commit makes the effect done in the transaction of fn.
func (x *runner[TX]) commit(ctx context.Context, c inbox.Claim, r *inbox.EffectRun, result []byte, fn func(context.Context, TX) error) (bool, error) {
	c.ID = r.ID
	done, err := x.store.FinishEffect(ctx, c, r, result, func(ctx context.Context, tx TX) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.BeforeEffectCommit)
	})
	if err == nil && done && fault.Hit(ctx, fault.EffectCommitted) != nil {
		err = fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
	}
	return done, err
}

// answered records the result of an effect that could not be finished.
func (x *runner[TX]) answered(ctx context.Context, r *inbox.EffectRun, result []byte, cause error, outcome consumer.Outcome) {
	o := inbox.EffectOutcome{State: inbox.EffectAnswered, Attempts: 1, Result: result, Noted: "effect_answered", LastError: field.Error(cause)}
	if r.Result != nil {
		o.Attempts = r.Attempts
	}
	switch {
	case outcome == consumer.TaskUnavailable:
		o.Attempts, o.Noted = o.Attempts-1, ""
		o.In = x.wait(nil, 1)
	case outcome == consumer.TaskRejected || o.Attempts >= x.cfg.MaxAttempts:
		o.State = inbox.EffectDead
	default:
		o.In = x.wait(cause, o.Attempts)
	}
	x.host.Logger().WarnContext(ctx, "effect was carried out and not finished", x.attrs(r, "state", o.State, "retry_in", o.In, "error", cause)...)
	x.settle(ctx, r, o)
}

// cause returns the message of an effect, without the payload and under the effect's key: events of
// Finish must not have the dispatch IDs of events of Prepare.
func cause(r *inbox.EffectRun) transport.Event {
	msg := message.NewMessage(r.ID.String(), nil)
	msg.Metadata = r.Metadata
	event, _ := transport.Parse(r.Topic, msg) // the message was read on its arrival
	event.ID, event.Payload = r.Key, nil
	if event.CorrelationID == "" {
		event.CorrelationID = r.ID.String()
	}
	return event
}

// settle records the outcome of a run. After an error of the database settle tries again for
// Config.MaxHold of the inbox. Then an outcome without a result is given up: when the lease ends,
// the process of the effect counts as dead. A result is known only here, so settle tries to record
// a result until ctx ends.
func (x *runner[TX]) settle(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) {
	if o.State == inbox.EffectDead || o.State == inbox.EffectUncertain {
		x.host.Logger().ErrorContext(ctx, "effect waits for an operator", x.attrs(r, "state", o.State)...)
	}
	task := x.host.Task(r.Key)
	for failures := 0; ; failures++ {
		err := x.settleOnce(ctx, r, o)
		if err == nil {
			return
		}
		if task.Wait(context.WithoutCancel(ctx), err) {
			continue
		}
		if o.Result == nil || pace.Sleep(ctx, x.host.FailureWait(failures)) != nil {
			x.host.Logger().ErrorContext(ctx, "what became of an effect could not be recorded", x.attrs(r, "error", err)...)
			return
		}
	}
}

func (x *runner[TX]) settleOnce(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) error {
	ctx, cancel := x.host.Operation(ctx)
	defer cancel()
	_, err := x.store.SettleEffect(ctx, r, o)
	return err
}

func (x *runner[TX]) attrs(r *inbox.EffectRun, more ...any) []any {
	return append([]any{"dispatch_id", r.ID, "effect_key", r.Key, "attempts", r.Attempts}, more...)
}
