package middleware

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/funcid"
	"github.com/boxpair/boxpair/producer"
)

// ErrAddedLater is wrapped by the error of each message of a handler that its inbox does not know: the
// handler, or a middleware around it, was added after the plugin of [Router] had run. The handler did
// not run.
var ErrAddedLater = errors.New("handler has no inbox, since it or a middleware of it was added after the plugin: " +
	"add it before, or use consumer.Inbox.AddHandler")

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
// middleware is outside the inbox, wherever it was added; only a plugin that adds middlewares must
// come first. Messages that a handler returns go to the topic that [message.Router.AddHandler] was
// given, through the outbox. The publisher that it was given, the router's publisher decorators and
// its middlewares get no returned messages.
//
// The start fails if a name is taken by another consumer of the inbox, if RouterConfig names an
// unknown handler, if a handler has a topic to publish to and the inbox no outbox, or if a middleware
// of Watermill would lose messages (RouterConfig.AllowLoss). A router that is made anew after that
// needs a new inbox. Messages of handlers that are added later are refused with [ErrAddedLater],
// except for the handlers of [consumer.Inbox.AddHandler].
//
// Several plugins may put different inboxes around the handlers of one router: each names the handlers
// of the others in RouterConfig.Except.
func Router[TX any](inbox *consumer.Inbox[TX], cfg RouterConfig) message.RouterPlugin {
	return func(router *message.Router) error {
		if inbox == nil {
			return errors.New("inbox for a router: inbox is nil")
		}
		r := &routed[TX]{
			inbox:     inbox,
			functions: make(map[string]funcid.ID), names: make(map[funcid.ID][]string),
			consumers: make(map[string]*consumer.Handler[TX]), except: make(map[string]bool),
		}
		if err := r.putAround(router, cfg); err != nil {
			return fmt.Errorf("inbox for a router: %w", err)
		}
		router.AddMiddleware(r.middleware)
		return nil
	}
}

// routed is the inbox of a router's handlers.
type routed[TX any] struct {
	inbox     *consumer.Inbox[TX]
	functions map[string]funcid.ID // of the handlers, by name
	names     map[funcid.ID][]string
	consumers map[string]*consumer.Handler[TX]
	except    map[string]bool // the names of RouterConfig.Except
}

func (r *routed[TX]) putAround(router *message.Router, cfg RouterConfig) error {
	handlers := router.Handlers()
	errs := r.checkNames(handlers, cfg)
	topics, err := publishTopics(router)
	errs = append(errs, err, checkMiddlewares(router, r.except, r.inbox.Logger(), cfg.AllowLoss))
	publisher, err := publisherOf(r.inbox, cfg.Publisher)
	errs = append(errs, err)
	plains := make(map[string]*plain[TX])
	for name, fn := range handlers {
		id := funcid.Of(fn)
		r.functions[name] = id
		r.names[id] = append(r.names[id], name)
		if r.except[name] || r.inbox.HasAdded(fn) {
			continue
		}
		p, err := newPlain[TX](fn, topics[name], cfg.Publisher, publisher)
		if err != nil {
			errs = append(errs, fmt.Errorf("handler %q: %w", name, err))
		}
		plains[name] = p
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	warnOfDecorators(router, r.inbox.Logger(), topics, plains)
	for name, p := range plains {
		hc, ok := cfg.Handlers[name]
		if !ok {
			hc = cfg.Handler
		}
		h, err := r.inbox.Handle(name, p.handle, hc)
		if errors.Is(err, consumer.ErrDuplicateName) {
			err = fmt.Errorf("%w (a handler that is that consumer itself, as made by Wrap or Handle, belongs in RouterConfig.Except; "+
				"a router that is made anew needs a new inbox)", err)
		}
		r.consumers[name] = h
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// checkNames returns the errors of the names in cfg.
func (r *routed[TX]) checkNames(handlers map[string]message.HandlerFunc, cfg RouterConfig) (errs []error) {
	for _, name := range cfg.Except {
		r.except[name] = true
		if _, ok := handlers[name]; !ok {
			errs = append(errs, fmt.Errorf("Except: the router has no handler %q", name))
		}
	}
	for name := range cfg.Handlers {
		switch fn, ok := handlers[name]; {
		case !ok || r.except[name]:
			errs = append(errs, fmt.Errorf("Handlers: the router has no handler %q that gets an inbox", name))
		case r.inbox.HasAdded(fn):
			errs = append(errs, fmt.Errorf("Handlers: %q has the settings that AddHandler was given", name))
		}
	}
	return errs
}

// middleware is the innermost middleware of every handler. Watermill names the handler with each
// message only, but next is the handler's function.
func (r *routed[TX]) middleware(next message.HandlerFunc) message.HandlerFunc {
	id := funcid.Of(next)
	if r.inbox.HasAdded(next) || r.isExcept(r.names[id]) {
		return next // as it is, for the plugin of another inbox
	}
	return func(msg *message.Message) ([]*message.Message, error) {
		name := message.HandlerNameFromCtx(msg.Context())
		h := r.consumers[name]
		switch {
		case r.except[name]:
			return next(msg)
		case name == "":
			return nil, errors.New("message has no name of a handler in its context: a middleware or a decorator has replaced Watermill's context")
		case h == nil || r.functions[name] != id:
			return nil, fmt.Errorf("handler %q: %w", name, ErrAddedLater)
		}
		return nil, h.Consume(msg)
	}
}

func (r *routed[TX]) isExcept(names []string) bool {
	return len(names) > 0 && !slices.ContainsFunc(names, func(name string) bool { return !r.except[name] })
}

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
