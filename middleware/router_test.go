package middleware_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// plain is a handler that returns no messages.
func plain(msg *message.Message) ([]*message.Message, error) { return nil, effect(msg) }

// One consumer for all handlers would give each message to one of them only.
func TestHandlersOfARouterAreConsumersOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.add(plainHandler{Name: "reserve"}, plain)
	r.add(plainHandler{Name: "count"}, plain)
	stop := r.run()
	defer stop()
	for range 2 {
		r.publish(order(1))
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 2)
	r.wantNumber(`SELECT count(*) FROM boxpair_inbox_consumers WHERE name IN ('stock/reserve', 'stock/count')`, 2)
}

func TestRouterWithWrongHandlersDoesNotStart(t *testing.T) {
	t.Parallel()
	for problem, build := range map[string]func(r *rig){
		`Except: the router has no handler "nobody"`: func(r *rig) { r.config.Except = []string{"nobody"} },
		`Handlers: the router has no handler "nobody"`: func(r *rig) {
			r.config.Handlers["nobody"] = consumer.HandlerConfig{}
		},
		"Timeout": func(r *rig) {
			r.config.Handlers["reserve"] = consumer.HandlerConfig{Timeout: -1}
		},
		`handler "emit": PublishTopic: set either Publisher.Key or Publisher.NoKey`: func(r *rig) { r.add(plainHandler{Name: "emit", PublishTopic: "emitted"}, reserve) },
		consumer.ErrNoOutbox.Error(): func(r *rig) {
			r.restart(false)
			r.add(plainHandler{Name: "emit", PublishTopic: "emitted", NoKey: true}, reserve)
		},
		`Handlers: "typed" has the settings that AddHandler was given`: func(r *rig) {
			addTyped(r, r.inbox, "typed")
			r.config.Handlers["typed"] = consumer.HandlerConfig{}
		},
		`handler "none": function is nil`: func(r *rig) { r.add(plainHandler{Name: "none"}, nil) },
		"Publisher.OwnTransaction":        func(r *rig) { r.config.Publisher.OwnTransaction = true },
		"set either Key or NoKey":         func(r *rig) { r.config.Publisher.Key, r.config.Publisher.NoKey = keyOf, true },
		"set either Identity or MessageID": func(r *rig) {
			r.config.Publisher.Identity, r.config.Publisher.MessageID = func(string, *message.Message) producer.Identity { return producer.Identity{} }, true
		},
		"needs a new inbox": func(r *rig) {
			if _, err := middleware.Wrap(r.inbox, "reserve", plain, middleware.Config{}); err != nil {
				r.t.Fatal(err)
			}
		},
		"inbox is nil": func(r *rig) { r.inbox = nil },
	} {
		t.Run(problem, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.add(plainHandler{Name: "reserve"}, plain)
			build(r)
			r.router.AddPlugin(middleware.Router(r.inbox, r.config))
			err := r.router.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), problem) {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestHandlersThatNeedNoInboxGetNone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var without, typed atomic.Int64
	handler := func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
		typed.Add(1)
		if w.Event().Topic != "orders" {
			t.Errorf("topic %q", w.Event().Topic)
		}
		return nil
	}
	if _, err := r.inbox.AddHandler(r.router, "typed", "orders", r.broker.Subscriber("typed"), handler, consumer.HandlerConfig{}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.inbox.AddHandler(r.router, "typed", "orders", r.broker.Subscriber("typed"), handler, consumer.HandlerConfig{}); !errors.Is(err, consumer.ErrDuplicateName) {
		t.Errorf("second handler: %v", err)
	}
	wrapped, err := middleware.Wrap(r.inbox, "wrapped", plain, middleware.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r.router.AddConsumerHandler("wrapped", "orders", r.broker.Subscriber("wrapped"), wrapped)
	r.router.AddConsumerHandler("direct", "orders", r.broker.Subscriber("direct"), func(msg *message.Message) error {
		without.Add(1)
		if _, ok := middleware.WorkFrom[*sql.Tx](msg.Context()); ok {
			t.Error("the handler has an inbox")
		}
		return nil
	})
	r.config.Except = []string{"direct", "wrapped"}
	stop := r.run()
	defer stop()
	for range 2 {
		r.publish(order(1))
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
	if without.Load() != 2 || typed.Load() != 1 {
		t.Errorf("%d runs without an inbox, want 2; %d with one, want 1", without.Load(), typed.Load())
	}
}

// A message that was parked may be handled before Watermill has named the topic with another one.
func TestParkedMessageIsPublishedToTheTopicOfTheRouter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fail := func(*message.Message) ([]*message.Message, error) { return nil, consumer.RetryAfter(0, errHandler) }
	cfg := plainHandler{Name: "reserve", PublishTopic: "reserved", Key: keyOf}
	r.add(cfg, fail)
	stop := r.run()
	r.publish(order(1))
	stop()
	r.restart(true)
	r.add(cfg, reserve)
	stop = r.run()
	defer stop()
	if err := r.inbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantNumber(`SELECT count(*) FROM boxpair_outbox_events WHERE topic = 'reserved'`, 2)
}

// refusals adds a middleware that keeps the errors of the router's handlers, and acknowledges the
// messages.
func refusals(r *rig) <-chan error {
	errs := make(chan error, 10)
	r.router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			produced, err := next(msg)
			errs <- err
			return produced, nil
		}
	})
	return errs
}

