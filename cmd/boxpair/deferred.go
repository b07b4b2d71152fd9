package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

const deferredName = "deferred"

// deferral holds the settings of the commands about deferred events.
type deferral struct {
	databases
	display
	change

	filter outbox.DeferredFilter
	ids    []idRange
	at     time.Time
}

// deferredCommand returns a command about deferred events.
func deferredCommand(verb, summary, details string, more func(d *deferral, s *settings), run func(ctx context.Context, d *deferral, p *process) (int, error)) command {
	return command{
		name: deferredName + " " + verb, summary: summary, details: details, group: changing,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			d := &deferral{}
			d.databases.define(s, "the database of an outbox. May be given several times.", "")
			s.text(&d.filter.Topic, "topic", "TOPIC", "only this topic.")
			s.text(&d.filter.Key, "key", "KEY", "only this key.")
			s.add("from", envOf("from"), "TIME", "only if due at this time or later: 2026-01-31T12:00:00Z, or 2026-01-31 (in UTC).", false, instantTo(&d.filter.From))
			s.add("to", envOf("to"), "TIME", "only if due before this time.", false, instantTo(&d.filter.To))
			s.count(&d.filter.Limit, "limit", "the maximal number of events. Defaults to 100 for the list, and to no limit for changes.")
			if more != nil {
				more(d, s)
			}
			d.display.define(s)
			s.idsAfterFlags("[ID…]", &d.ids)
			return func(ctx context.Context, p *process) (int, error) {
				if len(d.outboxes) == 0 {
					return exitFailed, fmt.Errorf("--outbox (or %s_URL): is missing", envOf("outbox"))
				}
				return run(ctx, d, p)
			}
		},
	}
}

var deferredCommands = []command{
	deferredCommand("list", "list deferred events",
		`Lists events that are not due yet, by number.

    boxpair deferred list --outbox postgres://operator@orders/shop --topic order.reminder`, nil, listDeferred),
	deferredCommand("cancel", "give up deferred events, with a reason",
		`Gives up the selected deferred events, keeps reason and operator, and prints their IDs. A filter, IDs
or --all is required. The exit status is 1 if nothing was cancelled.

    boxpair deferred cancel 4b9d2a51 --outbox postgres://operator@orders/shop -m "order is paid"`,
		func(d *deferral, s *settings) {
			d.change.define(s, allDeferred)
			d.defineReason(s, requiredReason)
		},
		func(ctx context.Context, d *deferral, p *process) (int, error) {
			return d.alter(ctx, p, "cancel", "cancelled", d.because(), func(ctx context.Context, s *operators, reason string, ids []uuid.UUID) ([]uuid.UUID, error) {
				return s.outbox.Cancel(ctx, reason, ids...)
			})
		}),
	deferredCommand("move", "make deferred events due at another time",
		`Sets the time at which the selected deferred events are due, and prints their IDs. --at 0s makes them
due at once. A filter, IDs or --all is required. With --reason or --as, a line of the log names both.
The exit status is 1 if nothing was moved.

    boxpair deferred move 4b9d2a51 --at 2026-01-31T12:00:00Z --outbox postgres://operator@orders/shop`,
		func(d *deferral, s *settings) {
			s.add("at", envOf("at"), "TIME", "when: 2026-01-31T12:00:00Z, 2026-01-31 (in UTC), or a duration from now such as 90m or 0s. Required.", false, ahead(&d.at))
			d.change.define(s, allDeferred)
			d.defineReason(s, loggedReason)
		},
		func(ctx context.Context, d *deferral, p *process) (int, error) {
			if d.at.IsZero() {
				return exitFailed, errors.New("--at: is missing")
			}
			return d.alter(ctx, p, "move", "moved", d.reasonable(), func(ctx context.Context, s *operators, _ string, ids []uuid.UUID) ([]uuid.UUID, error) {
				moved, err := s.outbox.Reschedule(ctx, d.at, ids...)
				if len(moved) > 0 {
					d.note(p, s, "deferred events moved", "events", len(moved), "first_dispatch_id", moved[0], "last_dispatch_id", moved[len(moved)-1], "due_at", d.at)
				}
				return moved, err
			})
		}),
}

// allDeferred describes --all.
const allDeferred = "select all deferred events."

// timeOf parses a time, or a date for its midnight in UTC.
func timeOf(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		at, err = time.Parse(time.DateOnly, text)
	}
	if err != nil {
		return at, errors.New("want a time such as 2026-01-31T12:00:00Z or 2026-01-31")
	}
	return at, nil
}

// instantTo returns a setter of a time.
func instantTo(to *time.Time) func(string) error {
	return func(text string) (err error) {
		*to, err = timeOf(text)
		return err
	}
}

