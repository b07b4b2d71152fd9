package main

import (
	"context"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// mostEarlier is in how many earlier events of a topic its consumers are looked for.
const mostEarlier = 10

// missingState is the state of a message that a consumer is expected to have, and does not have.
const missingState = "missing"

// earlier returns the delivered events of e's topic before e, the latest first.
func earlier(ctx context.Context, s *operators, e *outbox.Found) (ids []uuid.UUID, err error) {
	found, err := s.events.Search(ctx, outbox.Query{Topic: e.Topic, States: []outbox.State{outbox.DeliveredState}, Before: e.Seq, Limit: mostEarlier})
	for i := range found.Events {
		ids = append(ids, found.Events[i].ID)
	}
	return ids, err
}

// missing adds the consumers that have handled earlier events of the topic and have no message of this
// one. The inbox knows nothing of a message that waits at the broker, or whose handler is at work.
func (x *explainer) missing(ctx context.Context, s *operators, one *sight) error {
	if len(one.earlier) == 0 {
		return nil
	}
	found, err := s.messages.SearchMessages(ctx, inbox.Query{IDs: one.earlier, Limit: mostConsumers * len(one.earlier)})
	if err != nil {
		return err
	}
	there := make(map[string]bool)
	for i := range one.Inbox {
		there[one.Inbox[i].Consumer] = true
	}
	for i := range found.Messages {
		name := found.Messages[i].Consumer
		if there[name] {
			continue
		}
		there[name] = true
		seen := seenMessage{
			Database: s.name, Consumer: name, State: missingState,
			Why: "it has earlier events of the topic: the message is at the broker, or its handler is still at work",
		}
		if at := slices.IndexFunc(one.Events, func(e seenEvent) bool { return e.DeliveredAt != nil }); at >= 0 {
			seen.Since = *one.Events[at].DeliveredAt
		}
		one.Inbox, one.Done = append(one.Inbox, seen), false
		one.Heal = append(one.Heal, "boxpair doctor"+x.management()+x.flag(s)+"   # is "+plain(name)+" down, or does a session block its handler?")
	}
	return nil
}