// addTyped adds a handler of in to the router, for the topic of its name.
func addTyped(r *rig, in *consumer.Inbox[*sql.Tx], name string) {
	r.t.Helper()
	fn := func(ctx context.Context, w *consumer.Work[*sql.Tx], msg *message.Message) error {
		_, err := w.DB().ExecContext(ctx, `INSERT INTO effects VALUES (?)`, msg.UUID)
		return err
	}
	if _, err := in.AddHandler(r.router, name, name, r.broker.Subscriber(name), fn, consumer.HandlerConfig{}); err != nil {
		r.t.Fatal(err)
	}
}

// late runs handlers that were added to the running router, and publishes a message to topic.
func late(r *rig, topic string) {
	r.t.Helper()
	if err := r.router.RunHandlers(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	if err := r.broker.Publish(topic, order(1)); err != nil {
		r.t.Fatal(err)
	}
}

func TestHandlerThatIsAddedToARunningRouterIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errs := refusals(r)
	r.add(plainHandler{Name: "reserve"}, plain)
	stop := r.run()
	defer stop()
	r.router.AddConsumerHandler("late", "late", r.broker.Subscriber("late"), effect)
	late(r, "late")
	if err := <-errs; !errors.Is(err, middleware.ErrAddedLater) || !strings.Contains(err.Error(), `"late"`) {
		t.Errorf("error %v", err)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 0)
}

func TestTypedHandlerMayBeAddedToARunningRouter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errs := refusals(r)
	r.add(plainHandler{Name: "reserve"}, plain)
	stop := r.run()
	defer stop()
	addTyped(r, r.inbox, "late")
	for range 2 {
		late(r, "late")
		if err := <-errs; err != nil {
			t.Errorf("error %v", err)
		}
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
}

func TestHandlersAreAddedConcurrently(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.add(plainHandler{Name: "reserve"}, plain)
	stop := r.run()
	defer stop()
	var all sync.WaitGroup
	for _, name := range []string{"a", "b", "c", "d"} {
		all.Go(func() { addTyped(r, r.inbox, name) })
		all.Go(func() {
			if err := r.router.RunHandlers(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	late(r, "a")
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
}

// Another handler under the name of a stopped one is neither the stopped one nor without an inbox.
func TestHandlerUnderTheNameOfAStoppedOneIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errs := refusals(r)
	r.add(plainHandler{Name: "other"}, plain) // or the router would end
	first := r.router.AddConsumerHandler("name", "orders", r.broker.Subscriber("name"), effect)
	stop := r.run()
	defer stop()
	first.Stop()
	<-first.Stopped()
	r.router.AddConsumerHandler("name", "again", r.broker.Subscriber("again"), func(*message.Message) error { return errHandler })
	late(r, "again")
	if err := <-errs; !errors.Is(err, middleware.ErrAddedLater) {
		t.Errorf("error %v", err)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 0)
}

// A middleware that is made by the same code as another handler's function is none of the handler.
func TestMiddlewareWithTheCodeOfAHandlerIsRefusedLater(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errs := refusals(r)
	var guarded atomic.Int64
	guard := counting(&guarded)
	r.router.AddHandler("guarded", "other", r.broker.Subscriber("guarded"), "", nil, guard(plain))
	r.router.AddHandler("reserve", "orders", r.broker.Subscriber("reserve"), "", nil, plain)
	r.router.AddPlugin(middleware.Router(r.inbox, middleware.RouterConfig{}), func(router *message.Router) error {
		router.AddMiddleware(guard)
		return nil
	})
	r.config.Except = []string{"guarded", "reserve"} // of the second inbox of run
	stop := r.run()
	defer stop()
	r.publish(order(1))
	if err := <-errs; !errors.Is(err, middleware.ErrAddedLater) {
		t.Errorf("error %v", err)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 0)
}

func TestHandlerUnderANameOfTheRouterIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	fn := func(context.Context, *consumer.Work[*sql.Tx], *message.Message) error { return nil }
	r.router.AddConsumerHandler("taken", "orders", r.broker.Subscriber("taken"), effect)
	if _, err := r.inbox.AddHandler(r.router, "taken", "orders", r.broker.Subscriber("other"), fn, consumer.HandlerConfig{}); !errors.Is(err, consumer.ErrDuplicateName) {
		t.Errorf("error %v", err)
	}
	if _, err := r.inbox.Handle("taken", fn, consumer.HandlerConfig{}); err != nil {
		t.Errorf("the refused handler is a consumer: %v", err)
	}
}

func TestTwoInboxesShareARouter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other, err := consumer.New(r.store, consumer.Config{Service: "other"})
	if err != nil {
		t.Fatal(err)
	}
	r.add(plainHandler{Name: "one"}, plain)
	r.router.AddConsumerHandler("two", "orders", r.broker.Subscriber("two"), effect)
	r.config.Except = []string{"two"}
	r.router.AddPlugin(middleware.Router(other, middleware.RouterConfig{Except: []string{"one"}}))
	stop := r.run()
	defer stop()
	for range 2 {
		r.publish(order(1))
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 2)
	r.wantNumber(`SELECT count(*) FROM boxpair_inbox_consumers WHERE name IN ('stock/one', 'other/two')`, 2)
}

func TestSecondInboxAroundAHandlerIsRefused(t *testing.T) {
	t.Parallel()
	for kind, add := range map[string]func(r *rig, other *consumer.Inbox[*sql.Tx]){
		"of another inbox": func(r *rig, other *consumer.Inbox[*sql.Tx]) { addTyped(r, other, "orders") },
		"wrapped": func(r *rig, _ *consumer.Inbox[*sql.Tx]) {
			fn, err := middleware.Wrap(r.inbox, "wrapped", plain, middleware.Config{})
			if err != nil {
				r.t.Fatal(err)
			}
			r.router.AddConsumerHandler("by another name", "orders", r.broker.Subscriber("wrapped"), fn)
		},
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			other, err := consumer.New(r.store, consumer.Config{Service: "other"})
			if err != nil {
				t.Fatal(err)
			}
			r.config.Handler.Retry = consumer.RetryConfig{MaxAttempts: 1}
			add(r, other)
			stop := r.run()
			defer stop()
			r.publish(order(1))
			r.wantNumber(`SELECT count(*) FROM effects`, 0)
			found, err := r.inbox.ListParked(t.Context(), inbox.Filter{})
			if err != nil || len(found) != 1 || !strings.Contains(found[0].LastError, consumer.ErrTwoInboxes.Error()) {
				t.Errorf("parked: %+v, %v", found, err)
			}
		})
	}
}

