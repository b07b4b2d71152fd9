package consumer_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// silentStore is a database that does not answer, from the first statement of a consumer on.
type silentStore struct{ *fakeStore }

func (silentStore) Register(ctx context.Context, _ string, _ time.Duration) (inbox.Registration, error) {
	<-ctx.Done()
	return inbox.Registration{}, context.Cause(ctx)
}

// deafStore is a database that does not answer the first question for what is due.
type deafStore struct{ *fakeStore }

func (s deafStore) DueMessages(ctx context.Context, consumerID, limit int) ([]int64, time.Duration, error) {
	seqs, next, err := s.fakeStore.DueMessages(ctx, consumerID, limit)
	if s.called("due") == 1 {
		<-ctx.Done()
		return nil, 0, context.Cause(ctx)
	}
	return seqs, next, err
}

func silent(t *testing.T) (*consumer.Inbox[*fakeTx], *consumer.Handler[*fakeTx]) {
	t.Helper()
	inbox, err := consumer.New(silentStore{newFake()}, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := inbox.Handle("reserve", nothing[*fakeTx], consumer.HandlerConfig{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	return inbox, h
}

func TestStatsAndCheckOfASilentDatabaseEndWithTheirContexts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inbox, h := silent(t)
		var wg sync.WaitGroup
		for name, ask := range map[string]func(ctx context.Context) error{
			"Handler.Stats": func(ctx context.Context) error { _, err := h.Stats(ctx); return err },
			"Inbox.Stats":   func(ctx context.Context) error { _, err := inbox.Stats(ctx); return err },
			"Inbox.Check":   inbox.Check,
			"Inbox.RunOnce": inbox.RunOnce,
		} {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begun := time.Now()
				if err := ask(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%s: %v", name, err)
				}
				if took := time.Since(begun); took != time.Second {
					t.Errorf("%s took %v, its context ended after a second", name, took)
				}
			})
		}
		wg.Wait()
	})
}

func TestManyMessagesAreHeldTogetherForASilentDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		_, h := silent(t)
		begun := time.Now()
		var wg sync.WaitGroup
		for n := range 50 {
			wg.Go(func() {
				if err := h.Consume(msg(n)); err == nil {
					t.Errorf("message %d is acknowledged", n)
				}
			})
		}
		wg.Wait()
		// Config.MaxHold, and HandlerConfig.Timeout for the first and the last try.
		if took := time.Since(begun); took > 2*time.Minute {
			t.Errorf("messages were held for %v", took)
		}
	})
}

func TestQuestionThatIsNotAnsweredIsAskedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inbox, err := consumer.New(deafStore{newFake()}, consumer.Config{Service: "stock"})
		if err != nil {
			t.Fatal(err)
		}
		fail := true
		h, err := inbox.Handle("reserve", func(context.Context, *work, *message.Message) error {
			if fail {
				return errHandler
			}
			return nil
		}, consumer.HandlerConfig{Topic: "orders", Retry: consumer.RetryConfig{QuickAttempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := h.Consume(msg(1)); err != nil {
			t.Fatal(err)
		}
		fail = false
		ctx, cancel := context.WithTimeout(t.Context(), 40*time.Second)
		defer cancel()
		if err := inbox.Run(ctx); err != nil {
			t.Error(err)
		}
		if c := h.Counters(); c.Applied != 1 {
			t.Errorf("the parked message was not taken up: %+v", c)
		}
	})
}
