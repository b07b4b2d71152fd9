package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/telemetry"
	"github.com/boxpair/boxpair/transport"
)

// pipeline is a sender that answers on demand.
type pipeline struct {
	transport.Sender
	contexts []context.Context //nolint:containedctx // of the messages
	messages []*message.Message
	answer   []func(transport.Result)
	closed   bool
}

func (p *pipeline) Send(ctx context.Context, _ string, msg *message.Message, done func(transport.Result)) {
	p.contexts, p.messages, p.answer = append(p.contexts, ctx), append(p.messages, msg), append(p.answer, done)
}

func (p *pipeline) Route(topic string) string { return "route of " + topic }
func (p *pipeline) Close() error              { p.closed = true; return nil }

func TestSenderStaysOneThatHasManyMessagesUnderWay(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	inner := &pipeline{}
	sender, is := x.telemetry(telemetry.Config{}).Publisher(inner).(transport.Sender)
	if !is {
		t.Fatal("it is none")
	}
	if got := sender.Route("a"); got != "route of a" {
		t.Errorf("Route gives %q", got)
	}
	stamp := time.Now().Add(-time.Minute).UTC().Format(time.RFC3339Nano)
	outcomes := []transport.Outcome{transport.Confirmed, transport.Returned, transport.Refused, transport.Invalid, transport.Unavailable}
	got := make([]transport.Result, len(outcomes))
	for i := range outcomes {
		msg := message.NewMessage(uuid.NewString(), nil)
		msg.Metadata[transport.MetaStamp] = stamp
		sender.Send(t.Context(), "a", msg, func(res transport.Result) {
			got[i] = res
			msg.Metadata = nil // the message is the sender's again
			if n := len(x.spans.Ended()); n != len(outcomes)-i {
				t.Errorf("%d spans have ended when outcome %d of %d arrives", n, len(outcomes)-i, len(outcomes))
			}
		})
		if len(inner.messages) != i+1 || inner.messages[i] != msg || inner.contexts[i] != t.Context() {
			t.Fatalf("message %d was not passed on as it is, at once", i)
		}
	}
	if n := len(x.spans.Ended()); n != 0 {
		t.Fatalf("%d spans have ended before any outcome", n)
	}
	for i := len(outcomes) - 1; i >= 0; i-- {
		res := transport.Result{Outcome: outcomes[i]}
		if outcomes[i] != transport.Confirmed {
			res.Err = fmt.Errorf("answer %d", i)
		}
		inner.answer[i](res)
		if got[i] != res {
			t.Errorf("outcome %v arrived as %v", res, got[i])
		}
	}
	once := map[string]float64{"a confirmed": 1, "a returned": 1, "a refused": 1, "a invalid": 1, "a unavailable": 1}
	x.want("boxpair.outbox.attempts", once)
	x.want("boxpair.outbox.publish.duration", once)
	x.want("boxpair.outbox.delivery.latency", map[string]float64{"a": 1})
	for _, span := range x.named("relay a") {
		outcome := attributesOf(span)["boxpair.outcome"]
		if failed := span.Status().Code == codes.Error; failed == (outcome == "confirmed") {
			t.Errorf("span of an outcome %s: failed %t", outcome, failed)
		}
	}
	if ok(t, sender.Close()); !inner.closed {
		t.Error("Close did not close it")
	}
}

// batchPipeline takes batches.
type batchPipeline struct{ pipeline }

func (p *batchPipeline) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	p.Send(ctx, topic, msgs[0], done)
	p.messages = msgs
}

func (p *batchPipeline) BatchLimit() (messages, bytes int) { return 7, 100 }

