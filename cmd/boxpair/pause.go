package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/boxpair/boxpair/internal/topics"
	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/store/control"
)

// pausing holds the settings of the commands about pauses.
type pausing struct {
	databases
	display

	topic, downstream, consumer string
	pause                       control.Pause
	period                      time.Duration
	yes                         bool
}

var pauseCommands = []command{
	{
		name:    "pause",
		summary: "stop relays from sending, or a consumer from handling, for a while",
		group:   changing,
		details: `Stops all relays of an outbox from sending to topics or to a downstream, or all processes of a consumer from handling messages, until
boxpair resume, or until --for or --until is over. Relays and consumers see it within a second. Nothing is lost, and no attempt is
counted. A paused event keeps later events of its key waiting, also on other topics. Pausing again replaces the pause. Prints the pause.
A name or pattern that the database does not know may be misspelt: on a terminal, boxpair asks first; elsewhere, it says so and pauses.
The end is judged by the database's clock: a pause that is over by that clock is an error, and nothing is paused then.

    boxpair pause --outbox postgres://operator@orders/shop --topic 'order.#' --for 30m --reason "wrong prices"
    boxpair pause --outbox postgres://operator@orders/shop --downstream analytics --reason "the broker moves"
    boxpair pause --inbox postgres://operator@stock/stock --consumer stock/reserve --reason "stock is counted"`,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			p := &pausing{}
			p.define(s)
			s.text(&p.pause.Reason, "reason", "TEXT", "the reason, in at most 1 KiB. Required.")
			s.duration(&p.period, "for", "how long, from now. Defaults to no end.")
			s.add("until", envOf("until"), "TIME", "until when: 2026-01-31T12:00:00Z, or 2026-01-31 (in UTC). Defaults to no end.", false, future(&p.pause.Until))
			p.defineBy(s)
			p.form.define(s)
			s.on(&p.yes, "yes", "do not ask for a confirmation of a name that nobody knows. Without a terminal, no command asks.")
			return p.begin
		},
	},
	{
		name:    "resume",
		summary: "end a pause",
		group:   changing,
		details: `Ends a pause that boxpair pause has begun, selected by the same text. Relays and consumers go on within a second. The exit status
is 1 if nothing was paused under the name; the pauses in force are then printed. With --reason or --as, a line of the log names both.

    boxpair resume --outbox postgres://operator@orders/shop --topic 'order.#'`,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			p := &pausing{}
			p.define(s)
			s.text(&p.pause.Reason, "reason", "TEXT", loggedReason)
			p.defineBy(s)
			p.form.define(s)
			return p.end
		},
	},
}

func (p *pausing) define(s *settings) {
	p.databases.define(s, "the database of the outbox, with --topic or --downstream.", "the database of the inbox, with --consumer.")
	s.add("topic", envOf("topic"), "PATTERN", "the topics of an outbox, such as order.#: words between dots, where * stands for one word and # for any number.", false, func(text string) error {
		if err := topics.CheckPattern(text); err != nil {
			return err
		}
		return nameTo(&p.topic)(text)
	})
	s.add("downstream", envOf("downstream"), "NAME", "a downstream of the relays of an outbox.", false, nameTo(&p.downstream))
	s.add("consumer", envOf("consumer"), "NAME", "a consumer of an inbox, such as stock/reserve, or stock/* for all consumers of a service.", false, nameTo(&p.consumer))
}

func (p *pausing) defineBy(s *settings) {
	s.add("as", envOf("as"), "NAME", "the operator's name. Defaults to the database's user; SQLite has none.", false, nameTo(&p.pause.By))
}

const maxPauseName = 255

// nameTo returns a function that sets a name.
func nameTo(to *string) func(text string) error {
	return func(text string) error {
		if text == "" || len(text) > maxPauseName || !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return errors.New("want 1 to 255 bytes of text")
		}
		*to = text
		return nil
	}
}

// future returns a function that sets a time in the future.
func future(to *time.Time) func(text string) error {
	return func(text string) error {
		at, err := timeOf(text)
		switch {
		case err != nil:
			return err
		case !at.After(time.Now()):
			return errors.New("this time is over")
		}
		*to = at
		return nil
	}
}

// choose checks the settings against each other, and sets the kind and name of the pause.
func (p *pausing) choose() error {
	var errs []error
	switch { // a context names both sides
	case p.consumer == "" && p.topic+p.downstream != "":
		p.inboxes = nil
	case p.consumer != "" && p.topic+p.downstream == "":
		p.outboxes = nil
	}
	errs = append(errs, p.one())
	p.pause.Kind, p.pause.Name = control.Consumer, p.consumer
	switch {
	case len(p.inboxes) > 0:
		if p.topic+p.downstream != "" {
			errs = append(errs, errors.New("--topic, --downstream: belong to an outbox"))
		}
		if p.consumer == "" {
			errs = append(errs, errors.New("--consumer: is missing"))
		}
	case len(p.outboxes) > 0:
		if p.consumer != "" {
			errs = append(errs, errors.New("--consumer: belongs to an inbox"))
		}
		if (p.topic == "") == (p.downstream == "") {
			errs = append(errs, errors.New("--topic, --downstream: want exactly one"))
		}
		p.pause.Kind, p.pause.Name = control.Topic, p.topic
		if p.downstream != "" {
			p.pause.Kind, p.pause.Name = control.Downstream, p.downstream
		}
	}
	return errors.Join(errs...)
}

