package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/pace"
	"github.com/boxpair/boxpair/store/outbox"
)

// change holds the settings of a command that changes many rows.
type change struct {
	reason, operator string
	every, dry, yes  bool
}

// define declares the settings. every describes --all; a command without --all has none.
func (c *change) define(s *settings, every string) {
	if every != "" {
		s.on(&c.every, "all", every)
	}
	s.on(&c.dry, "dry-run", "change nothing, print the IDs of the selection, and say how many they are.")
	s.on(&c.yes, "yes", "do not ask for a confirmation. Without a terminal, no command asks.")
}

// requiredReason describes the reason of a change with a history.
const requiredReason = "the reason, in at most 1 KiB. Required without --dry-run."

func (c *change) defineReason(s *settings, usage string) {
	s.text(&c.reason, "reason", "TEXT", usage)
	s.add("as", envOf("as"), "NAME", "the operator's name, for the history. Defaults to the database's user; to the process's user for SQLite.", false, nameTo(&c.operator))
}

// because checks the reason for a change.
func (c *change) because() error {
	if c.dry {
		return nil
	}
	return because(c.reason)
}

// reasonable checks the reason of a change that needs none.
func (c *change) reasonable() error {
	if c.reason == "" {
		return nil
	}
	return because(c.reason)
}

// loggedReason describes the reason of a change without a history.
const loggedReason = "the reason, in at most 1 KiB, for the log. Defaults to none."

// note logs a change that no history keeps, with the reason and the operator, if one of them is given.
func (c *change) note(p *process, s *operators, did string, attrs ...any) {
	if c.reason+c.operator != "" {
		logger(p.stderr, "", "").Info(did, append(attrs, "reason", c.reason, "by", c.by(s))...) //nolint:sloglint // each caller has one text
	}
}

// by returns the operator's name, or "" if nobody has named the operator.
func (c *change) by(s *operators) string { return cmp.Or(c.operator, s.user) }

// attributed returns the reason with the operator's name, as the history keeps it.
func (c *change) attributed(s *operators) (string, error) {
	by := c.by(s)
	switch suffix := " (by " + by + ")"; {
	case by == "":
		return c.reason, nil
	case c.reason == "":
		return "by " + by, nil
	case len(c.reason)+len(suffix) > maxReason:
		return "", fmt.Errorf("--reason: has %d bytes, want at most %d: the history also names the operator %s", len(c.reason), maxReason-len(suffix), by)
	default:
		return c.reason + suffix, nil
	}
}

// errDeclined is returned if the operator does not confirm a change.
var errDeclined = errors.New("declined; nothing was changed")

// confirm asks the operator on a terminal whether n rows shall be changed. One row is changed without
// a question.
func (c *change) confirm(p *process, question string, n int) error {
	if !p.asks || c.yes || n < 2 {
		return nil
	}
	return agreed(p, question)
}

// allowed returns the reason for a change of n rows, as the history keeps it, after the operator has
// confirmed the change.
func (c *change) allowed(p *process, s *operators, do string, n int) (reason string, err error) {
	if reason, err = c.attributed(s); err != nil {
		return "", err
	}
	return reason, c.confirm(p, fmt.Sprintf("%s %d of %s?", do, n, s.name), n)
}

// agreed asks the operator on a terminal, and returns errDeclined unless the answer is yes.
func agreed(p *process, question string) error {
	fmt.Fprintf(p.stderr, "%s [y/N] ", plain(question))
	answer, err := bufio.NewReader(p.stdin).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return errDeclined
}

// perBatch is how many rows one transaction of a long change changes at most.
const perBatch = pace.PerBatch

// batches paces a long change.
type batches struct{ *pace.Batches }

func newBatches() *batches { return &batches{pace.Change()} }

// briefBatches paces a long change of events.
func briefBatches(ctx context.Context, s *operators) (*batches, error) {
	paced, err := pace.BriefChange(func() error {
		_, err := s.outbox.ListParked(ctx, outbox.Filter{IDs: []uuid.UUID{uuid.Max}, Limit: 1})
		return err
	})
	return &batches{paced}, err
}

// next waits until the next batch may begin, and changes at most left rows.
func (b *batches) next(ctx context.Context, left int, change func(most int) ([]uuid.UUID, error)) (ids []uuid.UUID, err error) {
	err = b.Next(ctx, left, func(most int) (int, error) {
		var err error
		ids, err = change(most)
		return len(ids), err
	})
	return ids, err
}

// inBatches changes the rows of a database in paced batches, until an error, and returns the changed IDs.
func inBatches[T any](ctx context.Context, all []T, report func(done, all int), change func(some []T) ([]uuid.UUID, error)) (ids []uuid.UUID, err error) {
	paced := newBatches()
	for left := all; len(left) > 0 && err == nil; report(len(ids), len(all)) {
		var some []uuid.UUID
		some, err = paced.next(ctx, len(left), func(most int) ([]uuid.UUID, error) {
			chosen := left[:most]
			left = left[most:]
			return change(chosen)
		})
		ids = append(ids, some...)
	}
	return ids, err
}

// firstProgress is when a long change first prints its progress.
const firstProgress = 50 * time.Millisecond

// progressOf returns a function that prints how far a long change is: soon, and then now and then. If the
// number of all rows is 0, the number is unknown.
func progressOf(out io.Writer, name string) func(done, all int) {
	next := time.Now().Add(firstProgress)
	return func(done, all int) {
		now := time.Now()
		if now.Before(next) || done == all {
			return
		}
		next = now.Add(progressEvery)
		if all == 0 {
			fmt.Fprintf(out, "%s: %d selected so far\n", name, done)
			return
		}
		fmt.Fprintf(out, "%s: %d of %d\n", name, done, all)
	}
}
