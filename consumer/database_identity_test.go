package consumer_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
)

// identified is a store of which a test says whether it is another database.
type identified struct {
	*fakeStore
	identity atomic.Pointer[string]
}

func (s *identified) Identity(context.Context) (string, error) { return *s.identity.Load(), nil }

// A pooler moves sessions to a promoted standby that lacks the last claim: the window
// must not acknowledge its message.
func TestWindowIsForgottenWhenTheDatabaseIsAnotherOne(t *testing.T) {
	t.Parallel()
	for identity, hits := range map[string]int64{"1/00000001": 1, "1/00000002": 0, "": 1} {
		synctest.Test(t, func(t *testing.T) {
			store := &identified{fakeStore: newFake()}
			first := "1/00000001"
			store.identity.Store(&first)
			inbox, err := consumer.New[*fakeTx](store, nil, consumer.Config{Service: "stock"})
			if err != nil {
				t.Fatal(err)
			}
			h, err := inbox.Handle("other", func(context.Context, *work, *message.Message) error { return nil }, consumer.HandlerConfig{Topic: "orders"})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- inbox.Run(ctx) }()
			synctest.Wait()
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			store.identity.Store(&identity)
			time.Sleep(time.Minute)
			if err := h.Consume(msg(1)); err != nil {
				t.Fatal(err)
			}
			if got := h.Counters().DuplicatesByWindow; got != hits {
				t.Errorf("with the identity %q the window knew %d copies, want %d", identity, got, hits)
			}
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
