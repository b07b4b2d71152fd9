package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// storing is a setup whose handler stores messages first and keeps the order of keys.
func storing(fn consumer.HandlerFunc[*fakeTx]) setup {
	return setup{fn: fn, handler: consumer.HandlerConfig{
		StoreFirst: true, Order: consumer.OrderConfig{ByKey: true},
	}}
}

// withKey is the message of a number with a key.
func withKey(n int, key string) *message.Message {
	return fresh(transport.Event{ID: number(n), Key: key, Digest: transport.Digest{15: byte(n)}})
}

func TestStoredMessageIsAcknowledgedBeforeItIsHandled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, storing(func(context.Context, *work, *message.Message) error {
			time.Sleep(time.Second)
			return nil
		}))
		defer r.run()()
		begun := time.Now()
		for n := range 24 {
			r.consume(withKey(n, fmt.Sprint(n%8)))
		}
		if took := time.Since(begun); took >= time.Second {
			t.Errorf("acknowledged after %v, as if it were handled", took)
		}
		r.consume(withKey(0, "0"))          // a copy
		time.Sleep(3500 * time.Millisecond) // three messages of each key, of a second each
		for n := range 24 {
			r.wantDone(number(n), 1)
		}
		c := r.handler.Counters()
		if c.Stored != 24 || c.Applied != 24 || c.Duplicates() != 1 || c.Parked+c.Followed+c.SoloStarts != 0 {
			t.Errorf("counters are %+v", c)
		}
	})
}

func TestStoredMessagesOfAKeyRunInOrderThroughFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		tries := 0
		r := newRig(t, storing(func(_ context.Context, _ *work, msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if msg.UUID == number(1).String() {
				if tries++; tries < 5 {
					return errHandler
				}
			}
			order = append(order, msg.UUID)
			return nil
		}))
		defer r.run()()
		r.consume(withKey(1, "key"))
		r.consume(withKey(2, "key"))
		time.Sleep(200 * time.Millisecond)
		mu.Lock()
		if tries != 3 {
			t.Errorf("%d attempts at once, want as many as quick ones", tries)
		}
		mu.Unlock()
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if len(order) != 2 || order[0] != number(1).String() {
			t.Errorf("applied %v", order)
		}
		r.wantStates()
	})
}

func TestStoredMessageDiesAfterItsAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := storing(func(_ context.Context, _ *work, msg *message.Message) error {
			if msg.UUID == number(1).String() {
				return errHandler
			}
			return nil
		})
		s.handler.Retry.MaxAttempts = 2
		r := newRig(t, s)
		defer r.run()()
		r.consume(withKey(1, "key"))
		r.consume(withKey(2, "key"))
		time.Sleep(time.Minute)
		r.wantStates(inbox.Dead)
		r.wantDone(number(2), 1)
		if _, err := r.inbox.Redrive(t.Context(), inbox.Filter{IDs: []uuid.UUID{number(1)}}, "again"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		r.wantStates(inbox.Dead)
		if n := r.calls.Load(); n != 5 {
			t.Errorf("handler was run %d times, want twice before the redrive and twice since, and once for the other", n)
		}
	})
}

func TestNothingIsStoredWithoutRun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, storing(nil))
		begun := time.Now()
		if err := r.handler.Consume(withKey(1, "key")); !errors.Is(err, consumer.ErrNotRunning) {
			t.Errorf("Consume: %v", err)
		}
		if took := time.Since(begun); took < time.Second {
			t.Errorf("refused after %v: Run may be about to begin", took)
		}
		r.wantStates()
		r.wantLog("level=ERROR", "Inbox.Run was never called")
		var wg sync.WaitGroup
		wg.Go(func() { r.consume(withKey(1, "key")) })
		time.Sleep(time.Second)
		stop := r.run()
		wg.Wait()
		time.Sleep(time.Second)
		stop()
		r.wantDone(number(1), 1)

		s := storing(nil)
		s.config.RunElsewhere = true
		elsewhere := newRig(t, s)
		elsewhere.consume(withKey(2, "key"))
		elsewhere.wantStates(inbox.Retrying)
	})
}

func TestMessageThatMustNotBeStoredIsSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := storing(nil)
		s.config.RunElsewhere = true
		r := newRig(t, s)
		r.consume(withKey(1, "key"))
		other := transport.Event{ID: number(1), Key: "key", Digest: transport.Digest{15: 99}}
		r.consume(fresh(other))
		r.store.forgotten = time.Now()
		r.consume(fresh(transport.Event{ID: number(2), Key: "key", Stamp: time.Now().Add(-time.Hour)}))
		r.wantStates(inbox.Retrying, inbox.AlteredState, inbox.TooOldState)
		r.wantLog("level=ERROR", "claimed with other content")
		r.wantLog("level=ERROR", "the consumer has forgotten")
		if c := r.handler.Counters(); c.Stored != 1 || c.Altered != 1 || c.TooOld != 1 {
			t.Errorf("counters are %+v", c)
		}
	})
}

func TestStoringWithALostAnswerIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, storing(nil))
		r.store.failCalls("park-answer", 1, 1, fmt.Errorf("commit: %w", inbox.ErrCommitUnknown))
		defer r.run()()
		r.consume(withKey(1, "key"))
		time.Sleep(time.Second)
		r.wantDone(number(1), 1)
		if c := r.handler.Counters(); c.Stored != 1 || c.Applied != 1 || c.CommitsUnknown != 1 || c.Duplicates() != 0 {
			t.Errorf("counters are %+v", c)
		}
	})
}

func TestStoreFirstGoesWithoutGroupsAndOptimistic(t *testing.T) {
	t.Parallel()
	i, err := consumer.New(newFake(), consumer.Config{Service: "stock"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = i.Handle("a", nothing[*fakeTx], consumer.HandlerConfig{StoreFirst: true, Optimistic: true})
	if err == nil || !strings.Contains(err.Error(), "Optimistic") {
		t.Errorf("with Optimistic: %v", err)
	}
	_, err = i.HandleBatch("b", func(context.Context, *consumer.Batch[*fakeTx], []*message.Message) error { return nil }, consumer.HandlerConfig{StoreFirst: true})
	if err == nil || !strings.Contains(err.Error(), "Group.Size") {
		t.Errorf("with a batch: %v", err)
	}
}

// TestBacklogIsReadAhead has a process find many stored messages.
func TestBacklogIsReadAhead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const many = 300
		s := storing(nil)
		s.handler.Parked.Concurrency = 4
		s.config.RunElsewhere = true
		r := newRig(t, s)
		for n := range many {
			r.consume(withKey(n, fmt.Sprint(n)))
		}
		stop := r.run()
		time.Sleep(time.Minute)
		stop()
		if n := r.store.called("apply-parked"); n != many {
			t.Errorf("took up %d messages of %d", n, many)
		}
		if n := r.store.called("due"); n > 30 {
			t.Errorf("asked %d times for what is due", n)
		}
		if n := r.handler.Counters().SoloStarts; n != 64 {
			t.Errorf("recorded %d starts, want those of 16 processes at most", n)
		}
	})
}

// TestMessageOfAnotherProcessIsTriedAgainSoon has a row of a stored message locked for a moment.
func TestMessageOfAnotherProcessIsTriedAgainSoon(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, storing(nil))
		r.store.lockParked = true
		defer r.run()()
		r.consume(withKey(1, "key"))
		time.Sleep(20 * time.Millisecond)
		r.store.unlockParked()
		time.Sleep(200 * time.Millisecond)
		r.wantDone(number(1), 1)
		if n := r.store.called("apply-parked"); n > 3 {
			t.Errorf("tried %d times", n)
		}
	})
}
