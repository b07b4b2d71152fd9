package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport/signature"
)

// attempt is the result of one transaction, with at most one run of the handler.
type attempt struct {
	verdict  inbox.Verdict
	err      error
	ran      bool // the handler was begun
	overran  bool // the handler or the commit overran the deadline
	wrote    bool // the handler wrote events
	notBegun bool // no transaction began: the context ended, or the consumer could not be registered
}

// claimedFunc runs the handler in a transaction that has claimed or locked the message.
type claimedFunc[TX any] func(ctx context.Context, tx TX, in *incoming) error

// try makes one attempt: apply has the store run the handler in a transaction. The deadline is
// HandlerConfig.Timeout, not the end of ctx: a closing router cancels the contexts of messages
// whose handlers still run. try returns after the handler.
func (h *Handler[TX]) try(ctx context.Context, optimistic bool, apply func(context.Context, claimedFunc[TX]) (inbox.Verdict, error)) attempt {
	ctx, cancel := h.operation(ctx)
	defer cancel()
	ctx, seen, err := observe.Begin(ctx)
	if err != nil {
		return attempt{err: err, notBegun: true}
	}
	var a attempt
	a.err = runIsolated(func() (err error) {
		a.verdict, err = apply(ctx, func(ctx context.Context, tx TX, in *incoming) error {
			a.ran = true
			defer func() { a.overran = ctx.Err() != nil }()
			if _, ok := in.metadata[MetaNotVerified]; ok { // redriven by an operator
				return Reject(signature.ErrNotVerified)
			}
			if err := fault.Hit(ctx, fault.Claimed); err != nil {
				return err
			}
			w := h.newWork(ctx, tx, in)
			defer w.end()
			err := h.call(w) //nolint:contextcheck // the context is the message's, within ctx
			if err == nil {
				err = w.flush(ctx)
			}
			a.wrote = w.wrote()
			return err
		})
		if err == nil && a.ran && fault.Hit(ctx, fault.ClaimCommitted) != nil {
			err = fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
		}
		return err
	})
	a.err = seen.Ended(a.err)
	if a.err == nil && a.verdict == inbox.None {
		a.err = errors.New("store gave neither a verdict nor an error")
	}
	switch {
	case !optimistic:
		a.overran = a.ran && ctx.Err() != nil
	case a.overran: // the claim may have taken the time: only an error of the handler counts, and the next attempt claims first
		a.overran = a.err != nil && h.inbox.store.Classify(a.err) == inbox.HandlerError
	}
	return a
}

// call runs the handler and returns the error that forbids the commit. A panic becomes an error, so
// the store rolls back as usual.
func (h *Handler[TX]) call(w *Work[TX]) (err error) {
	ctx := w.msg.Context()
	defer func() {
		if v := recover(); v != nil {
			err = observe.From(ctx).Returned(newPanic(v))
		}
	}()
	if err := fault.Hit(ctx, fault.BeforeHandler); err != nil {
		return err
	}
	if err := observe.From(ctx).Returned(h.fn(ctx, w, w.msg)); err != nil {
		return err
	}
	if err := w.failed(); err != nil {
		return err
	}
	return fault.Hit(ctx, fault.BeforeClaimCommit)
}

// runIsolated runs f in a separate goroutine and waits for f. So a Goexit in f, as of a test that
// fails within a handler, does not end the router's goroutine, which has to acknowledge or return
// the message.
func runIsolated(f func() error) error {
	done := make(chan error, 1)
	go func() {
		err, returned := error(nil), false
		defer func() {
			if v := recover(); v != nil {
				err = newPanic(v)
			} else if !returned {
				err = ErrGoexit
			}
			done <- err
		}()
		err = f()
		returned = true
	}()
	return <-done
}

func newPanic(value any) *PanicError {
	return &PanicError{Value: value, Stack: debug.Stack()}
}

// nextStep is the step after an attempt. docs/architecture.md has a table of the attempts before
// each step and of the message's states after each step.
type nextStep uint8

const (
	useVerdict     nextStep = iota // the verdict of the store decides
	giveUp                         // the attempt was not begun, or a test has ended it: return its error
	askAgain                       // the commit may have succeeded: the verdict of a new claim tells
	retryUncounted                 // a conflict or an error of the database: try again without counting
	countAttempt                   // the handler failed
	retryLater                     // the handler failed and named a delay
	makeDead                       // no further attempt could succeed
	makeDeadUnrun                  // the process died too often while the message was handled
)

// judge returns the step after a. The outage detector decides whether the database or the message
// has caused an error of the database.
func (h *Handler[TX]) judge(a attempt, p *progress) nextStep {
	switch {
	case a.notBegun, errors.Is(a.err, observe.ErrCrash):
		return giveUp
	case a.err == nil:
		return useVerdict
	}
	class := h.inbox.store.Classify(a.err)
	switch {
	case errors.Is(a.err, ErrNeverCameBack):
		return makeDeadUnrun
	case errors.Is(a.err, inbox.ErrEnded):
		p.txEnded = true
		return makeDead
	case class == inbox.CommitUnknown:
		return askAgain
	case Rejected(a.err), a.ran && errors.Is(a.err, outbox.ErrConflict):
		return makeDead
	case postpones(a.err):
		return retryLater
	case class == inbox.HandlerError, a.overran:
		return countAttempt
	case a.ran && h.inbox.outages.blame(p.ref):
		return countAttempt
	default:
		return retryUncounted
	}
}

// progress is the state shared by all attempts to handle one message.
type progress struct {
	ref           messageRef
	commitUnknown bool // the outcome of an earlier commit was not known
	// txEnded tells that the handler has ended the transaction of the claim. If the claim is
	// committed, half of the handler's work may be committed too.
	txEnded bool

	since  time.Time // the first wait for the database
	waits  int       // for the database
	queued time.Time // the first wait for a permit: no trouble with the database, so a time of its own
	held   bool      // the message has waited for the end of a pause, or for a limit
}

// handling handles one message: [freshMessage] a delivered message, [parkedMessage] a parked
// message, [taskRun] a task of an extension.
type handling interface {
	// begin makes an attempt.
	begin(ctx context.Context) attempt
	// settle acts on the verdict of an attempt. The error is the result of the handling.
	settle(ctx context.Context, a attempt) error
	// failed acts on an attempt without a verdict. It returns true if another attempt must follow
	// now, and otherwise the result of the handling.
	failed(ctx context.Context, a attempt, step nextStep) (again bool, err error)
	// attrs puts attributes that name the message before the arguments of a log record.
	attrs(args ...any) []any
}

// retryLoop makes attempts until the message is applied or parked. The caller has made the first
// attempt, a. After an error the message was neither applied nor parked.
func (h *Handler[TX]) retryLoop(ctx context.Context, p *progress, m handling, a attempt) error {
	for {
		if a.ran {
			p.txEnded = false // the handler ran under a new claim: the transaction that an earlier run ended was rolled back
		}
		step := h.judge(a, p)
		switch step {
		case giveUp:
			return a.err
		case useVerdict:
			return m.settle(ctx, a)
		case askAgain:
			h.counts.unknown.Add(1)
			h.log.WarnContext(ctx, "outcome of a commit is unknown: asking again", m.attrs("error", a.err)...)
		}
		again, err := m.failed(ctx, a, step)
		if !again {
			return err
		}
		p.commitUnknown = p.commitUnknown || step == askAgain
		a = m.begin(ctx)
	}
}
