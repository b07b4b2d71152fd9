package consumer

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/store/inbox"
)

// Stats reads the state of the inbox of every handler, by the consumer's name.
func (i *Inbox[TX]) Stats(ctx context.Context) (map[string]inbox.Stats, error) {
	stats := make(map[string]inbox.Stats)
	for _, h := range i.all() {
		s, err := h.Stats(ctx)
		if err != nil {
			return nil, fmt.Errorf("consumer %s: %w", h.name, err)
		}
		stats[h.name] = s
	}
	return stats, nil
}

// ListParked reads parked messages. A filter without a consumer selects those of
// all consumers that share the tables, of other services too.
func (i *Inbox[TX]) ListParked(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error) {
	f.Limit = limitOf(f.Limit)
	return i.store.ListParkedMessages(ctx, f)
}

// Redrive makes dead, too old and, with Filter.Force, altered messages that f selects due again,
// with no attempts counted, and returns their dispatch IDs. A filter that names neither IDs nor
// States, and does not force, takes dead ones only: what is too old may have been applied in a time
// that the consumer has forgotten, so whoever redrives it says so. Call it until it returns none to
// redrive more than f.Limit. Messages that are retried already are taken if IDs or States name
// them: they are due at once, from their first attempt on. They are handled by the Run of their
// consumer, in whatever process. Where later messages of a key were applied meanwhile, a redriven
// one comes after them. The reason, required and at most 1 KiB, is kept in the history of each
// ([Inbox.Attempts]).
func (i *Inbox[TX]) Redrive(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	if err := field.Reason(reason); err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	if len(f.States)+len(f.IDs) == 0 && !f.Force {
		f.States = []inbox.State{inbox.Dead}
	}
	f.Limit = limitOf(f.Limit)
	ids, err := i.store.RedriveMessages(ctx, f, reason)
	for _, id := range ids {
		i.log.InfoContext(ctx, "message redriven", "dispatch_id", id, "consumer", f.Consumer, "reason", reason)
	}
	i.Wake()
	return ids, err
}

// Discard gives up parked messages that f selects, keeps the reason, required and at most 1 KiB,
// with them and in their history. A filter that names neither IDs nor States takes what waits for
// an operator: dead, too old and altered ones. It returns their dispatch IDs. Further copies of
// them stay duplicates.
func (i *Inbox[TX]) Discard(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	if err := field.Reason(reason); err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	if len(f.States)+len(f.IDs) == 0 {
		f.States = []inbox.State{inbox.Dead, inbox.TooOldState, inbox.AlteredState}
	}
	f.Limit = limitOf(f.Limit)
	ids, err := i.store.DiscardMessages(ctx, f, reason)
	for _, id := range ids {
		i.log.InfoContext(ctx, "message discarded", "dispatch_id", id, "consumer", f.Consumer, "reason", reason)
	}
	i.Wake() // what followed may be due
	return ids, err
}

// Wake has a running [Inbox.Run] look at once for what is due, as after somebody has changed it by
// SQL.
func (i *Inbox[TX]) Wake() {
	for _, h := range i.all() {
		signal(h.wake)
		if h.extension != nil {
			h.extension.Wake()
		}
	}
}

// limitOf is what a Limit of 0 means.
func limitOf(limit int) int {
	if limit <= 0 {
		return defaultFilterLimit
	}
	return limit
}
