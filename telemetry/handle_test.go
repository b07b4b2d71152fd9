package telemetry_test

import (
	"context"
	"database/sql"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport"
)

// TestSpanOfASetHasALinkToEachMessage handles three events of three requests in one transaction.
func TestSpanOfASetHasALinkToEachMessage(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	h, err := s.inbox.HandleBatch("ship", telemetry.BatchHandler(s.tel, "warehouse/ship",
		func(_ context.Context, b *consumer.Batch[*sql.Tx], _ []*message.Message) error {
			if b.Len() < 3 {
				return nil
			}
			return errNoStock // and then in halves
		}), consumer.HandlerConfig{Timeout: 2 * time.Minute, Group: consumer.GroupConfig{Size: 3, Wait: time.Minute, Concurrency: 1}})
	ok(t, err)
	s.router.AddConsumerHandler("ship", "order.placed", s.broker.Subscriber("ship"), h.Consume)
	s.start()
	s.write(t.Context(), order("order.placed", "1"), order("order.placed", "2"), order("order.placed", "3"))
	s.relay(s.broker, relay.Config{})

	created := make(map[trace.TraceID]trace.SpanID)
	for _, span := range s.named("enqueue order.placed") {
		created[span.SpanContext().TraceID()] = span.SpanContext().SpanID()
	}
	if len(created) != 3 {
		t.Fatalf("%d traces, want 3", len(created))
	}
	sets, alone := 0, 0
	for _, span := range s.named("handle order.placed") {
		if attributesOf(span)["messaging.batch.message_count"] == "" {
			if id := created[span.SpanContext().TraceID()]; id != span.Parent().SpanID() {
				t.Error("the span of one message is no child of the one that wrote it")
			}
			alone++
			continue
		}
		sets++
		for _, link := range span.Links() {
			if created[link.SpanContext.TraceID()] != link.SpanContext.SpanID() {
				t.Error("a link leads elsewhere")
			}
		}
		if n := attributesOf(span)["messaging.batch.message_count"]; n == "3" && (len(span.Links()) != 3 || span.Status().Code != codes.Error) {
			t.Errorf("the span of all has %d links and the status %v", len(span.Links()), span.Status().Code)
		}
	}
	if sets == 0 || alone == 0 {
		t.Errorf("%d spans of sets, %d of one message", sets, alone)
	}
}

// TestPlainHandlersAreTracedWithinTheirInbox checks that returned messages travel with the span.
func TestPlainHandlersAreTracedWithinTheirInbox(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	ship := func(msg *message.Message) ([]*message.Message, error) {
		if !trace.SpanContextFromContext(msg.Context()).IsValid() {
			t.Error("the message has no span in its context")
		}
		return []*message.Message{message.NewMessage("", []byte("shipped"))}, nil
	}
	s.router.AddHandler("ship", "order.placed", s.broker.Subscriber("ship"), "order.shipped", nil, s.tel.Middleware("warehouse/ship")(ship))
	s.router.AddPlugin(middleware.Router(s.inbox, middleware.RouterConfig{
		Publisher: producer.PublisherConfig{NoKey: true}, Except: []string{"mail"},
	}))
	s.handle("mail", "order.shipped", consumer.HandlerConfig{}, func(context.Context, *work, *message.Message) error { return nil })
	s.start()
	s.write(t.Context(), order("order.placed", "42"))
	s.relay(s.broker, relay.Config{})
	s.relay(s.broker, relay.Config{})
	childOf(t, s.one("handle order.placed"), s.one("enqueue order.placed"))
	childOf(t, s.one("relay order.shipped"), s.one("handle order.placed"))
	childOf(t, s.one("handle order.shipped"), s.one("handle order.placed"))
}

// TestSpanThatIsThereIsParentOrLinked handles a message within other spans.
func TestSpanThatIsThereIsParentOrLinked(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	tel, tracer := x.telemetry(telemetry.Config{}), x.tracer.Tracer("service")
	_, created := tracer.Start(t.Context(), "created")
	created.End()
	run := func(ctx context.Context) {
		t.Helper()
		msg := message.NewMessageWithContext(transport.WithRedelivered(ctx), uuid.NewString(), nil)
		sc := created.SpanContext()
		msg.Metadata[transport.MetaTraceParent] = "00-" + sc.TraceID().String() + "-" + sc.SpanID().String() + "-01"
		_, err := tel.Middleware("c")(func(*message.Message) ([]*message.Message, error) { return nil, nil })(msg)
		ok(t, err)
		if !trace.SpanContextFromContext(msg.Context()).Equal(trace.SpanContextFromContext(ctx)) {
			t.Error("the message keeps the span in its context")
		}
	}
	within, outer := tracer.Start(trace.ContextWithSpan(t.Context(), created), "outer")
	run(within)
	outer.End()
	other, unrelated := tracer.Start(t.Context(), "unrelated")
	run(other)
	unrelated.End()

	spans := x.named("handle")
	if spans[0].Parent().SpanID() != outer.SpanContext().SpanID() || len(spans[0].Links()) != 0 {
		t.Error("a span of the same trace is not the parent")
	}
	if spans[1].Parent().SpanID() != created.SpanContext().SpanID() {
		t.Error("the parent is not the span that wrote the event")
	}
	if links := spans[1].Links(); len(links) != 1 || links[0].SpanContext.SpanID() != unrelated.SpanContext().SpanID() {
		t.Errorf("links %v, want one to the span around", links)
	}
	if attributesOf(spans[0])["boxpair.redelivered"] != "true" {
		t.Error("the span does not tell that the message may have been begun before")
	}
}

// TestEndOfTheGoroutineFailsTheSpan ends the handler's goroutine, as a test does that fails in a
// handler.
func TestEndOfTheGoroutineFailsTheSpan(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	h := x.telemetry(telemetry.Config{}).Middleware("c")(func(*message.Message) ([]*message.Message, error) {
		runtime.Goexit()
		return nil, nil
	})
	var ended sync.WaitGroup
	ended.Go(func() { _, _ = h(message.NewMessage(uuid.NewString(), nil)) })
	ended.Wait()
	if st := x.one("handle").Status(); st.Code != codes.Error {
		t.Errorf("status %v", st)
	}
}

func TestLongErrorsAreCut(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	h := x.telemetry(telemetry.Config{}).Middleware("c")(func(*message.Message) ([]*message.Message, error) {
		return nil, errors.New("\xff" + strings.Repeat("€", 1000))
	})
	_, _ = h(message.NewMessage(uuid.NewString(), nil))
	if text := x.one("handle").Status().Description; len(text) > 1024 || len(text) < 1020 || !strings.HasPrefix(text, "\uFFFD€") || !strings.HasSuffix(text, "€") {
		t.Errorf("%d bytes: %q", len(text), text)
	}
}
