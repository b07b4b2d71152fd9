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
	most := cmp.Or(x.most, mostNamed)
	found, err := gather(ctx, &x.databases, func(s *operators) ([]naming, error) {
		if s.isInbox {
			return s.messagesNamed(ctx, text, most)
		}
		return s.eventsNamed(ctx, text, most)
	})
	if err != nil {
		return nil, false, err
	}
	if len(found) == 0 {
		like, err := x.like(ctx, text)
		return nil, false, cmp.Or(err, fmt.Errorf("%w%s", errNothing, like))
	}
	best := slices.MinFunc(found, func(a, b naming) int { return cmp.Compare(a.as, b.as) }).as
	known := make(map[uuid.UUID]bool)
	for _, n := range found {
		if n.as == best && !known[n.id] {
			known[n.id], ids = true, append(ids, n.id)
		}
	}
	return ids, best == byItsID, nil
}

// naming is an event or message that a text names.
type naming struct {
	id uuid.UUID
	as namedAs
}

// namedAs is what a text names, the likeliest meaning first: only events and messages of the first one count.
type namedAs uint8

const (
	byItsID   namedAs = iota
	byWaiting         // the key of what waits
	byName            // a key, source or correlation ID
	bySeq             // an event's number
)

func namings(as namedAs, ids []uuid.UUID) (list []naming) {
	for _, id := range ids {
		list = append(list, naming{id, as})
	}
	return list
}

// byID returns the events or messages with the ID or the first digits that text may be.
func (s *operators) byID(ctx context.Context, text string) ([]naming, error) {
	r, err := parseID(text)
	if err != nil || r.to == uuid.Nil {
		return nil, nil
	}
	ids, err := s.matching(ctx, r)
	return namings(byItsID, ids), err
}

// eventsNamed returns the events of an outbox that text names in its likeliest meaning there.
func (s *operators) eventsNamed(ctx context.Context, text string, most int) ([]naming, error) {
	if found, err := s.byID(ctx, text); err != nil || len(found) > 0 {
		return found, err
	}
	ids, err := s.eventsOf(ctx, outbox.Query{Key: text, States: waitingEvents, Limit: most})
	if err != nil || len(ids) > 0 {
		return namings(byWaiting, ids), err
	}
	ids, err = s.eventsOf(ctx, outbox.Query{Named: text, Limit: most})
	if err != nil || len(ids) > 0 {
		return namings(byName, ids), err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n <= 0 {
		return nil, nil
	}
	ids, err = s.eventsOf(ctx, outbox.Query{Seqs: []int64{n}, Limit: 1})
	return namings(bySeq, ids), err
}

// messagesNamed returns the messages of an inbox that text names in its likeliest meaning there. A search for
// a name reads all of the latest parked messages, so one search serves both meanings where it finds all.
func (s *operators) messagesNamed(ctx context.Context, text string, most int) ([]naming, error) {
	if found, err := s.byID(ctx, text); err != nil || len(found) > 0 {
		return found, err
	}
	all, err := s.messages.SearchMessages(ctx, inbox.Query{Named: text, Limit: most})
	if err != nil {
		return nil, err
	}
	waiting := all
	if all.More {
		waiting, err = s.messages.SearchMessages(ctx, inbox.Query{Named: text, Key: text, States: waitingMessages, Limit: most})
	} else {
		waiting.Messages = slices.DeleteFunc(slices.Clone(all.Messages), func(m inbox.Found) bool {
			return m.Key != text || !slices.Contains(waitingMessages, m.State)
		})
	}
	if len(waiting.Messages) > 0 {
		return namings(byWaiting, messageIDs(&waiting)), err
	}
	return namings(byName, messageIDs(&all)), err
}

// mostLike is how many of the latest events of an outbox are searched for a name that is spelt alike.
const mostLike = 250

// like suggests keys, sources and correlation IDs of the latest events, with a leading semicolon: names that
// contain text, or else those that are most like it. It returns "" if there are none.
func (x *explainer) like(ctx context.Context, text string) (string, error) {
	for _, q := range []outbox.Query{{Part: text, Limit: mostNamed, Scan: nearby}, {Limit: mostLike}} {
		names, err := gather(ctx, &x.databases, func(s *operators) (names []string, err error) {
			if s.isInbox {
				return nil, nil
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
			return names, err
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

// messageIDs returns the dispatch IDs of the latest messages that were found, the first message first.
func messageIDs(found *inbox.Results) (ids []uuid.UUID) {
	for i := range slices.Backward(found.Messages) {
		ids = append(ids, found.Messages[i].ID)
	}
	return ids
}
