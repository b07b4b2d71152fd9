package consumer_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
)

func TestOnlyTheFirstAttemptOfAFreshDeliveryIsOptimistic(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{handler: consumer.HandlerConfig{Optimistic: true}})
		fails := true
		r.handler, _ = r.inbox.Handle("failing", func(_ context.Context, w *work, _ *message.Message) error {
			if w.DB().Do("done"); fails {
				fails = false
				return errors.New("the first attempt fails")
			}
			return nil
		}, consumer.HandlerConfig{Optimistic: true, Topic: "orders"})
		r.consume(msg(1))
		r.consume(again(msg(2)))
		var got []bool
		for _, c := range r.store.claimed {
			got = append(got, c.Optimistic)
		}
		if len(got) != 3 || !got[0] || got[1] || got[2] {
			t.Errorf("claims are optimistic: %v, want the first of three", got)
		}
		if n := r.store.done("done"); n != 2 {
			t.Errorf("%d effects of 2 messages", n)
		}
	})
}

func TestOptimisticHandlerRunsForADuplicateAndChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{config: consumer.Config{CacheSize: -1}, handler: consumer.HandlerConfig{Optimistic: true}})
	r.consume(msg(1))
	r.consume(msg(1))
	r.wantCalls(2)
	r.wantDone(number(1), 1)
	if c := r.handler.Counters(); c.Applied != 1 || c.DuplicatesByTable != 1 || c.Failed != 0 {
		t.Errorf("counters: %+v", c)
	}
}

func TestWaitForAnOptimisticClaimCountsNoAttempt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db := newFake()
		release := make(chan struct{})
		first := newRig(t, setup{store: db, fn: func(context.Context, *work, *message.Message) error {
			<-release
			return nil
		}})
		second := newRig(t, setup{store: db, handler: consumer.HandlerConfig{Optimistic: true, Timeout: time.Second}})
		done := make(chan error, 2)
		go func() { done <- first.handler.Consume(msg(1)) }()
		synctest.Wait()
		go func() { done <- second.handler.Consume(msg(1)) }()
		synctest.Wait()
		time.Sleep(1500 * time.Millisecond) // the first attempt has ended
		close(release)
		if err := errors.Join(<-done, <-done); err != nil {
			t.Error(err)
		}
		if c := second.handler.Counters(); c.Failed != 0 || c.DuplicatesByTable != 1 {
			t.Errorf("counters: %+v", c)
		}
		first.wantDone(number(1), 1)
	})
}