func TestBatchHasASpanAndAnAttemptPerMessage(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	inner := &batchPipeline{}
	sender, is := x.telemetry(telemetry.Config{}).Publisher(inner).(transport.BatchSender)
	if !is {
		t.Fatal("it takes no batches")
	}
	if messages, bytes := sender.BatchLimit(); messages != 7 || bytes != 100 {
		t.Errorf("limit of %d messages and %d bytes", messages, bytes)
	}
	msgs := []*message.Message{message.NewMessage(uuid.NewString(), nil), message.NewMessage(uuid.NewString(), nil)}
	var got []transport.Result
	sender.SendBatch(t.Context(), "a", msgs, func(res transport.Result) { got = append(got, res) })
	if len(inner.messages) != 2 || inner.messages[1] != msgs[1] || len(x.spans.Ended()) != 0 {
		t.Fatalf("%d messages were passed on", len(inner.messages))
	}
	inner.answer[0](transport.Result{Outcome: transport.Confirmed})
	if len(got) != 1 || got[0].Outcome != transport.Confirmed || len(x.named("relay a")) != 2 {
		t.Errorf("outcomes %v, %d spans", got, len(x.named("relay a")))
	}
	x.want("boxpair.outbox.attempts", map[string]float64{"a confirmed": 2})

	// A sender without batches is asked for none, and loses no message.
	single, _ := x.telemetry(telemetry.Config{}).Publisher(&pipeline{}).(transport.BatchSender)
	if messages, _ := single.BatchLimit(); messages != 0 {
		t.Errorf("limit of %d messages", messages)
	}
	single.SendBatch(t.Context(), "a", msgs, func(res transport.Result) { got = append(got, res) })
	if len(got) != 2 || got[1].Outcome != transport.Invalid {
		t.Errorf("outcomes %v", got)
	}
}

// plain hides that a publisher is a sender, and fails calls with a marked message.
type plain struct {
	publisher message.Publisher
	calls     int
}

func (p *plain) Publish(topic string, messages ...*message.Message) error {
	p.calls++
	for _, msg := range messages {
		if msg.Metadata["marked"] != "" {
			return errors.New("marked")
		}
	}
	return p.publisher.Publish(topic, messages...)
}

func (p *plain) Close() error { return p.publisher.Close() }

func TestFailedBatchCountsAttemptsWhenItIsNarrowedDown(t *testing.T) {
	t.Parallel()
	s := newService(t, consumer.Config{})
	s.handle("ship", "order.placed", consumer.HandlerConfig{}, func(context.Context, *work, *message.Message) error { return nil })
	s.start()
	bad := order("order.placed", "2")
	bad.Headers = map[string]string{"marked": "yes"}
	s.write(t.Context(), order("order.placed", "1"), bad, order("order.placed", "3"))
	inner := &plain{publisher: s.broker}
	if _, is := s.tel.Publisher(inner).(transport.Sender); is {
		t.Fatal("a plain publisher became a sender")
	}
	report := s.relay(inner, relay.Config{Publishers: 1, Backoff: relay.Backoff{Initial: time.Hour}})
	if report.Delivered != 2 {
		t.Fatalf("delivered %d of 2: %+v", report.Delivered, report)
	}
	attempts := s.everything()["boxpair.outbox.attempts"]
	if attempts["confirmed order.placed"] != 2 || attempts["order.placed refused"] < 1 {
		t.Errorf("attempts %v", attempts)
	}
	batched := 0
	for _, span := range s.named("relay order.placed") {
		if attributesOf(span)["messaging.batch.message_count"] != "" {
			batched++
			if span.Status().Code != codes.Error || attributesOf(span)["boxpair.outcome"] != "" {
				t.Errorf("span of a failed batch: %v", span.Status())
			}
		}
	}
	if want := len(s.named("relay order.placed")) - int(attempts["confirmed order.placed"]+attempts["order.placed refused"]); batched != want {
		t.Errorf("%d spans of failed batches, want %d", batched, want)
	}
}

// answering is a publisher with one answer.
type answering struct{ answer func() error }

func (a answering) Publish(string, ...*message.Message) error { return a.answer() }
func (a answering) Close() error                              { return nil }

type withOutcome struct{ error }

func (withOutcome) Outcome() transport.Outcome { return transport.Returned }

