package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer/internal/field"
	"github.com/boxpair/boxpair/dedupe"
	"github.com/boxpair/boxpair/internal/funcid"
	"github.com/boxpair/boxpair/internal/notice"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// HandlerFunc handles one message in the transaction of w. ctx ends with the transaction's
// deadline, not with the router. msg is a copy: Ack and Nack have no effect. Effects outside the
// transaction happen once per attempt. See [Reject] and [RetryAfter] for the error.
type HandlerFunc[TX any] func(ctx context.Context, w *Work[TX], msg *message.Message) error

// Inbox applies each message of a service once. TX is the type of a transaction of its store. An
// Inbox is safe for concurrent use.
type Inbox[TX any] struct {
	store  inbox.Store[TX]
	outbox *producer.Outbox[TX]
	cfg    Config
	log    *slog.Logger

	mu       sync.Mutex
	handlers map[string]*Handler[TX]
	routed   map[funcid.ID]struct{} // the functions that AddHandler has added
	added    chan struct{}          // a handler was added while running

	running   atomic.Bool
	runCalled atomic.Bool // Run or RunOnce was called
	idleLog   logLimiter  // of work that waits for Run

	// solo is held by a suspect that runs exclusively in its handler.
	solo     chan struct{}
	outages  outageDetector
	identity identity
	pauses   pauses
	notices  notice.Queue // to the observer

	madeAt time.Time // by New
	ranAt  time.Time // by Run, for the goroutines that Run starts

	random func(most time.Duration) time.Duration // replaced by simulations
}

// Option is an option of [New].
type Option[TX any] func(*Inbox[TX]) error

// WithOutbox has handlers write events to outbox, in the transaction of their message. The outbox and
// the inbox must have one database.
func WithOutbox[TX any](outbox *producer.Outbox[TX]) Option[TX] {
	return func(i *Inbox[TX]) error {
		if outbox == nil {
			return errors.New("WithOutbox: outbox is nil")
		}
		i.outbox = outbox
		return nil
	}
}

// New returns an inbox over store. Without [WithOutbox], handlers cannot write events. New does no
// I/O.
func New[TX any](store inbox.Store[TX], cfg Config, options ...Option[TX]) (*Inbox[TX], error) {
	cfg, err := cfg.withDefaults()
	if store == nil {
		err = errors.Join(err, errors.New("store is nil"))
	}
	i := &Inbox[TX]{
		store: store, cfg: cfg, log: cfg.Logger,
		handlers: make(map[string]*Handler[TX]),
		routed:   make(map[funcid.ID]struct{}),
		added:    make(chan struct{}, 1),
		solo:     make(chan struct{}, 1),
		identity: identity{turn: make(chan struct{}, 1)},
		pauses:   pauses{turn: make(chan struct{}, 1)},
		notices:  notice.Queue{Log: cfg.Logger},
		madeAt:   time.Now(),
		random:   randomUpTo,
	}
	for _, option := range options {
		if option == nil {
			err = errors.Join(err, errors.New("option is nil"))
			continue
		}
		err = errors.Join(err, option(i))
	}
	if err != nil {
		return nil, fmt.Errorf("consumer config: %w", err)
	}
	return i, nil
}

// Store returns the store of the inbox.
func (i *Inbox[TX]) Store() inbox.Store[TX] { return i.store }

// Logger returns the logger of the inbox.
func (i *Inbox[TX]) Logger() *slog.Logger { return i.log }

// HasOutbox tells whether handlers can write events.
func (i *Inbox[TX]) HasOutbox() bool { return i.outbox != nil }

// Publisher returns a Watermill publisher of the inbox's outbox, which writes in the transactions of
// handlers and elsewhere; see [producer.Outbox.Publisher]. Without an outbox the error is
// [ErrNoOutbox].
func (i *Inbox[TX]) Publisher(cfg producer.PublisherConfig) (message.Publisher, error) {
	if i.outbox == nil {
		return nil, ErrNoOutbox
	}
	return i.outbox.Publisher(cfg)
}

