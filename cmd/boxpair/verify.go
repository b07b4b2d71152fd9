package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxpair/boxpair/audit"
)

var verify = command{
	name:    "verify",
	summary: "compare committed events with applied messages",
	group:   looking,
	details: `Reads outboxes and inboxes, which may be live and may share a database, and reports
events that were delivered and not applied, applied and never committed, applied with other content,
pending for too long, parked, dead, set aside or discarded. Changes nothing.

    boxpair verify --outbox postgres://audit@orders/shop --inbox postgres://audit@stock/stock \
        --consumer inventory/reserve=order.placed,order.cancelled

Exit status: 0 no discrepancies, 1 discrepancies, 2 something could not be checked.
docs/audit.md explains each finding, its remedy, and the privileges that verify needs.`,
	define: defineVerify,
}

// verification holds the settings of verify.
type verification struct {
	display

	outboxes, inboxes []target
	places            places
	config            audit.Config
	partial           []string
	timeout           time.Duration
	quiet             bool
}

func defineVerify(s *settings) func(context.Context, *process) (int, error) {
	v := &verification{timeout: time.Minute}
	c := &v.config
	s.urls(&v.outboxes, "outbox", "the database of an outbox; at least one. May be given several times.")
	s.urls(&v.inboxes, "inbox", "the database of an inbox. May be given several times.\nWithout inboxes, only the outboxes are checked.")
	s.add("consumer", envOf("consumer"), "NAME=TOPIC,…", "a consumer and its topics: words separated by dots, * for one word,\n"+
		"# for any number of words. May be given several times.", true, v.addConsumer)
	s.add("partial", envOf("partial"), "NAME", "a consumer that also reads from producers whose outbox is not given:\n"+
		"its messages are never reported as not committed. May be given several times.", true,
		func(name string) error { v.partial = append(v.partial, name); return nil })
	s.duration(&c.Grace, "grace", "how long an event may take from its creation to its claim. Defaults to 5m.")
	s.add("from", envOf("from"), "TIME", "check events created since this time: 2026-01-31T12:00:00Z, or an age such as 24h.\nDefaults to no bound.",
		false, moment(&c.From))
	s.add("until", envOf("until"), "TIME", "check events created before this time. Defaults to no bound but the grace time.", false, moment(&c.Until))
	s.add("accept", envOf("accept"), "KIND,…", "kinds of findings that are shown and do not change the exit status, such as discarded,dead.\nDefaults to none.",
		false, v.setAccept)
	s.add("limit", envOf("limit"), "N", "the number of shown findings of each kind. Defaults to 10.", false, v.setLimit)
	v.define(s)
	s.on(&v.quiet, "quiet", "show no progress on the standard error.")
	s.duration(&v.timeout, "statement-timeout", "how long a statement may take. Defaults to 1m.")
	v.places.define(s)
	return v.run
}

func (v *verification) addConsumer(text string) error {
	name, topics, ok := strings.Cut(text, "=")
	if !ok || name == "" || topics == "" {
		return errors.New("want NAME=TOPIC or NAME=TOPIC,TOPIC")
	}
	v.config.Expect = append(v.config.Expect, audit.Expectation{Consumer: name, Topics: strings.Split(topics, ",")})
	return nil
}

func (v *verification) setAccept(text string) error {
	v.config.Accept = nil
	for name := range strings.SplitSeq(text, ",") {
		kind := audit.Kind(strings.TrimSpace(name))
		if !slices.Contains(audit.Kinds(), kind) {
			return fmt.Errorf("unknown kind %q: the kinds are %v", kind, audit.Kinds())
		}
		v.config.Accept = append(v.config.Accept, kind)
	}
	return nil
}

func (v *verification) setLimit(text string) error {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		return errors.New("want a number above zero")
	}
	v.config.Examples = n
	return nil
}

