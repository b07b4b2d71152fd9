package telemetry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// The names of attributes that the semantic conventions lack.
const (
	attrOutbox  = attribute.Key("boxpair.outbox")
	attrRelay   = attribute.Key("boxpair.relay")
	attrState   = attribute.Key("boxpair.state")
	attrOutcome = attribute.Key("boxpair.outcome")
	attrKind    = attribute.Key("boxpair.kind")
)

// readers is how many databases are read at once.
const readers = 4

// OutboxStats reads the state of an outbox. [producer.Outbox] and every store implement it.
type OutboxStats interface {
	// Stats reads the state of the outbox from the database. It may be called at any time, from any
	// goroutine.
	Stats(ctx context.Context) (outbox.Stats, error)
}

// RelayHealth returns the state of a relay. [relay.Relay] implements it.
type RelayHealth interface {
	// Health returns the relay's state without I/O.
	Health() relay.Health
}

// JanitorTotals counts the rows that a janitor has removed. [producer.Janitor] implements it.
type JanitorTotals interface {
	// Totals returns the numbers of rows that all passes have removed, without I/O.
	Totals() producer.JanitorReport
}

// Consumer returns the state of a consumer. [consumer.Handler] implements it.
type Consumer interface {
	// Name returns the consumer's name.
	Name() string
	// Counters counts the consumer's messages in this process, without I/O.
	Counters() consumer.Counters
	// Stats reads the state of the consumer's inbox from the database.
	Stats(ctx context.Context) (inbox.Stats, error)
}

// source reads a state from a database.
type source struct {
	name string
	busy atomic.Bool // a read is running, perhaps for an earlier collection
	read func(ctx context.Context) (observe func(o metric.Observer), err error)
}

// WatchOutbox observes the state of an outbox, with one read of the database per collection, under
// the attribute boxpair.outbox = name. All processes that watch one outbox observe the same state:
// take the maximum, or let one process watch. A second outbox of the same name is an error.
func (t *Telemetry) WatchOutbox(name string, o OutboxStats) error {
	i, who := t.instruments, attrOutbox.String(name)
	only := metric.WithAttributeSet(attribute.NewSet(who))
	return t.watch("outbox", name, o == nil, nil, &source{read: func(ctx context.Context) (func(metric.Observer), error) {
		s, err := o.Stats(ctx)
		pauses := t.pausesOf(ctx, name, o)
		return func(o metric.Observer) {
			observeBy(o, i.outboxPauses, who, attrKind, pauses)
			o.ObserveInt64(i.unsent, s.Pending+s.Retrying+s.Following, only)
			o.ObserveFloat64(i.maxAge, s.OldestPending.Seconds(), only)
			o.ObserveInt64(i.outboxRelays, int64(s.Relays), only)
			o.ObserveInt64(i.pending, s.Pending, only)
			o.ObserveFloat64(i.age, s.OldestPending.Seconds(), only)
			o.ObserveInt64(i.deferred, s.Deferred, only)
			o.ObserveInt64(i.outboxOwned, int64(s.Owned), only)
			observeBy(o, i.outboxParked, who, attrState, []labelled{
				{"retrying", s.Retrying}, {"following", s.Following}, {"dead", s.Dead},
			})
		}, err
	}})
}

// pausesOf counts the pauses of an outbox by kind, if o can list them. They are worth no error: a
// store without the table of pauses has none.
func (t *Telemetry) pausesOf(ctx context.Context, name string, o OutboxStats) []labelled {
	lister, ok := o.(interface {
		Pauses(ctx context.Context) ([]control.Pause, error)
	})
	if !ok {
		return nil
	}
	list, err := lister.Pauses(ctx)
	if err != nil {
		t.cfg.Logger.WarnContext(ctx, "pauses cannot be read for metrics", "of", "outbox "+name, "error", err)
		return nil
	}
	n := map[control.Kind]int64{}
	for i := range list {
		n[list[i].Kind]++
	}
	return []labelled{{string(control.Topic), n[control.Topic]}, {string(control.Downstream), n[control.Downstream]}}
}

