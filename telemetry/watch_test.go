package telemetry_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/consumer/effects"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport"
)

// invalid is a sender that refuses the messages of one topic for good.
type invalid struct {
	transport.Sender
	topic string
}

func (i invalid) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	if topic == i.topic {
		done(transport.Result{Outcome: transport.Invalid, Err: errors.New("not to be encoded")})
		return
	}
	i.Sender.Send(ctx, topic, msg, done)
}

// TestInstrumentsTellWhatWasDone does a known amount of work on both sides.
func TestInstrumentsTellWhatWasDone(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	fail := func(_ context.Context, _ *work, msg *message.Message) error {
		if strings.HasPrefix(string(msg.Payload), "payload of bad") {
			return consumer.Reject(errNoStock)
		}
		return nil
	}
	ship := s.handle("ship", "order.placed", consumer.HandlerConfig{}, fail)
	janitor, err := producer.NewJanitor(s.store, producer.JanitorConfig{Retention: time.Second})
	ok(t, err)
	idle, err := relay.New(s.outbox, s.broker, relay.Config{})
	ok(t, err)
	ok(t, s.tel.WatchOutbox("shop", s.outbox))
	ok(t, s.tel.WatchJanitor("shop", janitor))
	ok(t, s.tel.WatchRelay("shop", idle))
	ok(t, s.tel.WatchConsumer(ship))
	s.start()

	later := order("order.placed", "later")
	later.DeliverAt = time.Now().Add(time.Hour)
	s.write(t.Context(), order("order.placed", "1"), order("order.placed", "2"), order("order.placed", "bad"), order("order.lost", "4"), later)
	s.want("boxpair.outbox.pending", map[string]float64{"shop": 4})
	s.want("boxpair.outbox.deferred", map[string]float64{"shop": 1})
	s.want("boxpair.outbox.attempts", nil)

	s.relay(invalid{s.broker, "order.lost"}, relay.Config{})
	s.want("boxpair.outbox.pending", map[string]float64{"shop": 0})
	s.want("boxpair.outbox.age", map[string]float64{"shop": 0})
	s.want("boxpair.outbox.parked", map[string]float64{"dead shop": 1, "retrying shop": 0, "following shop": 0})
	s.want("boxpair.outbox.attempts", map[string]float64{"confirmed order.placed": 3, "invalid order.lost": 1})
	s.want("boxpair.outbox.publish.duration", map[string]float64{"confirmed order.placed": 3, "invalid order.lost": 1})
	s.want("boxpair.outbox.delivery.latency", map[string]float64{"order.placed": 3})
	s.want("boxpair.relay.shards", map[string]float64{"shop": 0})
	s.want("boxpair.inbox.messages", map[string]float64{"applied warehouse/ship": 2, "dead warehouse/ship": 1, "duplicate warehouse/ship": 0})
	s.want("boxpair.inbox.dead", map[string]float64{"warehouse/ship": 1})
	s.want("boxpair.inbox.parked", map[string]float64{"dead warehouse/ship": 1, "retrying warehouse/ship": 0})
	s.want("boxpair.inbox.effects", map[string]float64{"uncertain warehouse/ship": 0})
	s.want("boxpair.inbox.handler.duration", map[string]float64{"order.placed warehouse/ship": 2, "*consumer.rejection order.placed warehouse/ship": 1})

	_, err = s.outbox.Replay(t.Context(), producer.Replay{Selection: outbox.Selection{Topic: "order.placed"}})
	ok(t, err)
	s.relay(s.broker, relay.Config{})
	s.want("boxpair.inbox.messages", map[string]float64{"applied warehouse/ship": 2, "duplicate warehouse/ship": 3})
	s.want("boxpair.inbox.window.hits", map[string]float64{"warehouse/ship": 3})
	s.want("boxpair.outbox.attempts", map[string]float64{"confirmed order.placed": 6})
}

// counted returns fixed numbers without a database.
type counted struct{}

func (counted) Totals() producer.JanitorReport {
	return producer.JanitorReport{Events: 5, Attempts: 6, Receipts: 7}
}

func (counted) Health() relay.Health {
	routes := make([]relay.RouteHealth, 4, 5)
	routes[0].State, routes[1].State, routes[2].State, routes[3].State = outbox.RouteRefusing, outbox.RouteUnavailable, outbox.RouteUnavailable, outbox.RouteUnavailable
	routes = append(routes, relay.RouteHealth{State: outbox.RoutePaused}) // not stalled
	at := time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)
	return relay.Health{
		Running: true, InFlight: 1, Waiting: 2, Shards: 3, Routes: routes, Reads: 5, ReadTime: 6 * time.Second,
		Unmarked: 7, Limited: 8, NoticesDropped: 9, DatabaseError: "down", DatabaseErrorAt: time.Now(), LastRead: at,
		LastRenewal: at.Add(time.Second), LastMark: at.Add(2 * time.Second), LastConfirm: at.Add(2500 * time.Millisecond),
	}
}