// moment sets a time, given as a time or as an age.
func moment(to *time.Time) func(string) error {
	return func(text string) error {
		if ago, err := period(text); err == nil && ago > 0 {
			*to = time.Now().Add(-ago)
			return nil
		}
		at, err := timeOf(text)
		if err != nil {
			return fmt.Errorf("%w, or a duration such as 24h or 7d", err)
		}
		*to = at
		return nil
	}
}

// check checks the settings against each other.
func (v *verification) check() error {
	var errs []error
	if len(v.outboxes) == 0 {
		errs = append(errs, fmt.Errorf("--outbox (or %s_URL): is missing", envOf("outbox")))
	}
	if len(v.inboxes) > 0 && len(v.config.Expect) == 0 {
		errs = append(errs, fmt.Errorf("--consumer (or %s): is missing: name the topics of each consumer, such as --consumer stock/reserve=order.placed", envOf("consumer")))
	}
	if len(v.inboxes) == 0 && len(v.config.Expect) > 0 {
		errs = append(errs, fmt.Errorf("--inbox (or %s_URL): is missing, and consumers are given", envOf("inbox")))
	}
	if c := &v.config; !c.Until.IsZero() && !c.From.Before(c.Until) {
		errs = append(errs, errors.New("--until: is not after --from"))
	}
	for _, name := range v.partial {
		found := false
		for i := range v.config.Expect {
			if e := &v.config.Expect[i]; e.Consumer == name {
				e.Partial, found = true, true
			}
		}
		if !found {
			errs = append(errs, fmt.Errorf("--partial: consumer %q is not given by --consumer", name))
		}
	}
	return errors.Join(errs...)
}

func (v *verification) run(ctx context.Context, p *process) (int, error) {
	if err := v.check(); err != nil {
		return exitFailed, err
	}
	var closers []func()
	defer func() {
		for _, end := range closers {
			end()
		}
	}()
	open := func(setting string, t *target) (auditor, string, error) {
		a, end, err := openAuditor(ctx, t, &v.places, v.timeout)
		if err != nil {
			return nil, "", fmt.Errorf("--%s %s: %w", setting, t.name, err)
		}
		closers = append(closers, end)
		return a, v.places.label(t), nil
	}
	for i := range v.outboxes {
		a, label, err := open("outbox", &v.outboxes[i])
		if err != nil {
			return exitFailed, err
		}
		v.config.Outboxes = append(v.config.Outboxes, audit.NamedOutbox{Name: label, Outbox: a})
	}
	for i := range v.inboxes {
		a, label, err := open("inbox", &v.inboxes[i])
		if err != nil {
			return exitFailed, err
		}
		v.config.Inboxes = append(v.config.Inboxes, audit.NamedInbox{Name: label, Inbox: a})
	}
	if !v.quiet {
		v.config.Progress = progress(p.stderr)
	}
	a, err := audit.New(v.config)
	if err != nil {
		return exitFailed, err
	}
	report, err := a.Run(ctx)
	if err != nil {
		return exitFailed, err
	}
	return v.print(p, report)
}

func (v *verification) print(p *process, report *audit.Report) (int, error) {
	var err error
	if v.json() {
		err = v.encode(p.stdout, report)
	} else {
		err = v.printReport(p, report)
	}
	switch {
	case err != nil:
		return exitFailed, fmt.Errorf("print the report: %w", err)
	case !report.Clean:
		return exitFound, nil
	}
	return exitOK, nil
}

// progressEvery is the time between two lines of progress.
const progressEvery = 2 * time.Second

// progress returns a function that prints the progress of the audit now and then.
func progress(w io.Writer) func(audit.Progress) {
	next := time.Now().Add(firstProgress)
	return func(p audit.Progress) {
		now := time.Now()
		if now.Before(next) {
			return
		}
		next = now.Add(progressEvery)
		fmt.Fprintf(w, "boxpair verify: %3.0f %%, %d events and %d claims read, %d looked up\n",
			100*p.Done, p.Events, p.Claims, p.Candidates)
	}
}
