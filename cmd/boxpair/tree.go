package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/lineage"
)

var family = command{
	name: "tree", group: looking,
	summary: "show what an event has caused in all services, and if it is done",
	details: `Follows an event through the handlers of all given inboxes to the events that they wrote, and so on:
which consumers have applied each event, which have it and do not go on, and which expect it and have
not got it. With --wait, waits until everything is done. Known to expect a topic are the consumers that
--consumer names, and of the first event's topic those that have earlier events. The event is named as for why: by dispatch ID, by
the first eight digits of one, by key, source or correlation ID. If these mean several events that no other of them has caused, the
trees of the first 20 are shown.

    boxpair tree 4b9d2a51 --outbox postgres://monitor@orders/shop --outbox postgres://monitor@stock/stock \
        --inbox postgres://monitor@stock/stock --wait 30s

The exit status is 1 if something is not done.`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		b := &branching{}
		b.databases.define(s, "the database of an outbox. May be given several times.", "the database of an inbox. May be given several times.")
		s.add("consumer", envOf("consumer"), "NAME=TOPIC,…", "a consumer and the topics that it expects. May be given several times.", true, b.addConsumer)
		s.duration(&b.wait, "wait", "how long to wait until everything is done. Defaults to not at all.")
		b.display.define(s)
		s.operands = "ID|KEY|SOURCE|CORRELATION-ID"
		s.operandsFrom = func(args []string) error { b.asked = args; return nil }
		return b.run
	},
}

// branching holds the settings of tree.
type branching struct {
	databases
	display

	asked     []string
	consumers map[string][]string
	wait      time.Duration
}

func (b *branching) addConsumer(text string) error {
	name, list, found := strings.Cut(text, "=")
	if !found || name == "" || list == "" {
		return errors.New("want NAME=TOPIC or NAME=TOPIC,TOPIC")
	}
	if b.consumers == nil {
		b.consumers = make(map[string][]string)
	}
	b.consumers[name] = append(b.consumers[name], strings.Split(list, ",")...)
	return nil
}

func (b *branching) run(ctx context.Context, p *process) (int, error) {
	switch {
	case len(b.asked) != 1:
		return exitFailed, fmt.Errorf("ID: want exactly one, got %d", len(b.asked))
	case len(b.outboxes) == 0:
		return exitFailed, fmt.Errorf("--outbox (or %s_URL): is missing", envOf("outbox"))
	}
	roots, more, err := b.roots(ctx)
	if err != nil {
		return exitFailed, err
	}
	for _, id := range roots {
		if err := b.expect(ctx, id); err != nil {
			return exitFailed, err
		}
	}
	l, err := b.lineage(ctx, lineage.Config{Consumers: b.consumers})
	if err != nil {
		return exitFailed, err
	}
	return b.follow(ctx, p, l, roots, more)
}

const (
	// mostRoots is how many trees are shown at most.
	mostRoots = 20
	// mostOfTrees is how many events of a key, source or correlation ID are searched for roots.
	mostOfTrees = 1000
)

// roots returns the dispatch IDs of the requested events that no other requested event has caused, and
// whether there may be more. The events are given by ID, by first digits of the ID, by key, by source or by
// correlation ID.
func (b *branching) roots(ctx context.Context) (roots []uuid.UUID, more bool, err error) {
	x := &explainer{databases: b.databases, most: mostOfTrees}
	ids, _, err := x.named(ctx, b.asked[0])
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", b.asked[0], err)
	}
	if len(ids) == 1 {
		return ids, false, nil
	}
	l, err := b.lineage(ctx, lineage.Config{})
	if err != nil {
		return nil, false, err
	}
	caused := make(map[uuid.UUID]bool)
	var mark func(n *lineage.Node)
	mark = func(n *lineage.Node) {
		for _, child := range n.Children {
			caused[child.Event.ID] = true
			mark(child)
		}
	}
	more = len(ids) >= mostOfTrees
	unknown := errNothing
	for _, id := range ids {
		if caused[id] {
			continue
		}
		if len(roots) == mostRoots {
			more = true
			break
		}
		switch root, err := l.Tree(ctx, id); {
		case errors.Is(err, lineage.ErrUnknown): // a message whose event is gone
			unknown = err
		case err != nil:
			return nil, false, err
		default:
			roots = append(roots, id)
			mark(root)
		}
	}
	roots = slices.DeleteFunc(roots, func(id uuid.UUID) bool { return caused[id] }) // by a tree of a later outbox
	if len(roots) == 0 {
		return nil, false, unknown
	}
	return roots, more, nil
}

// expect adds the consumers that have earlier events of an event's topic, but not the event.
func (b *branching) expect(ctx context.Context, id uuid.UUID) error {
	seen, err := (&explainer{databases: b.databases}).look(ctx, []uuid.UUID{id})
	if err != nil || len(seen[0].Events) == 0 {
		return err
	}
	for i := range seen[0].Inbox {
		if m := &seen[0].Inbox[i]; m.State == missingState {
			if b.consumers == nil {
				b.consumers = make(map[string][]string)
			}
			b.consumers[m.Consumer] = append(b.consumers[m.Consumer], seen[0].Events[0].Topic)
		}
	}
	return nil
}

