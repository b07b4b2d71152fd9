package producer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

// Stats reads the state of the outbox, and stays cheap on large tables.
func (o *Outbox[TX]) Stats(ctx context.Context) (outbox.Stats, error) {
	return o.store.Stats(ctx)
}

// ListParked reads parked events: retrying events, their followers, and dead and discarded events.
func (o *Outbox[TX]) ListParked(ctx context.Context, f outbox.Filter) ([]outbox.Parked, error) {
	f.Limit = limitOf(f.Limit)
	return o.store.ListParked(ctx, f)
}

// Search finds events in any state, the newest first, and tells of each event what became of it and
// why. A search goes on where another has ended with q.Before set to its Results.Before. The error
// wraps [errors.ErrUnsupported] if the store is no [outbox.Searcher].
func (o *Outbox[TX]) Search(ctx context.Context, q outbox.Query) (outbox.Results, error) {
	store, ok := o.store.(outbox.Searcher)
	if !ok {
		return outbox.Results{}, unsearchable(o.store)
	}
	return store.Search(ctx, q)
}

// Causes counts the parked events that f selects by state, topic and last error, the most frequent
// first, at most f.Limit causes (0: 100). The error wraps [errors.ErrUnsupported] if the store is no
// [outbox.Searcher].
func (o *Outbox[TX]) Causes(ctx context.Context, f outbox.Filter) ([]outbox.Cause, error) {
	store, ok := o.store.(outbox.Searcher)
	if !ok {
		return nil, unsearchable(o.store)
	}
	f.Limit = limitOf(f.Limit)
	return store.Causes(ctx, f)
}

func unsearchable(store any) error {
	return fmt.Errorf("search events: %w: the store %T is no outbox.Searcher", errors.ErrUnsupported, store)
}

// Attempts reads the failed attempts to send an event and the operators' actions on it, oldest
// first, at most limit (0: 100).
func (o *Outbox[TX]) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]outbox.Attempt, error) {
	return o.store.Attempts(ctx, id, limitOf(limit))
}

// Deliveries reads the times at which an event was delivered, and the relays, oldest first: several
// after a replay or after the crash of a relay. Deliveries that the janitor has removed are
// missing.
func (o *Outbox[TX]) Deliveries(ctx context.Context, id uuid.UUID) ([]outbox.Delivery, error) {
	return o.store.Deliveries(ctx, id)
}

// Redrive sends events selected by f again, from their first attempt on, and returns their dispatch
// IDs. Redrive takes dead events, retrying events named by IDs or States, which are then due at once
// instead of after their backoff, and discarded events if States names [outbox.Discarded], which
// undoes the discard. A filter without IDs and States takes dead events only. To redrive more than
// f.Limit events, call Redrive until the result is empty. Unless f.Force, dead and discarded events
// whose re-send horizon ([Config].ResendFor) is over stay as they are, and the other events are
// redriven all the same; the error wraps [ErrBeyondHorizon] if fewer than f.Limit were redriven. A
// redriven event comes after later events of its key that were delivered meanwhile. A discarded event
// that was being sent when it was discarded may have been delivered; the inbox recognizes the copy. If
// a retrying event is just being sent and fails, that attempt is not counted. The reason, required and
// at most 1 KiB, is kept in the attempts of each event ([Outbox.Attempts]).
func (o *Outbox[TX]) Redrive(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error) {
	if err := checkReason(reason); err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	f.Limit = limitOf(f.Limit)
	ids, refused, err := o.store.Redrive(ctx, f, reason)
	for _, id := range ids {
		o.cfg.Logger.InfoContext(ctx, "event redriven", "dispatch_id", id, "reason", reason)
	}
	if len(ids) > 0 {
		o.changed(ctx)
	}
	if err == nil && refused > 0 {
		err = fmt.Errorf("redrive: %d events stay dead or discarded: %w", refused, ErrBeyondHorizon)
	}
	return ids, err
}

// Discard discards the parked events selected by f and returns their dispatch IDs. The reason,
// required and at most 1 KiB, is kept with the events and in their attempts. A filter with neither
// IDs nor States selects dead events only: other parked events are still being sent, or have never
// failed. An event that is just being sent may be delivered all the same.
func (o *Outbox[TX]) Discard(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error) {
	if err := checkReason(reason); err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	if len(f.States)+len(f.IDs) == 0 {
		f.States = []outbox.State{outbox.Dead}
	}
	f.Limit = limitOf(f.Limit)
	ids, err := o.store.Discard(ctx, f, reason)
	for _, id := range ids {
		o.cfg.Logger.InfoContext(ctx, "event discarded", "dispatch_id", id, "reason", reason)
	}
	if len(ids) > 0 {
		o.changed(ctx)
	}
	return ids, err
}

const defaultFilterLimit = 100

// limitOf returns limit, or the default for a Limit of 0.
func limitOf(limit int) int {
	if limit <= 0 {
		return defaultFilterLimit
	}
	return limit
}

// ListRoutes reads the topics to which visible relays cannot send at the moment, by topic. The list
// is as old as the relays' last heartbeats. A relay reports at most a hundred topics.
func (o *Outbox[TX]) ListRoutes(ctx context.Context) ([]outbox.StalledRoute, error) {
	return o.store.ListRoutes(ctx)
}

// ListRelays reads the visible relays, by name: their shards, and what they tell of themselves. The
// reports are as old as [outbox.Relay].ReportedAt says; a relay writes one with a heartbeat, which
// comes every third of its LeaseTTL, if something has changed.
func (o *Outbox[TX]) ListRelays(ctx context.Context) ([]outbox.Relay, error) {
	return o.store.ListRelays(ctx)
}