func TestErrorsOfPlainPublishersAreReadAsRelaysDo(t *testing.T) {
	t.Parallel()
	for want, answer := range map[string]func() error{
		"confirmed":   func() error { return nil },
		"refused":     func() error { return errors.New("no") },
		"returned":    func() error { return fmt.Errorf("no: %w", withOutcome{errors.New("nobody")}) },
		"unavailable": func() error { return fmt.Errorf("no: %w", context.DeadlineExceeded) },
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			x := newExported(t)
			p := x.telemetry(telemetry.Config{}).Publisher(answering{answer})
			if err, again := p.Publish("a", message.NewMessage(uuid.NewString(), nil)), answer(); (err == nil) != (again == nil) {
				t.Errorf("got %v, want %v", err, again)
			}
			x.want("boxpair.outbox.attempts", map[string]float64{"a " + want: 1})
		})
	}
}

func TestPublisherThatPanicsEndsItsSpans(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	p := x.telemetry(telemetry.Config{}).Publisher(answering{func() error { panic("with a payload in it") }})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic did not come through")
			}
		}()
		_ = p.Publish("a", message.NewMessage(uuid.NewString(), nil))
	}()
	if st := x.one("relay a").Status(); st.Code != codes.Error || strings.Contains(st.Description, "payload") {
		t.Errorf("status %v", st)
	}
}

func TestNoPublisherStaysNone(t *testing.T) {
	t.Parallel()
	if p := newExported(t).telemetry(telemetry.Config{}).Publisher(nil); p != nil {
		t.Errorf("got %v: a relay would take it for one", p)
	}
}

// TestManyTopicsAreCountedApart uses more topics than the cache of attributes holds.
func TestManyTopicsAreCountedApart(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	p := x.telemetry(telemetry.Config{}).Publisher(answering{func() error { return nil }})
	const topics = 1100
	for range 2 {
		for n := range topics {
			ok(t, p.Publish("t"+strconv.Itoa(n), message.NewMessage(uuid.NewString(), nil)))
		}
	}
	attempts := x.everything()["boxpair.outbox.attempts"]
	if len(attempts) != topics || attempts["confirmed t0"] != 2 || attempts["confirmed t1099"] != 2 {
		t.Errorf("%d topics, of the first %v", len(attempts), attempts["confirmed t0"])
	}
}

// TestClockThatIsBehindGivesNoNegativeLatency: stamps come from the database's clock.
func TestClockThatIsBehindGivesNoNegativeLatency(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	msg := message.NewMessage(uuid.NewString(), nil)
	msg.Metadata[transport.MetaStamp] = time.Now().Add(time.Hour).UTC().Format(time.RFC3339Nano)
	ok(t, x.telemetry(telemetry.Config{}).Publisher(answering{func() error { return nil }}).Publish("a", msg))
	var rm metricdata.ResourceMetrics
	ok(t, x.reader.Collect(t.Context(), &rm))
	for _, m := range rm.ScopeMetrics[0].Metrics {
		if m.Name != "boxpair.outbox.delivery.latency" {
			continue
		}
		if p := m.Data.(metricdata.Histogram[float64]).DataPoints[0]; p.Count != 1 || p.Sum != 0 {
			t.Errorf("%d latencies, together %v", p.Count, p.Sum)
		}
		return
	}
	t.Error("no latency was measured")
}

// connecting is a publisher that connects before its first use.
type connecting struct {
	pipeline

	connected bool
}

func (c *connecting) Connect(context.Context) error {
	c.connected = true
	return errConnect
}

var errConnect = errors.New("refused")

// TestMeasuredPublisherIsConnectedBeforeItsFirstUse: a relay that is not ready has to learn it without
// an event.
func TestMeasuredPublisherIsConnectedBeforeItsFirstUse(t *testing.T) {
	t.Parallel()
	x := newExported(t)
	inner := &connecting{}
	type connector interface {
		Connect(ctx context.Context) error
	}
	c, is := x.telemetry(telemetry.Config{}).Publisher(inner).(connector)
	if !is || !errors.Is(c.Connect(t.Context()), errConnect) || !inner.connected {
		t.Errorf("it is not connected: %t", inner.connected)
	}
	other, _ := x.telemetry(telemetry.Config{}).Publisher(&pipeline{}).(connector)
	if err := other.Connect(t.Context()); err != nil {
		t.Errorf("a publisher that cannot connect: %v", err)
	}
}
