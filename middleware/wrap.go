package middleware

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/within"
	"github.com/boxpair/boxpair/producer"
)

var (
	// ErrNotCommitted is wrapped if a handler returned messages that cannot be written to an
	// outbox. Nothing was committed.
	ErrNotCommitted = errors.New("handler returned messages that cannot be written to an outbox: nothing was committed")
	// ErrAborted is wrapped if a handler failed because it used a transaction in which a statement
	// had failed before.
	ErrAborted = errors.New("transaction is aborted: a statement in it failed before, and the handler went on (use a savepoint)")
	// ErrInside is wrapped by every error of a handler with a middleware of Watermill between inbox
	// and handler that runs the handler again, or hides its error. Effects would be committed twice
	// or by half.
	ErrInside = errors.New("middleware is inside the inbox, where it would run the handler again in the same transaction, or hide " +
		"its error: nothing was committed (add it to the router, instead of making it part of the handler)")
)

// Config configures [Wrap].
type Config struct {
	// PublishTopic is the topic of the messages that the handler returns. Defaults to none: a
	// handler that returns messages then fails.
	PublishTopic string `yaml:"publish_topic" env:"PUBLISH_TOPIC"`
	// Publisher tells the keys and identities of returned messages. With PublishTopic, either
	// Publisher.Key or Publisher.NoKey is required.
	Publisher producer.PublisherConfig `yaml:"-" env:"-"`

	// Handler configures the consumer.
	Handler consumer.HandlerConfig `yaml:"handler" envPrefix:"HANDLER_"`
}

// Wrap makes fn a consumer of inbox under name, and returns it as a handler for
// [message.Router.AddConsumerHandler]. Every middleware of the router is outside the inbox,
// wherever it was added, so none runs fn twice in one transaction. The errors are those of
// [consumer.Inbox.Handle].
func Wrap[TX any](inbox *consumer.Inbox[TX], name string, fn message.HandlerFunc, cfg Config) (message.NoPublishHandlerFunc, error) {
	if inbox == nil {
		return nil, fmt.Errorf("handler %q: inbox is nil", name)
	}
	var errs []error
	publisher, err := publisherOf(inbox, cfg.Publisher)
	errs = append(errs, err)
	if publisher != nil && cfg.PublishTopic == "" {
		errs = append(errs, errors.New("PublishTopic: is required with Publisher"))
	}
	p, err := newPlain[TX](fn, cfg.PublishTopic, cfg.Publisher, publisher)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, fmt.Errorf("handler %q: %w", name, err)
	}
	handler, err := inbox.Handle(name, p.handle, cfg.Handler)
	if err != nil {
		return nil, err
	}
	return handler.Consume, nil
}

// plain runs a Watermill handler as the handler of a consumer.
type plain[TX any] struct {
	next      message.HandlerFunc
	topic     string            // of the messages that the handler returns
	publisher message.Publisher // nil without topic

	looked atomic.Bool            // look has seen the calls between inbox and handler
	inside atomic.Pointer[string] // name of a forbidden middleware between them
}

// newPlain makes the handler of fn, whose returned messages go to topic through publisher, as cfg
// says.
func newPlain[TX any](
	fn message.HandlerFunc, topic string, cfg producer.PublisherConfig, publisher message.Publisher,
) (*plain[TX], error) {
	switch {
	case fn == nil:
		return nil, errors.New("function is nil")
	case topic != "" && cfg.Key == nil && !cfg.NoKey:
		return nil, errors.New("PublishTopic: set either Publisher.Key or Publisher.NoKey: messages without a key have no order")
	case topic == "":
		publisher = nil
	}
	return &plain[TX]{next: fn, topic: topic, publisher: publisher}, nil
}

// publisherOf returns the publisher of returned messages, or nil if cfg is empty.
func publisherOf[TX any](inbox *consumer.Inbox[TX], cfg producer.PublisherConfig) (message.Publisher, error) {
	switch {
	case cfg.OwnTransaction:
		return nil, errors.New("Publisher.OwnTransaction: messages are written in the transaction of the handler")
	case cfg.Key == nil && !cfg.NoKey && cfg.Identity == nil && !cfg.MessageID:
		return nil, nil
	}
	return inbox.Publisher(cfg)
}

func (p *plain[TX]) handle(ctx context.Context, w *consumer.Work[TX], msg *message.Message) error {
	msg.SetContext(within.Handling(context.WithValue(ctx, workKey[TX]{}, &run[TX]{w, p}), w.Event().ID))
	produced, err := p.next(msg)
	if name := p.inside.Load(); name != nil { // even if err is nil: the middleware may hide the error
		return errors.Join(fmt.Errorf("%s: %w", *name, ErrInside), explain(err))
	}
	if err != nil {
		return explain(err)
	}
	if len(produced) == 0 {
		return nil
	}
	if p.publisher == nil {
		return fmt.Errorf("%w: set a topic for them, and consumer.WithOutbox", ErrNotCommitted)
	}
	for _, msg := range produced {
		msg.SetContext(ctx)
	}
	if err := p.publisher.Publish(p.topic, produced...); err != nil {
		return fmt.Errorf("write the handler's messages: %w", explain(err))
	}
	return nil
}

// sqlAborted is PostgreSQL's code for a statement in an aborted transaction.
const sqlAborted = "25P02"

// explain adds to err the cause of PostgreSQL's error for an aborted transaction. The driver is
// unknown here; by convention, errors of drivers return their code from SQLState.
func explain(err error) error {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) && coded.SQLState() == sqlAborted {
		return fmt.Errorf("%w: %w", ErrAborted, err)
	}
	return err
}

type workKey[TX any] struct{}

// run is one run of a handler, as a value in the message's context.
type run[TX any] struct {
	work *consumer.Work[TX]
	of   *plain[TX]
}

// WorkFrom returns the work of the message whose context ctx is or derives from. It finds the work
// in handlers inside [Wrap] and of a router with [Router], if TX is the type of the store's
// transactions. Otherwise it returns false.
func WorkFrom[TX any](ctx context.Context) (*consumer.Work[TX], bool) {
	r, ok := ctx.Value(workKey[TX]{}).(*run[TX])
	if !ok {
		return nil, false
	}
	r.of.look()
	return r.work, true
}
