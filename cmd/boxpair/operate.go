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
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/schema"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/ops"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// outboxOperator is the part of an outbox that the operator's commands need.
type outboxOperator interface {
	ops.OutboxOperator
	ListRelays(ctx context.Context) ([]outbox.Relay, error)
	Replay(ctx context.Context, r producer.Replay) (producer.ReplayReport, error)
	Edit(ctx context.Context, id uuid.UUID, reason string, edit func(c *producer.Content) error) (uuid.UUID, error)
}

// inboxOperator is the part of an inbox that the operator's commands need.
type inboxOperator interface {
	ops.InboxOperator
	ops.Handlers
	Edit(ctx context.Context, consumer string, id uuid.UUID, reason string, edit func(c *consumer.Content) error) (uuid.UUID, error)
}

// operators holds both sides of one database.
type operators struct {
	outbox   outboxOperator
	inbox    inboxOperator
	events   outbox.Searcher
	messages inbox.Searcher
	states   inboxStates
	effects  ledger
	schema   schema.Checker
	log      outbox.OperatorStore
	removal  outbox.JanitorStore
	topics   outbox.TopicCounter
	numbers  outbox.SequenceChecker // nil if the database needs no check of its sequences
	target   *target
	pool     *pgxpool.Pool // of PostgreSQL
	// reachable tells whether the server answers.
	reachable func(ctx context.Context) error
	places    *places
	ledger    ops.Effects // nil if the store keeps no effects
	parts     []any       // the store and further parts, for a dashboard
	isInbox   bool        // the settings name the database as an inbox
	name      string      // of the database, without user and password
	user      string      // of the database
}

// inboxStates reads the state of the consumers of a store.
type inboxStates interface {
	InboxStats(ctx context.Context, consumer int) (inbox.Stats, error)
	EffectStats(ctx context.Context, consumer int) (inbox.EffectStats, error)
}

// store is the store of a database.
type store[TX any] interface {
	outbox.Store[TX]
	inbox.Store[TX]
	outbox.Searcher
	outbox.TopicCounter
	inbox.Searcher
	inboxStates
	ledger
	schema.Checker
}

// tool is the name under which the commands open an outbox and an inbox. No row carries it.
const tool = "boxpair"

// operate opens a database for commands that change parked events and messages.
func operate(ctx context.Context, t *target, p *places) (*operators, func(), error) {
	s, end, err := attach(ctx, t, p)
	if err != nil {
		return nil, nil, err
	}
	if err := s.reachable(ctx); err != nil {
		end()
		return nil, nil, err
	}
	return s, end, nil
}

// attach is operate without I/O, except for SQLite.
func attach(ctx context.Context, t *target, p *places) (*operators, func(), error) {
	if t.server != nil {
		store, db, end, err := openMySQL(t, p)
		if err != nil {
			return nil, nil, err
		}
		return both(store, end, func(ctx context.Context) error {
			if err := db.PingContext(ctx); err != nil {
				return fmt.Errorf("connect: %w", err)
			}
			return nil
		})
	}
	if t.pool == nil {
		store, end, err := openSQLite(t, p)
		if err != nil {
			return nil, nil, err
		}
		return both(store, end, func(context.Context) error { return nil })
	}
	store, pool, end, err := openPostgres(ctx, t, p)
	if err != nil {
		return nil, nil, err
	}
	s, end, err := both(store, end, func(ctx context.Context) error { return reachable(ctx, pool) })
	if err == nil {
		s.pool = pool
	}
	return s, end, err
}

// both returns the two sides of one store. The commands print their changes, so only warnings are
// logged.
func both[TX any](s store[TX], end func(), reachable func(context.Context) error) (*operators, func(), error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	out, err := producer.New(s, producer.Config{Name: tool, Logger: log})
	if err != nil {
		end()
		return nil, nil, err
	}
	in, err := consumer.New(s, consumer.Config{Service: tool, Logger: log}, consumer.WithOutbox(out))
	if err != nil {
		end()
		return nil, nil, err
	}
	n, _ := any(s).(outbox.SequenceChecker)
	return &operators{reachable: reachable, parts: []any{s}, ledger: settled(in), outbox: out, inbox: in, events: s, messages: s, log: s, removal: s, topics: s, states: s, effects: s, schema: s, numbers: n}, end, nil
}