// WatchRelay observes the state of a relay under the attribute boxpair.relay = name. name need not
// be the relay's own: a name that survives a restart keeps the number of series small. Collections
// do no I/O for a relay.
func (t *Telemetry) WatchRelay(name string, r RelayHealth) error {
	i, who := t.instruments, attrRelay.String(name)
	only := metric.WithAttributeSet(attribute.NewSet(who))
	return t.watch("relay", name, r == nil, func(o metric.Observer) {
		h := r.Health()
		o.ObserveInt64(i.relayInFlight, int64(h.InFlight), only)
		o.ObserveInt64(i.relayWaiting, int64(h.Waiting), only)
		o.ObserveInt64(i.relayShards, int64(h.Shards), only)
		o.ObserveInt64(i.relayStalled, stalled(h.Routes), only)
		o.ObserveInt64(i.relayReads, h.Reads, only)
		o.ObserveFloat64(i.relayReadTime, h.ReadTime.Seconds(), only)
		o.ObserveInt64(i.relayProblems, int64(len(health.Relay(h, 0))), only)
		o.ObserveInt64(i.relayUnmarked, int64(h.Unmarked), only)
		o.ObserveInt64(i.relayLimited, int64(h.Limited), only)
		o.ObserveInt64(i.relayDropped, h.NoticesDropped, only)
		o.ObserveFloat64(i.relayOldest, since(h.OldestInFlight), only)
		o.ObserveFloat64(i.relayHeld, since(h.HeldSince), only)
		n := map[outbox.RouteState]int64{}
		for i := range h.Routes {
			n[h.Routes[i].State]++
		}
		for _, state := range []outbox.RouteState{outbox.RouteRefusing, outbox.RouteUnavailable, outbox.RoutePaused} {
			o.ObserveInt64(i.relayRoutes, n[state], metric.WithAttributes(who, attrState.String(string(state))))
		}
		for kind, at := range map[string]time.Time{
			"read": h.LastRead, "renewal": h.LastRenewal, "mark": h.LastMark, "confirm": h.LastConfirm, "failover": h.FailedOverAt,
		} {
			if !at.IsZero() {
				o.ObserveFloat64(i.relayLast, unix(at), metric.WithAttributes(who, attrKind.String(kind)))
			}
		}
	}, nil)
}

// since returns the seconds since a time, and 0 if the time is zero.
func since(at time.Time) float64 {
	if at.IsZero() {
		return 0
	}
	return max(0, time.Since(at).Seconds())
}

func unix(at time.Time) float64 { return float64(at.UnixMilli()) / 1000 }

// stalled counts the routes that do not work. A pause is an operator's wish, and no cause for an alert.
func stalled(routes []relay.RouteHealth) (n int64) {
	for i := range routes {
		if routes[i].State != outbox.RoutePaused {
			n++
		}
	}
	return n
}

// WatchJanitor counts the rows that a janitor of the outbox name removes, without I/O.
func (t *Telemetry) WatchJanitor(name string, j JanitorTotals) error {
	who := attrOutbox.String(name)
	return t.watch("janitor", name, j == nil, func(o metric.Observer) {
		r := j.Totals()
		observeBy(o, t.instruments.retained, who, attrKind, []labelled{
			{"event", r.Events}, {"attempt", r.Attempts}, {"receipt", r.Receipts},
		})
	}, nil)
}

// WatchConsumer observes the counters of a consumer and the state of its inbox, with one read of
// the database per collection, under the attribute messaging.consumer.group.name = the consumer's
// name. The first collection registers a consumer that has not seen a message yet.
func (t *Telemetry) WatchConsumer(c Consumer) error {
	if c == nil {
		return errors.New("watch consumer: is nil")
	}
	who := semconv.MessagingConsumerGroupName(c.Name())
	return t.watch("consumer", c.Name(), false, t.countsOf(c, who), t.stateOf(c, who))
}

// countsOf observes the counters of a consumer in this process.
func (t *Telemetry) countsOf(c Consumer, who attribute.KeyValue) func(metric.Observer) {
	i, only := t.instruments, metric.WithAttributeSet(attribute.NewSet(who))
	outside, _ := c.(interface{ Effects() effects.Counters }) // an effects.Handler
	return func(o metric.Observer) {
		n := c.Counters()
		if outside != nil {
			e := outside.Effects()
			observeBy(o, i.effectRuns, who, attrOutcome, []labelled{{"done", e.Done}, {"failed", e.Failed}})
		}
		o.ObserveInt64(i.hits, n.DuplicatesByWindow, only)
		o.ObserveInt64(i.forgotten, n.Forgotten, only)
		o.ObserveInt64(i.paused, n.Paused, only)
		o.ObserveInt64(i.held, n.Held, only)
		o.ObserveInt64(i.groups, n.Groups, only)
		o.ObserveInt64(i.dropped, n.NoticesDropped, only)
		observeBy(o, i.inboxFailures, who, attrKind, []labelled{
			{"attempt", n.Failed}, {"panic", n.Panics}, {"database", n.DatabaseErrors},
			{"commit_unknown", n.CommitsUnknown}, {"group_undone", n.GroupsUndone},
		})
		observeBy(o, i.odd, who, attrKind, []labelled{
			{"unreadable", n.Refused}, {"unstamped", n.Unstamped}, {"ahead", n.Ahead}, {"short_window", n.ShortWindow}, {"suspect", n.SoloStarts},
		})
		observeBy(o, i.messages, who, attrOutcome, []labelled{
			{"applied", n.Applied}, {"duplicate", n.Duplicates()}, {"stored", n.Stored}, {"parked", n.Parked}, {"followed", n.Followed},
			{"dead", n.Dead}, {"too_old", n.TooOld}, {"altered", n.Altered}, {"returned", n.Returned},
		})
	}
}