// ahead returns a setter of a time, given as a time or as a duration from now.
func ahead(to *time.Time) func(string) error {
	return func(text string) error {
		if in, err := period(text); err == nil && in >= 0 {
			*to = time.Now().Add(in)
			return nil
		}
		at, err := timeOf(text)
		if err != nil {
			return fmt.Errorf("%w, or a duration such as 90m", err)
		}
		*to = at
		return nil
	}
}

// list reads the selected events of an outbox, at most limit.
func (d *deferral) list(ctx context.Context, s *operators, limit int) (all []outbox.Deferred, err error) {
	f := d.filter
	if f.IDs, err = s.resolve(ctx, d.ids); err != nil {
		return nil, err
	}
	for limit == 0 || len(all) < limit {
		f.Limit = perPage
		if limit > 0 {
			f.Limit = min(perPage, limit-len(all))
		}
		page, err := s.outbox.ListDeferred(ctx, f)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < f.Limit {
			break
		}
		f.After = page[len(page)-1].Seq
	}
	return all, nil
}

// dueEvent is a deferred event in JSON.
type dueEvent struct {
	Database string    `json:"database"`
	ID       uuid.UUID `json:"id"`
	Seq      int64     `json:"number"`
	Topic    string    `json:"topic"`
	Key      string    `json:"key"`
	DueAt    time.Time `json:"due_at"`
}

func listDeferred(ctx context.Context, d *deferral, p *process) (int, error) {
	all := []dueEvent{}
	limit := d.filter.Limit
	if limit == 0 {
		limit = shown
	}
	err := d.each(ctx, true, func(s *operators) error {
		list, err := d.list(ctx, s, max(counted, limit)+1)
		for i := range list[:min(limit, len(list))] {
			e := &list[i]
			all = append(all, dueEvent{s.name, e.ID, e.Seq, e.Topic, e.Key, e.DueAt})
		}
		leftOut(p.stderr, min(limit, len(list)), len(list))
		return err
	})
	switch {
	case d.json():
		err = errors.Join(d.encode(p.stdout, map[string][]dueEvent{"deferred": all}), err)
	case len(all) == 0 && err == nil:
		fmt.Fprintln(p.stderr, "nothing matches the filter")
		d.misspelt(ctx, p.stderr, d.filter.Topic, "")
	default:
		g := d.grid(p, column{head: "id"}, column{head: "due"}, column{head: "topic", flexible: true}, column{head: "key", flexible: true}, column{head: "database", wide: true})
		for i := range all {
			e := &all[i]
			g.add(d.id(e.ID), d.when(e.DueAt), e.Topic, e.Key, e.Database)
		}
		err = errors.Join(g.print(p.stdout), err)
	}
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// alter changes the selected events in batches, and prints their IDs. unexplained is the error of the
// reason.
func (d *deferral) alter(ctx context.Context, p *process, do, done string, unexplained error, batch func(ctx context.Context, s *operators, reason string, ids []uuid.UUID) ([]uuid.UUID, error)) (int, error) {
	var errs []error
	if f := &d.filter; len(d.ids) == 0 && f.Topic+f.Key == "" && f.From.IsZero() && f.To.IsZero() && !d.every {
		errs = append(errs, errors.New("--all: no filter given: add one, or pass --all"))
	}
	if err := errors.Join(append(errs, unexplained)...); err != nil {
		return exitFailed, err
	}
	changed := []uuid.UUID{}
	err := d.each(ctx, false, func(s *operators) error {
		list, err := d.list(ctx, s, d.filter.Limit)
		if err != nil {
			return err
		}
		ids := make([]uuid.UUID, len(list))
		for i := range list {
			ids[i] = list[i].ID
		}
		if d.dry {
			fmt.Fprintf(p.stderr, "%d selected; nothing was %s\n", len(ids), done)
			changed = append(changed, ids...)
			return nil
		}
		reason, err := d.allowed(p, s, do, len(ids))
		if err != nil {
			return err
		}
		some, err := inBatches(ctx, ids, progressOf(p.stderr, s.name), func(some []uuid.UUID) ([]uuid.UUID, error) {
			return batch(ctx, s, reason, some)
		})
		changed = append(changed, some...)
		fmt.Fprintf(p.stderr, "%d of %d selected were %s\n", len(some), len(ids), done)
		return err
	})
	if err := errors.Join(d.printIDs(p.stdout, changed), err); err != nil {
		return exitFailed, err
	}
	if len(changed) == 0 {
		d.misspelt(ctx, p.stderr, d.filter.Topic, "")
	}
	if len(changed) == 0 && !d.dry {
		return exitFound, nil
	}
	return exitOK, nil
}
