package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/schema"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// outboxOperator is what the commands about parked events and messages need of an outbox.
type outboxOperator interface {
	Stats(ctx context.Context) (outbox.Stats, error)
	ListRoutes(ctx context.Context) ([]outbox.StalledRoute, error)
	ListParked(ctx context.Context, f outbox.Filter) ([]outbox.Parked, error)
	Attempts(ctx context.Context, id uuid.UUID, limit int) ([]outbox.Attempt, error)
	Redrive(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error)
	Discard(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error)
}

// inboxOperator is what they need of an inbox.
type inboxOperator interface {
	ListParked(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error)
	Redrive(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error)
	Discard(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error)
	Attempts(ctx context.Context, id uuid.UUID, limit int) ([]inbox.Attempt, error)
}

// operators are both sides of one database.
type operators struct {
	outbox  outboxOperator
	inbox   inboxOperator
	states  inboxStates
	effects ledger
	schema  schema.Checker
	numbers outbox.SequenceChecker // nil: the database sees to them by itself
}

// inboxStates is what tells the state of the consumers of a store.
type inboxStates interface {
	InboxStats(ctx context.Context, consumer int) (inbox.Stats, error)
	EffectStats(ctx context.Context, consumer int) (inbox.EffectStats, error)
}

// store is a store of a database, as the commands use it.
type store[TX any] interface {
	outbox.Store[TX]
	inbox.Store[TX]
	inboxStates
	ledger
	schema.Checker
}

// tool is the name under which the commands open an outbox and an inbox. Nothing is written under
// it.
const tool = "boxpair"

// operate opens a database for the commands that change what waits in it.
func operate(ctx context.Context, t *target, p *places) (*operators, func(), error) {
	if t.pool == nil {
		store, end, err := openSQLite(t, p)
		if err != nil {
			return nil, nil, err
		}
		return both(store, end)
	}
	store, pool, end, err := openPostgres(ctx, t, p)
	if err != nil {
		return nil, nil, err
	}
	if err := reachable(ctx, pool); err != nil {
		end()
		return nil, nil, err
	}
	return both(store, end)
}

// both makes the two sides of one store. The commands print what they have done, so only warnings
// are logged.
func both[TX any](s store[TX], end func()) (*operators, func(), error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	out, err := producer.New(s, producer.Config{Name: tool, Logger: log})
	if err != nil {
		end()
		return nil, nil, err
	}
	in, err := consumer.New(s, out, consumer.Config{Service: tool, Logger: log})
	if err != nil {
		end()
		return nil, nil, err
	}
	n, _ := any(s).(outbox.SequenceChecker)
	return &operators{out, in, s, s, s, n}, end, nil
}

// selection is the settings that say which parked events or messages are meant.
type selection struct {
	outboxes, inboxes []target
	places            places
	filter            inbox.Filter // its Consumer is of inboxes alone
}

func (q *selection) define(s *settings) {
	f := &q.filter
	s.urls(&q.outboxes, "outbox", "the database whose outbox is meant: events that could not be sent.")
	s.urls(&q.inboxes, "inbox", "the database whose inbox is meant: messages that could not be handled.")
	s.add("id", envOf("id"), "UUID", "the dispatch ID of one. May be given several times.", true, func(text string) error {
		id, err := uuid.Parse(text)
		if err != nil {
			return errors.New("want a UUID")
		}
		f.IDs = append(f.IDs, id)
		return nil
	})
	s.add("state", envOf("state"), "STATE,…", "retrying, following, dead or discarded; in an inbox also too_old or altered.", false, func(text string) error {
		for name := range strings.SplitSeq(text, ",") {
			f.States = append(f.States, inbox.State(strings.TrimSpace(name)))
		}
		return nil
	})
	s.text(&f.Topic, "topic", "TOPIC", "only of this topic.")
	s.text(&f.Key, "key", "KEY", "only of this key.")
	s.text(&f.Consumer, "consumer", "NAME", "only of this consumer of the inbox, as stock/reserve.")
	s.text(&f.Error, "error", "TEXT", "only with this in the last error.")
	s.add("since", envOf("since"), "TIME", "only parked since then: 2026-01-31T12:00:00Z or 2026-01-31 (in UTC), or 24h or 7d for so long ago.", false, moment(&f.Since))
	s.add("until", envOf("until"), "TIME", "only parked before.", false, moment(&f.Until))
	s.count(&f.Limit, "limit", "how many at most. Defaults to 100 to be listed, and to all that are selected to be changed.")
	q.places.define(s)
}