// Handle makes fn a consumer under the name Config.Service + "/" + name and returns its handler.
// Handle does no I/O. If the name is taken, the error wraps [ErrDuplicateName]. A handler is added
// for the life of the inbox. A running Run takes new handlers in.
func (i *Inbox[TX]) Handle(name string, fn HandlerFunc[TX], cfg HandlerConfig) (*Handler[TX], error) {
	h, err := i.newHandler(name, fn, cfg)
	if err != nil {
		return nil, handlerError(name, err)
	}
	return i.add(name, h)
}

// HandleBatch is [Inbox.Handle] for a function that takes a batch: messages that arrive together,
// up to cfg.Group.Size. Group.Size defaults to 64 here.
func (i *Inbox[TX]) HandleBatch(name string, fn BatchFunc[TX], cfg HandlerConfig) (*Handler[TX], error) {
	if cfg.Group.Size == 0 {
		cfg.Group.Size = defaultBatch
	}
	var one HandlerFunc[TX]
	if fn != nil {
		one = fn.single
	}
	h, err := i.newHandler(name, one, cfg)
	if err != nil {
		return nil, handlerError(name, err)
	}
	h.batch = fn
	return i.add(name, h)
}

// AddHandler is [Inbox.Handle], and adds the handler to router under the same name, for topic: every
// middleware of the router is outside the inbox. cfg.Topic defaults to topic. A name that router or
// inbox has already is an error that wraps [ErrDuplicateName]. If router is running, call its
// RunHandlers afterwards. A handler that is to be stopped alone is added with [Inbox.Handle] and
// [message.Router.AddConsumerHandler].
func (i *Inbox[TX]) AddHandler(
	router *message.Router, name, topic string, subscriber message.Subscriber, fn HandlerFunc[TX], cfg HandlerConfig,
) (*Handler[TX], error) {
	var errs []error
	if router == nil {
		errs = append(errs, errors.New("router is nil"))
	}
	if subscriber == nil {
		errs = append(errs, errors.New("subscriber is nil"))
	}
	cfg.Topic = cmp.Or(cfg.Topic, topic)
	h, err := i.newHandler(name, fn, cfg)
	if err := errors.Join(append(errs, err)...); err != nil {
		return nil, handlerError(name, err)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.checkFree(name); err != nil {
		return nil, err
	}
	consume := message.HandlerFunc(h.consumeOnly) // one function: another one has another ID
	if err := addTo(router, name, topic, subscriber, consume); err != nil {
		return nil, handlerError(name, err)
	}
	i.routed[funcid.Of(consume)] = struct{}{}
	i.register(name, h)
	return h, nil
}

// addTo adds a handler to router, which panics if it has the name already.
func addTo(router *message.Router, name, topic string, subscriber message.Subscriber, fn message.HandlerFunc) (err error) {
	defer func() {
		if v := recover(); v != nil {
			taken, ok := v.(message.DuplicateHandlerNameError)
			if !ok {
				panic(v)
			}
			err = fmt.Errorf("router: %w (%w)", taken, ErrDuplicateName)
		}
	}()
	router.AddHandler(name, topic, subscriber, "", noPublisher{}, fn)
	return nil
}

// noPublisher is the publisher of a handler that returns no messages.
type noPublisher struct{}

// Publish returns an error.
func (noPublisher) Publish(string, ...*message.Message) error {
	return errors.New("handler of an inbox publishes through its outbox")
}

// Close does nothing.
func (noPublisher) Close() error { return nil }

// HasAdded tells whether fn is the function of a handler that [Inbox.AddHandler] has added to a
// router. HasAdded is for code that puts an inbox around the other handlers of a router.
func (i *Inbox[TX]) HasAdded(fn message.HandlerFunc) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	_, ok := i.routed[funcid.Of(fn)]
	return ok
}

func handlerError(name string, err error) error { return fmt.Errorf("handler %q: %w", name, err) }

func (i *Inbox[TX]) add(name string, h *Handler[TX]) (*Handler[TX], error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if err := i.checkFree(name); err != nil {
		return nil, err
	}
	i.register(name, h)
	return h, nil
}

// checkFree returns an error if name is taken. It is called with mu.
func (i *Inbox[TX]) checkFree(name string) error {
	if _, ok := i.handlers[name]; ok {
		return fmt.Errorf("handler %q of %s: %w", name, i.cfg.Service, ErrDuplicateName)
	}
	return nil
}

