package consumer_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// identified is a store of which a test says whether it is another database.
type identified struct {
	*fakeStore
	identity atomic.Pointer[string]
	silent   atomic.Bool // it answers with an error
	looks    atomic.Int64
}

func (s *identified) Identity(ctx context.Context) (string, error) {
	s.looks.Add(1)
	select {
	case <-time.After(10 * time.Millisecond): // so that others wait for it
	case <-ctx.Done():
	}
	if s.silent.Load() {
		return "", errors.New("no answer")
	}
	return *s.identity.Load(), nil
}

// newIdentified returns a store that names its database 1/00000001, and a handler on it.
func newIdentified(t *testing.T) (*identified, *consumer.Inbox[*fakeTx], *consumer.Handler[*fakeTx]) {
	t.Helper()
	store := &identified{fakeStore: newFake()}
	first := "1/00000001"
	store.identity.Store(&first)
	in, h := handlerOn(t, store)
	return store, in, h
}

// handlerOn returns an inbox on a store, and a handler that does nothing.
func handlerOn(t *testing.T, store inbox.Store[*fakeTx]) (*consumer.Inbox[*fakeTx], *consumer.Handler[*fakeTx]) {
	t.Helper()
	in, err := consumer.New(store, consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := in.Handle("other", func(context.Context, *work, *message.Message) error { return nil }, consumer.HandlerConfig{Topic: "orders"})
	if err != nil {
		t.Fatal(err)
	}
	return in, h
}

func consumeOne(t *testing.T, h *consumer.Handler[*fakeTx]) {
	t.Helper()
	if err := h.Consume(msg(1)); err != nil {
		t.Fatal(err)
	}
}

// together is a store that reads due messages together with its identity.
type together struct {
	*identified
	both atomic.Int64
}

func (s *together) DueAndIdentity(ctx context.Context, consumer, limit int) ([]int64, time.Duration, string, error) {
	s.both.Add(1)
	seqs, next, err := s.DueMessages(ctx, consumer, limit)
	return seqs, next, *s.identity.Load(), err
}

func TestIdleInboxLooksForDueMessagesAndAtTheDatabaseTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, _, _ := newIdentified(t)
		store := &together{identified: first}
		in, h := handlerOn(t, store)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- in.Run(ctx) }()
		time.Sleep(time.Minute)
		consumeOne(t, h)
		alone, both := store.looks.Load(), store.both.Load()
		time.Sleep(time.Minute)
		if n := store.both.Load() - both; store.looks.Load() != alone || n < 11 || n > 13 {
			t.Errorf("in a minute: %d looks at both, %d at the identity alone", n, store.looks.Load()-alone)
		}
		second := "1/00000002"
		store.identity.Store(&second)
		time.Sleep(6 * time.Second)
		consumeOne(t, h)
		if n := h.Counters().DuplicatesByWindow; n != 0 {
			t.Errorf("the window of another database knew %d copies", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A pooler moves sessions to a promoted standby that lacks the last claim: the window
// must not acknowledge its message.
func TestWindowIsForgottenWhenTheDatabaseIsAnotherOne(t *testing.T) {
	t.Parallel()
	for identity, hits := range map[string]int64{"1/00000001": 1, "1/00000002": 0, "": 1} {
		synctest.Test(t, func(t *testing.T) {
			store, inbox, h := newIdentified(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- inbox.Run(ctx) }()
			synctest.Wait()
			consumeOne(t, h)
			store.identity.Store(&identity)
			time.Sleep(time.Minute)
			consumeOne(t, h)
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

// A relay sends again what a promoted standby lacks before anybody has looked which database it is.
func TestWindowIsBelievedOnlyInTheDatabaseThatItIsOf(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		identity string
		silent   bool
		hits     int64
	}{
		"the same":                 {"1/00000001", false, 2},
		"another one":              {"1/00000002", false, 0},
		"one that does not answer": {"1/00000001", true, 0},
		"one that does not tell":   {"", false, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			store, _, h := newIdentified(t)
			both := func() {
				var wg sync.WaitGroup
				for n := range 2 {
					wg.Go(func() {
						if err := h.Consume(msg(n)); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
			}
			both()
			store.identity.Store(&test.identity)
			store.silent.Store(test.silent)
			time.Sleep(200 * time.Millisecond)
			both()
			if got := h.Counters().DuplicatesByWindow; got != test.hits {
				t.Errorf("%s: the window knew %d copies, want %d", name, got, test.hits)
			}
		})
	}
}

func TestManyCopiesCostOneLookAtTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, _, h := newIdentified(t)
		consumeOne(t, h)
		time.Sleep(time.Second)
		before := store.looks.Load()
		for range 100 {
			consumeOne(t, h)
		}
		if n := store.looks.Load() - before; n != 1 || h.Counters().DuplicatesByWindow != 100 {
			t.Errorf("%d looks for %d copies", n, h.Counters().DuplicatesByWindow)
		}
	})
}