// stateOf observes the state of a consumer's inbox.
func (t *Telemetry) stateOf(c Consumer, who attribute.KeyValue) *source {
	i, only := t.instruments, metric.WithAttributeSet(attribute.NewSet(who))
	return &source{read: func(ctx context.Context) (func(metric.Observer), error) {
		s, err := c.Stats(ctx)
		return func(o metric.Observer) {
			o.ObserveInt64(i.dead, s.Dead, only)
			o.ObserveFloat64(i.oldestParked, s.OldestParked.Seconds(), only)
			o.ObserveFloat64(i.oldestEffect, s.Effects.Oldest.Seconds(), only)
			o.ObserveFloat64(i.horizon, s.Horizon.Seconds(), only)
			observeBy(o, i.inboxParked, who, attrState, []labelled{
				{"retrying", s.Retrying}, {"following", s.Following}, {"dead", s.Dead}, {"too_old", s.TooOld}, {"altered", s.Altered},
			})
			observeBy(o, i.effects, who, attrState, []labelled{
				{"pending", s.Effects.Pending}, {"doing", s.Effects.Doing}, {"answered", s.Effects.Answered},
				{"uncertain", s.Effects.Uncertain}, {"dead", s.Effects.Dead},
			})
		}, err
	}}
}

// Audited measures the result of an audit: how many findings of each kind there are, zeros included,
// and until when it has compared. A service that runs audits calls it after each one.
func (t *Telemetry) Audited(ctx context.Context, r *audit.Report) {
	for _, kind := range audit.Kinds() {
		t.instruments.findings.Record(ctx, int64(r.Findings[kind]), metric.WithAttributes(attrKind.String(string(kind))))
	}
	t.instruments.auditedAt.Record(ctx, unix(r.Until))
}

// labelled is the number of one state, outcome or kind.
type labelled struct {
	label string
	n     int64
}

// observeBy observes one number for each label.
func observeBy(o metric.Observer, i metric.Int64Observable, who attribute.KeyValue, key attribute.Key, numbers []labelled) {
	for _, n := range numbers {
		o.ObserveInt64(i, n.n, metric.WithAttributes(who, key.String(n.label)))
	}
}

// watch adds observations to the collections.
func (t *Telemetry) watch(kind, name string, missing bool, count func(metric.Observer), read *source) error {
	full := kind + " " + name
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case missing:
		return fmt.Errorf("watch %s: is nil", full)
	case name == "":
		return fmt.Errorf("watch %s: name is empty", kind)
	case t.shutdown:
		return fmt.Errorf("watch %s: %w", full, ErrShutdown)
	case t.watched[full]:
		return fmt.Errorf("watch %s: is watched already", full)
	}
	t.watched[full] = true
	if count != nil {
		t.counts = append(t.counts, count)
	}
	if read != nil {
		read.name = full
		t.reads = append(t.reads, read)
	}
	return nil
}

// collect observes all watched states. It returns no error: if one callback fails, readers drop all
// metrics of a service, for example of its runtime and its requests.
func (t *Telemetry) collect(ctx context.Context, o metric.Observer) error {
	ctx, cancel := context.WithTimeout(ctx, t.cfg.StatsTimeout)
	defer cancel()
	counts, answers, n := t.begin(ctx)
	for _, count := range counts {
		count(o)
	}
	for range n {
		select {
		case observe := <-answers:
			if observe != nil {
				observe(o)
			}
		case <-ctx.Done():
			t.cfg.Logger.WarnContext(ctx, "some states are missing in a collection of metrics: timeout", "error", context.Cause(ctx))
			return nil
		}
	}
	return nil
}

// begin starts the reads that are not already running, and returns the channel of their answers.
func (t *Telemetry) begin(ctx context.Context) (counts []func(metric.Observer), answers <-chan func(metric.Observer), n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shutdown {
		return nil, nil, 0
	}
	todo := make(chan *source, len(t.reads))
	for _, s := range t.reads {
		if s.busy.CompareAndSwap(false, true) {
			todo <- s
		} else {
			t.cfg.Logger.WarnContext(ctx, "state is still being read for an earlier collection of metrics", "of", s.name)
		}
	}
	close(todo)
	n = len(todo)
	out := make(chan func(metric.Observer), n) // buffered: a late read must not block when the collection is over
	for range min(n, readers) {
		t.tasks.Go(func() {
			for s := range todo {
				out <- t.ask(ctx, s)
			}
		})
	}
	return t.counts[:len(t.counts):len(t.counts)], out, n
}

// ask reads one state, or returns nil if the read failed.
func (t *Telemetry) ask(ctx context.Context, s *source) func(metric.Observer) {
	defer s.busy.Store(false)
	if ctx.Err() != nil {
		return nil
	}
	observe, err := s.read(ctx)
	if err != nil {
		t.cfg.Logger.WarnContext(ctx, "state cannot be read for metrics", "of", s.name, "error", err)
		return nil
	}
	return observe
}
