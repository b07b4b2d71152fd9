package consumer

import (
	"context"
	"errors"
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

// ListParked reads parked messages. A filter without a consumer selects messages of all consumers
// that share the tables, also of other services.
func (i *Inbox[TX]) ListParked(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error) {
	f.Limit = limitOf(f.Limit)
	return i.store.ListParkedMessages(ctx, f)
}

// SearchMessages finds messages in any state, and tells of each message what became of it and why.
// A query without a consumer selects messages of all consumers that share the tables, also of other
// services. The error wraps [errors.ErrUnsupported] if the store is no [inbox.Searcher].
func (i *Inbox[TX]) SearchMessages(ctx context.Context, q inbox.Query) (inbox.Results, error) {
	store, ok := i.store.(inbox.Searcher)
	if !ok {
		return inbox.Results{}, unsearchable(i.store)
	}
	return store.SearchMessages(ctx, q)
}

// MessageCauses counts the parked messages that f selects by consumer, state, topic and last error,
// the most frequent first, at most f.Limit causes (0: 100). The error wraps
// [errors.ErrUnsupported] if the store is no [inbox.Searcher].
func (i *Inbox[TX]) MessageCauses(ctx context.Context, f inbox.Filter) ([]inbox.Cause, error) {
	store, ok := i.store.(inbox.Searcher)
	if !ok {
		return nil, unsearchable(i.store)
	}
	f.Limit = limitOf(f.Limit)
	return store.MessageCauses(ctx, f)
}

func unsearchable(store any) error {
	return fmt.Errorf("search messages: %w: the store %T is no inbox.Searcher", errors.ErrUnsupported, store)
}

// Redrive makes messages that f selects due again, without counted attempts, and returns their
// dispatch IDs. Redrive takes dead and too old messages, altered messages with Filter.Force,
// retrying messages named by IDs or States, and discarded messages if States names
// [inbox.Discarded], which undoes the discard. A filter without IDs and States, and without Force,
// takes dead messages only: a message that is too old may have been applied before the consumer
// forgot its dispatch ID. A discarded message that was altered before is set aside as altered again
// when it runs, unless Filter.Force is set. To redrive more than f.Limit messages, call Redrive until
// no dispatch ID is returned. The consumer's Run handles the messages, in any process. A redriven
// message comes after later messages of its key that were applied meanwhile. The reason, required
// and at most 1 KiB, is kept in the history of each message ([Inbox.Attempts]).
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

// Discard gives up parked messages that f selects, and returns their dispatch IDs. A filter without
// IDs and States takes messages that wait for an operator: dead, too old and altered messages. The
// reason, required and at most 1 KiB, is kept with each message and in its history. Further copies
// of a discarded message stay duplicates.
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
	i.Wake() // later messages of the keys may be due
	return ids, err
}

// Wake makes a running [Inbox.Run] look for due work at once, as after an operator has changed
// parked messages by SQL. Wake does not block.
func (i *Inbox[TX]) Wake() {
	for _, h := range i.all() {
		signal(h.retries.wake)
		if h.extension != nil {
			h.extension.Wake()
		}
	}
}

// limitOf returns the limit of a filter, or the default.
func limitOf(limit int) int {
	if limit <= 0 {
		return defaultFilterLimit
	}
	return limit
}
