package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

const deadLetters = "deadletters"

// letters is the settings of the commands about dead letters.
type letters struct {
	selection

	reason             string
	asJSON, every, dry bool
}

// letterCommand is a command about dead letters.
func letterCommand(verb, summary, details string, more func(l *letters, s *settings), run func(ctx context.Context, l *letters, p *process) (int, error)) command {
	return command{
		name: deadLetters + " " + verb, summary: summary, details: details,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			l := &letters{}
			l.define(s)
			s.on(&l.asJSON, "json", "print one JSON object instead of a table.")
			if more != nil {
				more(l, s)
			}
			return func(ctx context.Context, p *process) (int, error) { return run(ctx, l, p) }
		},
	}
}

var letterCommands = []command{
	letterCommand("list", "show dead letters, and what else waits for another attempt",
		`Lists events that could not be sent (-outbox) or messages that could not be handled (-inbox): dead ones, unless
-state or -id says otherwise. Payloads are not shown.

    boxpair deadletters list -outbox postgres://operator@orders/shop -topic order.placed`, nil, listLetters),
	letterCommand("show", "show some with all their attempts",
		`Shows what -id names, in whatever state, with its attempts and what operators did to it.

    boxpair deadletters show -outbox postgres://operator@orders/shop -id 4b9d2a51-…`, nil, showLetters),
	letterCommand("redrive", "send or handle dead ones again",
		`Gives dead letters that are selected all their attempts again, keeps the reason in their history, and prints their IDs; messages of an
inbox that -id or -state names are handled at once though they are retried anyway. Something must be selected, or -all given.
-dry-run prints what would be redriven. What stays as it is is said, and the exit status is 1 if nothing was redriven.

    boxpair deadletters redrive -inbox postgres://operator@stock/stock -error timeout -reason "warehouse answers again"`,
		func(l *letters, s *settings) {
			changes(l, s)
			s.on(&l.filter.Force, "force", "also events that may not be sent again any more, and altered messages.")
		}, redriveLetters),
	letterCommand("discard", "give up dead ones, with a reason",
		`Gives up what is selected, dead ones unless -state or -id says otherwise, keeps the reason with it, and prints the IDs. That is for
good: a discarded one cannot be redriven. Something must be selected, or -all given. -dry-run prints what would be
discarded. The exit status is 1 if nothing was.

    boxpair deadletters discard -outbox postgres://operator@orders/shop -id 4b9d2a51-… -reason "order was a test"`,
		changes, discardLetters),
}

// dead selects dead ones, if nothing else is said; of an inbox by force, all that wait for an
// operator.
func (l *letters) dead() {
	if len(l.filter.States)+len(l.filter.IDs) > 0 {
		return
	}
	l.filter.States = []inbox.State{inbox.Dead}
	if l.filter.Force && len(l.inboxes) > 0 {
		l.filter.States = append(l.filter.States, inbox.TooOldState, inbox.AlteredState)
	}
}

// changes declares the settings of commands that change what is selected.
func changes(l *letters, s *settings) {
	s.on(&l.every, "all", "select all that are dead.")
	s.on(&l.dry, "dry-run", "change nothing, and print the IDs of what is selected.")
	s.text(&l.reason, "reason", "TEXT", "why, in at most 1 KiB. Required, but for -dry-run.")
}

func listLetters(ctx context.Context, l *letters, p *process) (int, error) {
	l.dead()
	return exitOK, l.with(ctx, func(s *operators) error {
		if l.filter.Limit == 0 {
			l.filter.Limit = shown
		}
		list, err := l.list(ctx, s)
		if err != nil {
			return err
		}
		if err := l.print(p.stdout, list); err != nil {
			return err
		}
		if len(list) == 0 {
			fmt.Fprintln(p.stderr, "nothing matches the filter")
		}
		if len(list) < l.filter.Limit {
			return nil
		}
		all, err := l.whole(ctx, s, 0)
		if err == nil && len(all) > len(list) {
			fmt.Fprintf(p.stderr, "%d of %d are shown: say -limit %d for all\n", len(list), len(all), len(all))
		}
		return err
	})
}

func showLetters(ctx context.Context, l *letters, p *process) (int, error) {
	if len(l.filter.IDs) == 0 {
		return exitFailed, errors.New("-id: is missing")
	}
	err := l.with(ctx, func(s *operators) error {
		list, err := l.list(ctx, s)
		if err != nil {
			return err
		}
		if len(list) == 0 {
			return errors.New("-id: nothing of that dispatch ID is parked")
		}
		for i := range list {
			if list[i].History, err = l.history(ctx, s, &list[i]); err != nil {
				return err
			}
		}
		return l.print(p.stdout, list)
	})
	if err != nil {
		return exitFailed, err
	}
	return exitOK, nil
}

// selected says what is wrong if everything would be changed without -all, or for no reason.
func (l *letters) selected() error {
	var errs []error
	if !l.narrow() && !l.every {
		errs = append(errs, errors.New("-all: no filter given: add one, or pass -all"))
	}
	if !l.dry {
		errs = append(errs, because(l.reason))
	}
	return errors.Join(errs...)
}

