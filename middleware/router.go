package middleware

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

// ErrUnknownHandler is wrapped by the error of each message of a handler that a router with [Router]
// got after its start. The handler did not run.
var ErrUnknownHandler = errors.New("handler was added after the router's start, and has no inbox: use Wrap, or add it before")

// RouterConfig configures [Router].
type RouterConfig struct {
	// Publisher tells the keys and identities of returned messages. With a handler that was given a
	// topic to publish to, either Publisher.Key or Publisher.NoKey is required.
	Publisher producer.PublisherConfig `yaml:"-" env:"-"`

	// Handler configures the consumers of all handlers.
	Handler consumer.HandlerConfig `yaml:"handler" envPrefix:"HANDLER_"`
	// Handlers configures consumers by the names of their handlers, in place of Handler.
	Handlers map[string]consumer.HandlerConfig `yaml:"-" env:"-"`
	// Except names the handlers that get no inbox: handlers without a database, and handlers that
	// are consumers already ([Wrap], [consumer.Inbox.Handle]). The handlers of
	// [consumer.Inbox.AddHandler] need not be named.
	Except []string `yaml:"except" env:"EXCEPT"`
	// AllowLoss starts the router with Watermill's PoisonQueue, Deduplicator or InstantAck around a
	// handler with an inbox, and logs an ERROR. Defaults to false: the start fails, since each of them
	// acknowledges messages that the inbox has neither applied nor parked.
	AllowLoss bool `yaml:"allow_loss" env:"ALLOW_LOSS"`
}

// Router returns a plugin that puts inbox around all handlers of a router, each under its own name:
//
//	router.AddPlugin(middleware.Router(inbox, middleware.RouterConfig{}))
//
// The plugin runs at the router's start, when all handlers and middlewares are known. So every
// middleware is outside the inbox, and the order of the calls is of no importance. Messages that a
// handler returns go to the topic that [message.Router.AddHandler] was given, through the outbox;
// the publisher that it was given gets no messages.
//
// The start fails if a name is taken by another consumer of the inbox, if RouterConfig names an
// unknown handler, if a handler has a topic to publish to and the inbox no outbox, or if a middleware
// of Watermill would lose messages (RouterConfig.AllowLoss). Messages of a
// handler that is added later are refused with [ErrUnknownHandler], and messages of a handler that
// gets a middleware later with [ErrInside].
func Router[TX any](inbox *consumer.Inbox[TX], cfg RouterConfig) message.RouterPlugin {
	return func(router *message.Router) error {
		r, err := newRouted(inbox, cfg, router)
		if err != nil {
			return fmt.Errorf("inbox for a router: %w", err)
		}
		router.AddMiddleware(r.middleware)
		return nil
	}
}

// routed is the inbox of a router's handlers.
type routed[TX any] struct {
	consumers map[string]*consumer.Handler[TX]
	except    map[string]bool
	code      map[uintptr]bool // of the handlers' functions
}

func newRouted[TX any](inbox *consumer.Inbox[TX], cfg RouterConfig, router *message.Router) (*routed[TX], error) {
	r := &routed[TX]{consumers: make(map[string]*consumer.Handler[TX]), except: make(map[string]bool), code: make(map[uintptr]bool)}
	handlers := router.Handlers()
	var errs []error
	for _, name := range cfg.Except {
		r.except[name] = true
		if handlers[name] == nil {
			errs = append(errs, fmt.Errorf("Except: the router has no handler %q", name))
		}
	}
	for name := range cfg.Handlers {
		if handlers[name] == nil || r.except[name] {
			errs = append(errs, fmt.Errorf("Handlers: the router has no handler %q that gets an inbox", name))
		}
	}
	topics, err := publishTopics(router)
	errs = append(errs, err, checkMiddlewares(router, r.except, inbox.Logger(), cfg.AllowLoss))
	for name, fn := range handlers {
		if r.except[name] || inbox.HasAdded(router, name) {
			r.except[name] = true
			continue
		}
		r.code[codeOf(fn)] = true
		p, err := newPlain(inbox, fn, topics[name], cfg.Publisher)
		if err != nil {
			errs = append(errs, fmt.Errorf("handler %q: %w", name, err))
			continue
		}
		hc, ok := cfg.Handlers[name]
		if !ok {
			hc = cfg.Handler
		}
		r.consumers[name], err = inbox.Handle(name, p.handle, hc)
		if errors.Is(err, consumer.ErrDuplicateName) {
			err = fmt.Errorf("%w: if it is that consumer already, name it in RouterConfig.Except", err)
		}
		errs = append(errs, err)
	}
	return r, errors.Join(errs...)
}

// middleware is the innermost middleware of every handler. Watermill names the handler with each
// message only.
func (r *routed[TX]) middleware(next message.HandlerFunc) message.HandlerFunc {
	innermost := r.code[codeOf(next)]
	return func(msg *message.Message) ([]*message.Message, error) {
		name := message.HandlerNameFromCtx(msg.Context())
		h := r.consumers[name]
		switch {
		case r.except[name]:
			return next(msg)
		case h == nil:
			return nil, fmt.Errorf("handler %q: %w", name, ErrUnknownHandler)
		case !innermost:
			return nil, fmt.Errorf("consumer %s: %w", h.Name(), ErrInside)
		}
		return nil, h.Consume(msg)
	}
}

// codeOf tells functions apart that come from different places in the source.
func codeOf(fn message.HandlerFunc) uintptr { return reflect.ValueOf(fn).Pointer() }

// publishTopics returns the topics that the handlers of a router publish to, by their names.
// Watermill tells them only with a message. But a message that is parked is handled again before
// another one may come, so they are read from the router.
func publishTopics(router *message.Router) (map[string]string, error) {
	topics := make(map[string]string)
	if handlers := reflect.ValueOf(router).Elem().FieldByName("handlers"); handlers.Kind() == reflect.Map {
		for h := handlers.MapRange(); h.Next(); {
			handler := reflect.Indirect(h.Value())
			if handler.Kind() != reflect.Struct {
				continue
			}
			if topic := handler.FieldByName("publishTopic"); topic.Kind() == reflect.String {
				topics[h.Key().String()] = topic.String()
			}
		}
	}
	if len(topics) != len(router.Handlers()) {
		return nil, errors.New("this version of Watermill does not tell which topics its handlers publish to: use Wrap")
	}
	return topics, nil
}
