package telemetry

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/boxpair/boxpair/transport"
)

// attrRedelivered marks a message of which a copy may have been sent, or handled, before.
const attrRedelivered = attribute.Key("boxpair.redelivered")

// Publisher returns publisher with a span, and the instruments of publishing, for each message. It
// is for the publisher of [relay.New] and the publishers of a relay's downstreams.
//
// A wrapped [transport.Sender] or [transport.BatchSender] keeps its methods. Each message is passed
// on at once, unchanged, with its context; each outcome is counted and then reported. A tracer
// provider with a span processor that blocks in OnEnd holds up the outcomes.
//
// For any other publisher, each message of a Publish call has a span. If a call with several
// messages fails, it is unknown which messages were published: all spans fail, and no attempt is
// counted. The relay publishes the messages again one by one.
//
// Close closes publisher, and Connect connects it if it can connect before its first use. Other
// methods of publisher cannot be reached through the returned publisher.
func (t *Telemetry) Publisher(publisher message.Publisher) message.Publisher {
	if publisher == nil {
		return nil // relay.New refuses nil, unless it has downstreams
	}
	p := measured{Publisher: publisher, t: t}
	if sender, ok := publisher.(transport.Sender); ok {
		return &measuredSender{measured: p, sender: sender}
	}
	return &p
}

// measured is a publisher without outcomes.
type measured struct {
	message.Publisher
	t *Telemetry
}

// Connect connects a publisher that can connect before its first use, as a relay asks it to.
func (p *measured) Connect(ctx context.Context) error {
	if c, ok := p.Publisher.(interface {
		Connect(ctx context.Context) error
	}); ok {
		return c.Connect(ctx) //nolint:wrapcheck // the publisher's own error
	}
	return nil
}

// Publish implements [message.Publisher].
func (p *measured) Publish(topic string, messages ...*message.Message) error {
	sends := make([]send, len(messages))
	for i, msg := range messages {
		sends[i] = p.t.beginSend(msg.Context(), topic, msg)
		if len(messages) > 1 {
			sends[i].span.SetAttributes(semconv.MessagingBatchMessageCount(len(messages)))
		}
	}
	err := errNotReturned
	defer func() {
		for i := range sends {
			if err == nil || len(sends) == 1 {
				sends[i].end(outcomeOf(err))
				continue
			}
			failed(sends[i].span, errorType(err), err)
			sends[i].span.End()
		}
	}()
	err = p.Publisher.Publish(topic, messages...)
	return err
}

// measuredSender is a publisher that reports outcomes.
type measuredSender struct {
	measured
	sender transport.Sender
}

var _ transport.BatchSender = (*measuredSender)(nil)

// Send implements [transport.Sender].
func (s *measuredSender) Send(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
	begun := s.t.beginSend(ctx, topic, msg)
	s.sender.Send(ctx, topic, msg, func(res transport.Result) {
		begun.end(res)
		done(res)
	})
}

// SendBatch implements [transport.BatchSender].
func (s *measuredSender) SendBatch(ctx context.Context, topic string, msgs []*message.Message, done func(transport.Result)) {
	batches, ok := s.sender.(transport.BatchSender)
	if !ok {
		done(transport.Result{Outcome: transport.Invalid, Err: errNoBatches})
		return
	}
	begun := make([]send, len(msgs))
	for i, msg := range msgs {
		begun[i] = s.t.beginSend(ctx, topic, msg)
		begun[i].span.SetAttributes(semconv.MessagingBatchMessageCount(len(msgs)))
	}
	batches.SendBatch(ctx, topic, msgs, func(res transport.Result) {
		for i := range begun {
			begun[i].end(res)
		}
		done(res)
	})
}

// BatchLimit implements [transport.BatchSender]. It is 0, 0 if the wrapped sender takes no batches.
func (s *measuredSender) BatchLimit() (messages, bytes int) {
	if batches, ok := s.sender.(transport.BatchSender); ok {
		return batches.BatchLimit()
	}
	return 0, 0
}

// Route implements [transport.Sender].
func (s *measuredSender) Route(topic string) string { return s.sender.Route(topic) }

// send is one attempt to publish one message. It keeps no reference to the message, which belongs
// to the sender again when the outcome is reported.
type send struct {
	t     *Telemetry
	ctx   context.Context //nolint:containedctx // carries the span, for exemplars
	span  trace.Span
	topic string
	stamp string
	begun time.Time
}

func (t *Telemetry) beginSend(ctx context.Context, topic string, msg *message.Message) send {
	meta := msg.Metadata
	attributes := t.attributes(opRelay, semconv.MessagingOperationTypeSend, topic, msg.UUID, meta[transport.MetaCorrelationID])
	if transport.Redelivered(msg) {
		attributes = append(attributes, attrRedelivered.Bool(true))
	}
	options := append(make([]trace.SpanStartOption, 0, 3), trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	if created := createdBy(ctx, meta[transport.MetaTraceParent], meta[transport.MetaTraceState]); created.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, created)
	} else {
		options = append(options, trace.WithNewRoot()) // not in the trace that started the relay
	}
	s := send{t: t, topic: topic, stamp: meta[transport.MetaStamp], begun: time.Now()}
	s.ctx, s.span = t.tracer.Start(ctx, spanName(opRelay, topic), options...)
	return s
}

// end counts the outcome and ends the span.
func (s *send) end(res transport.Result) {
	s.measure(res.Outcome)
	outcome := res.Outcome.String()
	s.span.SetAttributes(attrOutcome.String(outcome))
	if res.Outcome != transport.Confirmed {
		err := res.Err
		if err == nil {
			err = errors.New(outcome)
		}
		failed(s.span, semconv.ErrorTypeKey.String(outcome), err)
	}
	s.span.End()
}

func (s *send) measure(outcome transport.Outcome) {
	i, now := s.t.instruments, time.Now()
	if i.attempts.Enabled(s.ctx) || i.publishDuration.Enabled(s.ctx) {
		by := s.t.labels.of(s.topic, outcome.String())
		i.attempts.Add(s.ctx, 1, by.add...)
		i.publishDuration.Record(s.ctx, now.Sub(s.begun).Seconds(), by.record...)
	}
	if outcome != transport.Confirmed || !i.deliveryLatency.Enabled(s.ctx) {
		return
	}
	if stamp, err := time.Parse(time.RFC3339Nano, s.stamp); err == nil {
		latency := max(0, now.Sub(stamp)) // the database's clock may be ahead
		i.deliveryLatency.Record(s.ctx, latency.Seconds(), s.t.labels.of(s.topic, "").record...)
	}
}

// outcomeOf maps the error of a Publish call with one message to an outcome, as a relay does.
func outcomeOf(err error) transport.Result {
	var known interface{ Outcome() transport.Outcome }
	switch {
	case err == nil:
		return transport.Result{Outcome: transport.Confirmed}
	case errors.As(err, &known) && known.Outcome() != transport.Confirmed:
		return transport.Result{Outcome: known.Outcome(), Err: err}
	case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled):
		return transport.Result{Outcome: transport.Unavailable, Err: err}
	}
	return transport.Result{Outcome: transport.Refused, Err: err}
}