func TestMessageThatHasLostTheNameOfItsHandlerIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errs := refusals(r)
	r.add(plainHandler{Name: "reserve"}, plain, func(next message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			msg.SetContext(context.Background())
			return next(msg)
		}
	})
	stop := r.run()
	defer stop()
	r.publish(order(1))
	if err := <-errs; err == nil || !strings.Contains(err.Error(), "replaced Watermill's context") {
		t.Errorf("error %v", err)
	}
}

// A plugin after the inbox's adds a middleware, which would be inside the transaction.
func TestMiddlewareThatIsAddedAfterTheInboxOfARouterIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	errs := refusals(r)
	r.router.AddPlugin(middleware.Router(r.inbox, r.config), func(router *message.Router) error {
		router.AddMiddleware(func(next message.HandlerFunc) message.HandlerFunc {
			return func(msg *message.Message) ([]*message.Message, error) { return next(msg) }
		})
		return nil
	})
	r.router.AddConsumerHandler("reserve", "orders", r.broker.Subscriber("reserve"), effect)
	done := make(chan error, 1)
	go func() { done <- r.router.Run(context.Background()) }()
	<-r.router.Running()
	r.publish(order(1))
	if err := <-errs; !errors.Is(err, middleware.ErrAddedLater) {
		t.Errorf("error %v", err)
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 0)
	if err := errors.Join(r.router.Close(), <-done); err != nil {
		t.Error(err)
	}
}

// A group of an event processor is one handler, to which no middleware can be added.
func TestGroupOfAnEventProcessorGetsAnInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	processor, err := cqrs.NewEventGroupProcessorWithConfig(r.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
		SubscriberConstructor: func(p cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return r.broker.Subscriber(p.EventGroupName), nil
		},
		Marshaler: marshaler,
	})
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = processor.AddHandlersGroup("stock", cqrs.NewGroupEventHandler(func(ctx context.Context, _ *stockReserved) error {
		if runs++; runs == 1 {
			return errHandler
		}
		w, ok := middleware.WorkFrom[*sql.Tx](ctx)
		if !ok {
			return errors.New("no inbox")
		}
		_, err := w.DB().ExecContext(ctx, `INSERT INTO effects VALUES ('one')`)
		return err
	}))
	if err != nil {
		t.Fatal(err)
	}
	stop := r.run()
	defer stop()
	msg, err := marshaler.Marshal(&stockReserved{"42"})
	if err != nil {
		t.Fatal(err)
	}
	msg.UUID = number(1).String()
	for range 2 {
		r.publish(msg.Copy())
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
}

func TestHandlersOfARouterHaveTheirOwnSettings(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var attempts [2]atomic.Int64
	for i, name := range []string{"one", "two"} {
		fail := func(*message.Message) ([]*message.Message, error) {
			attempts[i].Add(1)
			return nil, errHandler
		}
		r.add(plainHandler{Name: name, Handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: i + 1, QuickBackoff: time.Nanosecond}}}, fail)
	}
	stop := r.run()
	defer stop()
	r.publish(order(1))
	if attempts[0].Load() != 1 || attempts[1].Load() != 2 {
		t.Errorf("%d and %d attempts, want 1 and 2", attempts[0].Load(), attempts[1].Load())
	}
}