func (counted) Pauses(context.Context) ([]control.Pause, error) {
	return []control.Pause{{Kind: control.Topic, Name: "a"}, {Kind: control.Downstream, Name: "b"}, {Kind: control.Downstream, Name: "c"}}, nil
}

func (counted) Stats(context.Context) (outbox.Stats, error) {
	return outbox.Stats{OldestPending: 1500 * time.Millisecond, Retrying: 1, Following: 2, Dead: 3, Owned: 64, Pending: 10, Relays: 4}, nil
}

type parked struct{}

func (parked) Name() string { return "s/c" }

func (parked) Counters() consumer.Counters {
	return consumer.Counters{
		Applied: 1, DuplicatesByWindow: 2, DuplicatesByTable: 3, Parked: 4, Followed: 5, Dead: 6, Refused: 1,
		TooOld: 7, Altered: 8, Returned: 9, Forgotten: 10, Paused: 11, Stored: 12,
		Failed: 13, Panics: 14, DatabaseErrors: 15, CommitsUnknown: 16, SoloStarts: 17, Groups: 18, GroupsUndone: 19, Held: 20,
		Unstamped: 21, Ahead: 22, ShortWindow: 23, NoticesDropped: 24,
	}
}

func (parked) Effects() effects.Counters { return effects.Counters{Done: 25, Failed: 26} }

func (parked) Stats(context.Context) (inbox.Stats, error) {
	return inbox.Stats{
		Retrying: 1, Following: 2, Dead: 3, TooOld: 4, Altered: 5, OldestParked: 2 * time.Second, Horizon: time.Hour,
		Effects: inbox.EffectStats{Pending: 1, Doing: 2, Answered: 3, Uncertain: 4, Dead: 5, Oldest: 3 * time.Second},
	}, nil
}

// TestEveryNumberHasItsPlace uses numbers that are all different.
func TestEveryNumberHasItsPlace(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	tel := x.telemetry(telemetry.Config{})
	ok(t, tel.WatchOutbox("o", counted{}))
	ok(t, tel.WatchJanitor("o", counted{}))
	ok(t, tel.WatchRelay("r", counted{}))
	ok(t, tel.WatchConsumer(parked{}))
	tel.Audited(t.Context(), &audit.Report{Until: time.Unix(1000, 0), Findings: map[audit.Kind]int{audit.NotApplied: 3}})
	at := float64(time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC).Unix())
	for name, values := range map[string]map[string]float64{
		"boxpair.outbox.age":               {"o": 1.5},
		"boxpair.outbox.parked":            {"o retrying": 1, "following o": 2, "dead o": 3},
		"outbox.unsent.count":              {"o": 13},
		"outbox.max_age":                   {"o": 1.5},
		"boxpair.outbox.relays":            {"o": 4},
		"boxpair.outbox.pauses":            {"o topic": 1, "downstream o": 2},
		"boxpair.outbox.shards.owned":      {"o": 64},
		"boxpair.outbox.retention.deleted": {"event o": 5, "attempt o": 6, "o receipt": 7},
		"boxpair.relay.in_flight":          {"r": 1},
		"boxpair.relay.waiting":            {"r": 2},
		"boxpair.relay.shards":             {"r": 3},
		"boxpair.relay.routes.stalled":     {"r": 4},
		"boxpair.relay.routes":             {"r refusing": 1, "r unavailable": 3, "paused r": 1},
		"boxpair.relay.problems":           {"r": 2},
		"boxpair.relay.unmarked":           {"r": 7},
		"boxpair.relay.limited":            {"r": 8},
		"boxpair.relay.notices.dropped":    {"r": 9},
		"boxpair.relay.in_flight.age":      {"r": 0},
		"boxpair.relay.held.age":           {"r": 0},
		"boxpair.relay.last.timestamp":     {"r read": at, "r renewal": at + 1, "mark r": at + 2, "confirm r": at + 2.5},
		"boxpair.relay.reads":              {"r": 5},
		"boxpair.relay.reads.time":         {"r": 6},
		"boxpair.inbox.messages": {
			"applied s/c": 1, "duplicate s/c": 5, "parked s/c": 4, "followed s/c": 5, "dead s/c": 6, "s/c too_old": 7, "altered s/c": 8, "returned s/c": 9, "s/c stored": 12,
		},
		"boxpair.inbox.failures":         {"attempt s/c": 13, "panic s/c": 14, "database s/c": 15, "commit_unknown s/c": 16, "group_undone s/c": 19},
		"boxpair.inbox.unusual":          {"s/c unreadable": 1, "s/c unstamped": 21, "ahead s/c": 22, "s/c short_window": 23, "s/c suspect": 17},
		"boxpair.inbox.groups":           {"s/c": 18},
		"boxpair.inbox.held":             {"s/c": 20},
		"boxpair.inbox.notices.dropped":  {"s/c": 24},
		"boxpair.inbox.effects.attempts": {"done s/c": 25, "failed s/c": 26},
		"boxpair.inbox.effects.age":      {"s/c": 3},
		"boxpair.inbox.horizon":          {"s/c": 3600},
		"boxpair.audit.last.timestamp":   {"": 1000},
		"boxpair.audit.findings": {
			"not_applied": 3, "not_committed": 0, "digest_differs": 0, "pending": 0, "parked": 0, "dead": 0, "too_old": 0,
			"altered": 0, "discarded": 0, "log_missing": 0,
		},
		"boxpair.inbox.window.hits": {"s/c": 2},
		"boxpair.inbox.forgotten":   {"s/c": 10},
		"boxpair.inbox.paused":      {"s/c": 11},
		"boxpair.inbox.dead":        {"s/c": 3},
		"boxpair.inbox.parked":      {"retrying s/c": 1, "following s/c": 2, "dead s/c": 3, "s/c too_old": 4, "altered s/c": 5},
		"boxpair.inbox.parked.age":  {"s/c": 2},
		"boxpair.inbox.effects":     {"pending s/c": 1, "doing s/c": 2, "answered s/c": 3, "s/c uncertain": 4, "dead s/c": 5},
	} {
		x.want(name, values)
		if n := len(x.everything()[name]); n != len(values) {
			t.Errorf("%s has %d values, want %d", name, n, len(values))
		}
	}
}