// check says what is wrong with the settings together.
func (q *selection) check() error {
	var errs []error
	if len(q.outboxes)+len(q.inboxes) != 1 {
		errs = append(errs, fmt.Errorf("-outbox or -inbox (or %s_URL or %s_URL): want exactly one, got %d",
			envOf("outbox"), envOf("inbox"), len(q.outboxes)+len(q.inboxes)))
	}
	known := map[inbox.State]bool{inbox.Retrying: true, inbox.Following: true, inbox.Dead: true, inbox.Discarded: true}
	if len(q.inboxes) > 0 {
		known[inbox.TooOldState], known[inbox.AlteredState] = true, true
	}
	for _, state := range q.filter.States {
		if !known[state] {
			errs = append(errs, fmt.Errorf("-state: there is no state %q here", string(state)))
		}
	}
	if len(q.outboxes) > 0 && q.filter.Consumer != "" {
		errs = append(errs, errors.New("-consumer: an outbox has none"))
	}
	return errors.Join(errs...)
}

// narrow tells whether anything is selected but a number.
func (q *selection) narrow() bool {
	f := &q.filter
	return len(f.IDs)+len(f.States) > 0 || f.Topic+f.Key+f.Consumer+f.Error != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

// events is the filter for an outbox.
func (q *selection) events() outbox.Filter {
	f := &q.filter
	states := make([]outbox.State, len(f.States))
	for i, state := range f.States {
		states[i] = outbox.State(state)
	}
	return outbox.Filter{
		IDs: f.IDs, States: states, Topic: f.Topic, Key: f.Key, After: f.After, Error: f.Error, Since: f.Since, Until: f.Until, Limit: f.Limit, Force: f.Force,
	}
}

// with opens the database and runs do on its side.
func (q *selection) with(ctx context.Context, do func(s *operators) error) error {
	if err := q.check(); err != nil {
		return err
	}
	name, list := "outbox", q.outboxes
	if len(list) == 0 {
		name, list = "inbox", q.inboxes
	}
	s, end, err := operate(ctx, &list[0], &q.places)
	if err == nil {
		err = do(s)
		end()
	}
	if err != nil {
		return fmt.Errorf("-%s %s: %w", name, list[0].name, err)
	}
	return nil
}

// maxReason is the most that is kept of a reason.
const maxReason = 1 << 10

// because says what is wrong with the reason for a change.
func because(reason string) error {
	switch {
	case reason == "":
		return errors.New("-reason: is missing")
	case len(reason) > maxReason || !utf8.ValidString(reason) || strings.ContainsRune(reason, 0):
		return errors.New("-reason: want at most 1 KiB of text")
	}
	return nil
}

// parked is an event or message as it is printed. There is no payload in it.
type parked struct {
	ID            uuid.UUID  `json:"id"`
	Seq           int64      `json:"number"`
	Consumer      string     `json:"consumer,omitempty"`
	Topic         string     `json:"topic"`
	Key           string     `json:"key"`
	State         string     `json:"state"`
	Attempts      int        `json:"attempts"`
	ParkedAt      time.Time  `json:"parked_at"`
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	LastError     string     `json:"last_error"`
	Reason        string     `json:"reason,omitempty"`
	History       []history  `json:"history,omitempty"`
}

// history is one attempt, or what an operator did.
type history struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	Error   string    `json:"error,omitempty"`
	Relay   string    `json:"relay,omitempty"`
}

// list reads what is selected.
func (q *selection) list(ctx context.Context, s *operators) ([]parked, error) {
	list := []parked{}
	if len(q.inboxes) > 0 {
		messages, err := s.inbox.ListParked(ctx, q.filter)
		for i := range messages {
			m := &messages[i]
			list = append(list, parked{
				m.ID, m.Seq, m.Consumer, m.Topic, m.Key, string(m.State), m.Attempts, m.ParkedAt, maybe(m.NextAttemptAt), m.LastError, m.Reason, nil,
			})
		}
		return list, err
	}
	events, err := s.outbox.ListParked(ctx, q.events())
	for i := range events {
		e := &events[i]
		list = append(list, parked{
			e.ID, e.Seq, "", e.Topic, e.Key, string(e.State), e.Attempts, e.ParkedAt, maybe(e.NextAttemptAt), e.LastError, e.Reason, nil,
		})
	}
	return list, err
}

// ofMessage reads the history of a message, of one consumer.
func (s *operators) ofMessage(ctx context.Context, id uuid.UUID, consumer string, limit int) (list []history, err error) {
	attempts, err := s.inbox.Attempts(ctx, id, limit)
	for _, a := range attempts {
		if a.Consumer == consumer {
			list = append(list, history{At: a.At, Outcome: a.Outcome, Error: a.Error})
		}
	}
	return list, err
}

// history reads the attempts of what list has read.
func (q *selection) history(ctx context.Context, s *operators, e *parked) (list []history, err error) {
	if len(q.inboxes) > 0 {
		return s.ofMessage(ctx, e.ID, e.Consumer, q.filter.Limit)
	}
	attempts, err := s.outbox.Attempts(ctx, e.ID, q.filter.Limit)
	for _, a := range attempts {
		list = append(list, history{a.At, a.Outcome, a.Error, a.Relay})
	}
	return list, err
}

func maybe(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
