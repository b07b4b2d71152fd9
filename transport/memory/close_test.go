package memory_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

func TestCloseLetsRunningHandlersFinish(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{CloseTimeout: time.Minute})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		running := send(b, "orders", keyed("k"))
		queued := send(b, "orders", keyed("k"))
		msg := <-messages
		closed := make(chan error, 1)
		begin := time.Now()
		go func() { closed <- b.Close() }()
		synctest.Wait()
		wantOutcome(t, queued, transport.Unavailable)
		empty(t, running)
		empty(t, closed)
		waitClosed(t, messages)
		if msg.Context().Err() == nil {
			t.Error("the context of a message outlives its consumer")
		}
		time.Sleep(time.Second) // the handler works
		msg.Ack()
		wantOutcome(t, running, transport.Confirmed)
		if err := <-closed; err != nil || time.Since(begin) != time.Second {
			t.Errorf("Close returned %v after %v, want nil after a second", err, time.Since(begin))
		}
	})
}

func TestCloseOfASubscriberKeepsItsMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const timeout = 10 * time.Second
		b := newBroker(t, memory.Config{CloseTimeout: timeout})
		first := b.Subscriber("stock")
		messages := subscribe(t, first, "orders")
		stuck, queued := keyed("k"), keyed("k")
		stuckResult, queuedResult := send(b, "orders", stuck), send(b, "orders", queued)
		<-messages // and never answer
		begin := time.Now()
		if err := first.Close(); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited != timeout {
			t.Errorf("Close waited %v for an answer, want %v", waited, timeout)
		}
		waitClosed(t, messages)
		empty(t, stuckResult)
		empty(t, queuedResult)
		if _, err := first.Subscribe(t.Context(), "orders"); !errors.Is(err, memory.ErrClosed) {
			t.Errorf("Subscribe on a closed subscriber returned %v, want ErrClosed", err)
		}

		again := subscribe(t, b.Subscriber("stock"), "orders")
		for i, want := range []*message.Message{stuck, queued} {
			msg := <-again
			if msg.UUID != want.UUID || transport.Redelivered(msg) != (i == 0) {
				t.Errorf("message %d: got %s, redelivered %v", i, msg.UUID, transport.Redelivered(msg))
			}
			msg.Ack()
		}
		wantOutcome(t, stuckResult, transport.Confirmed)
		wantOutcome(t, queuedResult, transport.Confirmed)
	})
}

func TestNackWhileClosingComesBackToTheNextConsumer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{CloseTimeout: time.Hour})
		first := b.Subscriber("stock")
		messages := subscribe(t, first, "orders")
		results := send(b, "orders", keyed("k"))
		msg := <-messages
		closed := make(chan error, 1)
		go func() { closed <- first.Close() }()
		synctest.Wait()
		msg.Nack()
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		empty(t, results)
		(<-subscribe(t, b.Subscriber("stock"), "orders")).Ack()
		wantOutcome(t, results, transport.Confirmed)
	})
}

func TestNackWhileTheBrokerClosesIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{CloseTimeout: time.Hour})
		messages := subscribe(t, b.Subscriber("stock"), "orders")
		delayed, running := send(b, "orders", keyed("a")), send(b, "orders", keyed("b"))
		(<-messages).Nack()
		msg := <-messages
		synctest.Wait() // until the nack was seen
		closed := make(chan error, 1)
		go func() { closed <- b.Close() }()
		wantOutcome(t, delayed, transport.Unavailable)
		synctest.Wait()
		msg.Nack()
		if r := wantOutcome(t, running, transport.Unavailable); !errors.Is(r.Err, memory.ErrClosed) {
			t.Errorf("error %v does not wrap ErrClosed", r.Err)
		}
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
	})
}

func TestMessageOnOfferIsNotLostOnClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		unread := subscribeCtx(t, ctx, b.Subscriber("stock"), "orders")
		results := send(b, "orders", keyed("k"))
		synctest.Wait() // it is on offer
		cancel()
		synctest.Wait()
		waitClosed(t, unread)
		again := subscribe(t, b.Subscriber("stock"), "orders")
		msg := <-again
		if transport.Redelivered(msg) {
			t.Error("a message that nobody took says that it may have been started before")
		}
		last := send(b, "orders", keyed("k"))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		wantOutcome(t, results, transport.Unavailable)
		wantOutcome(t, last, transport.Unavailable)
	})
}

func TestMessageForAConsumerThatEndsGoesToAnIdleOne(t *testing.T) {
	t.Parallel()
	for range 200 { // whether the one that ends has looked is up to the scheduler
		synctest.Test(t, func(t *testing.T) {
			b := newBroker(t, memory.Config{})
			ctx, cancel := context.WithCancel(t.Context())
			ending := subscribeCtx(t, ctx, b.Subscriber("stock"), "orders")
			synctest.Wait() // it is idle for longer, so it is woken
			idle := subscribe(t, b.Subscriber("stock"), "orders")
			synctest.Wait()
			results := send(b, "orders", keyed("k"))
			cancel()
			receive(t, idle).Ack()
			wantOutcome(t, results, transport.Confirmed)
			waitClosed(t, ending)
		})
	}
}

func TestMessageOnOfferIsUnavailableWhenTheBrokerCloses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBroker(t, memory.Config{})
		subscribe(t, b.Subscriber("stock"), "orders")
		results := send(b, "orders", keyed("k"))
		synctest.Wait()
		begin := time.Now()
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		wantOutcome(t, results, transport.Unavailable)
		if waited := time.Since(begin); waited != 0 {
			t.Errorf("Close waited %v for a message that nobody has", waited)
		}
	})
}

func TestClosedBrokerRefusesEverything(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	s := b.Subscriber("stock")
	subscribe(t, s, "orders")
	for range 2 {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if r := wantOutcome(t, send(b, "orders", keyed("k")), transport.Unavailable); !errors.Is(r.Err, memory.ErrClosed) {
		t.Errorf("error %v does not wrap ErrClosed", r.Err)
	}
	if _, err := s.Subscribe(t.Context(), "orders"); !errors.Is(err, memory.ErrClosed) {
		t.Errorf("Subscribe returned %v, want ErrClosed", err)
	}
	if err := s.SubscribeInitialize("orders"); !errors.Is(err, memory.ErrClosed) {
		t.Errorf("SubscribeInitialize returned %v, want ErrClosed", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestEverySendIsAnsweredOnceWhileAllIsClosed(t *testing.T) {
	t.Parallel()
	for range 20 {
		b := newBroker(t, memory.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		for _, name := range []string{"stock", "mail"} {
			handle(t, subscribe(t, b.Subscriber(name), "orders"), func(msg *message.Message) { msg.Ack() })
		}
		const senders, each = 4, 100
		results := make(chan transport.Result, 2*senders*each)
		var sending sync.WaitGroup
		for range senders {
			sending.Go(func() {
				for i := range each {
					b.Send(ctx, "orders", keyed("k"), func(r transport.Result) { results <- r })
					if i == each/2 {
						cancel()
					}
				}
			})
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		sending.Wait()
		for range senders * each {
			receive(t, results)
		}
		empty(t, results)
		cancel()
	}
}

func TestOutcomeMaySendTheNext(t *testing.T) {
	t.Parallel()
	b := newBroker(t, memory.Config{})
	handle(t, subscribe(t, b.Subscriber("stock"), "orders"), func(msg *message.Message) { msg.Ack() })
	done := make(chan transport.Result, 1)
	left := 100
	var next func(transport.Result)
	next = func(r transport.Result) {
		if left--; left == 0 || r.Err != nil {
			done <- r
			return
		}
		b.Send(t.Context(), "orders", keyed("k"), next)
	}
	b.Send(t.Context(), "orders", keyed("k"), next)
	wantOutcome(t, done, transport.Confirmed)
}
