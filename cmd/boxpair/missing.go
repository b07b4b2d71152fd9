package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// mostNeighbours is how many events of a topic before and after an event are searched for consumers.
const mostNeighbours = 10

// missingState is the state of an expected message that a consumer does not have.
const missingState = "missing"

// neighbours returns delivered events of e's topic: events before e, and events delivered after e.
func neighbours(ctx context.Context, s *operators, e *outbox.Found) (earlier, later []uuid.UUID, err error) {
	q := outbox.Query{Topic: e.Topic, States: []outbox.State{outbox.DeliveredState}, Before: e.Seq, Limit: mostNeighbours}
	found, err := s.events.Search(ctx, q)
	for i := range found.Events {
		earlier = append(earlier, found.Events[i].ID)
	}
	if err != nil {
		return nil, nil, err
	}
	q.Before = 0 // the latest
	found, err = s.events.Search(ctx, q)
	for i := range found.Events {
		if next := &found.Events[i]; next.DeliveredAt.After(e.DeliveredAt.Add(overtaking)) {
			later = append(later, next.ID)
		}
	}
	return earlier, later, err
}

// overtaking is how much later than e an event is delivered whose handling shows that e is late:
// handlers run at once, and their messages overtake each other.
const overtaking = 5 * time.Second

// missing adds the consumers that have handled earlier events of the topic and have no message of the
// event. The inbox has no row of a message that waits at the broker, or whose handler is at work.
func (x *explainer) missing(ctx context.Context, s *operators, one *sight) error {
	if len(one.earlier) == 0 {
		return nil
	}
	before, err := x.having(ctx, s, one.earlier)
	if err != nil {
		return err
	}
	after, err := x.having(ctx, s, one.later)
	if err != nil {
		return err
	}
	var others []string
	for i := range one.Inbox {
		others = append(others, plain(one.Inbox[i].Consumer))
	}
	for _, name := range before {
		if slices.ContainsFunc(one.Inbox, func(m seenMessage) bool { return m.Consumer == name }) {
			continue
		}
		seen := seenMessage{
			Database: s.name, Consumer: name, State: missingState,
			Why: "it has earlier events of the topic: the message is at the broker, or its handler is still at work",
		}
		ask := "is " + plain(name) + " down, or does a session block its handler?"
		if slices.Contains(after, name) {
			seen.Why = "it has earlier and later events of the topic: the message was lost behind the broker, was taken by another reader of the queue, or its handler is still at work"
			if ask = "does a session block its handler?"; len(others) > 0 {
				ask = "do " + plain(name) + " and " + strings.Join(others, ", ") + " read one queue? Each needs its own; then: boxpair replay"
			}
		}
		if at := slices.IndexFunc(one.Events, func(e seenEvent) bool { return e.DeliveredAt != nil }); at >= 0 {
			seen.Since = *one.Events[at].DeliveredAt
		}
		one.Inbox, one.Done = append(one.Inbox, seen), false
		one.Heal = append(one.Heal, x.doctor(true)+"   # "+ask)
	}
	return nil
}

// having returns the consumers that have messages of some of the dispatch IDs, sorted.
func (x *explainer) having(ctx context.Context, s *operators, ids []uuid.UUID) (names []string, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	found, err := s.messages.SearchMessages(ctx, inbox.Query{IDs: ids, Limit: mostConsumers * len(ids)})
	for i := range found.Messages {
		names = append(names, found.Messages[i].Consumer)
	}
	slices.Sort(names)
	return slices.Compact(names), err
}
