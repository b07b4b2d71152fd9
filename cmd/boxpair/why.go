package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// lookCommand returns a command about single events.
func lookCommand(name, summary, details string, define func(s *settings, x *explainer), run func(ctx context.Context, x *explainer, p *process, all []sight) (int, error)) command {
	return command{
		name: name, summary: summary, details: details, group: looking,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			x := &explainer{}
			var asked []string
			x.databases.define(s, "the database of an outbox. May be given several times.", "the database of an inbox. May be given several times.")
			define(s, x)
			x.display.define(s)
			s.operands = "ID|KEY|SOURCE|CORRELATION-ID…"
			s.operandsFrom = func(args []string) error { asked = args; return nil }
			return func(ctx context.Context, p *process) (int, error) {
				if len(asked) == 0 {
					return exitFailed, errors.New("ID: is missing")
				}
				if err := x.some(); err != nil {
					return exitFailed, err
				}
				x.origin = origin{s.context, s.flags.Changed("outbox") || s.flags.Changed("inbox")}
				all, err := x.asked(ctx, asked)
				if err != nil {
					return exitFailed, err
				}
				return run(ctx, x, p, all)
			}
		},
	}
}

// asked reads the sights of the IDs that texts name. Of a key, source or correlation ID, the events and
// messages come first for which others wait.
func (x *explainer) asked(ctx context.Context, texts []string) ([]sight, error) {
	var all []sight
	for _, text := range texts {
		ids, byID, err := x.named(ctx, text)
		if err != nil {
			return nil, err
		}
		list, err := x.look(ctx, ids)
		if err != nil {
			return nil, err
		}
		list = slices.DeleteFunc(list, func(s sight) bool { return len(s.Events)+len(s.Inbox) == 0 })
		if !byID {
			if list, err = x.withHeads(ctx, list); err != nil {
				return nil, err
			}
			for i := range list {
				list[i].name = text
			}
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("%s: %w", text, errNothing)
		}
		all = append(all, list...)
	}
	return all, nil
}

// withHeads adds the events and messages for which some of the list wait.
func (x *explainer) withHeads(ctx context.Context, list []sight) ([]sight, error) {
	known := make(map[uuid.UUID]bool)
	for i := range list {
		known[list[i].ID] = true
	}
	var heads []uuid.UUID
	for i := range list {
		for _, head := range list[i].heads {
			if !known[head] {
				known[head], heads = true, append(heads, head)
			}
		}
	}
	if len(heads) == 0 {
		return list, nil
	}
	first, err := x.look(ctx, heads)
	return append(first, list...), err
}

var lookCommands = []command{
	lookCommand("why", "explain where an event is, what it waits for, and how to heal it",
		`Explains events by dispatch ID, by the first eight digits of one, by key, source or correlation ID: when
and by whom an event was written, whether and when the broker confirmed it, what it waits for and since
when, which consumers have applied it, and which have earlier events of its topic and not this one; and
the command that lets it go on. Of a key, a source or a correlation ID, the event that holds up the
others comes first, and events that are done are counted only; if none waits, the latest is explained,
of each topic.
Keys, sources and correlation IDs are looked for in the latest 20,000 events and parked messages, and keys
in all messages that wait in order and the latest 20,000 waiting events of their shard.

    boxpair why 4b9d2a51 --outbox postgres://monitor@orders/shop --inbox postgres://monitor@stock/stock

The exit status is 1 if something waits.`,
		func(s *settings, x *explainer) { s.management(&x.broker) },
		func(ctx context.Context, x *explainer, p *process, all []sight) (int, error) {
			status, first, rest := exitOK, all, rest{}
			err := x.queues(ctx, all)
			if !x.json() {
				first, rest = together(all)
			}
			if err := errors.Join(err, x.caused(ctx, first)); err != nil {
				return exitFailed, err
			}
			if slices.ContainsFunc(all, func(one sight) bool { return !one.Done }) {
				status = exitFound
			}
			if x.json() {
				return status, x.print(p, "explained", all, nil)
			}
			err = x.print(p, "explained", first, func(p *process, one *sight) {
				x.explain(p, one)
				x.explainBehind(p, rest.behind[one.ID])
			})
			for name, n := range sorted(rest.done) {
				fmt.Fprintln(p.stdout)
				x.wrap(p, p.stdout, "", "", fmt.Sprintf("%d more of the latest of %s are done: boxpair show %s", n, plain(name), quoted(name)))
			}
			return status, err
		}),
	lookCommand("show", "show everything that the databases know of an event",
		`Shows events and messages in any state, as facts: by dispatch ID, by the first eight digits of one, by
key, source or correlation ID, with all attempts, deliveries and changes by operators. Payloads and headers,
also of messages that wait in an inbox, are shown with --payload only.

    boxpair show 4b9d2a51 --outbox postgres://monitor@orders/shop --inbox postgres://monitor@stock/stock`,
		func(s *settings, x *explainer) {
			x.details = true
			s.on(&x.content, "payload", "show payloads and headers, too.")
		},
		func(_ context.Context, x *explainer, p *process, all []sight) (int, error) {
			return exitOK, x.print(p, "found", all, x.facts)
		}),
}