// of returns the side of a database that the settings name.
func (p *pausing) of(s *operators) ops.Pauser {
	if len(p.inboxes) > 0 {
		return s.inbox
	}
	return s.outbox
}

func (p *pausing) begin(ctx context.Context, proc *process) (int, error) {
	errs := []error{p.choose(), because(p.pause.Reason)}
	if p.period > 0 {
		if !p.pause.Until.IsZero() {
			errs = append(errs, errors.New("--for, --until: want at most one"))
		}
		p.pause.Until = time.Now().Add(p.period)
	}
	if err := errors.Join(errs...); err != nil {
		return exitFailed, err
	}
	err := p.each(ctx, false, func(s *operators) error {
		if err := p.spelt(ctx, s, proc); err != nil {
			return err
		}
		return p.beginAt(ctx, p.of(s), proc)
	})
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// beginAt begins the pause, and prints the pause as the database has it.
func (p *pausing) beginAt(ctx context.Context, side ops.Pauser, proc *process) error {
	err := side.Pause(ctx, p.pause)
	if errors.Is(err, control.ErrOver) {
		return fmt.Errorf("--for, --until: nothing is paused under the name: %w", err)
	}
	if err != nil {
		return err
	}
	list, err := side.Pauses(ctx) // with the database's user
	for i := range list {
		if list[i].Kind == p.pause.Kind && list[i].Name == p.pause.Name {
			return p.result(proc, plain(list[i].String())+"\n", pauseStatuses(list[i : i+1])[0])
		}
	}
	return err
}

// spelt says if the database does not know the paused name, and on a terminal asks for confirmation. A
// pause may begin even if the names of the database cannot be read.
func (p *pausing) spelt(ctx context.Context, s *operators, proc *process) error {
	var known vocabulary
	err := known.learn(ctx, s)
	var strange string
	if err == nil {
		strange, err = known.unknown(ctx, s, p.pause.Kind, p.pause.Name)
	}
	switch {
	case err != nil:
		fmt.Fprintf(proc.stderr, "whether %s %s exists could not be checked: %s\n", p.pause.Kind, plain(p.pause.Name), plain(err.Error()))
	case strange == "":
	case proc.asks && !p.yes:
		fmt.Fprintln(proc.stderr, plain(strange))
		return agreed(proc, fmt.Sprintf("pause %s %s all the same?", p.pause.Kind, p.pause.Name))
	default:
		fmt.Fprintf(proc.stderr, "see that the name is right: %s\n", plain(strange))
	}
	return nil
}

func (p *pausing) end(ctx context.Context, proc *process) (int, error) {
	why := change{reason: p.pause.Reason, operator: p.pause.By}
	if err := errors.Join(p.choose(), why.reasonable()); err != nil {
		return exitFailed, err
	}
	status := exitOK
	err := p.each(ctx, false, func(s *operators) error {
		side := p.of(s)
		ended, err := side.Resume(ctx, p.pause.Kind, p.pause.Name)
		if err != nil {
			return err
		}
		if ended {
			why.note(proc, s, "pause ended", "kind", p.pause.Kind, "name", p.pause.Name)
			return p.result(proc, fmt.Sprintf("%s %s is resumed\n", p.pause.Kind, plain(p.pause.Name)), p.resumed(true))
		}
		status = exitFound
		list, err := side.Pauses(ctx)
		if err == nil && p.json() {
			err = p.encode(proc.stdout, p.resumed(false))
		}
		if err != nil {
			return err
		}
		if len(list) == 0 {
			fmt.Fprintf(proc.stderr, "%s %s is not paused; nothing is\n", p.pause.Kind, plain(p.pause.Name))
			return nil
		}
		fmt.Fprintf(proc.stderr, "%s %s is not paused, but:\n", p.pause.Kind, plain(p.pause.Name))
		return p.printPauses(proc, proc.stderr, list)
	})
	if err != nil {
		return exitFailed, err
	}
	return status, nil
}

// resumed is the result of resume in JSON.
func (p *pausing) resumed(was bool) map[string]any {
	return map[string]any{"kind": p.pause.Kind, "name": p.pause.Name, "resumed": was}
}

// pauseStatus is a pause in JSON.
type pauseStatus struct {
	Kind   string     `json:"kind"`
	Name   string     `json:"name"`
	Since  time.Time  `json:"since"`
	Until  *time.Time `json:"until"` // null: until it is resumed
	By     string     `json:"by"`
	Reason string     `json:"reason"`
}

// pauseStatuses returns pauses for JSON; never nil.
func pauseStatuses(list []control.Pause) []pauseStatus {
	all := make([]pauseStatus, len(list))
	for i := range list {
		p := &list[i]
		all[i] = pauseStatus{string(p.Kind), p.Name, p.Since.UTC(), nil, p.By, p.Reason}
		if !p.Until.IsZero() {
			until := p.Until.UTC()
			all[i].Until = &until
		}
	}
	return all
}

func (d *display) printPauses(p *process, out io.Writer, list []control.Pause) error {
	g := d.grid(p, column{head: "paused"}, column{head: "name", flexible: true}, column{head: "since"}, column{head: "until"}, column{head: "by"}, column{head: "reason", flexible: true})
	for i := range list {
		one := &list[i]
		by := one.By
		if by == "" {
			by = "-"
		}
		g.add(one.Kind, one.Name, d.when(one.Since), d.when(one.Until), by, one.Reason)
	}
	return g.print(out)
}
