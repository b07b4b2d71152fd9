package telemetry

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/transport"
)

// Handler returns fn with a span, and the instrument boxpair.inbox.handler.duration, for each run.
// name is the consumer's name, as [consumer.Handler.Name] returns it: the service, a slash and the
// handler's name. The contexts of fn and of the message carry the span. Errors, panics and Goexit
// pass through unchanged, and set the span's status; the value of a panic is not exported.
func Handler[TX any](t *Telemetry, name string, fn consumer.HandlerFunc[TX]) consumer.HandlerFunc[TX] {
	return func(ctx context.Context, w *consumer.Work[TX], msg *message.Message) error {
		e := w.Event()
		r := t.begin1(ctx, name, handled{
			topic: e.Topic, id: msg.UUID, correlation: e.CorrelationID, parent: e.TraceParent, state: e.TraceState,
			redelivered: transport.Redelivered(msg),
		})
		defer r.end()
		msg.SetContext(trace.ContextWithSpan(msg.Context(), r.span)) //nolint:contextcheck // the message's own, with the span
		r.err = fn(r.ctx, w, msg)                                    //nolint:contextcheck // ctx with the span
		return r.err
	}
}

// BatchHandler is [Handler] for a function that takes a set of messages. A run has one span; the
// messages' contexts do not carry it. With several messages the span is a child of the span in ctx,
// or begins a trace of its own, and has a link to the trace of each message.
func BatchHandler[TX any](t *Telemetry, name string, fn consumer.BatchFunc[TX]) consumer.BatchFunc[TX] {
	return func(ctx context.Context, b *consumer.Batch[TX], msgs []*message.Message) error {
		list := make([]handled, b.Len())
		for i := range list {
			e := b.Work(i).Event()
			list[i] = handled{
				topic: e.Topic, id: e.ID.String(), correlation: e.CorrelationID, parent: e.TraceParent, state: e.TraceState,
			}
		}
		r := t.beginAll(ctx, name, list)
		defer r.end()
		r.err = fn(r.ctx, b, msgs) //nolint:contextcheck // ctx with the span
		return r.err
	}
}

// Middleware is [Handler] for a plain Watermill handler. Make it part of the handler's function, so
// that it runs once per attempt, inside the transaction of an inbox: tel.Middleware(name)(handler). A
// parked message that is retried then has no topic. Without an inbox it runs once per delivery. Returned messages without
// a traceparent travel with the context of the span. name is the consumer's name.
func (t *Telemetry) Middleware(name string) message.HandlerMiddleware {
	return func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			before, meta := msg.Context(), msg.Metadata
			r := t.begin1(before, name, handled{
				topic: message.SubscribeTopicFromCtx(before), id: msg.UUID, correlation: meta[transport.MetaCorrelationID],
				parent: meta[transport.MetaTraceParent], state: meta[transport.MetaTraceState],
				redelivered: transport.Redelivered(msg),
			})
			defer r.end()
			msg.SetContext(r.ctx)
			defer msg.SetContext(before)
			produced, err := next(msg)
			r.err = err
			for _, m := range produced {
				if m.Metadata == nil {
					m.Metadata = make(message.Metadata)
				}
				if m.Metadata[transport.MetaTraceParent] == "" {
					carry(r.ctx, m, r.span)
				}
			}
			return produced, err
		}
	}
}

// handled describes a message that is handled.
type handled struct {
	topic, id, correlation, parent, state string
	redelivered                           bool
}

// run is one run of a handler.
type run struct {
	t           *Telemetry
	ctx         context.Context //nolint:containedctx // the handler's
	span        trace.Span
	name, topic string
	begun       time.Time
	err         error
}

// begin1 begins a run for one message, as a child of the span that wrote the event. A span in ctx
// is the parent instead if it belongs to the same trace; a span of another trace is linked.
func (t *Telemetry) begin1(ctx context.Context, name string, m handled) *run {
	options := []trace.SpanStartOption{
		trace.WithAttributes(t.attributes(opHandle, semconv.MessagingOperationTypeProcess, m.topic, m.id, m.correlation)...),
	}
	if m.redelivered {
		options = append(options, trace.WithAttributes(attrRedelivered.Bool(true)))
	}
	around, created := trace.SpanContextFromContext(ctx), createdBy(ctx, m.parent, m.state)
	if created.IsValid() && around.TraceID() != created.TraceID() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, created)
		if around.IsValid() {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: around}))
		}
	}
	return t.start(ctx, name, m.topic, options)
}

// beginAll begins a run for several messages.
func (t *Telemetry) beginAll(ctx context.Context, name string, list []handled) *run {
	if len(list) == 1 {
		return t.begin1(ctx, name, list[0])
	}
	topic, links := "", make([]trace.Link, 0, len(list))
	for i, m := range list {
		if i == 0 {
			topic = m.topic
		} else if topic != m.topic {
			topic = ""
		}
		if created := createdBy(ctx, m.parent, m.state); created.IsValid() {
			links = append(links, trace.Link{
				SpanContext: created, Attributes: []attribute.KeyValue{semconv.MessagingMessageID(m.id)},
			})
		}
	}
	return t.start(ctx, name, topic, []trace.SpanStartOption{
		trace.WithLinks(links...),
		trace.WithAttributes(t.attributes(opHandle, semconv.MessagingOperationTypeProcess, topic, "", "")...),
		trace.WithAttributes(semconv.MessagingBatchMessageCount(len(list))),
	})
}

func (t *Telemetry) start(ctx context.Context, name, topic string, options []trace.SpanStartOption) *run {
	options = append(options, trace.WithSpanKind(trace.SpanKindConsumer),
		trace.WithAttributes(semconv.MessagingConsumerGroupName(name)))
	r := &run{t: t, name: name, topic: topic, begun: time.Now(), err: errNotReturned}
	r.ctx, r.span = t.tracer.Start(ctx, spanName(opHandle, topic), options...)
	return r
}

// end counts the run and ends its span.
func (r *run) end() {
	by := []attribute.KeyValue{semconv.MessagingSystemKey.String(r.t.cfg.System), semconv.MessagingConsumerGroupName(r.name)}
	if r.topic != "" {
		by = append(by, semconv.MessagingDestinationName(r.topic))
	}
	if r.err != nil {
		kind := errorType(r.err)
		by = append(by, kind)
		failed(r.span, kind, r.err)
	}
	r.t.instruments.handlerDuration.Record(r.ctx, time.Since(r.begun).Seconds(), metric.WithAttributeSet(attribute.NewSet(by...)))
	r.span.End()
}
