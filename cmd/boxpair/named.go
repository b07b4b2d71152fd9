package main

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// errNothing is returned if no database knows the requested event.
var errNothing = errors.New("no given database knows an event or message by this ID, key, source or correlation ID")

const (
	// mostNamed is how many events or messages a key, source or correlation ID names at most, but for tree.
	mostNamed = 10
	// mostParked is how many parked messages are searched for a source or correlation ID, the oldest first.
	mostParked = 20_000
)

// named returns the dispatch IDs that text names: an ID, its first digits, or a key, source or correlation
// ID of the latest events, or of parked messages.
func (x *explainer) named(ctx context.Context, text string) ([]uuid.UUID, error) {
	r, err := parseID(text)
	isID := err == nil
	if isID && r.whole() {
		return []uuid.UUID{r.from}, nil
	}
	most := cmp.Or(x.most, mostNamed)
	var searches []func(s *operators) ([]uuid.UUID, error)
	if isID {
		searches = append(searches, func(s *operators) ([]uuid.UUID, error) { return s.matching(ctx, r) })
	}
	searches = append(searches, func(s *operators) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.messagesOf(ctx, inbox.Query{Key: text, States: waitingMessages, Limit: most})
		}
		return s.eventsOf(ctx, outbox.Query{Key: text, States: waitingEvents, Limit: most})
	}, func(s *operators) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.messagesOf(ctx, inbox.Query{Key: text, Limit: most})
		}
		return s.eventsOf(ctx, outbox.Query{Named: text, Limit: most})
	}, func(s *operators) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.parkedAs(ctx, text, most)
		}
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 {
			return s.eventsOf(ctx, outbox.Query{Seqs: []int64{n}, Limit: 1})
		}
		return nil, nil
	})
	for _, search := range searches { // the first search with results, in any database, counts
		var ids []uuid.UUID
		known := make(map[uuid.UUID]bool)
		err := x.each(ctx, true, func(s *operators) error {
			found, err := search(s)
			for _, id := range found {
				if !known[id] {
					known[id], ids = true, append(ids, id)
				}
			}
			return err
		})
		if err != nil || len(ids) > 0 {
			return ids, err
		}
	}
	return nil, errNothing
}

// waitingEvents are the states of events that are not done.
var waitingEvents = []outbox.State{outbox.PendingState, outbox.Retrying, outbox.Following, outbox.Dead, outbox.DeferredState}

// waitingMessages are the states of messages that are not done.
var waitingMessages = []inbox.State{
	inbox.Retrying, inbox.Following, inbox.Dead, inbox.TooOldState, inbox.AlteredState,
	"effect_" + inbox.State(inbox.EffectPending), "effect_" + inbox.State(inbox.EffectDoing), "effect_" + inbox.State(inbox.EffectAnswered),
	"effect_" + inbox.State(inbox.EffectUncertain), "effect_" + inbox.State(inbox.EffectDead),
}

// eventsOf returns the dispatch IDs of the latest events that q selects, the first event first: it holds up
// the rest of its key.
func (s *operators) eventsOf(ctx context.Context, q outbox.Query) (ids []uuid.UUID, err error) {
	found, err := s.events.Search(ctx, q)
	for i := range slices.Backward(found.Events) {
		ids = append(ids, found.Events[i].ID)
	}
	return ids, err
}

// messagesOf returns the dispatch IDs of the latest messages that q selects, the first message first.
func (s *operators) messagesOf(ctx context.Context, q inbox.Query) (ids []uuid.UUID, err error) {
	found, err := s.messages.SearchMessages(ctx, q)
	for i := range slices.Backward(found.Messages) {
		ids = append(ids, found.Messages[i].ID)
	}
	return ids, err
}

// parkedAs returns the dispatch IDs of the first parked messages with a source or correlation ID.
func (s *operators) parkedAs(ctx context.Context, text string, most int) (ids []uuid.UUID, err error) {
	f := inbox.Filter{Limit: perPage}
	for range mostParked / perPage {
		page, err := s.inbox.ListParked(ctx, f)
		if err != nil {
			return nil, err
		}
		for i := range page {
			m := &page[i]
			if m.Metadata[transport.MetaCorrelationID] == text || m.Metadata[transport.MetaSource] == text {
				ids = append(ids, m.ID)
			}
		}
		if len(page) < perPage || len(ids) >= most {
			break
		}
		f.After = page[len(page)-1].Seq
	}
	return ids[:min(most, len(ids))], nil
}
