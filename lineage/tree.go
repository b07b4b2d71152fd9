package lineage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	// firstChildren is how many children of a message the first search asks for. While all children
	// exist, the next search asks for moreChildren times as many.
	firstChildren = 4
	moreChildren  = 4
	// noLimit is a Limit of a search for given IDs.
	noLimit = 1 << 30
)

// ErrUnknown is wrapped when no outbox has an event: the event was never committed, or is no longer
// retained.
var ErrUnknown = errors.New("no outbox has the event")

// Node is an event with its messages and children. A returned tree does not change.
type Node struct {
	// Event is the event, without payload and headers.
	Event outbox.Found
	// Outbox is the name of the outbox that has the event.
	Outbox string
	// Consumer is the name of the consumer whose handler wrote the event, and Index the event's
	// number among the events of the handler, from 0 on. Consumer is "" for the root of the tree.
	Consumer string
	Index    int
	// Messages are the messages of the event at consumers, by consumer and inbox.
	Messages []Message
	// Missing are the consumers that expect the topic and have no message of the event, by name.
	Missing []string
	// Children are the events that handlers of this event wrote, by consumer and Index.
	Children []*Node
	// Cut tells that children may be missing: Config.MaxDepth or Config.MaxEvents is reached.
	Cut bool
}

// Message is the message of an event at a consumer.
type Message struct {
	// Inbox is the name of the inbox that has the message.
	Inbox string
	inbox.Found
}

// Tree reads an event, its messages at consumers, and all its descendants. Tree reads each outbox and
// each inbox once for each generation. The error wraps [ErrUnknown] if no outbox has the event.
func (l *Lineage) Tree(ctx context.Context, id uuid.UUID) (*Node, error) {
	trees, err := l.Trees(ctx, id)
	if err != nil {
		return nil, err
	}
	if trees[0] == nil {
		return nil, unknown(id)
	}
	return trees[0], nil
}

// Trees reads the trees of several events, in the order of ids, together: it reads each outbox and each
// inbox once for each generation. A tree is nil if no outbox has its event. Config.MaxEvents is the most
// events of all trees.
func (l *Lineage) Trees(ctx context.Context, ids ...uuid.UUID) ([]*Node, error) {
	roots, err := l.events(ctx, ids)
	if err != nil {
		return nil, err
	}
	trees := make([]*Node, len(ids))
	var level []*Node
	for i, id := range ids {
		trees[i] = roots[id]
		if trees[i] != nil && slices.Index(ids, id) == i {
			level = append(level, trees[i])
		}
	}
	total := len(level)
	for depth := 0; len(level) > 0; depth++ {
		if err := l.readMessages(ctx, level); err != nil {
			return nil, err
		}
		if depth == l.cfg.MaxDepth {
			cut(level)
			break
		}
		if level, err = l.readChildren(ctx, level, l.cfg.MaxEvents-total); err != nil {
			return nil, err
		}
		total += len(level)
	}
	return trees, nil
}

// root reads the event of an ID.
func (l *Lineage) root(ctx context.Context, id uuid.UUID) (*Node, error) {
	found, err := l.events(ctx, []uuid.UUID{id})
	if err == nil && found[id] == nil {
		err = unknown(id)
	}
	return found[id], err
}

func unknown(id uuid.UUID) error { return fmt.Errorf("event %s: %w", id, ErrUnknown) }

// cut marks nodes that may have children.
func cut(level []*Node) {
	for _, n := range level {
		n.Cut = len(n.handlers()) > 0
	}
}

// events reads events from all outboxes, by dispatch ID.
func (l *Lineage) events(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*Node, error) {
	nodes := make(map[uuid.UUID]*Node)
	for _, o := range l.cfg.Outboxes {
		r, err := o.Events.Search(ctx, outbox.Query{IDs: ids, Limit: noLimit})
		if err != nil {
			return nil, fmt.Errorf("outbox %q: %w", o.Name, err)
		}
		for i := range r.Events {
			e := &r.Events[i]
			if nodes[e.ID] == nil {
				nodes[e.ID] = &Node{Event: *e, Outbox: o.Name}
			}
		}
	}
	return nodes, nil
}

