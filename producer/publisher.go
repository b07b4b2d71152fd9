package producer

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/internal/within"
	"github.com/boxpair/boxpair/transport"
)

// PublisherConfig configures [Outbox.Publisher].
type PublisherConfig struct {
	// Key returns the key of a message: messages of one key keep their order. A Watermill message
	// has no key, so Publish refuses a message that has neither Key nor a described key
	// ([Describe]), which comes first.
	Key func(topic string, msg *message.Message) string
	// NoKey says that messages without a described key need no order.
	NoKey bool

	// Identity returns the identity of a message. A described identity comes first. The zero
	// Identity stands for none: in a handler the dispatch ID is then a child of the handled
	// message's, and elsewhere Publish refuses the message with [ErrNoIdentity].
	Identity func(topic string, msg *message.Message) Identity
	// MessageID makes the UUID of a message its identity, for code that computes the same UUIDs in
	// every run. A message published twice, in one transaction or in two, is one event; different
	// content, topic or key is an [outbox.ErrConflict]. Watermill's default UUIDs are random: a
	// repeated run then emits new events. Not together with Identity.
	MessageID bool

	// OwnTransaction has messages whose context is in no transaction written in one of their own,
	// which is committed when Publish returns. A message whose context was forgotten, or lost in a
	// decorator that copies messages (Copy, in place of CopyWithContext), is such a message, too.
	// Defaults to false: Publish refuses them with [ErrNoTransaction].
	OwnTransaction bool
}

// Publisher returns a Watermill publisher that writes messages to the outbox, for a service that
// publishes through Watermill today. It lasts as long as the service, alone or behind an event bus
// or a decorator that keeps the messages' contexts, and is safe for concurrent use.
//
// Publish finds the transaction in the messages' contexts: [Outbox.Transact], [Outbox.WithTx] and
// handlers of an inbox with this outbox put it there, and Watermill's event and command buses pass
// it on. In a batch handler, only the contexts of its messages are in the transaction. All messages
// of one call are written, or none; they must be in one transaction, in which two goroutines must
// not publish at once. Messages of different transactions, and a message in a transaction of another
// outbox, are refused, and none of the transactions can be committed.
//
// Metadata becomes headers, except for reserved names, which the wire contract or a Watermill
// transport has added to an earlier message. Close does nothing.
func (o *Outbox[TX]) Publisher(cfg PublisherConfig) (message.Publisher, error) {
	var errs []error
	if cfg.Key != nil && cfg.NoKey {
		errs = append(errs, errors.New("set either Key or NoKey"))
	}
	if cfg.Identity != nil && cfg.MessageID {
		errs = append(errs, errors.New("set either Identity or MessageID"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("publisher config: %w", err)
	}
	return &publisher[TX]{outbox: o, cfg: cfg}, nil
}

// WithTx returns ctx within tx, a transaction of the caller, for publishers and for
// [Outbox.Writer]. As [Outbox.Tx], it makes the one writer of the transaction: call it once for each
// transaction. A context is in one transaction only, the last one. After the commit, call
// [Outbox.Committed].
func (o *Outbox[TX]) WithTx(ctx context.Context, tx TX) context.Context {
	return o.Tx(tx).Context(ctx)
}

// Writer returns the writer of the transaction that ctx is in, or an error that wraps
// [ErrNoTransaction].
func (o *Outbox[TX]) Writer(ctx context.Context) (*Writer[TX], error) {
	return o.writerOf(within.From(ctx))
}

func (o *Outbox[TX]) writerOf(t *within.Transaction) (*Writer[TX], error) {
	if t == nil {
		return nil, fmt.Errorf("%w: publish with the context that Transact, WithTx or a handler gives, through a bus or after msg.SetContext(ctx)", ErrNoTransaction)
	}
	if t.Ended() {
		return nil, errEnded
	}
	switch w := t.Writer.(type) {
	case nil:
		return nil, fmt.Errorf("%w: %s", ErrNoTransaction, t.Instead)
	case *Writer[TX]:
		if w.outbox == o {
			return w, nil
		}
	}
	name := t.Writer.(interface{ outboxName() string }).outboxName()
	return nil, fmt.Errorf("%w: the context is in a transaction of outbox %q, not of %q", ErrNoTransaction, name, o.cfg.Name)
}

// Context returns ctx within the transaction of w, as [Outbox.WithTx] does.
func (w *Writer[TX]) Context(ctx context.Context) context.Context {
	if w.flushes && w.seen == nil {
		w.seen = observe.From(ctx)
	}
	return within.Context(ctx, &w.within)
}

// End takes note that the transaction has ended: from then on w refuses events. End is for code that
// runs handlers.
func (w *Writer[TX]) End() { w.within.End() }

func (w *Writer[TX]) outboxName() string { return w.outbox.cfg.Name }

type publisher[TX any] struct {
	outbox *Outbox[TX]
	cfg    PublisherConfig
}

// Publish writes messages, all or none.
func (p *publisher[TX]) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	err := p.publish(topic, messages)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrNoIdentity):
		return fmt.Errorf("publish to topic %q: %w (of a publisher: set PublisherConfig.Identity or MessageID, or give the event's type a method EventIdentity)", topic, err)
	}
	return fmt.Errorf("publish to topic %q: %w", topic, err)
}

