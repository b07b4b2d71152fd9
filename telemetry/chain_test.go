package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/signature"
)

// childOf fails the test unless span is a child of parent, in its trace.
func childOf(t *testing.T, span, parent sdktrace.ReadOnlySpan) {
	t.Helper()
	if span.SpanContext().TraceID() != parent.SpanContext().TraceID() {
		t.Errorf("%s is in another trace than %s", span.Name(), parent.Name())
	}
	if span.Parent().SpanID() != parent.SpanContext().SpanID() {
		t.Errorf("%s is no child of %s", span.Name(), parent.Name())
	}
}

func attributesOf(span sdktrace.ReadOnlySpan) map[string]string {
	values := make(map[string]string)
	for _, kv := range span.Attributes() {
		values[string(kv.Key)] = kv.Value.String()
	}
	return values
}

func wantAttributes(t *testing.T, span sdktrace.ReadOnlySpan, kind trace.SpanKind, want map[string]string) {
	t.Helper()
	if span.SpanKind() != kind {
		t.Errorf("%s is a %v span, want %v", span.Name(), span.SpanKind(), kind)
	}
	got := attributesOf(span)
	for key, value := range want {
		if got[key] != value {
			t.Errorf("%s: %s is %q, want %q", span.Name(), key, got[key], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has the attributes %v, want %v", span.Name(), got, want)
	}
}

// TestSpansOfAnEventAreOneTrace follows an order through a service whose handler writes a second
// event, which is handled as well.
func TestSpansOfAnEventAreOneTrace(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	var ids []string
	s.handle("ship", "order.placed", consumer.HandlerConfig{}, func(ctx context.Context, w *work, msg *message.Message) error {
		ids = append(ids, msg.UUID)
		_, err := s.tel.Write(ctx, w, producer.Event{Topic: "order.shipped", Key: "42"})
		return err
	})
	s.handle("mail", "order.shipped", consumer.HandlerConfig{}, func(ctx context.Context, w *work, msg *message.Message) error {
		ids = append(ids, msg.UUID)
		if !trace.SpanContextFromContext(msg.Context()).Equal(trace.SpanContextFromContext(ctx)) {
			t.Error("the message has another span in its context than the handler")
		}
		return nil
	})
	s.start()

	ctx, request := s.tracer.Tracer("service").Start(t.Context(), "POST /orders")
	event := order("order.placed", "42")
	event.CorrelationID = "conversation"
	s.write(ctx, event)
	request.End()
	s.relay(s.broker, relay.Config{})
	s.relay(s.broker, relay.Config{})

	root := s.one("POST /orders")
	placed := s.one("enqueue order.placed")
	childOf(t, placed, root)
	childOf(t, s.one("relay order.placed"), placed)
	ship := s.one("handle order.placed")
	childOf(t, ship, placed)
	shipped := s.one("enqueue order.shipped")
	childOf(t, shipped, ship)
	childOf(t, s.one("relay order.shipped"), shipped)
	childOf(t, s.one("handle order.shipped"), shipped)
	if n := len(s.spans.Ended()); n != 7 {
		t.Errorf("%d spans, want 7", n)
	}

	common := func(operation, kind, topic, id string, more map[string]string) map[string]string {
		want := map[string]string{
			"messaging.system": "memory", "messaging.operation.name": operation, "messaging.operation.type": kind,
			"messaging.destination.name": topic, "messaging.message.id": id, "messaging.message.conversation_id": "conversation",
		}
		for k, v := range more {
			want[k] = v
		}
		return want
	}
	wantAttributes(t, placed, trace.SpanKindProducer, common("enqueue", "create", "order.placed", ids[0], nil))
	wantAttributes(t, s.one("relay order.placed"), trace.SpanKindClient,
		common("relay", "send", "order.placed", ids[0], map[string]string{"boxpair.outcome": "confirmed"}))
	wantAttributes(t, ship, trace.SpanKindConsumer,
		common("handle", "process", "order.placed", ids[0], map[string]string{"messaging.consumer.group.name": "warehouse/ship"}))
	wantAttributes(t, s.one("handle order.shipped"), trace.SpanKindConsumer,
		common("handle", "process", "order.shipped", ids[1], map[string]string{"messaging.consumer.group.name": "warehouse/mail"}))
}

// TestSignedMessagesAreTraced: a relay that changed the trace context of a message would break its
// signature.
func TestSignedMessagesAreTraced(t *testing.T) {
	t.Parallel()
	key := signature.Key{ID: "k", Secret: []byte("0123456789abcdef0123456789abcdef")}
	signer, err := signature.NewSigner(key)
	ok(t, err)
	verifier, err := signature.NewVerifier(key)
	ok(t, err)
	s := newService(t, consumer.Config{Verifier: verifier})
	h := s.handle("ship", "order.placed", consumer.HandlerConfig{}, func(context.Context, *work, *message.Message) error { return nil })
	s.start()
	s.write(t.Context(), order("order.placed", "42"))
	s.relay(s.broker, relay.Config{Signer: signer})
	if n := h.Counters(); n.Applied != 1 {
		t.Fatalf("applied %d, refused %d", n.Applied, n.Refused)
	}
	childOf(t, s.one("relay order.placed"), s.one("enqueue order.placed"))
	childOf(t, s.one("handle order.placed"), s.one("enqueue order.placed"))
}

// TestEventWithoutATraceBeginsOne: the event was written without tracing, and the span that starts
// the relay did not cause the event.
func TestEventWithoutATraceBeginsOne(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	s.handle("ship", "order.placed", consumer.HandlerConfig{}, func(context.Context, *work, *message.Message) error { return nil })
	s.start()
	ok(t, s.outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		_, err := w.Write(ctx, order("order.placed", "42"))
		return err
	}))
	ctx, startup := s.tracer.Tracer("service").Start(t.Context(), "startup")
	relay, err := relay.New(s.outbox, s.tel.Publisher(s.broker), relay.Config{})
	ok(t, err)
	_, err = relay.RunOnce(ctx)
	ok(t, err)
	startup.End()
	for _, name := range []string{"relay order.placed", "handle order.placed"} {
		if s.one(name).Parent().IsValid() {
			t.Errorf("%s has a parent", name)
		}
	}
}

