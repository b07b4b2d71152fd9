package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/google/uuid"
)

const deadLetters = "deadletters"

// letters is the settings of the commands about dead letters.
type letters struct {
	selection

	reason        string
	asJSON, every bool
}

// letterCommand is a command about dead letters.
func letterCommand(verb, summary, details string, more func(l *letters, s *settings), run func(ctx context.Context, l *letters, p *process) error) command {
	return command{
		name: deadLetters + " " + verb, summary: summary, details: details,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			l := &letters{}
			l.define(s)
			s.on(&l.asJSON, "json", "print one JSON object instead of a table.")
			if more != nil {
				more(l, s)
			}
			return func(ctx context.Context, p *process) (int, error) {
				if err := run(ctx, l, p); err != nil {
					return exitFailed, err
				}
				return exitOK, nil
			}
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
		`Gives dead letters that are selected all their attempts again, keeps the reason in their history, and prints their IDs: at most
-limit of them. Something must be selected, or -all given.

    boxpair deadletters redrive -inbox postgres://operator@stock/stock -error timeout -reason "warehouse answers again"`,
		func(l *letters, s *settings) {
			s.on(&l.every, "all", "select all that are dead.")
			s.on(&l.filter.Force, "force", "also events that may not be sent again any more, and altered messages.")
			s.text(&l.reason, "reason", "TEXT", "why, in at most 1 KiB. Required.")
		}, redriveLetters),
	letterCommand("discard", "give up dead ones, with a reason",
		`Gives up what is selected, dead ones unless -state or -id says otherwise, keeps the reason with it, and prints the IDs: at most
-limit. Something must be selected, or -all given.

    boxpair deadletters discard -outbox postgres://operator@orders/shop -id 4b9d2a51-… -reason "order was a test"`,
		func(l *letters, s *settings) {
			s.on(&l.every, "all", "select all that are dead.")
			s.text(&l.reason, "reason", "TEXT", "why, in at most 1 KiB. Required.")
		}, discardLetters),
}

// dead selects dead ones, if nothing else is said.
func (l *letters) dead() {
	if len(l.filter.States)+len(l.filter.IDs) == 0 {
		l.filter.States = append(l.filter.States, "dead")
	}
}

func listLetters(ctx context.Context, l *letters, p *process) error {
	l.dead()
	return l.with(ctx, func(s *operators) error {
		list, err := l.list(ctx, s)
		if err != nil {
			return err
		}
		return l.print(p.stdout, list)
	})
}

func showLetters(ctx context.Context, l *letters, p *process) error {
	if len(l.filter.IDs) == 0 {
		return errors.New("-id: is missing")
	}
	return l.with(ctx, func(s *operators) error {
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
}

// selected says what is wrong if everything would be changed without -all.
func (l *letters) selected() error {
	if !l.narrow() && !l.every {
		return errors.New("-all: nothing is selected: say which, or give it")
	}
	return nil
}

func redriveLetters(ctx context.Context, l *letters, p *process) error {
	if err := errors.Join(l.selected(), because(l.reason)); err != nil {
		return err
	}
	return l.with(ctx, func(s *operators) error {
		var ids []uuid.UUID
		var err error
		if len(l.inboxes) > 0 {
			ids, err = s.inbox.Redrive(ctx, l.filter, l.reason)
		} else {
			ids, err = s.outbox.Redrive(ctx, l.events(), l.reason)
		}
		return errors.Join(l.printIDs(p.stdout, ids), err)
	})
}

func discardLetters(ctx context.Context, l *letters, p *process) error {
	if err := errors.Join(l.selected(), because(l.reason)); err != nil {
		return err
	}
	l.dead()
	return l.with(ctx, func(s *operators) error {
		var ids []uuid.UUID
		var err error
		if len(l.inboxes) > 0 {
			ids, err = s.inbox.Discard(ctx, l.filter, l.reason)
		} else {
			ids, err = s.outbox.Discard(ctx, l.events(), l.reason)
		}
		return errors.Join(l.printIDs(p.stdout, ids), err)
	})
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
