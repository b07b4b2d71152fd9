package producer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
)

// PublisherConfig configures [Writer.Publisher].
type PublisherConfig struct {
	// Key returns the key of a message. Required unless NoKey: a Watermill message has no key, and
	// events without a key silently lose their order.
	Key func(topic string, msg *message.Message) string
	// NoKey says that the messages need no order.
	NoKey bool

	// Source and Version are the identity of the messages, as in [Event]; Version is at least 1.
	Source  string
	Version int64
	// MessageID makes the UUID of a message its identity, for code that computes the same UUIDs in
	// every run. A message published twice, in one transaction or in two, is one event; different
	// content, topic or key is an [outbox.ErrConflict]. Watermill's default UUIDs are random: a
	// repeated run then emits new events.
	MessageID bool
	// In a handler's writer, the identity defaults to the dispatch being handled.
}

// Publisher returns a Watermill publisher that writes to the outbox in w's transaction, for code
// that publishes today. The publisher uses ctx, works within the transaction and, like w, is not
// safe for concurrent use. Close does nothing. Metadata becomes headers, except for reserved names,
// which the wire contract or a Watermill transport has added to an earlier message.
func (w *Writer[TX]) Publisher(ctx context.Context, cfg PublisherConfig) (message.Publisher, error) {
	var errs []error
	if (cfg.Key == nil) == !cfg.NoKey {
		errs = append(errs, errors.New("set either Key or NoKey: events without a key have no order"))
	}
	switch identified := cfg.Source != "" || cfg.MessageID; {
	case cfg.Source != "" && cfg.MessageID:
		errs = append(errs, errors.New("set either Source or MessageID"))
	case cfg.Source != "":
		errs = append(errs, checkVersion(cfg.Version))
	case !identified && cfg.Version != 0:
		errs = append(errs, errors.New("Version: needs Source"))
	case !identified && w.cause == nil:
		errs = append(errs, fmt.Errorf("set Source or MessageID: %w", ErrNoIdentity))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("publisher config: %w", err)
	}
	return &txPublisher[TX]{ctx: ctx, w: w, cfg: cfg}, nil
}

// txPublisher keeps a context because Watermill's Publish takes no context, and the transaction's
// context must bound the write.
type txPublisher[TX any] struct {
	ctx context.Context
	w   *Writer[TX]
	cfg PublisherConfig
}

// Publish writes messages in one statement, all or none.
func (p *txPublisher[TX]) Publish(topic string, messages ...*message.Message) error {
	events := make([]Event, len(messages))
	for i, msg := range messages {
		e, err := p.event(topic, msg)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		events[i] = e
	}
	_, err := p.w.Write(p.ctx, events...)
	return err
}

func (p *txPublisher[TX]) event(topic string, msg *message.Message) (Event, error) {
	e := Event{
		Topic: topic, Payload: msg.Payload,
		Source: p.cfg.Source, Version: p.cfg.Version,
		Type:          msg.Metadata[transport.MetaType],
		ContentType:   msg.Metadata[transport.MetaContentType],
		CorrelationID: msg.Metadata[transport.MetaCorrelationID],
		TraceParent:   msg.Metadata[transport.MetaTraceParent],
		TraceState:    msg.Metadata[transport.MetaTraceState],
	}
	if p.cfg.MessageID {
		if msg.UUID == "" {
			return Event{}, fmt.Errorf("UUID is empty: %w", ErrNoIdentity)
		}
		e.Source, e.IdempotencyKey, e.single = "message", msg.UUID, true
	}
	if p.cfg.Key != nil {
		e.Key = p.cfg.Key(topic, msg)
	}
	for name, value := range msg.Metadata {
		if transport.IsReserved(name) {
			continue
		}
		if e.Headers == nil {
			e.Headers = make(map[string]string, len(msg.Metadata))
		}
		e.Headers[name] = value
	}
	return e, nil
}

// Close does nothing: the publisher does not own the transaction.
func (p *txPublisher[TX]) Close() error { return nil }
