package middleware_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/inbox"
)

// repeaters are the middlewares of Watermill that run a handler again or hide its error.
func repeaters(t *testing.T) map[string]message.HandlerMiddleware {
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	t.Cleanup(func() { _ = pubSub.Close() })
	poison, err := wm.PoisonQueue(pubSub, "poison")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]message.HandlerMiddleware{
		"Retry":        wm.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware,
		"Duplicator":   wm.Duplicator,
		"PoisonQueue":  poison,
		"IgnoreErrors": wm.NewIgnoreErrors([]error{errHandler}).Middleware,
	}
}

// failsOnce returns a handler that changes its database, and fails the first time.
func failsOnce() message.HandlerFunc {
	var runs atomic.Int64
	return func(msg *message.Message) ([]*message.Message, error) {
		if err := effect(msg); err != nil {
			return nil, err
		}
		if runs.Add(1) == 1 {
			return nil, errHandler
		}
		return nil, nil
	}
}

func TestMiddlewareThatRepeatsOrHidesIsRefusedInside(t *testing.T) {
	t.Parallel()
	for name, inside := range repeaters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			cfg := plainHandler{Name: "reserve", Handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxAttempts: 1}}}
			fn := failsOnce() // as if the middlewares were part of the handler
			for _, mw := range []message.HandlerMiddleware{wm.Timeout(time.Minute), inside, wm.CorrelationID, wm.Recoverer} {
				fn = mw(fn)
			}
			r.add(cfg, fn)
			stop := r.run()
			defer stop()
			r.publish(order(1))
			r.wantNumber(`SELECT count(*) FROM effects`, 0)
			found, err := r.inbox.ListParked(t.Context(), inbox.Filter{})
			if err != nil || len(found) != 1 || !strings.Contains(found[0].LastError, name+": "+middleware.ErrInside.Error()) {
				t.Errorf("parked: %+v, %v", found, err)
			}
		})
	}
}

func TestMiddlewareThatRepeatsIsHarmlessAroundAWrappedHandler(t *testing.T) {
	t.Parallel()
	for name, around := range repeaters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			handler, err := middleware.Wrap(r.inbox, "reserve", failsOnce(), middleware.Config{})
			if err != nil {
				t.Fatal(err)
			}
			r.router.AddConsumerHandler("reserve", "orders", r.broker.Subscriber("reserve"), handler).AddMiddleware(around)
			r.config.Except = []string{"reserve"}
			r.config.AllowLoss = true // for PoisonQueue, which gets nothing here
			stop := r.run()
			defer stop()
			r.publish(order(1))
			r.wantNumber(`SELECT count(*) FROM effects`, 1)
			r.wantNumber(`SELECT count(*) FROM boxpair_inbox_parked`, 0)
		})
	}
}

func TestWrappedHandlerIsAConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	handler, err := middleware.Wrap(r.inbox, "reserve", reserve, middleware.Config{
		PublishTopic: "reserved", Publisher: producer.PublisherConfig{Key: keyOf},
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := handler(order(1)); err != nil {
			t.Fatal(err)
		}
	}
	r.wantNumber(`SELECT count(*) FROM effects`, 1)
	r.wantNumber(`SELECT count(*) FROM boxpair_outbox_events`, 2)
	if _, err := middleware.Wrap(r.inbox, "reserve", reserve, middleware.Config{}); !errors.Is(err, consumer.ErrDuplicateName) {
		t.Errorf("second handler under one name: %v", err)
	}
	if _, err := middleware.Wrap(r.inbox, "other", nil, middleware.Config{}); err == nil || !strings.Contains(err.Error(), "function") {
		t.Errorf("no function: %v", err)
	}
}
