package main

import (
	"context"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/text"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport/amqp"
)

// sight is the knowledge of the databases about one dispatch ID.
type sight struct {
	ID     uuid.UUID     `json:"id"`
	Done   bool          `json:"done"` // the event has left the outboxes, and nothing of it waits in an inbox
	Events []seenEvent   `json:"events"`
	Inbox  []seenMessage `json:"messages"`
	Queues []queueState  `json:"queues,omitempty"` // with --management
	// Unbound are queues that are named after the topic and do not get it, with --management and without Queues.
	Unbound []queueState `json:"unbound_queues,omitempty"`
	Broker  string       `json:"broker_error,omitempty"` // why the broker was not asked
	Caused  int          `json:"caused,omitempty"`       // the number of events that handlers of the event wrote, with why
	Heal    []string     `json:"heal"`                   // commands, in the order in which they help; never null

	// earlier and later are delivered events of the topic around the event; their consumers get the topic.
	earlier, later []uuid.UUID
	// heads are the events and messages of its key that the event waits for. stuck tells that something
	// of it waits for another reason.
	heads []uuid.UUID
	stuck bool
	name  string // the key, source or correlation ID by which an operator has asked, or ""
}

// follows tells whether the event only waits for others of its key.
func (s *sight) follows() bool { return len(s.heads) > 0 && !s.stuck }

// seenEvent is an event of an outbox.
type seenEvent struct {
	Database      string     `json:"database"`
	Seq           int64      `json:"number"`
	Topic         string     `json:"topic"`
	Key           string     `json:"key"`
	Type          string     `json:"type,omitempty"`
	Producer      string     `json:"producer,omitempty"`
	Source        string     `json:"source,omitempty"`
	Version       int64      `json:"version"`
	Index         int        `json:"index"`
	CorrelationID string     `json:"correlation_id,omitempty"`
	TraceParent   string     `json:"traceparent,omitempty"`
	State         string     `json:"state"`
	Why           string     `json:"why"`
	WaitsFor      int64      `json:"waits_for,omitempty"`
	Attempts      int        `json:"attempts"`
	WrittenAt     time.Time  `json:"written_at"`
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	DeliveredAt   *time.Time `json:"delivered_at,omitempty"`
	LastError     string     `json:"last_error,omitempty"`
	Reason        string     `json:"reason,omitempty"`
	Deliveries    []sent     `json:"deliveries,omitempty"`
	History       []history  `json:"history,omitempty"`
	Payload       *string    `json:"payload,omitempty"`

	Headers map[string]string `json:"headers,omitempty"`
}

// copies returns how often a broker has confirmed the event; 0 is not known.
func (s *sight) copies() (n int) {
	for i := range s.Events {
		n += len(s.Events[i].Deliveries)
	}
	return n
}

// sent is a copy of an event that the broker has confirmed.
type sent struct {
	At    time.Time `json:"at"`
	Relay string    `json:"relay"`
}

// seenMessage is a message of a consumer.
type seenMessage struct {
	Database      string     `json:"database"`
	Consumer      string     `json:"consumer"`
	State         string     `json:"state"`
	Why           string     `json:"why"`
	Topic         string     `json:"topic,omitempty"` // as key: unknown of an applied message
	Key           string     `json:"key,omitempty"`
	Seq           int64      `json:"number,omitempty"`
	Attempts      int        `json:"attempts"`
	Since         time.Time  `json:"since"`
	NextAttemptAt *time.Time `json:"next_attempt_at,omitempty"`
	LastError     string     `json:"last_error,omitempty"`
	Reason        string     `json:"reason,omitempty"`
	History       []history  `json:"history,omitempty"`
	Payload       *string    `json:"payload,omitempty"`

	Metadata   map[string]string `json:"metadata,omitempty"`
	Suppressed *suppressed       `json:"suppressed_by_consumer,omitempty"` // copies of any message, not of this one
}

// explainer reads and explains events.
type explainer struct {
	databases
	display

	content, details bool
	most             int // how many events a key, source or correlation ID names; 0 for mostNamed
	broker           amqp.Management
	origin           origin
}

// origin tells how the databases were named, so that a printed command names them in the same way.
type origin struct {
	context string
	flags   bool // by flags; otherwise by context, file or environment
}

// flag returns the flag of a command for a database, with a leading space, or "".
func (x *explainer) flag(s *operators) string {
	explicit, same := " --outbox "+quoted(s.target.shown), len(x.outboxes)
	if s.isInbox {
		explicit, same = " --inbox "+quoted(s.target.shown), len(x.inboxes)
	}
	text := x.origin.flag()
	if x.origin.flags || same > 1 {
		text += explicit
	}
	return text
}

// flag returns the flag for the context, with a leading space, or "".
func (o origin) flag() string {
	if o.context == "" {
		return ""
	}
	return " --context " + quoted(o.context)
}

// broker returns the flags for the broker, with a leading space.
func (o origin) broker() string {
	if o.context == "" && o.flags {
		return " --amqp …"
	}
	return o.flag()
}

// quoted quotes a word for a shell where necessary.
func quoted(word string) string { return text.Quoted(plain(word)) }

// look reads the sights of dispatch IDs, in the order of ids.
func (x *explainer) look(ctx context.Context, ids []uuid.UUID) ([]sight, error) {
	all := make([]sight, len(ids))
	at := make(map[uuid.UUID]*sight)
	for i, id := range ids {
		all[i] = sight{ID: id, Done: true, Events: []seenEvent{}, Inbox: []seenMessage{}, Heal: []string{}}
		at[id] = &all[i]
	}
	err := x.each(ctx, true, func(s *operators) error {
		if s.isInbox {
			return x.messages(ctx, s, ids, at)
		}
		return x.events(ctx, s, ids, at)
	})
	if err != nil || x.details {
		return all, err
	}
	return all, x.missing(ctx, all)
}

