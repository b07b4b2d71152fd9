package telemetry

import (
	"context"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
)

// attrKnown marks an event that was already in the outbox.
const attrKnown = attribute.Key("boxpair.known")

// Writer writes events in a transaction. [producer.Writer] and [consumer.Work] implement it.
type Writer interface {
	// Write writes events, all of them or none, with the commit or before it, and returns their
	// dispatch IDs.
	Write(ctx context.Context, events ...producer.Event) ([]uuid.UUID, error)
	// WriteNow writes events, all of them or none, before it returns.
	WriteNow(ctx context.Context, events ...producer.Event) ([]producer.Written, error)
}

// Write is w.Write with a span for each event. The event keeps the span's context, so that the
// spans of relays and handlers join the trace. The span's parent is the event's TraceParent, if
// set, and otherwise the span in ctx. Except for the trace context, events and errors pass
// unchanged. A trace state of more than 512 bytes is dropped. Without a tracer provider events get
// the trace context of ctx. The span does not cover the statement that writes the event if the
// event waits for the commit.
func (t *Telemetry) Write(ctx context.Context, w Writer, events ...producer.Event) ([]uuid.UUID, error) {
	c := t.create(ctx, events)
	defer c.end()
	ids, err := w.Write(ctx, c.events...)
	for i, id := range ids {
		c.is(i, id)
	}
	c.err = err
	return ids, err
}

// WriteNow is w.WriteNow with a span for each event; see [Telemetry.Write]. The attribute
// boxpair.known marks the span of an event that was already in the outbox.
func (t *Telemetry) WriteNow(ctx context.Context, w Writer, events ...producer.Event) ([]producer.Written, error) {
	c := t.create(ctx, events)
	defer c.end()
	wrote, err := w.WriteNow(ctx, c.events...)
	for i := range wrote {
		c.is(i, wrote[i].ID)
		if wrote[i].Known {
			c.spans[i].SetAttributes(attrKnown.Bool(true))
		}
	}
	c.err = err
	return wrote, err
}

// Outgoing returns a publisher that gives each message a span, puts the span's context into a copy
// of the message, and passes the copy to publisher. It is for code that writes to the outbox
// through Watermill ([producer.Outbox.Publisher]). The span's parent is the message's traceparent,
// if set, then the span in the message's context. The caller's messages are not changed. Close
// closes publisher.
func (t *Telemetry) Outgoing(publisher message.Publisher) message.Publisher {
	return &outgoing{Publisher: publisher, t: t}
}

type outgoing struct {
	message.Publisher
	t *Telemetry
}

// Publish implements [message.Publisher].
func (p *outgoing) Publish(topic string, messages ...*message.Message) error {
	c := creations{spans: make([]trace.Span, len(messages)), err: errNotReturned}
	defer c.end()
	traced := make([]*message.Message, len(messages))
	for i, msg := range messages {
		ctx := msg.Context()
		m := message.NewMessageWithContext(ctx, msg.UUID, msg.Payload)
		maps.Copy(m.Metadata, msg.Metadata)
		c.spans[i] = p.t.enqueue(ctx, topic, m.Metadata[transport.MetaCorrelationID], m.Metadata[transport.MetaTraceParent], m.Metadata[transport.MetaTraceState])
		carry(ctx, m, c.spans[i])
		traced[i] = m
	}
	c.err = p.Publisher.Publish(topic, traced...)
	return c.err
}

// carry puts the trace context of span, if it is valid, into msg.
func carry(ctx context.Context, msg *message.Message, span trace.Span) {
	parent, state := written(ctx, span)
	if parent == "" {
		return
	}
	msg.Metadata[transport.MetaTraceParent] = parent
	delete(msg.Metadata, transport.MetaTraceState)
	if state != "" {
		msg.Metadata[transport.MetaTraceState] = state
	}
}

// creations are the spans of events that are being written.
type creations struct {
	events []producer.Event
	spans  []trace.Span
	err    error
}

func (t *Telemetry) create(ctx context.Context, events []producer.Event) *creations {
	c := &creations{events: slices.Clone(events), spans: make([]trace.Span, len(events)), err: errNotReturned}
	for i := range c.events {
		e := &c.events[i]
		c.spans[i] = t.enqueue(ctx, e.Topic, e.CorrelationID, e.TraceParent, e.TraceState)
		if parent, state := written(ctx, c.spans[i]); parent != "" {
			e.TraceParent, e.TraceState = parent, state
		}
	}
	return c
}

// enqueue begins the span of a new event, as a child of the event's trace context or else of ctx.
func (t *Telemetry) enqueue(ctx context.Context, topic, correlation, parent, state string) trace.Span {
	_, span := t.tracer.Start(creation(ctx, parent, state), spanName(opEnqueue, topic), trace.WithSpanKind(trace.SpanKindProducer),
		trace.WithAttributes(t.attributes(opEnqueue, semconv.MessagingOperationTypeCreate, topic, "", correlation)...))
	return span
}

func (c *creations) is(i int, id uuid.UUID) {
	c.spans[i].SetAttributes(semconv.MessagingMessageID(id.String()))
}

// end ends the spans, with an error if the events were not written.
func (c *creations) end() {
	for _, span := range c.spans {
		if span == nil { // the loop that makes the spans panicked
			continue
		}
		if c.err != nil {
			failed(span, errorType(c.err), c.err)
		}
		span.End()
	}
}
