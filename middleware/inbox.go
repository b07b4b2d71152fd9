package middleware

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

var (
	// ErrNotCommitted is wrapped if a handler returned messages that cannot be written to an
	// outbox. Nothing was committed.
	ErrNotCommitted = errors.New("handler returned messages that cannot be written to an outbox: nothing was committed")
	// ErrAborted is wrapped if a handler failed because it used a transaction in which a statement
	// had failed before.
	ErrAborted = errors.New("transaction is aborted: a statement in it failed before, and the handler went on (use a savepoint)")
	// ErrInside is wrapped by every error of a handler if a middleware of Watermill between inbox
	// and handler runs the handler again, or hides its error. Effects would be committed twice or
	// by half.
	ErrInside = errors.New("middleware is inside the inbox, where it would run the handler again in the same transaction, or hide " +
		"its error: nothing was committed (add it before the inbox, or use Wrap)")
	// ErrSecondHandler is wrapped by every error of a second handler with the same middleware.
	ErrSecondHandler = errors.New("inbox middleware was added to a second handler: two handlers under one name would " +
		"swallow each other's messages, so make one middleware for each and add it with Handler.AddMiddleware")
)

// Config configures [Inbox] and [Wrap].
type Config struct {
	// Name is the name of the consumer within the service, as for [consumer.Inbox.Handle].
	// Required.
	Name string `yaml:"name" env:"NAME"`

	// PublishTopic is the topic of the messages that the handler returns. Defaults to none: a
	// handler that returns messages then fails.
	PublishTopic string `yaml:"publish_topic" env:"PUBLISH_TOPIC"`
	// Key returns the key of a returned message; messages of one key keep their order. With
	// PublishTopic, either Key or NoKey is required.
	Key func(topic string, msg *message.Message) string `yaml:"-" env:"-"`
	// NoKey says that returned messages have no key and need no order.
	NoKey bool `yaml:"no_key" env:"NO_KEY"`

	// Handler configures the consumer. [Inbox] sets Handler.Ready itself.
	Handler consumer.HandlerConfig `yaml:"handler" envPrefix:"HANDLER_"`
}

func (c Config) validate(hasOutbox bool) error {
	var errs []error
	switch {
	case c.PublishTopic == "":
		if c.Key != nil || c.NoKey {
			errs = append(errs, errors.New("PublishTopic: is required with Key and NoKey"))
		}
	case !hasOutbox:
		errs = append(errs, errors.New("PublishTopic: the inbox has no outbox; pass one to consumer.New"))
	case (c.Key == nil) == !c.NoKey:
		errs = append(errs, errors.New("set either Key or NoKey: messages without a key have no order"))
	}
	if c.Handler.Ready != nil {
		errs = append(errs, errors.New("Handler.Ready: is set by the middleware"))
	}
	return errors.Join(errs...)
}

// Inbox makes a consumer of inbox, and returns it as a middleware for one Watermill handler. The
// consumer is registered under cfg.Name at once, so its parked messages are retried from the start
// of the router, before the broker delivers a message. The router applies the middleware to its
// handler at its start; then the middleware is complete. A second handler with the same middleware
// fails with [ErrSecondHandler].
func Inbox[TX any](inbox *consumer.Inbox[TX], cfg Config) (message.HandlerMiddleware, error) {
	if err := cfg.validate(inbox.HasOutbox()); err != nil {
		return nil, fmt.Errorf("inbox middleware config: %w", err)
	}
	ready := make(chan struct{})
	p, err := newPlain(inbox, cfg)
	if err != nil {
		return nil, err
	}
	p.ready = ready
	cfg.Handler.Ready = ready
	handler, err := inbox.Handle(cfg.Name, p.handle, cfg.Handler)
	if err != nil {
		return nil, err
	}
	return func(next message.HandlerFunc) message.HandlerFunc {
		if !p.adopt(next) {
			return func(*message.Message) ([]*message.Message, error) {
				return nil, fmt.Errorf("consumer %s: %w", handler.Name(), ErrSecondHandler)
			}
		}
		return func(msg *message.Message) ([]*message.Message, error) {
			return nil, handler.Consume(msg)
		}
	}, nil
}

// Wrap makes fn a consumer of inbox under cfg.Name, and returns it as a handler for
// [message.Router.AddConsumerHandler]. Every middleware of the router is outside the inbox then,
// wherever it was added, so none runs fn twice in one transaction.
func Wrap[TX any](inbox *consumer.Inbox[TX], cfg Config, fn message.HandlerFunc) (message.NoPublishHandlerFunc, error) {
	err := cfg.validate(inbox.HasOutbox())
	if fn == nil {
		err = errors.Join(err, errors.New("function is nil"))
	}
	if err != nil {
		return nil, fmt.Errorf("inbox middleware config: %w", err)
	}
	p, err := newPlain(inbox, cfg)
	if err != nil {
		return nil, err
	}
	p.next = fn
	handler, err := inbox.Handle(cfg.Name, p.handle, cfg.Handler)
	if err != nil {
		return nil, err
	}
	return handler.Consume, nil
}

// plain runs a Watermill handler as the handler of a consumer.
type plain[TX any] struct {
	topic     string            // of the messages that the handler returns
	publisher message.Publisher // nil without topic
	ready     chan struct{}     // closed when next is set
	once      sync.Once
	next      message.HandlerFunc

	looked atomic.Bool            // look has seen the calls between inbox and handler
	inside atomic.Pointer[string] // name of a forbidden middleware between them
}

func newPlain[TX any](inbox *consumer.Inbox[TX], cfg Config) (*plain[TX], error) {
	p := &plain[TX]{topic: cfg.PublishTopic}
	if p.topic == "" {
		return p, nil
	}
	var err error
	p.publisher, err = inbox.Publisher(producer.PublisherConfig{Key: cfg.Key, NoKey: cfg.NoKey})
	return p, err
}

// adopt sets the handler, and tells whether it is the first.
func (p *plain[TX]) adopt(next message.HandlerFunc) (first bool) {
	p.once.Do(func() {
		p.next = next
		close(p.ready)
		first = true
	})
	return first
}

func (p *plain[TX]) handle(ctx context.Context, w *consumer.Work[TX], msg *message.Message) error {
	msg.SetContext(context.WithValue(ctx, workKey[TX]{}, &run[TX]{w, p}))
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
		return fmt.Errorf("%w: set PublishTopic, and pass an outbox to consumer.New", ErrNotCommitted)
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
// in handlers with the [Inbox] middleware or inside [Wrap], if TX is the type of the store's
// transactions. Otherwise it returns false.
func WorkFrom[TX any](ctx context.Context) (*consumer.Work[TX], bool) {
	r, ok := ctx.Value(workKey[TX]{}).(*run[TX])
	if !ok {
		return nil, false
	}
	r.of.look()
	return r.work, true
}