// stats is an outbox whose database answers on demand.
type stats struct {
	asked  atomic.Int64
	answer func(ctx context.Context) (outbox.Stats, error)
}

func (s *stats) Stats(ctx context.Context) (outbox.Stats, error) {
	s.asked.Add(1)
	return s.answer(ctx)
}

// TestDatabaseThatDoesNotAnswerHoldsUpNoCollection, even if it ignores the end of its context.
func TestDatabaseThatDoesNotAnswerHoldsUpNoCollection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newExported(t)
		tel := x.telemetry(telemetry.Config{StatsTimeout: 3 * time.Second})
		free := make(chan struct{})
		stuck := &stats{answer: func(context.Context) (outbox.Stats, error) {
			<-free
			return outbox.Stats{Pending: 9}, nil
		}}
		well := &stats{answer: func(context.Context) (outbox.Stats, error) { return outbox.Stats{Pending: 7}, nil }}
		down := &stats{answer: func(context.Context) (outbox.Stats, error) { return outbox.Stats{}, errors.New("database is down") }}
		ok(t, tel.WatchOutbox("stuck", stuck))
		ok(t, tel.WatchOutbox("down", down))
		ok(t, tel.WatchOutbox("well", well))
		for range 2 {
			begun := time.Now()
			got := x.everything()["boxpair.outbox.pending"]
			if len(got) != 1 || got["well"] != 7 {
				t.Errorf("collected %v", got)
			}
			if took := time.Since(begun); took > 3*time.Second {
				t.Errorf("a collection took %v", took)
			}
		}
		if n := stuck.asked.Load(); n != 1 {
			t.Errorf("the database that does not answer was asked %d times", n)
		}
		if n := well.asked.Load(); n != 2 {
			t.Errorf("the one that does was asked %d times in two collections", n)
		}
		close(free)
		synctest.Wait()
		if got := x.everything()["boxpair.outbox.pending"]; got["stuck"] != 9 || got["well"] != 7 {
			t.Errorf("collected %v after it has answered", got)
		}
	})
}

// TestManyDatabasesAreAskedAFewAtATime: a collection takes only a few connections of a pool.
func TestManyDatabasesAreAskedAFewAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newExported(t)
		tel := x.telemetry(telemetry.Config{})
		var now, most atomic.Int64
		for _, name := range strings.Split("abcdefghijkl", "") {
			ok(t, tel.WatchOutbox(name, &stats{answer: func(context.Context) (outbox.Stats, error) {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(100 * time.Millisecond)
				now.Add(-1)
				return outbox.Stats{Pending: 1}, nil
			}}))
		}
		if n := len(x.everything()["boxpair.outbox.pending"]); n != 12 {
			t.Errorf("%d of 12 have answered", n)
		}
		if n := most.Load(); n != 4 {
			t.Errorf("%d were asked at once, want 4", n)
		}
	})
}