// register is called with mu.
func (i *Inbox[TX]) register(name string, h *Handler[TX]) {
	i.handlers[name] = h
	signal(i.added)
}

func (i *Inbox[TX]) newHandler(name string, fn HandlerFunc[TX], cfg HandlerConfig) (*Handler[TX], error) {
	var p field.Problems
	p.Text("name", name, maxName)
	if fn == nil {
		p.Addf("function is nil")
	}
	configured := cfg.Group.Size != 0
	cfg, err := cfg.withDefaults()
	if err := errors.Join(p.Err(), err); err != nil {
		return nil, err
	}
	full := i.cfg.Service + "/" + name
	if n := len(bucketPrefix) + len(full); cfg.MaxPerSecond > 0 && n > maxBucket {
		return nil, fmt.Errorf("MaxPerSecond: the consumer's name is %d bytes too long for it", n-maxBucket)
	}
	h := &Handler[TX]{
		inbox: i, name: full, fn: fn, cfg: cfg,
		log:  i.log.With("consumer", full),
		gate: newGate(),
	}
	h.registry.Handler, h.registry.registering = h, make(chan struct{}, 1)
	h.retries.Handler, h.retries.wake = h, make(chan struct{}, 1)
	h.suspects.Handler, h.forgetter.Handler = h, h
	h.permits.Handler, h.permits.limit.turn = h, make(chan struct{}, 1)
	if cfg.Group.Size > 1 || !configured && cfg.mayShare() {
		h.groups = newGroups(h, configured)
	}
	if i.cfg.CacheSize > 0 {
		if h.registry.window, err = dedupe.New(i.cfg.CacheSize); err != nil {
			return nil, err
		}
	}
	h.suspects.returned, err = dedupe.New(returnedSize)
	return h, err
}

func (i *Inbox[TX]) all() []*Handler[TX] {
	i.mu.Lock()
	defer i.mu.Unlock()
	handlers := make([]*Handler[TX], 0, len(i.handlers))
	for _, h := range i.handlers {
		handlers = append(handlers, h)
	}
	return handlers
}

// reportNotRunning logs, at most once a minute, that work waits for Run and Run was never called.
// Parking is not refused: a message neither parked nor acknowledged would be redelivered at once
// and for ever, and a router may begin before Run.
func (i *Inbox[TX]) reportNotRunning(ctx context.Context) {
	if i.runCalled.Load() || i.cfg.RunElsewhere || !i.idleLog.allow(time.Now()) {
		return
	}
	i.log.ErrorContext(ctx, "Inbox.Run was never called in this process: nothing takes up parked messages and effects. "+
		"Call it, or set Config.RunElsewhere if another process of the service does", "service", i.cfg.Service)
}

// reportOrphans logs consumers of the service with parked messages and without a handler in this
// process.
func (i *Inbox[TX]) reportOrphans(ctx context.Context) {
	store, ok := i.store.(inbox.ParkedNamer)
	if !ok {
		return
	}
	names, err := store.ParkedConsumers(ctx)
	if err != nil {
		i.log.WarnContext(ctx, "cannot look for parked messages that no handler takes up", "service", i.cfg.Service, "error", err)
		return
	}
	handled := make(map[string]bool)
	for _, h := range i.all() {
		handled[h.name] = true
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		return handled[name] || !strings.HasPrefix(name, i.cfg.Service+"/")
	})
	if len(names) > 0 {
		i.log.WarnContext(ctx, "messages are parked of consumers that have no handler in this process, as after a handler was renamed, or before the router has started: "+
			"give it its old name back, or look at them and discard them (boxpair dead --consumer)", "service", i.cfg.Service, "consumers", names)
	}
}

// operation bounds a store call that must finish even if ctx ends.
func (h *Handler[TX]) operation(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), h.cfg.Timeout)
}

// signal wakes the receiver of c, now or at its next receive.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a wake-up is pending already
	}
}

// jitter returns a time between half of d and d.
func (i *Inbox[TX]) jitter(d time.Duration) time.Duration { return d/2 + i.random(d-d/2) }