// print prints one JSON object with the sights under a name, or the sights with empty lines between.
func (x *explainer) print(p *process, name string, all []sight, one func(p *process, one *sight)) error {
	if x.json() {
		return x.encode(p.stdout, map[string][]sight{name: all})
	}
	for i := range all {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		one(p, &all[i])
	}
	return nil
}

// rest is what is not explained for itself.
type rest struct {
	behind map[uuid.UUID][]uuid.UUID // events that only wait for an earlier one of their key, by its ID
	done   map[string]int            // events that are done, by the key, source or correlation ID that names them
}

// name is a key, source or correlation ID by which an operator has asked, and a topic.
type name struct{ asked, topic string }

func (s *sight) named() name {
	if len(s.Events) > 0 {
		return name{s.name, s.Events[0].Topic}
	}
	if len(s.Inbox) > 0 {
		return name{s.name, s.Inbox[0].Topic}
	}
	return name{s.name, ""}
}

// together takes out the events that share the explanation and the remedy of an earlier one of their key,
// and the events that are done beside others of their name: of a name of which nothing waits, the latest
// event of each topic remains.
func together(all []sight) (first []sight, r rest) {
	waits, explained := make(map[string]bool), make(map[uuid.UUID]bool)
	r = rest{make(map[uuid.UUID][]uuid.UUID), make(map[string]int)}
	latest := make(map[name]uuid.UUID)
	for i := range all {
		one := &all[i]
		waits[one.name] = waits[one.name] || !one.Done
		explained[one.ID] = explained[one.ID] || !one.follows()
		latest[one.named()] = one.ID
	}
	for i := range all {
		one := &all[i]
		head := slices.IndexFunc(one.heads, func(id uuid.UUID) bool { return explained[id] })
		switch {
		case one.follows() && head >= 0:
			r.behind[one.heads[head]] = append(r.behind[one.heads[head]], one.ID)
		case one.Done && one.name != "" && (waits[one.name] || latest[one.named()] != one.ID):
			r.done[one.name]++
		default:
			first = append(first, *one)
		}
	}
	return first, r
}

// explainBehind names the events that wait for an event of their key.
func (x *explainer) explainBehind(p *process, ids []uuid.UUID) {
	if len(ids) == 0 {
		return
	}
	list := make([]string, len(ids))
	for i, id := range ids {
		list[i] = x.id(id)
	}
	x.wrap(p, p.stdout, fmt.Sprintf("  %-11s ", "behind it"), fmt.Sprintf("  %-11s ", ""), fmt.Sprintf("%d of its key: %s", len(ids), strings.Join(list, " ")))
}

// explain prints one event in sentences.
func (x *explainer) explain(p *process, one *sight) {
	out := p.stdout
	fmt.Fprintf(out, "%s\n", one.ID)
	say := func(about, format string, args ...any) {
		x.wrap(p, out, fmt.Sprintf("  %-11s ", about), fmt.Sprintf("  %-11s ", ""), plain(fmt.Sprintf(format, args...)))
	}
	for i := range one.Events {
		e := &one.Events[i]
		say("event", "%s%s, number %d of %s", e.Topic, keyed(e.Key), e.Seq, e.Database)
		say("written", "%s ago, at %s%s", short(time.Since(e.WrittenAt)), instant(e.WrittenAt, "-"), writer(e))
		switch {
		case e.DeliveredAt != nil:
			say("delivered", "the broker confirmed it %s ago, at %s%s%s", short(time.Since(*e.DeliveredAt)), instant(*e.DeliveredAt, "-"), e.confirmedTo(), e.late())
		case e.State == "delivered":
			say("delivered", "its receipt is no longer kept")
		default:
			say(e.State, "%s", e.Why)
		}
		if e.LastError != "" && e.State != "delivered" {
			say("last error", "%s", e.LastError)
		}
		if e.TraceParent != "" {
			say("trace", "%s", e.TraceParent)
		}
	}
	if len(one.Events) == 0 && len(x.outboxes) > 0 {
		say("event", "no given outbox has it: another service wrote it, it is the copy of an edited message, or it is removed")
	}
	for i := range one.Queues {
		say("broker", "%s", &one.Queues[i])
	}
	if one.Broker != "" {
		say("broker", "could not be asked: %s", one.Broker)
	} else if len(one.Queues) == 0 && x.broker.URL != "" && len(one.Events) > 0 {
		say("broker", "no queue takes topic %s", one.Events[0].Topic)
		for i := range one.Unbound {
			say("broker", "queue %s is there, with %d consumers, and is not bound to the topic", one.Unbound[i].Queue, one.Unbound[i].Consumers)
		}
	}
	x.explainMessages(say, one)
	if slices.ContainsFunc(one.Events, func(e seenEvent) bool { return e.State == string(outbox.PendingState) }) &&
		slices.ContainsFunc(one.Inbox, func(m seenMessage) bool { return m.State == string(inbox.AppliedState) }) {
		say("sent", "a consumer has it, so the broker took it: no relay has recorded that yet")
	}
	explainCopies(say, one)
	if one.Caused > 0 {
		say("caused", "%d events: boxpair tree %s", one.Caused, x.id(one.ID))
	}
	if len(one.Heal) > 0 {
		fmt.Fprintln(out, "  heal")
		for _, command := range one.Heal {
			x.commented(p, out, "    ", command)
		}
	}
}

