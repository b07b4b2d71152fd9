package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

const deadLetters = "dead"

// letters holds the settings of the commands about dead letters.
type letters struct {
	selection
	display
	change

	one bool // list letters one by one
}

// letterCommand returns a command about dead letters.
func letterCommand(verb, group, summary, details string, more func(l *letters, s *settings), run func(ctx context.Context, l *letters, p *process) (int, error)) command {
	return command{
		name: deadLetters + " " + verb, group: group, summary: summary, details: details,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			l := &letters{}
			l.selection.define(s)
			l.display.define(s)
			if more != nil {
				more(l, s)
			}
			return func(ctx context.Context, p *process) (int, error) { return run(ctx, l, p) }
		},
	}
}

var letterCommands = []command{
	letterCommand("list", looking, "show dead letters, grouped by cause, or one by one",
		`Shows events that could not be sent (--outbox) or messages that could not be handled (--inbox): how
many of each topic and consumer have the same last error, the most first. --each shows them one by
one. Without --state and IDs dead ones are shown, of an inbox also too old and altered ones. Payloads
are not shown.

    boxpair dead list --outbox postgres://operator@orders/shop --inbox postgres://operator@stock/stock
    boxpair dead list --outbox postgres://operator@orders/shop --topic order.placed --each`,
		func(l *letters, s *settings) {
			s.on(&l.one, "each", "show dead letters one by one, the oldest first.")
		}, listLetters),
	letterCommand("show", looking, "show parked events or messages with all their attempts",
		`Shows the events or messages with the given IDs, in any state, with their attempts and the changes
by operators.

    boxpair dead show 4b9d2a51 --outbox postgres://operator@orders/shop`, nil, showLetters),
	letterCommand("redrive", changing, "send dead events or handle dead messages again",
		`Gives the selected dead letters all their attempts again, keeps reason and operator in their history,
and prints their IDs. Events and messages that IDs or --state select are also tried again at once
if a retry is due later. --state discarded takes back a discard. A filter or --all is required.
--dry-run says how many letters are selected, prints the IDs of the first 20 (of all with --wide), and
changes nothing. Unchanged letters are named. The exit status is 1 if nothing was redriven.

    boxpair dead redrive --inbox postgres://operator@stock/stock --error timeout -m "warehouse answers again"
    boxpair dead redrive 4b9d2a51 --state discarded --outbox postgres://operator@orders/shop -m "needed after all"`,
		func(l *letters, s *settings) {
			l.defineChange(s)
			s.on(&l.filter.Force, "force", "also events whose re-send horizon is over, and altered messages. Without --state and IDs,\ntoo old messages are selected too.")
		}, redriveLetters),
	letterCommand("discard", changing, "give up dead events or messages, with a reason",
		`Gives up the selected events or messages, keeps reason and operator, and prints their IDs. Without
--state and IDs only dead ones are selected. boxpair dead redrive --state discarded takes it back,
until the retention is over. A filter or --all is required. --dry-run says how many letters are
selected, prints the IDs of the first 20 (of all with --wide), and changes nothing. The exit status is 1
if nothing was discarded.

    boxpair dead discard 4b9d2a51 --outbox postgres://operator@orders/shop -m "order was a test"`,
		(*letters).defineChange, discardLetters),
}

func (l *letters) defineChange(s *settings) {
	l.change.define(s, "select all dead events or messages.")
	l.defineReason(s, requiredReason)
}

// dead selects dead letters, unless states or IDs are given. With --force it selects all messages of
// an inbox that wait for an operator.
func (l *letters) dead() {
	if len(l.filter.States)+len(l.ids) > 0 {
		return
	}
	l.filter.States = []inbox.State{inbox.Dead}
	if l.filter.Force && len(l.inboxes) > 0 {
		l.filter.States = append(l.filter.States, inbox.TooOldState, inbox.AlteredState)
	}
}

func listLetters(ctx context.Context, l *letters, p *process) (int, error) {
	if len(l.filter.States)+len(l.ids) == 0 { // all letters that wait for an operator
		l.filter.States, l.usual = []inbox.State{inbox.Dead, inbox.TooOldState, inbox.AlteredState}, true
	}
	if !l.one && len(l.ids) == 0 && l.filter.Limit == 0 {
		return exitOK, l.listCauses(ctx, p)
	}
	if l.filter.Limit == 0 {
		l.filter.Limit = shown
	}
	all := []parked{}
	err := l.with(ctx, func(s *operators) error {
		list, err := l.list(ctx, s)
		if err != nil {
			return err
		}
		all = append(all, list...)
		if len(list) < l.filter.Limit {
			return nil
		}
		whole, err := l.whole(ctx, s, max(counted, l.filter.Limit)+1, func(int, int) {})
		leftOut(p.stderr, len(list), len(whole))
		return err
	})
	if err != nil {
		return exitFailed, err
	}
	if len(all) == 0 && !l.json() {
		defer l.misspelt(ctx, p.stderr, l.filter.Topic, l.filter.Consumer)
	}
	return exitOK, l.print(p, all)
}

