package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// attempt is what became of one run of a handler in a transaction.
type attempt struct {
	verdict inbox.Verdict
	err     error
	ran     bool // the handler was begun
	late    bool // and overran the deadline, or the commit did
	wrote   bool // events
	ended   bool // the context, before anything was begun
}

// begun is what an attempt runs once its message is locked or claimed.
type begun[TX any] func(ctx context.Context, tx TX, in *incoming) error

// try runs apply in a transaction that ends by its own deadline, not with ctx: a
// router that closes cancels the contexts of messages whose handlers still run. It returns
// when the handler has.
func (h *Handler[TX]) try(ctx context.Context, optimistic bool, apply func(context.Context, begun[TX]) (inbox.Verdict, error)) attempt {
	ctx, cancel := h.operation(ctx)
	defer cancel()
	var a attempt
	a.err = guard(func() (err error) {
		a.verdict, err = apply(ctx, func(ctx context.Context, tx TX, in *incoming) error {
			a.ran = true
			defer func() { a.late = ctx.Err() != nil }()
			if _, ok := in.metadata[MetaNotVerified]; ok { // it was redriven
				return Reject(transport.ErrNotVerified)
			}
			if err := fault.Hit(ctx, fault.Claimed); err != nil {
				return err
			}
			w := h.newWork(ctx, tx, in)
			err := h.call(ctx, w)
			if err == nil {
				err = w.flush(ctx)
			}
			a.wrote = w.wrote
			return err
		})
		if err == nil && a.ran && fault.Hit(ctx, fault.ClaimCommitted) != nil {
			err = fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
		}
		return err
	})
	if a.err == nil && a.verdict == inbox.None {
		a.err = errors.New("store gave neither a verdict nor an error")
	}
	switch {
	case !optimistic:
		a.late = a.ran && ctx.Err() != nil
	case a.late: // unless it was the claim that has waited, which the next attempt finds out
		a.late = a.err != nil && h.inbox.store.Classify(a.err) == inbox.HandlerError
	}
	return a
}

// call runs the handler, and returns what forbids the commit. A panic becomes an error, so
// that the store rolls back in its ordinary way.
func (h *Handler[TX]) call(ctx context.Context, w *Work[TX]) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanic(v)
		}
	}()
	if err := fault.Hit(ctx, fault.BeforeHandler); err != nil {
		return err
	}
	if err := h.fn(ctx, w, w.msg); err != nil {
		return err
	}
	if w.err != nil {
		return w.err
	}
	return fault.Hit(ctx, fault.BeforeClaimCommit)
}

// guard runs f in a goroutine of its own and waits for it: a Goexit in f, as of a test
// that fails within a handler, ends that goroutine and not the router's, which
// would neither acknowledge nor return the message.
func guard(f func() error) error {
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

// nextStep is what is to be done after an attempt.
type nextStep uint8

const (
	settled   nextStep = iota // the verdict holds
	unknown                   // the commit may have succeeded: ask again
	troubled                  // nothing is known of the message: try again, count nothing
	failed                    // the handler failed
	postponed                 // and said when to try again
	buried                    // and no repetition would end otherwise
	killed                    // the process died too often
)

// judge tells what is to be done after a. Where an error may be the database's, it
// is decided whether the message has to answer for it.
func (h *Handler[TX]) judge(a attempt, d *delivery) nextStep {
	if a.err == nil {
		return settled
	}
	var (
		rejected *rejection
		later    *postponement
	)
	class := h.inbox.store.Classify(a.err)
	switch {
	case errors.Is(a.err, ErrNeverCameBack):
		return killed
	case errors.Is(a.err, inbox.ErrEnded):
		d.ended = true
		return buried
	case class == inbox.CommitUnknown:
		return unknown
	case errors.As(a.err, &rejected), a.ran && errors.Is(a.err, outbox.ErrConflict):
		return buried
	case errors.As(a.err, &later):
		return postponed
	case class == inbox.HandlerError, a.late:
		return failed
	case a.ran && h.inbox.outages.blame(d.who):
		return failed
	default:
		return troubled
	}
}
