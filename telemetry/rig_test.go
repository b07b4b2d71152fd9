package telemetry_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/sqlite"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type (
	handler = consumer.HandlerFunc[*sql.Tx]
	work    = consumer.Work[*sql.Tx]
	writer  = producer.Writer[*sql.Tx]
)

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// exported is an SDK that keeps its data.
type exported struct {
	t      testing.TB
	spans  *tracetest.SpanRecorder
	tracer *sdktrace.TracerProvider
	reader *sdkmetric.ManualReader
	meter  *sdkmetric.MeterProvider
}

func newExported(t testing.TB) *exported {
	x := &exported{t: t, spans: tracetest.NewSpanRecorder(), reader: sdkmetric.NewManualReader()}
	x.tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(x.spans))
	x.meter = sdkmetric.NewMeterProvider(sdkmetric.WithReader(x.reader))
	return x
}

// telemetry returns a Telemetry that exports to x.
func (x *exported) telemetry(cfg telemetry.Config) *telemetry.Telemetry {
	x.t.Helper()
	cfg.TracerProvider, cfg.MeterProvider = x.tracer, x.meter
	tel, err := telemetry.New(cfg)
	ok(x.t, err)
	x.t.Cleanup(func() { ok(x.t, tel.Shutdown(context.Background())) })
	return tel
}

// named returns the ended spans with a name, in the order of their ends.
func (x *exported) named(name string) []sdktrace.ReadOnlySpan {
	var found []sdktrace.ReadOnlySpan
	for _, s := range x.spans.Ended() {
		if s.Name() == name {
			found = append(found, s)
		}
	}
	return found
}

// one returns the only span with a name.
func (x *exported) one(name string) sdktrace.ReadOnlySpan {
	x.t.Helper()
	found := x.named(name)
	if len(found) != 1 {
		x.t.Fatalf("%d spans %q, want 1", len(found), name)
	}
	return found[0]
}

// everything returns one collection, by instrument and by the values of the attributes without
// messaging.system: sums, gauges, and the counts of histograms.
func (x *exported) everything() map[string]map[string]float64 {
	x.t.Helper()
	var rm metricdata.ResourceMetrics
	ok(x.t, x.reader.Collect(context.Background(), &rm))
	all := make(map[string]map[string]float64)
	for _, scope := range rm.ScopeMetrics {
		for _, m := range scope.Metrics {
			all[m.Name] = x.values(m)
		}
	}
	return all
}

func (x *exported) values(m metricdata.Metrics) map[string]float64 {
	x.t.Helper()
	values := make(map[string]float64)
	switch d := m.Data.(type) {
	case metricdata.Sum[int64]:
		take(values, d.DataPoints)
	case metricdata.Sum[float64]:
		take(values, d.DataPoints)
	case metricdata.Gauge[int64]:
		take(values, d.DataPoints)
	case metricdata.Gauge[float64]:
		take(values, d.DataPoints)
	case metricdata.Histogram[float64]:
		for _, p := range d.DataPoints {
			values[label(p.Attributes)] = float64(p.Count)
		}
	default:
		x.t.Fatalf("%s is a %T", m.Name, d)
	}
	return values
}

func take[N int64 | float64](values map[string]float64, points []metricdata.DataPoint[N]) {
	for _, p := range points {
		values[label(p.Attributes)] = float64(p.Value)
	}
}

func label(set attribute.Set) string {
	var parts []string
	for _, kv := range set.ToSlice() {
		if kv.Key != "messaging.system" {
			parts = append(parts, kv.Value.String())
		}
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

// want compares some values of an instrument.
func (x *exported) want(name string, want map[string]float64) {
	x.t.Helper()
	got := x.everything()[name]
	for key, n := range want {
		if v, there := got[key]; !there || v != n {
			x.t.Errorf("%s{%s} is %v (there: %t), want %v; all: %v", name, key, v, there, n, got)
		}
	}
}

// service is an outbox and an inbox on one SQLite file, with a broker between them.
type service struct {
	*exported
	tel    *telemetry.Telemetry
	db     *sql.DB
	store  *sqlite.Store
	outbox *producer.Outbox[*sql.Tx]
	inbox  *consumer.Inbox[*sql.Tx]
	broker *memory.Broker
	router *message.Router
}

func newService(t testing.TB, cfg consumer.Config) *service {
	t.Helper()
	s := &service{exported: newExported(t)}
	s.tel = s.telemetry(telemetry.Config{System: "memory", StatsTimeout: time.Minute})
	var err error
	s.db, err = sqlite.Open(filepath.Join(t.TempDir(), "service.db"))
	ok(t, err)
	t.Cleanup(func() { _ = s.db.Close() })
	_, err = sqlite.Migrate(t.Context(), s.db, sqlite.Config{})
	ok(t, err)
	s.store, err = sqlite.New(s.db, sqlite.Config{})
	ok(t, err)
	s.outbox, err = producer.New(s.store, producer.Config{Name: "shop"})
	ok(t, err)
	cfg.Service = "warehouse"
	s.inbox, err = consumer.New(s.store, cfg, consumer.WithOutbox(s.outbox))
	ok(t, err)
	s.broker, err = memory.New(memory.Config{})
	ok(t, err)
	s.router, err = message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	ok(t, err)
	return s
}

// handle makes fn the handler of a topic.
func (s *service) handle(name, topic string, cfg consumer.HandlerConfig, fn handler) *consumer.Handler[*sql.Tx] {
	s.t.Helper()
	h, err := s.inbox.Handle(name, telemetry.Handler(s.tel, "warehouse/"+name, fn), cfg)
	ok(s.t, err)
	s.router.AddConsumerHandler(name, topic, s.broker.Subscriber(name), h.Consume)
	return h
}

// start runs the router until the test ends.
func (s *service) start() {
	s.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = s.router.Run(ctx) })
	<-s.router.Running()
	s.t.Cleanup(func() {
		_ = s.broker.Close()
		stop()
		running.Wait()
	})
}

// relay sends all waiting events.
func (s *service) relay(publisher message.Publisher, cfg relay.Config) relay.Report {
	s.t.Helper()
	relay, err := relay.New(s.outbox, s.tel.Publisher(publisher), cfg)
	ok(s.t, err)
	report, err := relay.RunOnce(context.Background())
	ok(s.t, err)
	return report
}

// write writes events in a transaction of their own.
func (s *service) write(ctx context.Context, events ...producer.Event) {
	s.t.Helper()
	ok(s.t, s.outbox.Transact(ctx, func(ctx context.Context, w *writer) error {
		_, err := s.tel.Write(ctx, w, events...)
		return err
	}))
}

// order returns an event of a topic.
func order(topic, id string) producer.Event {
	return producer.Event{Topic: topic, Key: id, Source: "order/" + id, Version: 1, Payload: []byte("payload of " + id)}
}
