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

func TestOutageCountsNoAttemptsAndLosesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		begun := time.Now()
		store.setFault(func(step string) error {
			if time.Since(begun) < 40*time.Second && step != "failed" { // attempts could be counted
				return errOutage
			}
			return nil
		})
		var wg sync.WaitGroup
		for n := range 5 {
			wg.Go(func() { r.consume(msg(n)) })
		}
		wg.Wait()
		r.wantCalls(5)
		if c := r.handler.Counters(); c.Applied != 5 || c.Failed != 0 || c.DatabaseErrors == 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestOutageOfTheHandlersOwnStatementsCountsNothingEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
			if time.Since(begun) < 40*time.Second {
				return errOutage
			}
			return nil
		}})
		var wg sync.WaitGroup
		for n := range 5 {
			wg.Go(func() { r.consume(msg(n)) })
		}
		wg.Wait()
		if c := r.handler.Counters(); c.Applied != 5 || c.Failed != 0 || c.Parked != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestLongOutageGivesTheMessageBackWithoutAHotLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		r.consume(msg(0))
		store.setFault(func(string) error { return errOutage })
		asked := func() int { return store.called("register") + store.called("begin") }
		begun, tries := time.Now(), asked()
		err := r.handler.Consume(msg(1))
		if !errors.Is(err, errOutage) {
			t.Fatalf("Consume: %v", err)
		}
		if took := time.Since(begun); took < 50*time.Second || took > time.Minute {
			t.Errorf("held for %v", took)
		}
		if n := asked() - tries; n < 10 || n > 40 {
			t.Errorf("%d tries in a minute", n)
		}
		if c := r.handler.Counters(); c.Returned != 1 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestMessageIsReturnedAtOnceWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.setFault(func(string) error { return errOutage })
		r := newRig(t, setup{store: store})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		m := msg(1)
		m.SetContext(ctx)
		begun := time.Now()
		if err := r.handler.Consume(m); !errors.Is(err, errOutage) {
			t.Errorf("Consume: %v", err)
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("returned after %v", took)
		}
	})
}

// A message that breaks its connection each time looks like an outage. It is none
// if others succeed meanwhile.
func TestPoisonThatLooksLikeAnOutageIsNotImmortal(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{"connection": errOutage, "conflict": errConflict} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, setup{fn: func(_ context.Context, _ *work, m *message.Message) error {
					if m.UUID == number(0).String() {
						return err
					}
					return nil
				}})
				stop := r.run()
				var wg sync.WaitGroup
				wg.Go(func() { r.consume(msg(0)) })
				for n := 1; n < 3600; n++ {
					r.consume(msg(n))
					time.Sleep(time.Second)
				}
				wg.Wait()
				stop()
				r.wantStates(inbox.Dead)
			})
		})
	}
}

func TestPoisonousMessagesDoNotExcuseEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{fn: func(_ context.Context, _ *work, m *message.Message) error {
			if m.UUID == number(0).String() || m.UUID == number(1).String() {
				return errOutage
			}
			return nil
		}})
		stop := r.run()
		var wg sync.WaitGroup
		wg.Go(func() { r.consume(msg(0)) })
		wg.Go(func() { r.consume(msg(1)) })
		for n := 2; n < 7200; n++ {
			r.consume(msg(n))
			time.Sleep(time.Second)
		}
		wg.Wait()
		stop()
		r.wantStates(inbox.Dead, inbox.Dead)
	})
}

func TestPoisonThatIsAloneIsNotImmortalEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error { return errOutage }})
		stop := r.run()
		r.consume(msg(0))
		time.Sleep(3 * time.Hour)
		stop()
		r.wantStates(inbox.Dead)
		if p := r.parked(); p.Attempts != 10 {
			t.Errorf("%d attempts", p.Attempts)
		}
		r.wantCalls(10 * 5) // several errors are an attempt
	})
}

// Many messages of one hot row conflict with each other all the time. They must
// all get through, without being parked.
func TestContentionDelaysButDoesNotPark(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var holders atomic.Int64
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
			defer holders.Add(-1)
			if holders.Add(1) > 1 {
				return errConflict
			}
			time.Sleep(time.Millisecond)
			return nil
		}})
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() { r.consume(msg(n)) })
		}
		wg.Wait()
		r.wantStates()
		if c := r.handler.Counters(); c.Applied != 20 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestClaimThatFailsIsNeverTheMessagesFault(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		store.failCalls("claimed", 1, 12, errConflict) // waiting for another copy, for instance
		r.consume(msg(1))
		r.wantDone(number(1), 1)
		if c := r.handler.Counters(); c.Failed != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestMessageThatCannotBeParkedIsNotAcknowledged(t *testing.T) {
	t.Parallel()
	for name, state := range map[string]error{"failed": errHandler, "rejected": consumer.Reject(errHandler)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFake()
				r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error { return state }})
				store.fail("park", errOutage)
				if err := r.handler.Consume(msg(1)); !errors.Is(err, errOutage) {
					t.Errorf("Consume: %v", err)
				}
				r.wantStates()
			})
		})
	}
}

func TestParkingWhoseReplyWasLostIsParkedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error { return consumer.Reject(errHandler) }})
		store.failCalls("park-answer", 1, 1, inbox.ErrCommitUnknown)
		r.consume(msg(1))
		r.wantStates(inbox.Dead)
		if c := r.handler.Counters(); c.Dead != 1 || c.Duplicates() != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

// After trouble with the database it may be another one, which lacks the last
// commits. What was remembered of it is asked again.
func TestWindowForgetsAfterTroubleWithTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		r.consume(msg(1))
		store.setFault(func(step string) error {
			if step == "begin" && store.called("begin") == 2 {
				clear(store.claims) // the fail-over lost the commit
				clear(store.effects)
				return errOutage
			}
			return nil
		})
		r.consume(msg(2))
		r.consume(msg(1))
		r.wantCalls(3)
		r.wantDone(number(1), 1)
	})
}

func TestConflictDoesNotEmptyTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		r.consume(msg(1))
		store.failCalls("begin", 2, 2, errConflict)
		r.consume(msg(2))
		r.consume(msg(1))
		if c := r.handler.Counters(); c.DuplicatesByWindow != 1 {
			t.Errorf("counters: %+v", c)
		}
	})
}

// After a restore the number of the consumer may be that of another one.
func TestConsumerIsRegisteredAgainAfterTroubleWithTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		r.consume(msg(1))
		store.setFault(func(step string) error {
			if step == "begin" && store.called("begin") == 2 {
				store.mu.Lock()
				defer store.mu.Unlock()
				store.names = []string{"another", "stock/reserve"}
				return errOutage
			}
			return nil
		})
		r.consume(msg(2))
		if _, ok := store.claims[claimKey{2, number(2)}]; !ok {
			t.Errorf("claims: %v", store.claims)
		}
	})
}