func (x *explainer) explainMessages(say func(about, format string, args ...any), one *sight) {
	named := len(one.Events) > 0
	for i := range one.Inbox {
		m := &one.Inbox[i]
		if !named && m.Topic != "" {
			named = true
			say("message", "%s%s", m.Topic, keyed(m.Key))
		}
		if m.State == "applied" {
			say("applied", "by %s %s ago", m.Consumer, short(time.Since(m.Since)))
			continue
		}
		if m.State == missingState {
			ago := ""
			if !m.Since.IsZero() {
				ago = " for " + short(time.Since(m.Since))
			}
			say(m.State, "at %s%s: %s", m.Consumer, ago, m.Why)
			continue
		}
		since := ""
		if m.State != string(inbox.Discarded) { // which says when it was set aside
			since = " since " + short(time.Since(m.Since))
		}
		say(m.State, "at %s%s, after %d attempts: %s", m.Consumer, since, m.Attempts, strings.TrimPrefix(m.Why, m.State+": "))
		if m.LastError != "" {
			say("last error", "%s", m.LastError)
		}
	}
	if len(one.Inbox) == 0 && len(x.inboxes) > 0 {
		say("inboxes", "no consumer of the given databases has it yet, or all have forgotten it")
	}
}

// confirmedTo names the relay that the broker has confirmed the latest copy to.
func (e *seenEvent) confirmedTo() string {
	at := slices.IndexFunc(e.Deliveries, func(d sent) bool { return d.At.Equal(*e.DeliveredAt) })
	if at < 0 {
		return ""
	}
	return ", to relay " + e.Deliveries[at].Relay
}

// late tells how long after the event was written it was confirmed, if that was not at once.
func (e *seenEvent) late() string {
	if took := e.DeliveredAt.Sub(e.WrittenAt); took > slow {
		return ", " + took.Round(time.Second).String() + " after it was written"
	}
	return ""
}

func keyed(key string) string {
	if key == "" {
		return ""
	}
	return ", key " + key
}

// writer names the writer of an event.
func writer(e *seenEvent) string {
	text := ""
	if e.Producer != "" {
		text = " by " + e.Producer
	}
	if e.Source != "" {
		text += fmt.Sprintf(" (%s, version %d, index %d)", e.Source, e.Version, e.Index)
	}
	return text
}

// facts prints one event as a list of names and values.
func (x *explainer) facts(p *process, one *sight) {
	out := p.stdout
	line := func(name string, value any) { x.fact(p, name, value) }
	fmt.Fprintf(out, "%s\n", one.ID)
	for i := range one.Events {
		e := &one.Events[i]
		line("outbox", e.Database)
		line("number", e.Seq)
		line("topic", e.Topic)
		line("key", e.Key)
		line("type", e.Type)
		line("producer", e.Producer)
		line("source", e.Source)
		line("version", e.Version)
		line("index", e.Index)
		line("correlation ID", e.CorrelationID)
		line("traceparent", e.TraceParent)
		line("state", e.State)
		if e.Why != e.State {
			line("why", e.Why)
		}
		line("written", instant(e.WrittenAt, ""))
		x.fate(p, e.NextAttemptAt, e.Attempts, e.LastError, e.Reason, e.History)
		for _, d := range e.Deliveries {
			line("confirmed", instant(d.At, "")+" "+d.Relay)
		}
		x.body(p, "header", e.Headers, e.Payload)
	}
	for i := range one.Inbox {
		m := &one.Inbox[i]
		line("consumer", m.Consumer+" in "+m.Database)
		line("topic", m.Topic)
		line("key", m.Key)
		line("state", m.State)
		if m.Why != m.State {
			line("why", m.Why)
		}
		line("since", instant(m.Since, ""))
		x.fate(p, m.NextAttemptAt, m.Attempts, m.LastError, m.Reason, m.History)
		x.body(p, "metadata", m.Metadata, m.Payload)
	}
}

// body prints headers or metadata, and the payload unless it is nil.
func (x *explainer) body(p *process, kind string, headers map[string]string, payload *string) {
	for name, value := range sorted(headers) {
		x.fact(p, kind+" "+name, value)
	}
	if payload != nil {
		fmt.Fprintf(p.stdout, "  %-15s %s\n", "payload", plain(*payload))
	}
}
