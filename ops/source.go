package ops

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// fresh is how long the state of a source is kept, so that many users cost as much as one user.
const fresh = time.Second

// outboxSource is an outbox with its state as last read.
type outboxSource struct {
	Outbox
	search outbox.Searcher // nil if no part has it
	fleet  Fleet           // likewise
	editor Editor          // likewise

	mu     sync.Mutex
	state  outboxState
	series series
}

// outboxState is the state of an outbox at one moment.
type outboxState struct {
	At     time.Time
	Stats  outbox.Stats
	Routes []outbox.StalledRoute
	Pauses []control.Pause
	// Relays are the visible relays; nil if no part lists relays.
	Relays []outbox.Relay
	// OrphanedAt is when this process first saw that shards have no relay, in reads without a long gap; zero
	// if all shards have a relay.
	OrphanedAt time.Time
}

// Fleet is an optional part of an outbox that lists its relays.
type Fleet interface {
	// ListRelays reads the visible relays, by name.
	ListRelays(ctx context.Context) ([]outbox.Relay, error)
}

// Editor is an optional part of an outbox that edits events, as a producer.Outbox does.
type Editor interface {
	// Edit writes an edited copy of a parked event as a child event, discards the event, and returns the
	// dispatch ID of the copy.
	Edit(ctx context.Context, id uuid.UUID, reason string, edit func(c *producer.Content) error) (uuid.UUID, error)
}

// MessageEditor is an optional part of an inbox that edits messages, as a consumer.Inbox does.
type MessageEditor interface {
	// Edit parks an edited copy of a parked message of a consumer, discards the message, and returns the
	// dispatch ID of the copy.
	Edit(ctx context.Context, consumer string, id uuid.UUID, reason string, edit func(c *consumer.Content) error) (uuid.UUID, error)
}

// Handlers is an optional part of an inbox that lists the handlers of all processes.
type Handlers interface {
	// ListHandlers reads the processes' reports of their handlers, by consumer and process.
	ListHandlers(ctx context.Context) ([]inbox.RunningHandler, error)
}

// told returns the answer of a part of a source, or nil if the store cannot answer.
func told[T any](list []T, err error) ([]T, error) {
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, nil
	}
	if list == nil && err == nil {
		list = []T{}
	}
	return list, err
}

func newOutboxSource(o Outbox) *outboxSource {
	s := &outboxSource{Outbox: o}
	s.search, _ = part[outbox.Searcher](o.Operator, o.Parts)
	s.fleet, _ = part[Fleet](o.Operator, o.Parts)
	s.editor, _ = part[Editor](o.Operator, o.Parts)
	return s
}

// last returns the state as last read, without a call.
func (s *outboxSource) last() outboxState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// forget lets the next look read the state, which has changed.
func (s *outboxSource) forget() {
	s.mu.Lock()
	s.state.At = time.Time{}
	s.mu.Unlock()
}

// read returns the state, at most a second old. Concurrent calls wait for one answer.
func (s *outboxSource) read(ctx context.Context) (outboxState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.state.At) < fresh {
		return s.state, nil
	}
	var now outboxState
	var err error
	if now.Stats, err = s.Operator.Stats(ctx); err != nil {
		return s.state, err
	}
	if now.Routes, err = s.Operator.ListRoutes(ctx); err != nil {
		return s.state, err
	}
	if now.Pauses, err = s.Operator.Pauses(ctx); err != nil {
		return s.state, err
	}
	if s.fleet != nil {
		if now.Relays, err = told(s.fleet.ListRelays(ctx)); err != nil {
			return s.state, err
		}
	}
	now.At = time.Now()
	highest, err := s.highest(ctx)
	if err != nil {
		return s.state, err
	}
	now.orphaned(&s.state)
	s.state = now
	s.series.add(&now, highest)
	return now, nil
}

// mostGap is the longest time between two reads in which nothing is assumed to have changed and changed
// back.
const mostGap = 30 * time.Second

// orphaned sets OrphanedAt, after the earlier read.
func (st *outboxState) orphaned(earlier *outboxState) {
	switch {
	case st.Stats.Owned >= idgen.Shards:
	case !earlier.OrphanedAt.IsZero() && st.At.Sub(earlier.At) < mostGap:
		st.OrphanedAt = earlier.OrphanedAt
	default:
		st.OrphanedAt = st.At
	}
}

// orphans says in words which shards have no relay; "" if there are none, or if no relay runs at all.
func (st *outboxState) orphans() string {
	n := idgen.Shards - st.Stats.Owned
	if n <= 0 || st.OrphanedAt.IsZero() || st.Stats.Relays == 0 {
		return ""
	}
	text := fmt.Sprintf("%d shards have no relay", n)
	if n == 1 {
		text = "1 shard has no relay"
	}
	owned, orphans := make(map[int]bool), []int{}
	for i := range st.Relays {
		for _, shard := range st.Relays[i].Shards {
			owned[shard] = true
		}
	}
	for shard := range idgen.Shards {
		if !owned[shard] {
			orphans = append(orphans, shard)
		}
	}
	if len(orphans) == n { // otherwise a lease has begun or ended between two reads
		text += " (" + ranges(orphans) + ")"
	}
	if seen := st.At.Sub(st.OrphanedAt); seen >= time.Second {
		text += ", for " + span(seen) + " at least"
	}
	return text + ": their events wait. A takeover takes seconds; if it lasts, look at the log and the /readyz of the relays."
}

// highest returns the highest number of an event, or 0 if the number is unknown.
func (s *outboxSource) highest(ctx context.Context) (int64, error) {
	if s.search == nil {
		return 0, nil
	}
	found, err := s.search.Search(ctx, outbox.Query{Limit: 1, Scan: 1})
	if errors.Is(err, errors.ErrUnsupported) {
		return 0, nil
	}
	if err != nil || len(found.Events) == 0 {
		return 0, err
	}
	return found.Events[0].Seq, nil
}

