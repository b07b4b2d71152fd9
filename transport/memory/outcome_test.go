package memory_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// The first three are what Watermill's gochannel answers with nil, though nobody
// has acknowledged.

func TestPublishBeforeAnySubscriptionIsReturned(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	r := wantOutcome(t, send(b, "orders", keyed("k")), transport.Returned)
	if !errors.Is(r.Err, memory.ErrUnroutable) {
		t.Errorf("error %v does not wrap ErrUnroutable", r.Err)
	}
	if err := b.Publish("orders", keyed("k")); !errors.Is(err, memory.ErrUnroutable) {
		t.Errorf("Publish returned %v, want ErrUnroutable", err)
	}
	subscribe(t, b.Subscriber("stock"), "payments")
	if err := b.Publish("orders", keyed("k")); !errors.Is(err, memory.ErrUnroutable) {
		t.Errorf("Publish to a topic without subscription returned %v, want ErrUnroutable", err)
	}
}

func TestCloseWhileTheHandlerRunsIsNotConfirmed(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{CloseTimeout: 10 * time.Millisecond})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	published := make(chan error, 1)
	go func() { published <- b.Publish("orders", keyed("k")) }()
	msg := receive(t, messages)
	queued := send(b, "orders", keyed("k"))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, published); !errors.Is(err, memory.ErrClosed) {
		t.Errorf("Publish returned %v, want ErrClosed", err)
	}
	if r := wantOutcome(t, queued, transport.Unavailable); !errors.Is(r.Err, memory.ErrClosed) {
		t.Errorf("error %v does not wrap ErrClosed", r.Err)
	}
	msg.Ack() // too late
	empty(t, queued)
}

func TestSubscriptionCancelledWhileTheHandlerRunsIsNotConfirmed(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{CloseTimeout: 10 * time.Millisecond})
	ctx, cancel := context.WithCancel(context.Background())
	first := subscribeCtx(t, ctx, b.Subscriber("stock"), "orders")
	sent := keyed("k")
	results := send(b, "orders", sent)
	started := receive(t, first)
	if transport.Redelivered(started) {
		t.Error("first delivery says that it may have been started before")
	}
	cancel()
	waitClosed(t, first)

	// The router comes back: the message waited for it.
	second := subscribe(t, b.Subscriber("stock"), "orders")
	again := receive(t, second)
	empty(t, results)
	if again.UUID != sent.UUID || !transport.Redelivered(again) {
		t.Errorf("got %s, redelivered %v; want %s, redelivered", again.UUID, transport.Redelivered(again), sent.UUID)
	}
	started.Ack() // too late: it belongs to another consumer now
	again.Ack()
	wantOutcome(t, results, transport.Confirmed)
}

func TestConfirmedOnlyWhenEverySubscriptionHasAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{})
		stock := subscribe(t, b.Subscriber("stock"), "orders")
		mail := subscribe(t, b.Subscriber("mail"), "orders")
		results := send(b, "orders", keyed("k"))
		receive(t, stock).Ack()
		m := receive(t, mail)
		synctest.Wait() // the first acknowledgement has been dealt with
		empty(t, results)
		m.Ack()
		wantOutcome(t, results, transport.Confirmed)
	})
}

func TestKnownSubscriptionWithoutConsumerIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	mail := b.Subscriber("mail")
	if err := mail.SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	stock := subscribe(t, b.Subscriber("stock"), "orders")
	results := send(b, "orders", keyed("k"))
	receive(t, stock).Ack()
	messages := subscribe(t, mail, "orders")
	m := receive(t, messages)
	empty(t, results)
	m.Ack()
	wantOutcome(t, results, transport.Confirmed)
}