// leftOut says that a list has only n of all rows. Of rows beyond counted, all counts the first.
func leftOut(out io.Writer, n, all int) {
	switch {
	case all > max(counted, n):
		fmt.Fprintf(out, "%d of more than %d are shown: pass --limit to see more\n", n, all-1)
	case all > n:
		fmt.Fprintf(out, "%d of %d are shown: pass --limit %[2]d to see all\n", n, all)
	}
}

func showLetters(ctx context.Context, l *letters, p *process) (int, error) {
	if len(l.ids) == 0 {
		return exitFailed, errors.New("--id: is missing")
	}
	all := []parked{}
	err := l.with(ctx, func(s *operators) error {
		list, err := l.list(ctx, s)
		for i := range list {
			if err == nil {
				list[i].History, err = l.history(ctx, s, &list[i])
			}
		}
		all = append(all, list...)
		return err
	})
	if err == nil && len(all) == 0 {
		err = errors.New("--id: nothing with this dispatch ID is parked")
	}
	if err != nil {
		return exitFailed, err
	}
	if l.json() {
		return exitOK, l.print(p, all)
	}
	for i := range all {
		if i > 0 {
			fmt.Fprintln(p.stdout)
		}
		l.show(p, &all[i])
	}
	return exitOK, nil
}

// show prints a dead letter as facts, with its whole error.
func (l *letters) show(p *process, e *parked) {
	fmt.Fprintf(p.stdout, "%s\n", e.ID)
	line := func(name string, value any) { l.fact(p, name, value) }
	line("database", e.Database)
	line("consumer", e.Consumer)
	line("number", e.Seq)
	line("topic", e.Topic)
	line("key", e.Key)
	line("state", e.State)
	line("since", instant(e.ParkedAt, ""))
	l.fate(p, e.NextAttemptAt, e.Attempts, e.LastError, e.Reason, e.History)
}

func redriveLetters(ctx context.Context, l *letters, p *process) (int, error) {
	return l.alter(ctx, p, "redrive", "redriven", func(ctx context.Context, s *operators, reason string) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.inbox.Redrive(ctx, l.filter, reason)
		}
		return s.outbox.Redrive(ctx, l.events(), reason)
	})
}

func discardLetters(ctx context.Context, l *letters, p *process) (int, error) {
	return l.alter(ctx, p, "discard", "discarded", func(ctx context.Context, s *operators, reason string) ([]uuid.UUID, error) {
		if s.isInbox {
			return s.inbox.Discard(ctx, l.filter, reason)
		}
		return s.outbox.Discard(ctx, l.events(), reason)
	})
}

const (
	// shown is how many rows are listed by default.
	shown = 100
	// perPage is how many rows, with their payloads, are read at once for counting.
	perPage = 100
	// counted bounds the count of the rows that a list leaves out.
	counted = 1000
	// unchanged is how many unchanged rows are named.
	unchanged = 10
	// previewed is how many IDs of a database a dry run prints without --wide.
	previewed = 20
)

// alter changes the selection of each database in batches, and prints how many rows were changed.
func (l *letters) alter(ctx context.Context, p *process, do, done string, batch func(ctx context.Context, s *operators, reason string) ([]uuid.UUID, error)) (int, error) {
	if !l.narrow() && !l.every {
		return exitFailed, errors.Join(errors.New("--all: no filter given: add one, or pass --all"), l.because())
	}
	if err := l.because(); err != nil {
		return exitFailed, err
	}
	l.dead()
	limit, changed, selected := l.filter.Limit, []uuid.UUID{}, 0
	err := l.with(ctx, func(s *operators) error {
		all, err := l.whole(ctx, s, limit, progressOf(p.stderr, s.name))
		if err != nil {
			return err
		}
		if l.dry {
			changed = append(changed, l.preview(p, all, done)...)
			return nil
		}
		reason, err := l.allowed(p, s, do, len(all))
		if err != nil {
			return err
		}
		if l.several() && len(all) == 0 { // another database may have the selected rows
			return nil
		}
		selected += len(all)
		ids, err := l.batches(ctx, p, s, all, func(ctx context.Context) ([]uuid.UUID, error) { return batch(ctx, s, reason) })
		l.account(p.stderr, done, all, ids)
		changed = append(changed, ids...)
		return err
	})
	if len(changed) == 0 && err == nil {
		l.misspelt(ctx, p.stderr, l.filter.Topic, l.filter.Consumer)
	}
	if l.several() && selected == 0 && !l.dry && err == nil {
		fmt.Fprintf(p.stderr, "nothing of the given databases is selected; nothing was %s\n", done)
	}
	if err := errors.Join(l.printIDs(p.stdout, changed), err); err != nil {
		return exitFailed, err
	}
	if len(changed) == 0 && !l.dry {
		return exitFound, nil
	}
	return exitOK, nil
}