func redriveLetters(ctx context.Context, l *letters, p *process) (int, error) {
	return l.change(ctx, p, "redriven", func(ctx context.Context, s *operators) ([]uuid.UUID, error) {
		if len(l.inboxes) > 0 {
			return s.inbox.Redrive(ctx, l.filter, l.reason)
		}
		return s.outbox.Redrive(ctx, l.events(), l.reason)
	})
}

func discardLetters(ctx context.Context, l *letters, p *process) (int, error) {
	return l.change(ctx, p, "discarded", func(ctx context.Context, s *operators) ([]uuid.UUID, error) {
		if len(l.inboxes) > 0 {
			return s.inbox.Discard(ctx, l.filter, l.reason)
		}
		return s.outbox.Discard(ctx, l.events(), l.reason)
	})
}

const (
	// shown is how many are listed by default, and perBatch how many are changed by one
	// transaction.
	shown, perBatch = 100, 100
	// perPage is how many are read at once to be counted. Their payloads come along.
	perPage = 100
	// unchanged is how many of those that stay as they are are named.
	unchanged = 10
)

// change does what is selected, in batches until all of it is done, and says how much of it that
// was.
func (l *letters) change(ctx context.Context, p *process, done string, batch func(context.Context, *operators) ([]uuid.UUID, error)) (int, error) {
	if err := l.selected(); err != nil {
		return exitFailed, err
	}
	l.dead()
	status := exitOK
	err := l.with(ctx, func(s *operators) error {
		all, err := l.whole(ctx, s, l.filter.Limit)
		if err != nil {
			return err
		}
		var ids []uuid.UUID
		if l.dry {
			for i := range all {
				ids = append(ids, all[i].ID)
			}
			fmt.Fprintf(p.stderr, "%d are selected; nothing was %s\n", len(all), done)
			return l.printIDs(p.stdout, ids)
		}
		var failed error
		for len(ids) < len(all) && failed == nil { // what dies again meanwhile is not taken again
			l.filter.Limit = min(perBatch, len(all)-len(ids))
			some, err := batch(ctx, s)
			ids, failed = append(ids, some...), err
			if len(some) == 0 {
				break
			}
			if errors.Is(err, producer.ErrBeyondHorizon) && len(ids) < len(all) {
				failed = nil // it comes again with the last batch
			}
		}
		l.account(p.stderr, done, all, ids)
		if len(ids) == 0 {
			status = exitFound
		}
		return errors.Join(l.printIDs(p.stdout, ids), failed)
	})
	if err != nil {
		return exitFailed, err
	}
	return status, nil
}

// account says what of all was done, and names what stays as it is.
func (l *letters) account(out io.Writer, done string, all []parked, ids []uuid.UUID) {
	fmt.Fprintf(out, "%d of %d that are selected were %s\n", len(ids), len(all), done)
	changed := make(map[uuid.UUID]bool)
	for _, id := range ids {
		changed[id] = true
	}
	named := 0
	for i := range all {
		e := &all[i]
		if changed[e.ID] || named == unchanged {
			continue
		}
		named++
		next := ""
		if e.NextAttemptAt != nil {
			next = ", and is tried again at " + instant(*e.NextAttemptAt, "")
		}
		fmt.Fprintf(out, "%s stays %s%s\n", e.ID, e.State, next)
	}
	there := make(map[uuid.UUID]bool)
	for i := range all {
		there[all[i].ID] = true
	}
	for _, id := range l.filter.IDs {
		if !there[id] {
			fmt.Fprintf(out, "%s is not parked here\n", id)
		}
	}
}

// whole reads all that is selected, page by page, but at most limit, if that is not 0.
func (l *letters) whole(ctx context.Context, s *operators, limit int) (all []parked, err error) {
	before := l.filter
	defer func() { l.filter = before }()
	for limit == 0 || len(all) < limit {
		l.filter.Limit = perPage
		if limit > 0 {
			l.filter.Limit = min(perPage, limit-len(all))
		}
		page, err := l.list(ctx, s)
		if err != nil {
			return nil, err
		}
		all = append(all, page...)
		if len(page) < l.filter.Limit {
			break
		}
		l.filter.After = page[len(page)-1].Seq
	}
	return all, nil
}

func (l *letters) printIDs(out io.Writer, ids []uuid.UUID) error {
	if l.asJSON {
		return json.NewEncoder(out).Encode(map[string][]uuid.UUID{"ids": append([]uuid.UUID{}, ids...)})
	}
	for _, id := range ids {
		if _, err := fmt.Fprintln(out, id); err != nil {
			return err
		}
	}
	return nil
}

func (l *letters) print(out io.Writer, list []parked) error {
	if l.asJSON {
		return json.NewEncoder(out).Encode(map[string][]parked{"parked": list})
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprint(w, "id\tstate\tattempts\tsince\ttopic\tkey\tconsumer\tlast error\n")
	for i := range list {
		e := &list[i]
		why := e.LastError
		if e.Reason != "" {
			why = "discarded: " + e.Reason
		}
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", e.ID, e.State, e.Attempts, instant(e.ParkedAt, "-"),
			plain(e.Topic), plain(e.Key), plain(e.Consumer), plain(why))
		for _, h := range e.History {
			fmt.Fprintf(w, "\t%s\t\t%s\t%s\t\t\t%s\n", plain(h.Outcome), instant(h.At, "-"), plain(h.Relay), plain(h.Error))
		}
	}
	return w.Flush()
}
