package consumer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// ledger returns the store as one of effects.
func (i *Inbox[TX]) ledger() (inbox.EffectStore[TX], error) {
	store, ok := i.store.(inbox.EffectStore[TX])
	if !ok {
		return nil, ErrNoLedger
	}
	return store, nil
}

// ListEffects reads effects outside the database. A filter without a consumer selects those of all
// consumers that share the tables. Those that wait for an operator are [inbox.EffectUncertain] and
// [inbox.EffectDead].
func (i *Inbox[TX]) ListEffects(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error) {
	store, err := i.ledger()
	if err != nil {
		return nil, err
	}
	f.Limit = limitOf(f.Limit)
	return store.ListEffects(ctx, f)
}

// RedriveEffects has dead and uncertain effects that f selects tried again, with the same keys and
// no attempts counted, and returns the dispatch IDs of their messages. Where the other side is not
// idempotent, whoever redrives an uncertain effect has found out that it was not carried out; so f
// must name what to redrive by Keys, IDs or States. The reason, required and at most 1 KiB, is kept
// in the history of the message ([Inbox.Attempts]).
func (i *Inbox[TX]) RedriveEffects(ctx context.Context, f inbox.EffectFilter, reason string) ([]uuid.UUID, error) {
	if len(f.Keys)+len(f.IDs)+len(f.States) == 0 {
		return nil, errors.New("redrive effects: name Keys, IDs or States: an uncertain effect may have been carried out")
	}
	return i.changeEffects(ctx, "redrive", f, inbox.EffectChange{State: inbox.EffectPending, Reason: reason})
}

// DiscardEffects gives up effects that f selects and that nobody is carrying out, and returns the
// dispatch IDs of their messages. The reason, required and at most 1 KiB, is kept with them and in
// the history of the message.
func (i *Inbox[TX]) DiscardEffects(ctx context.Context, f inbox.EffectFilter, reason string) ([]uuid.UUID, error) {
	return i.changeEffects(ctx, "discard", f, inbox.EffectChange{State: inbox.EffectDiscarded, Reason: reason})
}

// ResolveEffect says that the effect under key was carried out, with that result: Finish runs with
// it, and Do does not run again. It is for uncertain effects, and dead ones whose result is not
// known, and tells whether there was such a one. result is encoded as JSON. The reason, required
// and at most 1 KiB, is kept in the history of the message.
func (i *Inbox[TX]) ResolveEffect(ctx context.Context, key uuid.UUID, result any, reason string) (bool, error) {
	b, err := encodeEffect("result", result)
	if err != nil {
		return false, fmt.Errorf("resolve effects: %w", err)
	}
	ids, err := i.changeEffects(ctx, "resolve", inbox.EffectFilter{Keys: []uuid.UUID{key}}, inbox.EffectChange{State: inbox.EffectAnswered, Result: b, Reason: reason})
	return len(ids) > 0, err
}

func (i *Inbox[TX]) changeEffects(ctx context.Context, how string, f inbox.EffectFilter, c inbox.EffectChange) ([]uuid.UUID, error) {
	if err := checkReason(c.Reason); err != nil {
		return nil, fmt.Errorf("%s effects: %w", how, err)
	}
	store, err := i.ledger()
	if err != nil {
		return nil, err
	}
	f.Limit = limitOf(f.Limit)
	ids, err := store.ChangeEffects(ctx, f, c)
	for _, id := range ids {
		i.log.InfoContext(ctx, "operator changed an effect", "how", how, "dispatch_id", id, "consumer", f.Consumer, "reason", c.Reason)
	}
	for _, h := range i.all() {
		if h.effects != nil {
			signal(h.effects.wake)
		}
	}
	return ids, err
}