// preview says what a dry run has selected, and returns the IDs to print.
func (l *letters) preview(p *process, all []parked, done string) []uuid.UUID {
	fmt.Fprintf(p.stderr, "%d selected; nothing was %s\n", len(all), done)
	if len(all) > previewed && !l.json() && !l.wide {
		fmt.Fprintf(p.stderr, "the IDs of the first %d; --wide prints all\n", previewed)
		all = all[:previewed]
	}
	ids := make([]uuid.UUID, len(all))
	for i := range all {
		ids[i] = all[i].ID
	}
	return ids
}

// batches changes the selected rows in batches, and returns the changed IDs in the order of the rows. Each
// change makes the relay load the parked events of the changed shards again, and live events of these
// shards wait: the batches of a long change are short and have events of one shard each.
func (l *letters) batches(ctx context.Context, p *process, s *operators, all []parked, batch func(context.Context) ([]uuid.UUID, error)) (ids []uuid.UUID, err error) {
	before := l.filter
	defer func() { l.filter = before }()
	left, paced, apart := all, newBatches(), !s.isInbox && len(all) > perBatch
	if apart {
		left = slices.SortedStableFunc(slices.Values(all), func(a, b parked) int { return a.shard - b.shard })
		if paced, err = briefBatches(ctx, s); err != nil {
			return nil, err
		}
	}
	var late error
	for report := progressOf(p.stderr, s.name); len(left) > 0; report(len(ids), len(all)) {
		some, err := paced.next(ctx, nextBatch(left, apart), func(most int) ([]uuid.UUID, error) {
			l.filter.IDs, l.filter.After, l.filter.Limit = idsOf(left[:most]), left[0].Seq-1, most
			left = left[most:]
			return batch(ctx)
		})
		ids = append(ids, some...)
		if errors.Is(err, producer.ErrBeyondHorizon) {
			late, err = fmt.Errorf("some events stay as they are: %w", producer.ErrBeyondHorizon), nil
		}
		if err != nil {
			return ids, err
		}
	}
	place := make(map[uuid.UUID]int)
	for i := range all {
		place[all[i].ID] = i
	}
	slices.SortStableFunc(ids, func(a, b uuid.UUID) int { return place[a] - place[b] })
	return ids, late
}

// nextBatch returns how many of the first rows may be in one batch. An event that is not in the log has no
// ID: it is alone, and selected by its number.
func nextBatch(rows []parked, apart bool) int {
	n := slices.IndexFunc(rows, func(e parked) bool { return e.ID == uuid.Nil || apart && e.shard != rows[0].shard })
	if n < 0 {
		return len(rows)
	}
	return max(n, 1)
}

// idsOf returns the IDs of the rows of a batch.
func idsOf(rows []parked) (ids []uuid.UUID) {
	for i := range rows {
		if rows[i].ID != uuid.Nil {
			ids = append(ids, rows[i].ID)
		}
	}
	return ids
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
func (l *letters) whole(ctx context.Context, s *operators, limit int, report func(done, all int)) (all []parked, err error) {
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
		report(len(all), 0)
	}
	return all, nil
}

func (d *display) printIDs(out io.Writer, ids []uuid.UUID) error {
	if d.json() {
		return d.encode(out, map[string][]uuid.UUID{"ids": append([]uuid.UUID{}, ids...)})
	}
	for _, id := range ids {
		if _, err := fmt.Fprintln(out, id); err != nil {
			return err
		}
	}
	return nil
}

func (l *letters) print(p *process, list []parked) error {
	if l.json() {
		return l.encode(p.stdout, map[string][]parked{"parked": list})
	}
	if len(list) == 0 {
		fmt.Fprintln(p.stderr, "nothing matches the filter")
		return nil
	}
	g := l.grid(p, column{head: "id"}, column{head: "state"}, column{head: "attempts", number: true}, column{head: "since"}, column{head: "next", wide: true},
		column{head: "topic", flexible: true}, column{head: "key", flexible: true}, column{head: "consumer", flexible: true, wide: len(l.inboxes) == 0},
		column{head: "database", wide: true}, column{head: "last error", flexible: true})
	for i := range list {
		e := &list[i]
		why := e.LastError
		if e.Reason != "" {
			why = "discarded: " + e.Reason
		}
		next := "-"
		if e.NextAttemptAt != nil {
			next = l.when(*e.NextAttemptAt)
		}
		g.add(l.id(e.ID), e.State, e.Attempts, l.when(e.ParkedAt), next, e.Topic, e.Key, e.Consumer, e.Database, why)
	}
	return g.print(p.stdout)
}