// follow waits with --wait until the trees are done, and prints them. With more, there may be other trees.
func (b *branching) follow(ctx context.Context, p *process, l *lineage.Lineage, roots []uuid.UUID, more bool) (int, error) {
	bounded, cancel := context.WithTimeout(ctx, b.wait)
	defer cancel()
	for i := 0; i < len(roots) && b.wait > 0; i++ {
		err := l.WaitDone(bounded, roots[i])
		if failed := (*lineage.FailedError)(nil); err != nil && !errors.As(err, &failed) && bounded.Err() == nil {
			return exitFailed, err
		}
	}
	progress := lineage.Progress{Cut: more}
	trees := make([]*lineage.Node, len(roots))
	for i, id := range roots {
		root, err := l.Tree(ctx, id)
		if err != nil {
			return exitFailed, err
		}
		one := root.Progress()
		progress.Events, progress.Cut, progress.Open = progress.Events+one.Events, progress.Cut || one.Cut, append(progress.Open, one.Open...)
		trees[i] = root
	}
	status := exitOK
	if !progress.Done() {
		status = exitFound
	}
	if more {
		fmt.Fprintf(p.stderr, "the trees of the first %d events are shown; there may be more\n", len(roots))
	}
	if b.json() {
		return status, b.encode(p.stdout, treesOf(&progress, trees))
	}
	for _, root := range trees {
		b.print(p, p.stdout, root, "")
	}
	switch {
	case progress.Done():
		fmt.Fprintf(p.stdout, "all is done: %d events\n", progress.Events)
	case progress.Cut && len(progress.Open) == 0:
		fmt.Fprintf(p.stdout, "the first %d events are done; there may be more\n", progress.Events)
	default:
		fmt.Fprintf(p.stdout, "%d not done, of %d events\n", len(progress.Open), progress.Events)
	}
	return status, nil
}

// treesOf returns trees for JSON: one as tree, several as trees.
func treesOf(progress *lineage.Progress, trees []*lineage.Node) map[string]any {
	object := map[string]any{"done": progress.Done(), "events": progress.Events}
	if len(trees) == 1 {
		object["tree"] = branchOf(trees[0])
		return object
	}
	list := make([]branch, len(trees))
	for i := range trees {
		list[i] = branchOf(trees[i])
	}
	object["trees"] = list
	return object
}

// caused counts the events that the handlers of the sights' messages wrote.
func (x *explainer) caused(ctx context.Context, all []sight) error {
	if len(x.outboxes) == 0 {
		return nil
	}
	l, err := x.lineage(ctx, lineage.Config{MaxDepth: 1})
	if err != nil {
		return err
	}
	var handled []*sight
	var ids []uuid.UUID
	for i := range all {
		if one := &all[i]; len(one.Events) > 0 && len(one.Inbox) > 0 {
			handled, ids = append(handled, one), append(ids, one.ID)
		}
	}
	trees, err := l.Trees(ctx, ids...)
	for i, tree := range trees {
		if tree != nil { // the event was not removed meanwhile
			handled[i].Caused = len(tree.Children)
		}
	}
	return err
}

// lineage returns a lineage that follows events through all databases.
func (d *databases) lineage(ctx context.Context, config lineage.Config) (*lineage.Lineage, error) {
	all, err := d.open(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.isInbox {
			config.Inboxes = append(config.Inboxes, lineage.Inbox{Name: s.name, Messages: s.messages})
			continue
		}
		config.Outboxes = append(config.Outboxes, lineage.Outbox{Name: s.name, Events: s.events})
	}
	return lineage.New(config)
}

// print prints an event with its messages, and its children below it.
func (b *branching) print(p *process, out io.Writer, n *lineage.Node, indent string) {
	painted := func(state string) string {
		if b.colored(p) {
			return paint(state)
		}
		return state
	}
	e := &n.Event
	why := ""
	if e.Why != string(e.State) {
		why = ": " + plain(e.Why)
	}
	line := func(format string, args ...any) { b.wrap(p, out, indent, indent+"    ", fmt.Sprintf(format, args...)) }
	line("%s  %s%s  %s%s", b.id(e.ID), plain(e.Topic), plain(keyed(e.Key)), painted(string(e.State)), why)
	indent += "  "
	for i := range n.Messages {
		m := &n.Messages[i]
		why := ""
		if m.Why != string(m.State) {
			why = ": " + plain(m.Why)
		}
		line("%s  %s%s", plain(m.Consumer), painted(string(m.State)), why)
		for _, child := range n.Children {
			if child.Consumer == m.Consumer {
				b.print(p, out, child, indent+"  ")
			}
		}
	}
	for _, name := range n.Missing {
		line("%s  has not got it", plain(name))
	}
	if n.Cut {
		line("…")
	}
}

// branch is a node of the tree in JSON.
type branch struct {
	ID       uuid.UUID `json:"id"`
	Database string    `json:"database"`
	Topic    string    `json:"topic"`
	Key      string    `json:"key"`
	State    string    `json:"state"`
	Why      string    `json:"why"`
	Consumer string    `json:"written_by,omitempty"`
	Messages []leaf    `json:"messages"`
	Missing  []string  `json:"missing"`
	Cut      bool      `json:"cut"`
	Children []branch  `json:"children"`
}

// leaf is a message of a consumer.
type leaf struct {
	Consumer string `json:"consumer"`
	Database string `json:"database"`
	State    string `json:"state"`
	Why      string `json:"why"`
}

func branchOf(n *lineage.Node) branch {
	b := branch{n.Event.ID, n.Outbox, n.Event.Topic, n.Event.Key, string(n.Event.State), n.Event.Why, n.Consumer, []leaf{}, append([]string{}, n.Missing...), n.Cut, []branch{}}
	for i := range n.Messages {
		m := &n.Messages[i]
		b.Messages = append(b.Messages, leaf{m.Consumer, m.Inbox, string(m.State), m.Why})
	}
	for _, child := range n.Children {
		b.Children = append(b.Children, branchOf(child))
	}
	return b
}