// events adds the events of an outbox.
func (x *explainer) events(ctx context.Context, s *operators, ids []uuid.UUID, at map[uuid.UUID]*sight) error {
	found, err := s.events.Search(ctx, outbox.Query{IDs: ids, Limit: len(ids), Content: x.content})
	if err != nil {
		return err
	}
	pauses, err := s.outbox.Pauses(ctx)
	if err != nil {
		return err
	}
	for i := range found.Events {
		e := &found.Events[i]
		one := at[e.ID]
		seen := x.seen(s, e)
		if x.details {
			if err := deeds(ctx, s, e.ID, &seen); err != nil {
				return err
			}
		} else if seen.Deliveries, err = deliveries(ctx, s, e.ID); err != nil {
			return err
		}
		if e.State == outbox.DeliveredState && len(x.inboxes) > 0 && !x.details {
			if one.earlier, one.later, err = neighbours(ctx, s, e); err != nil {
				return err
			}
		}
		one.Events = append(one.Events, seen)
		head, err := s.head(ctx, e)
		if err != nil {
			return err
		}
		one.noteState(e.State == outbox.DeliveredState || e.State == outbox.Discarded || e.State == outbox.Cancelled, e.ID, head.ID)
		heal, err := x.healEvent(ctx, s, head, pauses)
		if err != nil {
			return err
		}
		one.Heal = append(one.Heal, heal...)
	}
	return nil
}

// noteState notes that an event or message is done, or which one of its key lets it wait.
func (s *sight) noteState(done bool, id, head uuid.UUID) {
	switch {
	case done:
		return
	case head == id || head == uuid.Nil:
		s.stuck = true
	default:
		s.heads = append(s.heads, head)
	}
	s.Done = false
}

func (x *explainer) seen(s *operators, e *outbox.Found) seenEvent {
	seen := seenEvent{
		Database: s.name, Seq: e.Seq, Topic: e.Topic, Key: e.Key, Type: e.Type, Producer: e.Producer, Source: e.Source, Version: e.Version, Index: e.Index,
		CorrelationID: e.CorrelationID, TraceParent: e.TraceParent, State: string(e.State), Why: e.Why, WaitsFor: e.WaitsFor, Attempts: e.Attempts,
		WrittenAt: e.WrittenAt, NextAttemptAt: maybe(e.NextAttemptAt), DeliveredAt: maybe(e.DeliveredAt), LastError: e.LastError, Reason: e.Reason,
	}
	if x.content {
		payload := string(e.Payload)
		seen.Payload, seen.Headers = &payload, e.Headers
	}
	return seen
}

// deeds adds the attempts and deliveries of an event.
func deeds(ctx context.Context, s *operators, id uuid.UUID, seen *seenEvent) error {
	attempts, err := s.outbox.Attempts(ctx, id, 0)
	if err != nil {
		return err
	}
	for _, a := range attempts {
		seen.History = append(seen.History, history{a.At, a.Outcome, a.Error, a.Relay})
	}
	seen.Deliveries, err = deliveries(ctx, s, id)
	return err
}

// deliveries reads when the broker has confirmed an event.
func deliveries(ctx context.Context, s *operators, id uuid.UUID) (all []sent, err error) {
	list, err := s.outbox.Deliveries(ctx, id)
	for _, d := range list {
		all = append(all, sent{d.At, d.Relay})
	}
	return all, err
}

// mostConsumers is how many consumers of a message are looked for.
const mostConsumers = 100

// messages adds the messages of an inbox.
func (x *explainer) messages(ctx context.Context, s *operators, ids []uuid.UUID, at map[uuid.UUID]*sight) error {
	found, err := s.messages.SearchMessages(ctx, inbox.Query{IDs: ids, Limit: mostConsumers * len(ids), Content: x.content})
	if err != nil {
		return err
	}
	pauses, err := s.inbox.Pauses(ctx)
	if err != nil {
		return err
	}
	var running []inbox.RunningHandler
	if !x.details && len(found.Messages) > 0 {
		if running, _, err = s.running(ctx); err != nil {
			return err
		}
	}
	for i := range found.Messages {
		m := &found.Messages[i]
		one := at[m.ID]
		if one == nil {
			continue
		}
		seen := seenMessage{
			Database: s.name, Consumer: m.Consumer, State: string(m.State), Why: m.Why, Topic: m.Topic, Key: m.Key, Seq: m.Seq, Attempts: m.Attempts, Since: m.Since,
			NextAttemptAt: maybe(m.NextAttemptAt), LastError: m.LastError, Reason: m.Reason,
			Suppressed: suppressedBy(m.Consumer, running),
		}
		if m.Payload != nil {
			payload := string(m.Payload)
			seen.Payload, seen.Metadata = &payload, m.Metadata
		}
		if x.details {
			if seen.History, err = s.ofMessage(ctx, m.ID, m.Consumer, 0); err != nil {
				return err
			}
		}
		one.Inbox = append(one.Inbox, seen)
		one.noteState(m.State == inbox.AppliedState || m.State == inbox.Discarded, m.ID, m.WaitsFor)
		one.Heal = append(one.Heal, x.healMessage(s, m, pauses, running, one.copies())...)
	}
	return nil
}
