package lineage

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// Progress is how far an event and its descendants have come.
type Progress struct {
	// Events is the number of events of the tree.
	Events int
	// Open are the unfinished parts, by generation.
	Open []Open
	// Cut tells that the tree may have more events: see [Node].Cut.
	Cut bool
}

// Done tells whether the whole tree is done.
func (p *Progress) Done() bool { return len(p.Open) == 0 && !p.Cut }

// failed returns the first part that needs an operator.
func (p *Progress) failed() *Open {
	if i := slices.IndexFunc(p.Open, func(o Open) bool { return o.Failed }); i >= 0 {
		return &p.Open[i]
	}
	return nil
}

// Open is an undelivered event, or a consumer that has not applied an event.
type Open struct {
	// ID is the dispatch ID of the event.
	ID    uuid.UUID
	Topic string
	// Outbox is the name of the event's outbox.
	Outbox string
	// Consumer is the name of the consumer, or "" if the event is not delivered.
	Consumer string
	// State is the state of the event or of the consumer's message, or "missing" if the consumer
	// has no message.
	State string
	// Why is the reason for the state, in words.
	Why string
	// Failed tells that the event or message needs an operator: the state is dead, discarded,
	// cancelled, too old or altered.
	Failed bool
}

// String returns a sentence without content of the event.
func (o Open) String() string {
	if o.Consumer == "" {
		return fmt.Sprintf("event %s of topic %q in outbox %q is %s: %q", o.ID, o.Topic, o.Outbox, o.State, o.Why)
	}
	return fmt.Sprintf("event %s of topic %q is %s at consumer %q: %q", o.ID, o.Topic, o.State, o.Consumer, o.Why)
}

// Progress returns how far the tree of n has come.
func (n *Node) Progress() Progress {
	var p Progress
	for level := []*Node{n}; len(level) > 0; {
		var next []*Node
		for _, n := range level {
			p.Events++
			p.Cut = p.Cut || n.Cut
			p.Open = append(p.Open, n.open()...)
			next = append(next, n.Children...)
		}
		level = next
	}
	return p
}

// open returns the unfinished parts of the event, without its children.
func (n *Node) open() (list []Open) {
	add := func(consumer, state, why string, failed bool) {
		list = append(list, Open{
			ID: n.Event.ID, Topic: n.Event.Topic, Outbox: n.Outbox, Consumer: consumer, State: state, Why: why, Failed: failed,
		})
	}
	if n.Event.State != outbox.DeliveredState {
		failed := n.Event.State == outbox.Dead || n.Event.State == outbox.Discarded || n.Event.State == outbox.Cancelled
		add("", string(n.Event.State), n.Event.Why, failed)
	}
	for i := range n.Messages {
		if m := &n.Messages[i]; m.State != inbox.AppliedState {
			add(m.Consumer, string(m.State), m.Why, failedMessage(m.State))
		}
	}
	for _, name := range n.Missing {
		add(name, missing, "has not got it", false)
	}
	return list
}

// missing is the state of a message that a consumer does not have.
const missing = "missing"

func failedMessage(state inbox.State) bool {
	switch state {
	case inbox.Dead, inbox.TooOldState, inbox.AlteredState, inbox.Discarded,
		effectPrefix + inbox.State(inbox.EffectDead), effectPrefix + inbox.State(inbox.EffectDiscarded):
		return true
	}
	return false
}

// Done reads the tree of an event ([Lineage.Tree]) and returns how far the tree has come.
func (l *Lineage) Done(ctx context.Context, id uuid.UUID) (Progress, error) {
	root, err := l.Tree(ctx, id)
	if err != nil {
		return Progress{}, err
	}
	return root.Progress(), nil
}
