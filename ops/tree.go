package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/lineage"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// lineages returns the lineage of the outboxes and inboxes that can be searched; nil if no outbox can be.
// consumers are those that expect topics.
func (h *Handler) lineages(consumers map[string][]string) (*lineage.Lineage, error) {
	c := lineage.Config{MaxDepth: 10, MaxEvents: 200, Consumers: consumers}
	for _, s := range h.outboxes {
		if s.search != nil {
			c.Outboxes = append(c.Outboxes, lineage.Outbox{Name: s.Name, Events: s.search})
		}
	}
	for _, s := range h.inboxes {
		if s.search != nil {
			c.Inboxes = append(c.Inboxes, lineage.Inbox{Name: s.Name, Messages: s.search})
		}
	}
	if len(c.Outboxes) == 0 {
		return nil, nil
	}
	return lineage.New(c)
}

// verdict says in words whether an event and all that it has caused is done.
type verdict struct {
	State string // "done" or "not done"
	Text  string
}

// missing is a consumer that has earlier events of a topic, and not the event.
type missing struct{ Inbox, Consumer string }

const (
	// mostEarlier is how many earlier events of the topic tell which consumers expect an event.
	mostEarlier = 10
	// mostNamed is how many unfinished parts a verdict names.
	mostNamed = 3
)

// grow reads the tree of the event, over all outboxes and inboxes that can be searched.
func (h *Handler) grow(ctx context.Context, p *eventPage, s *outboxSource) {
	if h.lineage == nil {
		return
	}
	l := h.lineage
	if err := h.expect(ctx, p, s); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		p.fail("consumers", err)
	}
	if len(p.Missing) > 0 {
		expecting := make(map[string][]string)
		for _, m := range p.Missing {
			expecting[m.Consumer] = []string{p.Found.Topic}
		}
		if with, err := h.lineages(expecting); err == nil { // a topic may be no pattern
			l = with
		}
	}
	tree, err := l.Tree(ctx, p.ID)
	switch {
	case errors.Is(err, errors.ErrUnsupported), errors.Is(err, lineage.ErrUnknown):
		return
	case err != nil:
		p.fail("tree", err)
		return
	}
	if p.Verdict = judge(tree); len(tree.Children) > 0 {
		p.Tree = tree
	}
}

// expect adds the consumers that have earlier events of the topic and no message of the event.
func (h *Handler) expect(ctx context.Context, p *eventPage, s *outboxSource) error {
	if s == nil || s.search == nil || p.Found.State != outbox.DeliveredState {
		return nil
	}
	earlier, err := s.search.Search(ctx, outbox.Query{Topic: p.Found.Topic, States: []outbox.State{outbox.DeliveredState}, Before: p.Found.Seq, Limit: mostEarlier})
	if err != nil || len(earlier.Events) == 0 {
		return err
	}
	ids := make([]uuid.UUID, len(earlier.Events))
	for i := range ids {
		ids[i] = earlier.Events[i].ID
	}
	for _, in := range h.inboxes {
		if in.search == nil {
			continue
		}
		found, err := in.search.SearchMessages(ctx, inbox.Query{IDs: ids, Limit: mostConsumers * len(ids)})
		if err != nil {
			return err
		}
		for i := range found.Messages {
			m := missing{in.Name, found.Messages[i].Consumer}
			has := slices.ContainsFunc(p.Applied, func(a application) bool { return a.Consumer == m.Consumer })
			if !has && !slices.Contains(p.Missing, m) {
				p.Missing = append(p.Missing, m)
			}
		}
	}
	return nil
}

// judge says in words whether a tree is done, as boxpair tree does.
func judge(tree *lineage.Node) *verdict {
	progress := tree.Progress()
	switch {
	case !progress.Done() && len(progress.Open) == 0:
		return &verdict{"not done", fmt.Sprintf("The first %s events are done; there may be more.", count(progress.Events))}
	case !progress.Done():
		text := fmt.Sprintf("%s not done, of %s: ", count(len(progress.Open)), events(progress.Events))
		for i, o := range progress.Open[:min(len(progress.Open), mostNamed)] {
			if i > 0 {
				text += "; "
			}
			text += o.Topic + " is " + word(o.State)
			if o.Consumer != "" {
				text += " at " + o.Consumer
			}
		}
		if len(progress.Open) > mostNamed {
			text += "; and more"
		}
		return &verdict{"not done", text + "."}
	case len(tree.Children) > 0:
		return &verdict{"done", fmt.Sprintf("All is done: %s, the event and what it has caused.", events(progress.Events))}
	case len(tree.Messages) == 0:
		return &verdict{"done", "The event is delivered. No consumer of this dashboard has it, or has earlier events of its topic."}
	}
	text := "All is done: the event is delivered, and applied by "
	var names []string
	for i := range tree.Messages {
		if name := tree.Messages[i].Consumer; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for i, name := range names {
		switch {
		case i > 0 && i == len(names)-1:
			text += " and "
		case i > 0:
			text += ", "
		}
		text += name
	}
	return &verdict{"done", text + "."}
}

// events returns a number of events in words.
func events(n int) string {
	if n == 1 {
		return "1 event"
	}
	return count(n) + " events"
}