// consumers reads the registered consumers of an inbox.
func (s *operators) consumers(ctx context.Context) ([]audit.Consumer, error) {
	if s.target.server != nil {
		return s.consumersOfMySQL(ctx)
	}
	if s.pool == nil {
		a, end, err := openAuditor(ctx, s.target, s.places, inspectionTimeout)
		if err != nil {
			return nil, err
		}
		defer end()
		return a.Consumers(ctx)
	}
	schema, prefix := s.places.of(s.target)
	a, err := postgres.NewAuditor(s.pool, postgres.AuditorConfig{Schema: schema, Prefix: prefix, StatementTimeout: inspectionTimeout})
	if err != nil {
		return nil, err
	}
	return a.Consumers(ctx)
}

// consumersOfMySQL reads the IDs and names of the registered consumers.
func (s *operators) consumersOfMySQL(ctx context.Context) (list []audit.Consumer, err error) {
	_, db, end, err := openMySQL(s.target, s.places)
	if err != nil {
		return nil, err
	}
	defer end()
	_, prefix := s.places.of(s.target)
	names, err := migrations.MySQLNames(prefix)
	if err != nil {
		return nil, err
	}
	rows, err := db.QueryContext(ctx, "SELECT id, name FROM "+names.Table("inbox_consumers")+" ORDER BY id") //nolint:gosec // the name is quoted
	if err != nil {
		return nil, fmt.Errorf("read consumers: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Err(), rows.Close()) }()
	for rows.Next() {
		var c audit.Consumer
		if err := rows.Scan(&c.ID, &c.Name); err != nil {
			return nil, fmt.Errorf("read consumers: %w", err)
		}
		list = append(list, c)
	}
	return list, nil
}

// selection holds the settings that select parked events or messages.
type selection struct {
	databases

	filter inbox.Filter // Consumer applies to inboxes only
	usual  bool         // the states are those of the command, not of a flag
	ids    []idRange
}

func (q *selection) define(s *settings) {
	f := &q.filter
	q.databases.define(s, "the database of an outbox: events that could not be sent. May be given several times.",
		"the database of an inbox: messages that could not be handled. May be given several times.")
	s.idsAfterFlags("[ID…]", &q.ids)
	s.add("id", envOf("id"), "ID", "the dispatch ID of an event or message, or its first eight digits or more. May be given several times, or after the flags.", true, rangesTo(&q.ids))
	s.add("state", envOf("state"), "STATE,…", "retrying, following, dead or discarded; in an inbox also too_old and altered.", false, func(text string) error {
		for name := range strings.SplitSeq(text, ",") {
			f.States = append(f.States, inbox.State(strings.TrimSpace(name)))
		}
		return nil
	})
	s.list[len(s.list)-1].values = []string{"retrying", "following", "dead", "discarded", "too_old", "altered"}
	s.text(&f.Topic, "topic", "TOPIC", "only this topic.")
	s.text(&f.Key, "key", "KEY", "only this key.")
	s.text(&f.Consumer, "consumer", "NAME", "only this consumer of the inbox, such as stock/reserve.")
	s.text(&f.Error, "error", "TEXT", "only if the last error contains this text.")
	s.add("since", envOf("since"), "TIME", "only if parked since this time: 2026-01-31T12:00:00Z, 2026-01-31 (in UTC), or an age such as 24h or 7d.", false, moment(&f.Since))
	s.add("until", envOf("until"), "TIME", "only if parked before this time.", false, moment(&f.Until))
	s.count(&f.Limit, "limit", "the maximal number. Defaults to 100 for lists, and to no limit for changes.")
}

// check checks the settings against each other.
func (q *selection) check() error {
	errs := []error{q.some()}
	known := map[inbox.State]bool{inbox.Retrying: true, inbox.Following: true, inbox.Dead: true, inbox.Discarded: true}
	if len(q.inboxes) > 0 {
		known[inbox.TooOldState], known[inbox.AlteredState] = true, true
	}
	for _, state := range q.filter.States {
		if !known[state] && !q.usual {
			errs = append(errs, fmt.Errorf("--state: unknown state %q", string(state)))
		}
	}
	if len(q.inboxes) == 0 && q.filter.Consumer != "" {
		errs = append(errs, errors.New("--consumer: an outbox has no consumers"))
	}
	return errors.Join(errs...)
}

// narrow tells whether a filter other than --limit is given.
func (q *selection) narrow() bool {
	f := &q.filter
	return len(q.ids)+len(f.States) > 0 || f.Topic+f.Key+f.Consumer+f.Error != "" || !f.Since.IsZero() || !f.Until.IsZero()
}

// events returns the filter for an outbox.
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

// with calls do for each database, with the dispatch IDs of the selection found there.
func (q *selection) with(ctx context.Context, do func(s *operators) error) error {
	if err := q.check(); err != nil {
		return err
	}
	if q.filter.Consumer != "" { // an outbox has no consumers
		q.outboxes = nil
	}
	found := len(q.ids) == 0
	err := q.each(ctx, false, func(s *operators) (err error) {
		q.filter.IDs, err = s.resolve(ctx, q.ids)
		if errors.Is(err, errNotHere) && q.several() {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		return do(s)
	})
	if err == nil && !found {
		err = fmt.Errorf("--id: %w in any given database; boxpair why also finds keys, sources and correlation IDs", errNotHere)
	}
	return err
}

// maxReason is the size limit of a reason in bytes.
const maxReason = 1 << 10

// because checks the reason for a change.
func because(reason string) error {
	switch {
	case reason == "":
		return errors.New("--reason: is missing")
	case len(reason) > maxReason || !utf8.ValidString(reason) || strings.ContainsRune(reason, 0):
		return errors.New("--reason: want at most 1 KiB of text")
	}
	return nil
}

// parked is a parked event or message as printed, without its payload.
type parked struct {
	ID            uuid.UUID  `json:"id"`
	Seq           int64      `json:"number"`
	Database      string     `json:"database"`
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
	shard         int        // of an event
}

// history is an attempt or an operator's change.
type history struct {
	At      time.Time `json:"at"`
	Outcome string    `json:"outcome"`
	Error   string    `json:"error,omitempty"`
	Relay   string    `json:"relay,omitempty"`
}

// list reads the selected events or messages.
func (q *selection) list(ctx context.Context, s *operators) ([]parked, error) {
	list := []parked{}
	if s.isInbox {
		messages, err := s.inbox.ListParked(ctx, q.filter)
		for i := range messages {
			m := &messages[i]
			list = append(list, parked{
				m.ID, m.Seq, s.name, m.Consumer, m.Topic, m.Key, string(m.State), m.Attempts, m.ParkedAt, maybe(m.NextAttemptAt), m.LastError, m.Reason, nil, 0,
			})
		}
		return list, err
	}
	events, err := s.outbox.ListParked(ctx, q.events())
	for i := range events {
		e := &events[i]
		list = append(list, parked{
			e.ID, e.Seq, s.name, "", e.Topic, e.Key, string(e.State), e.Attempts, e.ParkedAt, maybe(e.NextAttemptAt), e.LastError, e.Reason, nil, e.Shard,
		})
	}
	return list, err
}

// ofMessage reads the history of a message for one consumer.
func (s *operators) ofMessage(ctx context.Context, id uuid.UUID, consumer string, limit int) (list []history, err error) {
	attempts, err := s.inbox.Attempts(ctx, id, limit)
	for _, a := range attempts {
		if a.Consumer == consumer {
			list = append(list, history{At: a.At, Outcome: a.Outcome, Error: a.Error})
		}
	}
	return list, err
}

// history reads the history of a row that list has read.
func (q *selection) history(ctx context.Context, s *operators, e *parked) (list []history, err error) {
	if s.isInbox {
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