func TestSendIsBoundedByItsContext(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	if err := b.Subscriber("stock").SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	results := sendCtx(ctx, b, "orders", keyed("k"))
	unkeyed := sendCtx(ctx, b, "orders", keyed(""))
	behind := sendCtx(ctx, b, "orders", keyed("k"))
	empty(t, results)
	cause := errors.New("relay stops")
	cancel(cause)
	for _, results := range []<-chan transport.Result{results, unkeyed, behind} {
		r := wantOutcome(t, results, transport.Unavailable)
		if !errors.Is(r.Err, cause) {
			t.Errorf("error %v does not wrap the cause", r.Err)
		}
	}
	// Nothing stays behind for a consumer that comes now.
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	last := keyed("k")
	results = send(b, "orders", last)
	if got := receive(t, messages); got.UUID != last.UUID {
		t.Errorf("got %s, want only what is still wanted", got.UUID)
	} else {
		got.Ack()
	}
	wantOutcome(t, results, transport.Confirmed)
}

func TestSendOnAnEndedContextQueuesNothing(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	wantOutcome(t, sendCtx(ctx, b, "orders", keyed("k")), transport.Unavailable)
	next := keyed("k")
	results := send(b, "orders", next)
	got := receive(t, messages)
	if got.UUID != next.UUID {
		t.Error("message of an ended context was handed out")
	}
	got.Ack()
	wantOutcome(t, results, transport.Confirmed)
}

func TestPublishIsBoundedByTheContextOfItsMessage(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	if err := b.Subscriber("stock").SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	msg := keyed("k")
	msg.SetContext(ctx)
	if err := b.Publish("orders", msg); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Publish returned %v, want DeadlineExceeded", err)
	}
}

func TestMessageGivenUpOnOfferIsTakenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		ctx, cancel := context.WithCancel(t.Context())
		unwanted := sendCtx(ctx, b, "orders", keyed("k"))
		wanted := keyed("k")
		results := send(b, "orders", wanted)
		synctest.Wait() // the first is on offer, and nobody reads
		cancel()
		wantOutcome(t, unwanted, transport.Unavailable)
		synctest.Wait()
		msg := <-messages
		if msg.UUID != wanted.UUID {
			t.Error("a message that was given up is handed out")
		}
		msg.Ack()
		wantOutcome(t, results, transport.Confirmed)
	})
}

func TestMessageGivenUpInFlightHoldsItsKeyUntilItIsAnswered(t *testing.T) {
	t.Parallel()
	for _, answer := range []struct {
		name string
		give func(*message.Message) bool
	}{
		{"ack", (*message.Message).Ack},
		{"nack", (*message.Message).Nack},
	} {
		t.Run(answer.name, func(t *testing.T) {
			t.Parallel()
			b := newBroker(t, memory.Config{})
			messages := subscribe(t, b.Subscriber("stock"), "orders")
			ctx, cancel := context.WithCancel(context.Background())
			sent := keyed("k")
			results := sendCtx(ctx, b, "orders", sent)
			running := receive(t, messages)
			cancel()
			wantOutcome(t, results, transport.Unavailable)

			again := send(b, "orders", sent)
			other := send(b, "orders", keyed("other"))
			got := receive(t, messages)
			if got.Metadata.Get(transport.MetaKey) != "other" {
				t.Fatal("a second copy runs beside the first")
			}
			got.Ack()
			wantOutcome(t, other, transport.Confirmed)

			answer.give(running)
			got = receive(t, messages)
			if got.UUID != sent.UUID || got == running {
				t.Errorf("got %s, want the second copy of %s", got.UUID, sent.UUID)
			}
			got.Ack()
			wantOutcome(t, again, transport.Confirmed)
			empty(t, results)
		})
	}
}

