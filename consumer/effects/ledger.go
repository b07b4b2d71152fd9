package effects

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/store/inbox"
)

// Ledger lists and changes effects for operators: the effects of all services that share the
// tables. A Ledger is safe for concurrent use.
type Ledger[TX any] struct {
	inbox *consumer.Inbox[TX]
	store inbox.EffectStore[TX]
}

// New returns the ledger in the store of an inbox. New does no I/O.
func New[TX any](i *consumer.Inbox[TX]) (*Ledger[TX], error) {
	store, err := ledger(i)
	if err != nil {
		return nil, err
	}
	return &Ledger[TX]{i, store}, nil
}

// ledger returns the store of an inbox as a store of effects.
func ledger[TX any](i *consumer.Inbox[TX]) (inbox.EffectStore[TX], error) {
	store, ok := i.Store().(inbox.EffectStore[TX])
	if !ok {
		return nil, ErrNoLedger
	}
	return store, nil
}

// List reads effects. A filter without a consumer selects effects of all consumers that share the
// tables. Effects that wait for an operator are [inbox.EffectUncertain] or [inbox.EffectDead].
func (l *Ledger[TX]) List(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error) {
	f.Limit = limitOf(f.Limit)
	return l.store.ListEffects(ctx, f)
}

// Redrive makes dead and uncertain effects that f selects pending again, with the same keys and
// without counted attempts, and returns the dispatch IDs of their messages. An effect with a known
// result becomes answered instead. Unless the other side is idempotent, an operator must find out
// before Redrive that an uncertain effect was not carried out. So f must name Keys, IDs or States.
// The reason, required and at most 1 KiB, is kept in the history of the message
// ([consumer.Inbox.Attempts]).
func (l *Ledger[TX]) Redrive(ctx context.Context, f inbox.EffectFilter, reason string) ([]uuid.UUID, error) {
	if len(f.Keys)+len(f.IDs)+len(f.States) == 0 {
		return nil, errors.New("redrive effects: name Keys, IDs or States: an uncertain effect may have been carried out")
	}
	return l.change(ctx, "redrive", f, inbox.EffectChange{State: inbox.EffectPending, Reason: reason})
}

// Discard gives up effects that f selects, except effects in progress, and returns the dispatch IDs
// of their messages. The reason, required and at most 1 KiB, is kept with each effect and in the
// history of its message.
func (l *Ledger[TX]) Discard(ctx context.Context, f inbox.EffectFilter, reason string) ([]uuid.UUID, error) {
	return l.change(ctx, "discard", f, inbox.EffectChange{State: inbox.EffectDiscarded, Reason: reason})
}

// Resolve records that the effect under key was carried out with the given result: Finish runs with
// the result, and Do does not run again. Resolve changes an uncertain effect, or a dead effect
// without a result, and tells whether the effect was changed. The result is encoded as JSON. The
// reason, required and at most 1 KiB, is kept in the history of the message.
func (l *Ledger[TX]) Resolve(ctx context.Context, key uuid.UUID, result any, reason string) (bool, error) {
	b, err := encode("result", result)
	if err != nil {
		return false, fmt.Errorf("resolve effects: %w", err)
	}
	ids, err := l.change(ctx, "resolve", inbox.EffectFilter{Keys: []uuid.UUID{key}}, inbox.EffectChange{State: inbox.EffectAnswered, Result: b, Reason: reason})
	return len(ids) > 0, err
}

func (l *Ledger[TX]) change(ctx context.Context, how string, f inbox.EffectFilter, c inbox.EffectChange) ([]uuid.UUID, error) {
	if err := field.Reason(c.Reason); err != nil {
		return nil, fmt.Errorf("%s effects: %w", how, err)
	}
	f.Limit = limitOf(f.Limit)
	ids, err := l.store.ChangeEffects(ctx, f, c)
	for _, id := range ids {
		l.inbox.Logger().InfoContext(ctx, "operator changed an effect", "how", how, "dispatch_id", id, "consumer", f.Consumer, "reason", c.Reason)
	}
	l.inbox.Wake()
	return ids, err
}

// limitOf returns the limit of a filter, or the default.
func limitOf(limit int) int {
	if limit <= 0 {
		return defaultLimit
	}
	return limit
}