// readMessages adds to nodes their messages at consumers.
func (l *Lineage) readMessages(ctx context.Context, nodes []*Node) error {
	byID := make(map[uuid.UUID]*Node, len(nodes))
	ids := make([]uuid.UUID, len(nodes))
	for i, n := range nodes {
		ids[i], byID[n.Event.ID] = n.Event.ID, n
	}
	for _, in := range l.cfg.Inboxes {
		r, err := in.Messages.SearchMessages(ctx, inbox.Query{IDs: ids, Limit: noLimit})
		if err != nil {
			return fmt.Errorf("inbox %q: %w", in.Name, err)
		}
		for i := range r.Messages {
			m := Message{Inbox: in.Name, Found: r.Messages[i]}
			if n := byID[m.ID]; n != nil {
				n.add(m)
			}
		}
	}
	for _, n := range nodes {
		slices.SortFunc(n.Messages, func(a, b Message) int {
			return cmp.Or(strings.Compare(a.Consumer, b.Consumer), strings.Compare(a.Inbox, b.Inbox))
		})
		for _, name := range l.cfg.expecting(n.Event.Topic) {
			if !slices.ContainsFunc(n.Messages, func(m Message) bool { return m.Consumer == name }) {
				n.Missing = append(n.Missing, name)
			}
		}
	}
	return nil
}

// add adds a message. A consumer may have several messages of an event (copies with other content
// were set aside); the message that has come furthest counts.
func (n *Node) add(m Message) {
	for i := range n.Messages {
		known := &n.Messages[i]
		if known.Consumer == m.Consumer && known.Inbox == m.Inbox {
			if rank(m.State) > rank(known.State) {
				*known = m
			}
			return
		}
	}
	n.Messages = append(n.Messages, m)
}

// effectPrefix begins the state of a message that is applied, except for its effect outside the
// database.
const effectPrefix = "effect_"

func rank(state inbox.State) int {
	switch {
	case state == inbox.AppliedState:
		return 3
	case strings.HasPrefix(string(state), effectPrefix):
		return 2
	case state == inbox.Retrying, state == inbox.Following:
		return 1
	}
	return 0
}

// handlers returns the consumers that have committed a handler of the event.
func (n *Node) handlers() []string {
	var names []string
	for _, m := range n.Messages {
		if rank(m.State) >= rank(effectPrefix) {
			names = append(names, m.Consumer)
		}
	}
	return slices.Compact(names)
}

// family is the children of one event that one consumer wrote.
type family struct {
	parent   *Node
	consumer string
	known    int // how many children were looked for
}

// readChildren adds to nodes the children that their handlers wrote, at most room, and returns the
// children. The messages of nodes were read before; the documentation of the package says why.
func (l *Lineage) readChildren(ctx context.Context, nodes []*Node, room int) ([]*Node, error) {
	var open []*family
	for _, n := range nodes {
		for _, name := range n.handlers() {
			open = append(open, &family{parent: n, consumer: name})
		}
	}
	var all []*Node
	for number := firstChildren; len(open) > 0; number *= moreChildren {
		if len(all) >= room {
			for _, f := range open {
				f.parent.Cut = true
			}
			break
		}
		var ids []uuid.UUID
		for _, f := range open {
			for i := range number {
				ids = append(ids, idgen.Child(f.consumer, f.parent.Event.ID, f.known+i))
			}
		}
		found, err := l.events(ctx, ids)
		if err != nil {
			return nil, err
		}
		var more []*family
		for i, f := range open {
			full := f.take(ids[i*number:(i+1)*number], found, &all, room)
			if full {
				more = append(more, f)
			}
		}
		open = more
	}
	return all, nil
}

// take adds the found children of a family, and tells whether the family may have more.
func (f *family) take(ids []uuid.UUID, found map[uuid.UUID]*Node, all *[]*Node, room int) (full bool) {
	for i, id := range ids {
		child := found[id]
		full = child != nil
		switch {
		case child == nil:
		case len(*all) >= room:
			f.parent.Cut = true
			return false
		default:
			child.Consumer, child.Index = f.consumer, f.known+i
			f.parent.Children = append(f.parent.Children, child)
			*all = append(*all, child)
		}
	}
	f.known += len(ids)
	return full
}
