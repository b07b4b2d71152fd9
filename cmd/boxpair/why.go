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

// asked reads the sights of the IDs that texts name.
func (x *explainer) asked(ctx context.Context, texts []string) ([]sight, error) {
	var all []sight
	for _, text := range texts {
		ids, err := x.named(ctx, text)
		if err != nil {
			return nil, err
		}
		list, err := x.look(ctx, ids)
		if err != nil {
			return nil, err
		}
		for i := range list {
			if len(list[i].Events)+len(list[i].Inbox) > 0 {
				all = append(all, list[i])
			}
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("%s: %w", text, errNothing)
		}
	}
	return all, nil
}

var lookCommands = []command{
	lookCommand("why", "explain where an event is, what it waits for, and how to heal it",
		`Explains events by dispatch ID, by the first eight digits of one, by key, source or correlation ID: when
and by whom an event was written, whether and when the broker confirmed it, what it waits for and since
when, which consumers have applied it, and which have earlier events of its topic and not this one; and
the command that lets it go on. Of a key, the events that wait are explained; if none waits, the latest.
Keys, sources and correlation IDs are looked for in the latest 20,000 events, and in parked messages.

    boxpair why 4b9d2a51 --outbox postgres://monitor@orders/shop --inbox postgres://monitor@stock/stock

The exit status is 1 if something waits.`,
		func(s *settings, x *explainer) { s.management(&x.broker) },
		func(ctx context.Context, x *explainer, p *process, all []sight) (int, error) {
			if err := errors.Join(x.queues(ctx, all), x.caused(ctx, all)); err != nil {
				return exitFailed, err
			}
			status := exitOK
			for i := range all {
				if !all[i].Done {
					status = exitFound
				}
			}
			if x.json() {
				return status, x.print(p, "explained", all, nil)
			}
			first, behind := together(all)
			err := x.print(p, "explained", first, func(p *process, one *sight) {
				x.explain(p, one)
				x.explainBehind(p, behind[one.ID])
			})
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

// together takes out the events that only wait for an earlier event of their key, and returns their IDs
// by the ID of the earlier event, whose explanation and remedy they share.
func together(all []sight) (first []sight, behind map[uuid.UUID][]uuid.UUID) {
	type place struct {
		database string
		seq      int64
	}
	at := make(map[place]uuid.UUID)
	behind = make(map[uuid.UUID][]uuid.UUID)
	for i := range all {
		one := &all[i]
		if len(one.Events) == 1 && len(one.Inbox) == 0 {
			e := &one.Events[0]
			if head, ok := at[place{e.Database, e.WaitsFor}]; ok && e.WaitsFor != 0 {
				behind[head] = append(behind[head], one.ID)
				continue
			}
		}
		first = append(first, *one)
		for k := range one.Events {
			at[place{one.Events[k].Database, one.Events[k].Seq}] = one.ID
		}
	}
	return first, behind
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
			say("delivered", "the broker confirmed it %s ago, at %s", short(time.Since(*e.DeliveredAt)), instant(*e.DeliveredAt, "-"))
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
		say("event", "no given outbox has it: another service wrote it, or it is removed")
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
		say(m.State, "at %s since %s, after %d attempts: %s", m.Consumer, short(time.Since(m.Since)), m.Attempts, m.Why)
		if m.LastError != "" {
			say("last error", "%s", m.LastError)
		}
	}
	if len(one.Inbox) == 0 && len(x.inboxes) > 0 {
		say("inboxes", "no consumer of the given databases has it yet, or all have forgotten it")
	}
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
