package memory_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

type ctxKey struct{}

func TestContextOfAMessageDescendsFromItsConsumer(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	ctx := context.WithValue(t.Context(), ctxKey{}, "consumer")
	messages := subscribeCtx(t, ctx, b.Subscriber("stock"), "orders")
	sent := keyed("k")
	sent.SetContext(context.WithValue(context.Background(), ctxKey{}, "sender"))
	results := send(b, "orders", sent)
	msg := receive(t, messages)
	if got := msg.Context().Value(ctxKey{}); got != "consumer" {
		t.Errorf("value %v, want the consumer's", got)
	}
	if msg.Context().Err() != nil {
		t.Error("context ended before the answer")
	}
	msg.Ack()
	wantOutcome(t, results, transport.Confirmed)
	waitClosed(t, msg.Context().Done())
}

func TestSubscribeRefusesWhatCannotWork(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	if _, err := b.Subscriber("").Subscribe(t.Context(), "orders"); err == nil {
		t.Error("an empty name was taken")
	}
	if _, err := b.Subscriber("stock").Subscribe(t.Context(), ""); err == nil {
		t.Error("an empty topic was taken")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Subscriber("stock").Subscribe(ctx, "orders"); !errors.Is(err, context.Canceled) {
		t.Errorf("Subscribe on an ended context returned %v", err)
	}
	wantOutcome(t, send(b, "orders", keyed("k")), transport.Returned)
}

func TestConfigErrorsNameEveryField(t *testing.T) {
	t.Parallel()
	_, err := memory.New(memory.Config{InFlight: -1, MinRedelivery: -1, MaxRedelivery: -1, CloseTimeout: -1})
	if err == nil {
		t.Fatal("no error")
	}
	for _, field := range []string{"InFlight", "MinRedelivery", "MaxRedelivery", "CloseTimeout"} {
		if !strings.Contains(err.Error(), field+": -1") {
			t.Errorf("error does not name %s: %v", field, err)
		}
	}
	if _, err := memory.New(memory.Config{MinRedelivery: 2, MaxRedelivery: 1}); err == nil {
		t.Error("a MaxRedelivery below MinRedelivery was taken")
	}
	for _, cfg := range []memory.Config{{MinRedelivery: time.Hour}, {MaxRedelivery: time.Nanosecond}} {
		if _, err := memory.New(cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// A router that stops and starts again must lose nothing and confirm nothing that
// was not handled.
func TestRestartedRouterGetsWhatWaited(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{CloseTimeout: patience})
	run := func(handler message.NoPublishHandlerFunc) (stop func()) {
		router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		router.AddConsumerHandler("reserve", "orders", b.Subscriber("reserve"), handler)
		ended := make(chan error, 1)
		go func() { ended <- router.Run(context.Background()) }()
		waitClosed(t, router.Running())
		return func() {
			if err := router.Close(); err != nil {
				t.Error(err)
			}
			if err := receive(t, ended); err != nil {
				t.Error(err)
			}
		}
	}
	started := make(chan string, 1)
	stop := run(func(msg *message.Message) error {
		started <- msg.UUID
		<-msg.Context().Done() // until the router stops
		return nil
	})
	first, second := send(b, "orders", keyed("k")), send(b, "orders", keyed("k"))
	receive(t, started)
	stop()
	wantOutcome(t, first, transport.Confirmed) // its handler could still finish
	empty(t, second)

	stop = run(func(*message.Message) error { return nil })
	wantOutcome(t, second, transport.Confirmed)
	stop()
}