func (p *publisher[TX]) publish(topic string, messages []*message.Message) error {
	events := make([]Event, len(messages))
	transactions := make([]*within.Transaction, len(messages))
	own := p.cfg.OwnTransaction
	for i, msg := range messages {
		e, err := p.event(topic, msg)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		events[i], transactions[i] = e, within.From(msg.Context())
		own = own && transactions[i] == nil
	}
	if own {
		return p.outbox.Transact(messages[0].Context(), func(ctx context.Context, w *Writer[TX]) error {
			_, err := w.Write(ctx, events...)
			return err
		})
	}
	forbid := func(err error) error {
		for _, t := range transactions {
			if t != nil {
				t.Forbid(err)
			}
		}
		return err
	}
	writers, err := p.writers(transactions)
	if err != nil {
		return forbid(err)
	}
	for begin := 0; begin < len(events); { // messages that are handled together have one transaction and a writer each
		end := begin + 1
		for end < len(events) && writers[end] == writers[begin] {
			end++
		}
		if _, err := writers[begin].Write(messages[begin].Context(), events[begin:end]...); err != nil {
			if begin > 0 { // some are written
				return forbid(err)
			}
			return err
		}
		begin = end
	}
	return nil
}

// writers returns the writers of transactions, which must be one transaction of the outbox.
func (p *publisher[TX]) writers(transactions []*within.Transaction) ([]*Writer[TX], error) {
	writers := make([]*Writer[TX], len(transactions))
	for i, t := range transactions {
		w, err := p.outbox.writerOf(t)
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		if writers[i] = w; w.token != writers[0].token {
			return nil, fmt.Errorf("message %d is in another transaction than message 0: publish them in a call for each transaction", i)
		}
	}
	return writers, nil
}

func (p *publisher[TX]) event(topic string, msg *message.Message) (Event, error) {
	e := Event{
		Topic: topic, Payload: msg.Payload,
		Type:          msg.Metadata[transport.MetaType],
		ContentType:   msg.Metadata[transport.MetaContentType],
		CorrelationID: msg.Metadata[transport.MetaCorrelationID],
		TraceParent:   msg.Metadata[transport.MetaTraceParent],
		TraceState:    msg.Metadata[transport.MetaTraceState],
	}
	if err := errors.Join(p.setKey(&e, msg), p.setIdentity(&e, msg)); err != nil {
		return Event{}, err
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

func (p *publisher[TX]) setKey(e *Event, msg *message.Message) error {
	key, described := msg.Metadata[describedKey]
	switch {
	case described:
		e.Key = key
	case p.cfg.Key != nil:
		e.Key = p.cfg.Key(e.Topic, msg)
	case !p.cfg.NoKey:
		return errors.New("message has no key, and so no order: set PublisherConfig.Key or NoKey, or describe the event")
	}
	return nil
}

func (p *publisher[TX]) setIdentity(e *Event, msg *message.Message) error {
	id, err := describedIdentity(msg)
	if err != nil {
		return err
	}
	if id == (Identity{}) && p.cfg.Identity != nil {
		id = p.cfg.Identity(e.Topic, msg)
	}
	switch {
	case id != Identity{}:
		e.Source, e.Version, e.IdempotencyKey = id.Source, id.Version, id.IdempotencyKey
	case p.cfg.MessageID && msg.UUID == "":
		return fmt.Errorf("UUID is empty: %w", ErrNoIdentity)
	case p.cfg.MessageID:
		e.Source, e.IdempotencyKey, e.single = "message", msg.UUID, true
	}
	return nil
}

// Close does nothing: the publisher owns neither the outbox nor a transaction.
func (p *publisher[TX]) Close() error { return nil }
