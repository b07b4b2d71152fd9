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

// nearby is how many events are searched for neighbours first: beside most events there are some.
const nearby = 5000

// neighbours returns delivered events of e's topic: events before e, and events delivered after e.
func neighbours(ctx context.Context, s *operators, e *outbox.Found) (earlier, later []uuid.UUID, err error) {
	before, err := deliveredBefore(ctx, s, e.Topic, e.Seq)
	if err != nil {
		return nil, nil, err
	}
	for i := range before {
		earlier = append(earlier, before[i].ID)
	}
	latest, err := deliveredBefore(ctx, s, e.Topic, 0)
	for i := range latest {
		if next := &latest[i]; next.DeliveredAt.After(e.DeliveredAt.Add(overtaking)) {
			later = append(later, next.ID)
		}
	}
	return earlier, later, err
}

// deliveredBefore returns the latest delivered events of a topic before an event's number; 0 stands for all.
func deliveredBefore(ctx context.Context, s *operators, topic string, seq int64) ([]outbox.Found, error) {
	q := outbox.Query{Topic: topic, States: []outbox.State{outbox.DeliveredState}, Before: seq, Limit: mostNeighbours, Scan: nearby}
	found, err := s.events.Search(ctx, q)
	if err == nil && len(found.Events) < mostNeighbours && found.Before > 0 {
		q.Scan = 0
		found, err = s.events.Search(ctx, q)
	}
	return found.Events, err
}

// overtaking is how much later than e an event is delivered whose handling shows that e is late:
// handlers run at once, and their messages overtake each other.
const overtaking = 5 * time.Second

// missing adds to delivered events the consumers that have handled earlier events of the topic and have no
// message of the event. The inbox has no row of a message that waits at the broker, or whose handler is at
// work. All inboxes were read before: the message may have gone to a consumer of another one.
func (x *explainer) missing(ctx context.Context, all []sight) error {
	have := make([][]string, len(all))
	for i := range all {
		have[i] = all[i].consumers()
	}
	return x.each(ctx, true, func(s *operators) error {
		for i := range all {
			if !s.isInbox || len(all[i].earlier) == 0 {
				continue
			}
			if err := x.missingAt(ctx, s, &all[i], have[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// consumers returns the consumers that have a message of the event.
func (s *sight) consumers() (names []string) {
	for i := range s.Inbox {
		names = append(names, s.Inbox[i].Consumer)
	}
	return names
}

// missingAt adds the consumers of an inbox. The consumers in have have the message.
func (x *explainer) missingAt(ctx context.Context, s *operators, one *sight, have []string) error {
	before, err := x.having(ctx, s, one.earlier)
	if err != nil {
		return err
	}
	after, err := x.having(ctx, s, one.later)
	if err != nil {
		return err
	}
	for _, name := range before {
		if slices.Contains(have, name) {
			continue
		}
		seen := seenMessage{
			Database: s.name, Consumer: name, State: missingState,
			Why: "it has earlier events of the topic: the message is at the broker, or its handler is still at work",
		}
		ask := "is " + plain(name) + " down, or does a session block its handler?"
		if slices.Contains(after, name) {
			seen.Why = "it has earlier and later events of the topic: the message was lost behind the broker, was taken by another reader of the queue, or its handler is still at work"
			if ask = "does another service read its queue, or does a session block its handler?"; len(have) > 0 {
				ask = "do " + plain(name) + " and " + plain(strings.Join(have, ", ")) + " read one queue? Each needs its own; then: boxpair replay"
			}
		}
		if at := slices.IndexFunc(one.Events, func(e seenEvent) bool { return e.DeliveredAt != nil }); at >= 0 {
			seen.Since = *one.Events[at].DeliveredAt
		}
		one.Inbox, one.Done, one.stuck = append(one.Inbox, seen), false, true
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
