package telemetry_test

import (
	"context"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport"
)

// taker is a writer that keeps its events.
type taker struct{ events []producer.Event }

func (w *taker) Write(_ context.Context, events ...producer.Event) ([]uuid.UUID, error) {
	w.events = append(w.events, events...)
	return make([]uuid.UUID, len(events)), nil
}

func (w *taker) WriteNow(_ context.Context, events ...producer.Event) ([]producer.Written, error) {
	w.events = append(w.events, events...)
	return make([]producer.Written, len(events)), nil
}

const (
	someTrace  = "0af7651916cd43dd8448eb211c80319c"
	someParent = "00-" + someTrace + "-b7ad6b7169203331-01"
)

func TestTraceContextOfAnEventIsTheParent(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	w := &taker{}
	given := []producer.Event{{Topic: "a", TraceParent: someParent, TraceState: "vendor=1"}}
	ctx, span := x.tracer.Tracer("service").Start(t.Context(), "request")
	defer span.End()
	_, err := x.telemetry(telemetry.Config{}).Write(ctx, w, given...)
	ok(t, err)
	e := x.one("enqueue a")
	if e.Parent().SpanID().String() != "b7ad6b7169203331" || e.SpanContext().TraceID().String() != someTrace {
		t.Errorf("parent %v", e.Parent())
	}
	if want := "00-" + someTrace + "-" + e.SpanContext().SpanID().String() + "-01"; w.events[0].TraceParent != want || w.events[0].TraceState != "vendor=1" {
		t.Errorf("the event has %q and %q, want %q", w.events[0].TraceParent, w.events[0].TraceState, want)
	}
	if given[0].TraceParent != someParent {
		t.Error("the caller's event was changed")
	}
}

// TestTraceStateThatIsTooLongIsDropped: the outbox would refuse the event otherwise.
func TestTraceStateThatIsTooLongIsDropped(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	e := order("order.placed", "42")
	var state []string
	for _, c := range "abc" {
		state = append(state, string(c)+"="+strings.Repeat("x", 200))
	}
	e.TraceParent, e.TraceState = someParent, strings.Join(state, ",")
	s.write(t.Context(), e)
	if parent := s.one("enqueue order.placed").Parent(); parent.TraceID().String() != someTrace {
		t.Errorf("parent %v", parent)
	}
}

func TestEventThatIsKnownSaysSo(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	for range 2 {
		ok(t, s.outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
			_, err := s.tel.WriteNow(ctx, w, order("order.placed", "42"))
			return err
		}))
	}
	spans := s.named("enqueue order.placed")
	if attributesOf(spans[0])["boxpair.known"] != "" || attributesOf(spans[1])["boxpair.known"] != "true" {
		t.Error("the spans do not tell which event was known")
	}
}

// TestWithoutATracerTheContextOfTheCallerTravels: a service without an SDK does not break the
// traces of other services.
func TestWithoutATracerTheContextOfTheCallerTravels(t *testing.T) {
	t.Parallel()
	tel, err := telemetry.New(telemetry.Config{TracerProvider: noop.NewTracerProvider(), MeterProvider: metricnoop.NewMeterProvider()})
	ok(t, err)
	defer func() { ok(t, tel.Shutdown(t.Context())) }()
	x := newExported(t)
	ctx, span := x.tracer.Tracer("caller").Start(t.Context(), "request")
	defer span.End()
	w := &taker{}
	_, err = tel.Write(ctx, w, producer.Event{Topic: "a"}, producer.Event{Topic: "a", TraceParent: someParent})
	ok(t, err)
	if sc := span.SpanContext(); w.events[0].TraceParent != "00-"+sc.TraceID().String()+"-"+sc.SpanID().String()+"-01" {
		t.Errorf("the event has %q", w.events[0].TraceParent)
	}
	if w.events[1].TraceParent != someParent {
		t.Errorf("the event has %q, want its own", w.events[1].TraceParent)
	}
	_, err = tel.Write(t.Context(), w, producer.Event{Topic: "a"})
	ok(t, err)
	if w.events[2].TraceParent != "" {
		t.Errorf("the event of nobody's trace has %q", w.events[2].TraceParent)
	}
}

func TestMessagesWrittenThroughWatermillAreTraced(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	ctx, request := s.tracer.Tracer("service").Start(t.Context(), "request")
	defer request.End()
	msg := message.NewMessage(uuid.NewString(), []byte("placed"))
	msg.Metadata["user"] = "7"
	publish := func(cfg producer.PublisherConfig) error {
		p, err := s.outbox.Publisher(cfg)
		ok(t, err)
		return s.outbox.Transact(ctx, func(ctx context.Context, _ *writer) error {
			msg.SetContext(ctx)
			return s.tel.Outgoing(p).Publish("order.placed", msg)
		})
	}
	ok(t, publish(producer.PublisherConfig{NoKey: true, MessageID: true}))
	if len(msg.Metadata) != 1 {
		t.Errorf("the caller's message was changed: %v", msg.Metadata)
	}
	s.handle("ship", "order.placed", consumer.HandlerConfig{}, func(_ context.Context, w *work, _ *message.Message) error {
		if e := w.Event(); e.Headers["user"] != "7" || e.TraceParent == "" || string(e.Payload) != "placed" {
			t.Errorf("the event is %+v", e)
		}
		return nil
	})
	s.start()
	s.relay(s.broker, relay.Config{})
	enqueued := s.one("enqueue order.placed")
	if enqueued.Parent().SpanID() != request.SpanContext().SpanID() || enqueued.SpanKind() != trace.SpanKindProducer {
		t.Error("it is no child of the request")
	}
	childOf(t, s.one("handle order.placed"), enqueued)

	msg.UUID = ""
	if err := publish(producer.PublisherConfig{NoKey: true, MessageID: true}); err == nil {
		t.Fatal("a message without UUID was written")
	}
	if st := s.named("enqueue order.placed")[1].Status(); st.Code != codes.Error {
		t.Errorf("status %v", st)
	}
	if msg.Metadata[transport.MetaTraceParent] != "" {
		t.Error("the caller's message was changed")
	}
}