// report judges a state in words.
func (st *outboxState) report(check *health.Check) health.Report {
	return check.Routes(check.Outbox(st.Stats), st.Routes)
}

// Registry is an optional part of an inbox that names its consumers, also consumers without a handler
// in this process. The auditors of this library are registries.
type Registry interface {
	// Consumers reads the registered consumers.
	Consumers(ctx context.Context) ([]audit.Consumer, error)
}

// Counts is an optional part of an inbox that counts the waiting messages and effects of a consumer.
// The stores of this library implement Counts.
type Counts interface {
	// InboxStats counts the parked messages of a consumer.
	InboxStats(ctx context.Context, consumer int) (inbox.Stats, error)
	// EffectStats counts the unfinished effects of a consumer.
	EffectStats(ctx context.Context, consumer int) (inbox.EffectStats, error)
}

// inboxSource is an inbox with its state as last read.
type inboxSource struct {
	Inbox
	search   inbox.Searcher // nil if no part has it
	registry Registry       // likewise
	counts   Counts         // likewise
	handlers Handlers       // likewise
	editor   MessageEditor  // likewise

	mu    sync.Mutex
	state inboxState
}

// inboxState is the state of an inbox at one moment.
type inboxState struct {
	At        time.Time
	Consumers []consumerState
	Pauses    []control.Pause
	// Handlers are the handlers of all processes; nil if no part lists handlers.
	Handlers []inbox.RunningHandler
}

// consumerState is the state of a consumer.
type consumerState struct {
	Name string
	// Here tells that this process has the handler.
	Here         bool
	RegisteredAt time.Time
	Stats        inbox.Stats
	Paused       *control.Pause
}

func newInboxSource(in Inbox) *inboxSource {
	s := &inboxSource{Inbox: in}
	s.search, _ = part[inbox.Searcher](in.Operator, in.Parts)
	s.registry, _ = part[Registry](in.Operator, in.Parts)
	s.counts, _ = part[Counts](in.Operator, in.Parts)
	s.handlers, _ = part[Handlers](in.Operator, in.Parts)
	s.editor, _ = part[MessageEditor](in.Operator, in.Parts)
	return s
}

func (s *inboxSource) last() inboxState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

func (s *inboxSource) forget() {
	s.mu.Lock()
	s.state.At = time.Time{}
	s.mu.Unlock()
}

// read returns the state, at most a second old.
func (s *inboxSource) read(ctx context.Context) (inboxState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.state.At) < fresh {
		return s.state, nil
	}
	list, err := s.list(ctx)
	if err != nil {
		return s.state, err
	}
	pauses, err := s.Operator.Pauses(ctx)
	if err != nil {
		return s.state, err
	}
	for i := range list {
		for j := range pauses {
			if pauses[j].Consumes(list[i].Name) {
				list[i].Paused = &pauses[j]
			}
		}
	}
	now := inboxState{At: time.Now(), Consumers: list, Pauses: pauses}
	if s.handlers != nil {
		if now.Handlers, err = told(s.handlers.ListHandlers(ctx)); err != nil {
			return s.state, err
		}
	}
	s.state = now
	return now, nil
}

// mostConsumers bounds how many registered consumers are counted for one look.
const mostConsumers = 100

// list reads the consumers of this process and the registered consumers, by name.
func (s *inboxSource) list(ctx context.Context) ([]consumerState, error) {
	here, err := s.Operator.Stats(ctx)
	if err != nil {
		return nil, err
	}
	states := make(map[string]*consumerState)
	for name, stats := range here {
		states[name] = &consumerState{Name: name, Here: true, Stats: stats}
	}
	if s.registry != nil && s.counts != nil {
		registered, err := s.registry.Consumers(ctx)
		if err != nil {
			return nil, err
		}
		for i := range registered[:min(len(registered), mostConsumers)] {
			if err := s.count(ctx, states, &registered[i]); err != nil {
				return nil, fmt.Errorf("consumer %s: %w", registered[i].Name, err)
			}
		}
	}
	list := make([]consumerState, 0, len(states))
	for _, c := range states {
		list = append(list, *c)
	}
	slices.SortFunc(list, func(a, b consumerState) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (s *inboxSource) count(ctx context.Context, states map[string]*consumerState, c *audit.Consumer) (err error) {
	if known := states[c.Name]; known != nil {
		known.RegisteredAt = c.RegisteredAt
		return nil
	}
	state := &consumerState{Name: c.Name, RegisteredAt: c.RegisteredAt}
	if state.Stats, err = s.counts.InboxStats(ctx, c.ID); err == nil {
		state.Stats.Effects, err = s.counts.EffectStats(ctx, c.ID)
	}
	states[c.Name] = state
	return err
}

// outboxNamed returns the outboxes with the name, or all if the name is empty.
func (h *Handler) outboxNamed(name string) ([]*outboxSource, error) {
	if name == "" {
		return h.outboxes, nil
	}
	for _, o := range h.outboxes {
		if o.Name == name {
			return []*outboxSource{o}, nil
		}
	}
	return nil, &failure{404, "There is no such outbox."}
}

// inboxNamed returns the inboxes with the name, or all if the name is empty.
func (h *Handler) inboxNamed(name string) ([]*inboxSource, error) {
	if name == "" {
		return h.inboxes, nil
	}
	for _, in := range h.inboxes {
		if in.Name == name {
			return []*inboxSource{in}, nil
		}
	}
	return nil, &failure{404, "There is no such inbox."}
}
