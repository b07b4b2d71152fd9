package middleware_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/middleware"
)

func TestMiddlewareThatRepeatsIsHarmlessAroundTheInboxOfARouter(t *testing.T) {
	t.Parallel()
	for name, around := range repeaters(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.config.AllowLoss = true // for PoisonQueue, which gets nothing here
			var calls atomic.Int64
			r.router.AddMiddleware(around)
			r.add(plainHandler{Name: "reserve"}, failsOnce(), around)
			r.router.AddMiddleware(around, counting(&calls))
			stop := r.run()
			defer stop()
			r.publish(order(1))
			if calls.Load() == 0 {
				t.Error("the middlewares did not run")
			}
			r.wantNumber(`SELECT count(*) FROM effects`, 1)
			r.wantNumber(`SELECT count(*) FROM boxpair_inbox_parked`, 0)
		})
	}
}

func TestMiddlewareThatLosesMessagesIsRefusedAroundAnInbox(t *testing.T) {
	t.Parallel()
	deduplicator := wm.Deduplicator{KeyFactory: wm.NewMessageHasherAdler32(1024), Repository: repository{}}
	for name, mw := range map[string]message.HandlerMiddleware{
		"PoisonQueue": repeaters(t)["PoisonQueue"], "Deduplicator": deduplicator.Middleware, "InstantAck": wm.InstantAck,
	} {
		for where, add := range map[string]func(r *rig){
			"router":  func(r *rig) { r.router.AddMiddleware(mw); r.add(plainHandler{Name: "reserve"}, plain) },
			"handler": func(r *rig) { r.add(plainHandler{Name: "reserve"}, plain, mw) },
			"excepted handler": func(r *rig) {
				r.add(plainHandler{Name: "reserve"}, plain)
				r.router.AddConsumerHandler("other", "orders", r.broker.Subscriber("other"), effect).AddMiddleware(mw)
				r.config.Except = []string{"other"}
			},
			"allowed": func(r *rig) {
				r.router.AddMiddleware(mw)
				r.add(plainHandler{Name: "reserve"}, plain)
				r.config.AllowLoss = true
			},
		} {
			t.Run(name+" "+where, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				add(r)
				err := middleware.Router(r.inbox, r.config)(r.router)
				refused := where == "router" || where == "handler"
				if refused != (err != nil && strings.Contains(err.Error(), name)) || !refused && err != nil {
					t.Errorf("error %v", err)
				}
			})
		}
	}
}

// repository is one of Watermill's Deduplicator that remembers nothing.
type repository struct{}

func (repository) IsDuplicate(context.Context, string) (bool, error) { return false, nil }

func TestDecoratorsThatGetNoMessagesAreReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var log bytes.Buffer
	inbox, err := consumer.New(r.store, consumer.Config{Service: "stock", Logger: slog.New(slog.NewTextHandler(&log, nil))}, consumer.WithOutbox(r.outbox))
	if err != nil {
		t.Fatal(err)
	}
	r.add(plainHandler{Name: "silent", NoKey: true}, plain)
	r.add(plainHandler{Name: "emit", PublishTopic: "emitted", NoKey: true}, reserve)
	r.router.AddPublisherDecorators(func(p message.Publisher) (message.Publisher, error) { return p, nil })
	if err := middleware.Router(inbox, r.config)(r.router); err != nil {
		t.Fatal(err)
	}
	if text := log.String(); strings.Count(text, "publisher decorators") != 1 || !strings.Contains(text, "handler=emit") {
		t.Errorf("log:\n%s", text)
	}
}