func TestShutdownEndsWatching(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newExported(t)
		tel, err := telemetry.New(telemetry.Config{TracerProvider: x.tracer, MeterProvider: x.meter, StatsTimeout: time.Second})
		ok(t, err)
		free := make(chan struct{})
		outbox := &stats{answer: func(context.Context) (outbox.Stats, error) {
			<-free
			return outbox.Stats{}, nil
		}}
		ok(t, tel.WatchOutbox("shop", outbox))
		x.everything()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tel.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown did not wait for the read: %v", err)
		}
		close(free)
		ok(t, tel.Shutdown(t.Context()))
		x.everything()
		if n := outbox.asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
		if err := tel.WatchOutbox("late", outbox); !errors.Is(err, telemetry.ErrShutdown) {
			t.Errorf("watching after the end: %v", err)
		}
	})
}

func TestNamesAreWatchedOnce(t *testing.T) {
	t.Parallel()
	tel := newExported(t).telemetry(telemetry.Config{})
	outbox := &stats{}
	ok(t, tel.WatchOutbox("shop", outbox))
	for name, err := range map[string]error{
		"again":  tel.WatchOutbox("shop", outbox),
		"no":     tel.WatchOutbox("", outbox),
		"nil":    tel.WatchOutbox("other", nil),
		"relay":  tel.WatchRelay("other", nil),
		"clean":  tel.WatchJanitor("other", nil),
		"handle": tel.WatchConsumer(nil),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestEverythingWrongWithAConfigurationIsNamed(t *testing.T) {
	t.Parallel()
	_, err := telemetry.New(telemetry.Config{StatsTimeout: -1, System: strings.Repeat("x", 256)})
	if err == nil || !strings.Contains(err.Error(), "StatsTimeout: ") || !strings.Contains(err.Error(), "System: ") {
		t.Errorf("got %v", err)
	}
}

// TestInstrumentsAreAsDocumented compares the names and units in docs/telemetry.md with the
// instruments.
func TestInstrumentsAreAsDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/telemetry.md")
	ok(t, err)
	documented := make(map[string]string)
	for _, row := range regexp.MustCompile("(?m)^\\| `((?:boxpair|outbox)[a-z._]+)` \\| ([^|]+) \\| ([^|]+) \\|").FindAllStringSubmatch(string(text), -1) {
		documented[row[1]] = strings.TrimSpace(row[3])
	}
	x := newExported(t)
	tel := x.telemetry(telemetry.Config{})
	ok(t, tel.WatchOutbox("o", counted{}))
	ok(t, tel.WatchJanitor("o", counted{}))
	ok(t, tel.WatchRelay("r", counted{}))
	ok(t, tel.WatchConsumer(parked{}))
	tel.Audited(t.Context(), &audit.Report{})
	msg := message.NewMessage(uuid.NewString(), nil)
	msg.Metadata[transport.MetaStamp] = "2026-01-31T12:00:00Z"
	ok(t, tel.Publisher(answering{func() error { return nil }}).Publish("a", msg))
	_, err = tel.Middleware("c")(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
	ok(t, err)
	var rm metricdata.ResourceMetrics
	ok(t, x.reader.Collect(t.Context(), &rm))
	there := make(map[string]string)
	for _, m := range rm.ScopeMetrics[0].Metrics {
		there[m.Name] = m.Unit
		if m.Description == "" {
			t.Errorf("%s has no description", m.Name)
		}
	}
	if !maps.Equal(there, documented) {
		t.Errorf("there is\n%v\ndocumented is\n%v", there, documented)
	}
}

// TestTimesOfARelayBecomeAges, and a time that has not come is no age.
func TestTimesOfARelayBecomeAges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x := newExported(t)
		ok(t, x.telemetry(telemetry.Config{}).WatchRelay("r", held{time.Now()}))
		time.Sleep(1500 * time.Millisecond)
		x.want("boxpair.relay.in_flight.age", map[string]float64{"r": 1.5})
		x.want("boxpair.relay.held.age", map[string]float64{"r": 1.5})
		x.want("boxpair.relay.problems", map[string]float64{"r": 1}) // it does not run
		if got := x.everything()["boxpair.relay.last.timestamp"]; len(got) != 1 || got["failover r"] == 0 {
			t.Errorf("times: %v", got)
		}
	})
}

type held struct{ since time.Time }

func (h held) Health() relay.Health {
	return relay.Health{OldestInFlight: h.since, HeldSince: h.since, FailedOverAt: h.since, LastRenewal: time.Time{}}
}