// TestErrorsSetTheStatus fails once at every step.
func TestErrorsSetTheStatus(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	runs := 0
	h := s.handle("ship", "order.placed", consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickBackoff: time.Millisecond, MaxAttempts: 2}},
		func(context.Context, *work, *message.Message) error {
			if runs++; runs == 1 {
				return fmt.Errorf("ship: %w", errNoStock)
			}
			panic("with a payload in it")
		})
	s.start()
	s.write(t.Context(), order("order.placed", "42"))
	publisher := &refusing{Sender: s.broker}
	first, second := s.relay(publisher, relay.Config{}), s.relay(publisher, relay.Config{})
	if first.Delivered+second.Delivered != 1 {
		t.Fatalf("delivered: first %d, then %d", first.Delivered, second.Delivered)
	}
	if n := h.Counters(); n.Dead != 1 || runs != 2 {
		t.Fatalf("%d dead after %d runs", n.Dead, runs)
	}
	err := s.outbox.Transact(t.Context(), func(ctx context.Context, w *writer) error {
		_, err := s.tel.Write(ctx, w, producer.Event{Topic: "order.lost"})
		return err
	})
	if !errors.Is(err, producer.ErrNoIdentity) {
		t.Fatalf("writing an event without identity: %v", err)
	}

	status := func(span sdktrace.ReadOnlySpan, description, kind string) {
		t.Helper()
		if st := span.Status(); st.Code != codes.Error || !strings.Contains(st.Description, description) {
			t.Errorf("%s: status %v %q, want an error with %q", span.Name(), st.Code, st.Description, description)
		}
		if got := attributesOf(span)["error.type"]; got != kind {
			t.Errorf("%s: error.type %q, want %q", span.Name(), got, kind)
		}
	}
	handles, relays := s.named("handle order.placed"), s.named("relay order.placed")
	if len(handles) != 2 || len(relays) != 2 {
		t.Fatalf("%d handle spans and %d relay spans, want 2 each", len(handles), len(relays))
	}
	status(handles[0], "no stock", "*errors.errorString")
	status(handles[1], "panicked", "panic")
	status(relays[0], "not now", "unavailable")
	if relays[1].Status().Code == codes.Error {
		t.Error("the confirmed attempt has failed")
	}
	status(s.one("enqueue order.lost"), "no identity", "*errors.errorString")
	for _, span := range append(handles, relays...) {
		childOf(t, span, s.one("enqueue order.placed"))
	}
	s.want("boxpair.outbox.attempts", map[string]float64{"confirmed order.placed": 1, "order.placed unavailable": 1})
	s.want("boxpair.inbox.handler.duration", map[string]float64{
		"*errors.errorString order.placed warehouse/ship": 1, "order.placed panic warehouse/ship": 1,
	})
}

var errNoStock = errors.New("no stock")

// refusing reports its first message as unavailable.
type refusing struct {
	transport.Sender
	first sync.Once
}

func (r *refusing) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	refused := false
	r.first.Do(func() { refused = true })
	if refused {
		done(transport.Result{Outcome: transport.Unavailable, Err: errors.New("not now")})
		return
	}
	r.Sender.Send(ctx, topic, msg, done)
}

// TestNothingOfAPayloadIsExported looks in all exported data for secrets that must not leave the
// databases.
func TestNothingOfAPayloadIsExported(t *testing.T) {
	t.Parallel()
	const secret = "XSECRETX"
	s := newService(t, consumer.Config{})
	h := s.handle("ship", "order.placed", consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1, MaxAttempts: 1}},
		func(_ context.Context, _ *work, msg *message.Message) error { panic(string(msg.Payload)) })
	s.start()
	ok(t, s.tel.WatchOutbox("shop", s.outbox))
	ok(t, s.tel.WatchConsumer(h))
	s.write(t.Context(), producer.Event{
		Topic: "order.placed", Key: "key " + secret, Source: "source " + secret, Version: 1, Type: "placed",
		Payload: []byte(secret), Headers: map[string]string{"header": secret},
	})
	s.relay(s.broker, relay.Config{})
	if h.Counters().Dead != 1 {
		t.Fatal("the message was not handled")
	}
	look := func(where string, list []attribute.KeyValue) {
		for _, kv := range list {
			if strings.Contains(string(kv.Key)+kv.Value.String(), secret) {
				t.Errorf("%s: %s is %s", where, kv.Key, kv.Value.String())
			}
		}
	}
	spans := s.spans.Ended()
	if len(spans) != 3 {
		t.Errorf("%d spans, want 3", len(spans))
	}
	for _, span := range spans {
		look(span.Name(), span.Attributes())
		if strings.Contains(span.Name()+span.Status().Description, secret) {
			t.Errorf("span %q, status %q", span.Name(), span.Status().Description)
		}
		for _, e := range span.Events() {
			look(span.Name()+" "+e.Name, e.Attributes)
		}
	}
	for name, values := range s.everything() {
		for labels := range values {
			if strings.Contains(labels, secret) {
				t.Errorf("%s{%s}", name, labels)
			}
		}
	}
}
