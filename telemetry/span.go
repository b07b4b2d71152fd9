package telemetry

import (
	"context"
	"errors"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/transport"
)

// The names of the operations.
const (
	opEnqueue = "enqueue"
	opRelay   = "relay"
	opHandle  = "handle"
)

const (
	maxDescription = 1 << 10
	maxTraceState  = 512 // bytes of an event; W3C allows to drop the state
)

// errNotReturned is the status of spans whose code ended in a panic or Goexit. The value of the
// panic is left out, since it may be the payload.
var errNotReturned = errors.New("panicked, or ended its goroutine")

// errNoBatches is the outcome of a batch if the publisher takes none.
var errNoBatches = errors.New("the publisher takes no batches")

// w3c is the format of trace context in rows and messages.
var w3c propagation.TraceContext

// creation returns ctx with the remote span of parent and state, or ctx itself if parent is "".
func creation(ctx context.Context, parent, state string) context.Context {
	if parent == "" {
		return ctx
	}
	return w3c.Extract(ctx, &carrier{parent, state})
}

// createdBy returns the context in which an event was written, without any span of ctx. It is not
// valid if the event has no trace context.
func createdBy(ctx context.Context, parent, state string) trace.SpanContext {
	return trace.SpanContextFromContext(creation(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), parent, state))
}

// written returns the trace context of span in the form that an event keeps.
func written(ctx context.Context, span trace.Span) (parent, state string) {
	c := &carrier{}
	w3c.Inject(trace.ContextWithSpan(ctx, span), c)
	if len(c.state) > maxTraceState {
		c.state = ""
	}
	return c.parent, c.state
}

// carrier is the trace context of one event, as a [propagation.TextMapCarrier].
type carrier struct{ parent, state string }

// Get implements [propagation.TextMapCarrier].
func (c *carrier) Get(name string) string {
	switch name {
	case transport.MetaTraceParent:
		return c.parent
	case transport.MetaTraceState:
		return c.state
	}
	return ""
}

// Set implements [propagation.TextMapCarrier].
func (c *carrier) Set(name, value string) {
	switch name {
	case transport.MetaTraceParent:
		c.parent = value
	case transport.MetaTraceState:
		c.state = value
	}
}

// Keys implements [propagation.TextMapCarrier].
func (c *carrier) Keys() []string {
	return []string{transport.MetaTraceParent, transport.MetaTraceState}
}

// attributes returns the attributes of all spans.
func (t *Telemetry) attributes(operation string, kind attribute.KeyValue, topic, id, correlation string) []attribute.KeyValue {
	list := make([]attribute.KeyValue, 0, 8) // room for the attributes of some spans
	list = append(list, semconv.MessagingSystemKey.String(t.cfg.System), semconv.MessagingOperationName(operation), kind)
	if topic != "" {
		list = append(list, semconv.MessagingDestinationName(topic))
	}
	if id != "" {
		list = append(list, semconv.MessagingMessageID(id))
	}
	if correlation != "" {
		list = append(list, semconv.MessagingMessageConversationID(correlation))
	}
	return list
}

// spanName names a span by its operation and destination.
func spanName(operation, topic string) string {
	if topic == "" {
		return operation
	}
	return operation + " " + topic
}

// failed sets the status of span to an error.
func failed(span trace.Span, kind attribute.KeyValue, err error) {
	span.SetAttributes(kind)
	span.SetStatus(codes.Error, description(err))
}

// description returns the text of err for export: bounded, and valid UTF-8.
func description(err error) string {
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) <= maxDescription {
		return text
	}
	end := maxDescription
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// errorType returns the kind of an error, with few different values.
func errorType(err error) attribute.KeyValue {
	if errors.Is(err, errNotReturned) {
		return semconv.ErrorTypeKey.String("panic")
	}
	return semconv.ErrorType(err)
}
