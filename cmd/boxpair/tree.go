package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/lineage"
)

var family = command{
	name: "tree", group: looking,
	summary: "show what an event has caused in all services, and whether that is done",
	details: `Follows an event through the handlers of all given inboxes to the events that they wrote, and so on:
which consumers have applied each event, which have it and do not go on, and which expect it and have
not got it. With --wait, waits until everything is done. Known to expect a topic are the consumers that
--consumer names, and of the first event's topic those that have earlier events. The event is named as for why: by dispatch ID, by
the first eight digits of one, by key, source or correlation ID, if these mean one event.

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
	id, err := b.root(ctx)
	if err != nil {
		return exitFailed, err
	}
	if err := b.expect(ctx, id); err != nil {
		return exitFailed, err
	}
	all, err := b.open(ctx)
	if err != nil {
		return exitFailed, err
	}
	config := lineage.Config{Consumers: b.consumers}
	for _, s := range all {
		if s.isInbox {
			config.Inboxes = append(config.Inboxes, lineage.Inbox{Name: s.name, Messages: s.messages})
			continue
		}
		config.Outboxes = append(config.Outboxes, lineage.Outbox{Name: s.name, Events: s.events})
	}
	l, err := lineage.New(config)
	if err != nil {
		return exitFailed, err
	}
	return b.follow(ctx, p, l, id)
}

// root returns the dispatch ID of the requested event, given by ID, by first digits of the ID, by key,
// by source or by correlation ID.
func (b *branching) root(ctx context.Context) (uuid.UUID, error) {
	x := &explainer{databases: b.databases}
	ids, err := x.named(ctx, b.asked[0])
	switch {
	case err != nil:
		return uuid.Nil, fmt.Errorf("%s: %w", b.asked[0], err)
	case len(ids) > 1:
		list := make([]string, len(ids))
		for i := range ids {
			list[i] = ids[i].String()
		}
		return uuid.Nil, fmt.Errorf("%s names several events: give one of the IDs %s", b.asked[0], strings.Join(list, ", "))
	}
	return ids[0], nil
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

// follow waits with --wait until the tree is done, and prints the tree.
func (b *branching) follow(ctx context.Context, p *process, l *lineage.Lineage, id uuid.UUID) (int, error) {
	if b.wait > 0 {
		bounded, cancel := context.WithTimeout(ctx, b.wait)
		err := l.WaitDone(bounded, id)
		cancel()
		if failed := (*lineage.FailedError)(nil); err != nil && !errors.As(err, &failed) && bounded.Err() == nil {
			return exitFailed, err
		}
	}
	root, err := l.Tree(ctx, id)
	if err != nil {
		return exitFailed, err
	}
	progress := root.Progress()
	status := exitOK
	if !progress.Done() {
		status = exitFound
	}
	if b.json() {
		return status, b.encode(p.stdout, map[string]any{"done": progress.Done(), "events": progress.Events, "tree": branchOf(root)})
	}
	b.print(p, p.stdout, root, "")
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
