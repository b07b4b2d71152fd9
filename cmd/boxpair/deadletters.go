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

// letters holds the settings of the commands about dead letters.
type letters struct {
	selection

	reason             string
	asJSON, every, dry bool
}

// letterCommand returns a command about dead letters.
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
	letterCommand("list", "show dead letters and other parked events or messages",
		`Lists events that could not be sent (-outbox) or messages that could not be handled (-inbox). Without -state
and -id only dead ones are listed. Payloads are not shown.

    boxpair deadletters list -outbox postgres://operator@orders/shop -topic order.placed`, nil, listLetters),
	letterCommand("show", "show parked events or messages with all their attempts",
		`Shows the events or messages with the given -id, in any state, with their attempts and the changes by operators.

    boxpair deadletters show -outbox postgres://operator@orders/shop -id 4b9d2a51-…`, nil, showLetters),
	letterCommand("redrive", "send dead events or handle dead messages again",
		`Gives the selected dead letters all their attempts again, keeps the reason in their history, and prints their IDs. Messages of an
inbox that -id or -state selects are handled at once, even if a retry is due later. A filter or -all is required. -dry-run prints
the IDs of the selection. Unchanged letters are named. The exit status is 1 if nothing was redriven.

    boxpair deadletters redrive -inbox postgres://operator@stock/stock -error timeout -reason "warehouse answers again"`,
		func(l *letters, s *settings) {
			changes(l, s)
			s.on(&l.filter.Force, "force", "also events whose re-send horizon is over, and altered messages. Without -state and -id,\ntoo old messages are selected too.")
		}, redriveLetters),
	letterCommand("discard", "give up dead events or messages, with a reason",
		`Gives up the selected events or messages, keeps the reason, and prints their IDs. Without -state and -id only dead ones are
selected. A discarded event or message cannot be redriven. A filter or -all is required. -dry-run prints the IDs of the
selection. The exit status is 1 if nothing was discarded.

    boxpair deadletters discard -outbox postgres://operator@orders/shop -id 4b9d2a51-… -reason "order was a test"`,
		changes, discardLetters),
}

// dead selects dead letters, unless states or IDs are given. With -force it selects all messages of
// an inbox that wait for an operator.
func (l *letters) dead() {
	if len(l.filter.States)+len(l.filter.IDs) > 0 {
		return
	}
	l.filter.States = []inbox.State{inbox.Dead}
	if l.filter.Force && len(l.inboxes) > 0 {
		l.filter.States = append(l.filter.States, inbox.TooOldState, inbox.AlteredState)
	}
}

// changes declares the settings of the commands that change parked events and messages.
func changes(l *letters, s *settings) {
	s.on(&l.every, "all", "select all dead events or messages.")
	s.on(&l.dry, "dry-run", "change nothing, and print the IDs of the selection.")
	s.text(&l.reason, "reason", "TEXT", "the reason, in at most 1 KiB. Required without -dry-run.")
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
			fmt.Fprintf(p.stderr, "%d of %d are shown: pass -limit %d to see all\n", len(list), len(all), len(all))
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
			return errors.New("-id: nothing with this dispatch ID is parked")
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

// selected refuses a change of everything without -all, and a change without a reason.
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
	// shown is how many rows are listed by default, and perBatch how many rows one transaction
	// changes.
	shown, perBatch = 100, 100
	// perPage is how many rows are read at once for counting. Their payloads are read with them.
	perPage = 100
	// unchanged is how many unchanged rows are named.
	unchanged = 10
)

// change changes the selection in batches, and prints how many rows were changed.
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
			fmt.Fprintf(p.stderr, "%d selected; nothing was %s\n", len(all), done)
			return l.printIDs(p.stdout, ids)
		}
		var failed error
		for len(ids) < len(all) && failed == nil { // at most len(all): a row that dies again meanwhile is not changed twice
			l.filter.Limit = min(perBatch, len(all)-len(ids))
			some, err := batch(ctx, s)
			ids, failed = append(ids, some...), err
			if len(some) == 0 {
				break
			}
			if errors.Is(err, producer.ErrBeyondHorizon) && len(ids) < len(all) {
				failed = nil // the last batch reports it again
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

// account prints how many rows were changed, and names the unchanged rows.
func (l *letters) account(out io.Writer, done string, all []parked, ids []uuid.UUID) {
	fmt.Fprintf(out, "%d of %d selected were %s\n", len(ids), len(all), done)
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

// whole reads the selection page by page; at most limit rows unless limit is 0.
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
