package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// errNothing is returned if no database knows the requested event.
var errNothing = errors.New("no given database knows an event or message by this ID, key, source or correlation ID")

// mostNamed is how many events or messages a key, source or correlation ID names at most, but for tree.
const mostNamed = 10

// named returns the dispatch IDs that text names: an ID, its first digits, or a key, source or correlation
// ID of the latest events, or of the latest parked messages. byID tells that text is an ID. A key may look like one.
func (x *explainer) named(ctx context.Context, text string) (ids []uuid.UUID, byID bool, err error) {
	r, err := parseID(text)
	isID := err == nil && r.to != uuid.Nil
	most := cmp.Or(x.most, mostNamed)
	var searches []func(s *operators) ([]uuid.UUID, error)
	if isID {
		searches = append(searches, func(s *operators) ([]uuid.UUID, error) { return s.matching(ctx, r) })
	}
	searches = append(searches, func(s *operators) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.messagesOf(ctx, inbox.Query{Named: text, Key: text, States: waitingMessages, Limit: most})
		}
		return s.eventsOf(ctx, outbox.Query{Key: text, States: waitingEvents, Limit: most})
	}, func(s *operators) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.messagesOf(ctx, inbox.Query{Named: text, Limit: most})
		}
		return s.eventsOf(ctx, outbox.Query{Named: text, Limit: most})
	}, func(s *operators) ([]uuid.UUID, error) {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil && n > 0 && !s.isInbox {
			return s.eventsOf(ctx, outbox.Query{Seqs: []int64{n}, Limit: 1})
		}
		return nil, nil
	})
	for i, search := range searches { // the first search with results, in any database, counts
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
			return ids, isID && i == 0, err
		}
	}
	like, err := x.like(ctx, text)
	if err != nil {
		return nil, false, err
	}
	return nil, false, fmt.Errorf("%w%s", errNothing, like)
}

// mostLike is how many of the latest events of an outbox are searched for a name that is spelt alike.
const mostLike = 1000

// like suggests keys, sources and correlation IDs, with a leading semicolon: names that contain text, or
// else those of the latest events that are most like it. It returns "" if there are none.
func (x *explainer) like(ctx context.Context, text string) (string, error) {
	for _, q := range []outbox.Query{{Part: text, Limit: mostNamed}, {Limit: mostLike}} {
		var names []string
		err := x.each(ctx, true, func(s *operators) error {
			if s.isInbox {
				return nil
			}
			found, err := s.events.Search(ctx, q)
			for i := range found.Events {
				e := &found.Events[i]
				for _, name := range []string{e.Key, e.Source, e.CorrelationID} {
					if name != "" && strings.Contains(strings.ToLower(name), strings.ToLower(q.Part)) {
						names = append(names, name)
					}
				}
			}
			return err
		})
		if like := nearest(text, names); like != "" || err != nil {
			return plain(like), err
		}
	}
	return "", nil
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
