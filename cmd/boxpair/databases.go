package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/boxpair/boxpair/audit"
)

// databases holds the settings that name databases, and the opened databases. A copy shares the opened
// databases.
type databases struct {
	outboxes, inboxes []target
	places            places
	opened            *opened
}

// opened holds the databases of a command that were opened, by identity. A database stays open until
// the end of the command: a session that has read its catalog answers sooner than a new one.
type opened struct {
	all  map[string]*operators
	ends []func()
}

// close closes all databases.
func (o *opened) close() {
	for _, end := range o.ends {
		end()
	}
	o.all, o.ends = nil, nil
}

func (d *databases) define(s *settings, ofOutbox, ofInbox string) {
	s.databases, d.opened = d, &opened{}
	if ofOutbox != "" {
		s.urls(&d.outboxes, "outbox", ofOutbox)
	}
	if ofInbox != "" {
		s.urls(&d.inboxes, "inbox", ofInbox)
	}
	d.places.define(s)
}

// several tells whether more than one database is named.
func (d *databases) several() bool { return len(d.outboxes)+len(d.inboxes) > 1 }

// one refuses settings without exactly one database.
func (d *databases) one() error {
	if n := len(d.outboxes) + len(d.inboxes); n != 1 {
		return fmt.Errorf("--outbox or --inbox (or %s_URL or %s_URL): want exactly one, got %d", envOf("outbox"), envOf("inbox"), n)
	}
	return nil
}

// some refuses settings without a database.
func (d *databases) some() error {
	if len(d.outboxes)+len(d.inboxes) == 0 {
		return fmt.Errorf("--outbox or --inbox (or %s_URL or %s_URL): is missing", envOf("outbox"), envOf("inbox"))
	}
	return nil
}

// open opens all databases, the outboxes first.
func (d *databases) open(ctx context.Context) (all []*operators, err error) {
	return all, d.each(ctx, false, func(s *operators) error {
		all = append(all, s)
		return nil
	})
}

// connect opens the databases that are not open, all at once: each takes its server as long as several
// statements. A database that is an outbox and an inbox is opened once. The errors are by identity.
func (d *databases) connect(ctx context.Context) map[string]error {
	type result struct {
		name string
		s    *operators
		end  func()
		err  error
	}
	asked, results := make(map[string]bool), make(chan result)
	for i := range len(d.outboxes) + len(d.inboxes) {
		_, t := d.target(i)
		name := t.identity(&d.places)
		if d.opened.all[name] != nil || asked[name] {
			continue
		}
		asked[name] = true
		go func() {
			s, end, err := operate(ctx, t, &d.places)
			results <- result{name, s, end, err}
		}()
	}
	if d.opened.all == nil {
		d.opened.all = make(map[string]*operators)
	}
	failed := make(map[string]error)
	for range asked {
		if r := <-results; r.err != nil {
			failed[r.name] = r.err
		} else {
			d.opened.all[r.name], d.opened.ends = r.s, append(d.opened.ends, r.end)
		}
	}
	return failed
}

// side returns an open database as the outbox or the inbox that a setting names.
func (d *databases) side(setting string, t *target) *operators {
	one := *d.opened.all[t.identity(&d.places)]
	one.parts = slices.Clone(one.parts)
	one.named(setting, t, &d.places)
	return &one
}

// target returns the setting and the database with a number: the outboxes come first.
func (d *databases) target(i int) (setting string, t *target) {
	if i < len(d.outboxes) {
		return "outbox", &d.outboxes[i]
	}
	return "inbox", &d.inboxes[i-len(d.outboxes)]
}

// named sets the names of the database of s.
func (s *operators) named(setting string, t *target, p *places) {
	s.isInbox, s.name, s.user, s.target, s.places = setting == "inbox", p.label(t), t.user(), t, p
	s.parts = append(s.parts, registry{s})
}

// registry reads the registered consumers for the dashboard.
type registry struct{ s *operators }

// Consumers implements ops.Registry.
func (r registry) Consumers(ctx context.Context) ([]audit.Consumer, error) { return r.s.consumers(ctx) }

// each calls do for each database, the outboxes first. The error names the database. With all, the
// errors of the databases are joined; without all, the first error ends the work.
func (d *databases) each(ctx context.Context, all bool, do func(s *operators) error) error {
	failed := d.connect(ctx)
	var errs []error
	for i := range len(d.outboxes) + len(d.inboxes) {
		err := d.at(i, failed, do)
		if err != nil {
			errs = append(errs, err)
			if !all {
				break
			}
		}
	}
	return errors.Join(errs...)
}

// at calls do for the database with a number. failed are the errors of connect.
func (d *databases) at(i int, failed map[string]error, do func(s *operators) error) error {
	setting, t := d.target(i)
	err := failed[t.identity(&d.places)]
	if err == nil {
		err = do(d.side(setting, t))
	}
	if err != nil {
		return fmt.Errorf("--%s %s: %w", setting, t.name, err)
	}
	return nil
}

// gather returns what do returns for all databases, those of the outboxes first. It asks all databases at
// once. The errors are joined, and name the databases.
func gather[T any](ctx context.Context, d *databases, do func(s *operators) ([]T, error)) ([]T, error) {
	failed := d.connect(ctx)
	found := make([][]T, len(d.outboxes)+len(d.inboxes))
	errs := make([]error, len(found))
	var asking sync.WaitGroup
	for i := range found {
		asking.Go(func() {
			errs[i] = d.at(i, failed, func(s *operators) (err error) {
				found[i], err = do(s)
				return err
			})
		})
	}
	asking.Wait()
	return slices.Concat(found...), errors.Join(errs...)
}
