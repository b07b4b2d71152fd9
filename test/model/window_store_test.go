package modeltest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// fault is the fate of one transaction that applies a message.
type fault int

const (
	works         fault = iota
	unreachable         // nothing is begun
	busy                // nothing is begun, since others hold locks
	commitFails         // rolled back, and said so
	conflicts           // rolled back for another transaction's sake
	lostCommitted       // committed, and the answer is lost
	lostUndone          // rolled back, and the answer is lost
)

var (
	errUnreachable = errors.New("database is not reachable")
	errConflicts   = errors.New("transaction conflicts with another")
)

// faultyStore is a store whose transactions fail as told.
type faultyStore[TX any] struct {
	inbox.Store[TX]
	// next returns the fate of the next transaction.
	next func() fault
	// down makes registering fail as well.
	down bool
	// last is the verdict of the latest transaction whose answer arrived.
	last inbox.Verdict
}

// Register fails while the database is down.
func (s *faultyStore[TX]) Register(ctx context.Context, name string, window time.Duration) (inbox.Registration, error) {
	if s.down {
		return inbox.Registration{}, errUnreachable
	}
	return s.Store.Register(ctx, name, window)
}

// Apply applies a message, or not.
func (s *faultyStore[TX]) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx TX) error) (inbox.Verdict, error) {
	verdict, err := applyWith(ctx, s.Store, s.next(), c, fn)
	s.last = verdict
	return verdict, err
}

// applyWith is Apply with a fault. Without a commit a fault of the commit cannot happen: verdicts
// other than Applied arrive.
func applyWith[TX any](ctx context.Context, store inbox.Store[TX], f fault, c inbox.Claim, fn func(ctx context.Context, tx TX) error) (inbox.Verdict, error) {
	switch f {
	case unreachable:
		return inbox.None, errUnreachable
	case busy:
		return inbox.None, errConflicts
	}
	undone := map[fault]error{
		commitFails: errUnreachable,
		conflicts:   errConflicts,
		lostUndone:  fmt.Errorf("commit: %w", inbox.ErrCommitUnknown),
	}[f]
	verdict, err := store.Apply(ctx, c, func(ctx context.Context, tx TX) error {
		if err := fn(ctx, tx); err != nil {
			return err
		}
		return undone
	})
	if err == nil && verdict == inbox.Applied && f == lostCommitted {
		return inbox.None, fmt.Errorf("commit: %w", inbox.ErrCommitUnknown)
	}
	return verdict, err
}

// Classify knows the errors of faults.
func (s *faultyStore[TX]) Classify(err error) inbox.ErrorClass {
	switch {
	case errors.Is(err, errUnreachable):
		return inbox.Infrastructure
	case errors.Is(err, errConflicts):
		return inbox.Conflict
	}
	return s.Store.Classify(err)
}