func TestMessageGivenUpWhileItWaitsLeavesItsKeyInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		ctx, cancel := context.WithCancel(t.Context())
		send(b, "orders", keyed("k"))
		givenUp := sendCtx(ctx, b, "orders", keyed("k"))
		last := keyed("k")
		results := send(b, "orders", last)
		head := <-messages
		cancel()
		wantOutcome(t, givenUp, transport.Unavailable)
		synctest.Wait()
		empty(t, messages) // nothing overtakes the head
		head.Ack()
		msg := <-messages
		if msg.UUID != last.UUID {
			t.Errorf("got %s, want the last", msg.UUID)
		}
		msg.Ack()
		wantOutcome(t, results, transport.Confirmed)
	})
}

// watchedContext counts who still waits for its end.
type watchedContext struct {
	context.Context
	watchers atomic.Int64
}

// Value hides the standard context within, which would be watched directly.
func (*watchedContext) Value(any) any { return nil }

func (c *watchedContext) AfterFunc(f func()) func() bool {
	c.watchers.Add(1)
	stop := context.AfterFunc(c.Context, f)
	return func() bool {
		c.watchers.Add(-1)
		return stop()
	}
}

func TestAnsweredMessageLeavesNothingOnItsContext(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	messages := subscribe(t, b.Subscriber("stock"), "orders")
	ctx := &watchedContext{Context: t.Context()}
	results := sendCtx(ctx, b, "orders", keyed("k"))
	msg := receive(t, messages)
	if n := ctx.watchers.Load(); n != 1 {
		t.Errorf("%d watchers before the outcome, want 1", n)
	}
	msg.Ack()
	wantOutcome(t, results, transport.Confirmed)
	if n := ctx.watchers.Load(); n != 0 {
		t.Errorf("%d watchers after the outcome", n)
	}
}

func TestNilMessageIsInvalid(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	subscribe(t, b.Subscriber("stock"), "orders")
	wantOutcome(t, send(b, "orders", nil), transport.Invalid)
	if err := b.Publish("orders", keyed("k"), nil); err == nil {
		t.Error("Publish took a nil message")
	}
}

func TestPublishOfNothingIsNil(t *testing.T) {
	t.Parallel()
	if err := newBroker(t, memory.Config{}).Publish("orders"); err != nil {
		t.Error(err)
	}
}

func TestPublishSaysHowManyWereNotConfirmed(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	err := b.Publish("orders", keyed("a"), keyed("b"))
	const want = `publish: 2 of 2 messages not confirmed: topic "orders": no subscription`
	if err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestUnsubscribeReportsWhatItRemovesAsUnavailable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	gone := b.Subscriber("gone")
	stopped := subscribe(t, gone, "orders")
	stock := subscribe(t, b.Subscriber("stock"), "orders")
	if err := b.Unsubscribe("orders", "gone"); !errors.Is(err, memory.ErrInUse) {
		t.Errorf("Unsubscribe under a consumer returned %v, want ErrInUse", err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	waitClosed(t, stopped)
	results, behind := send(b, "orders", keyed("k")), send(b, "orders", keyed("k"))
	if err := b.Unsubscribe("orders", "gone"); err != nil {
		t.Fatal(err)
	}
	for _, results := range []<-chan transport.Result{results, behind} {
		if r := wantOutcome(t, results, transport.Unavailable); !errors.Is(r.Err, memory.ErrClosed) {
			t.Errorf("error %v does not wrap ErrClosed", r.Err)
		}
	}
	again := send(b, "orders", keyed("other"))
	handle(t, stock, func(msg *message.Message) { msg.Ack() })
	wantOutcome(t, again, transport.Confirmed)
	if err := b.Unsubscribe("orders", "unknown"); err != nil {
		t.Error(err)
	}
}

func TestRemovingTheLastSubscriptionMakesItsTopicUnroutable(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	if err := b.Subscriber("stock").SubscribeInitialize("orders"); err != nil {
		t.Fatal(err)
	}
	if err := b.Unsubscribe("orders", "stock"); err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, send(b, "orders", keyed("k")), transport.Returned)
}

func TestRoutesOfTopicsDiffer(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	if b.Route("orders") == b.Route("payments") {
		t.Error("two topics have one route")
	}
}
