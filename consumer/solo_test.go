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

func TestRedeliveredMessageRunsBesideOthersFirstAndThenAlone(t *testing.T) {
	t.Parallel()
	for name, starts := range map[string]int{"never begun since it was redelivered": 0, "begun once": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFake()
				store.attempts[claimKey{1, number(9)}] = attemptRow{starts: starts}
				var running atomic.Int64
				r := newRig(t, setup{store: store, fn: func(_ context.Context, _ *work, m *message.Message) error {
					before := running.Add(1)
					defer running.Add(-1)
					time.Sleep(time.Second)
					beside := before > 1 || running.Load() > 1
					if m.UUID == number(9).String() && beside != (starts == 0) {
						t.Errorf("beside others: %v, after %d starts", beside, starts)
					}
					return nil
				}})
				for n := range 4 {
					go func() { _ = r.handler.Consume(msg(n)) }()
				}
				synctest.Wait()
				go func() { _ = r.handler.Consume(again(msg(9))) }()
				synctest.Wait()
				go func() { _ = r.handler.Consume(msg(5)) }()
				time.Sleep(10 * time.Second)
				synctest.Wait()
				r.wantCalls(6)
				if n := r.handler.Counters().SoloStarts; n != 1 {
					t.Errorf("%d starts recorded: those delivered for the first time need none", n)
				}
			})
		})
	}
}

// A deploy redelivers what was prefetched.
func TestWhatARestartRedeliversIsHandledAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
			time.Sleep(time.Second)
			return nil
		}})
		var wg sync.WaitGroup
		began := time.Now()
		for n := range 64 {
			wg.Go(func() { r.consume(again(msg(n))) })
		}
		wg.Wait()
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestMessageThatIsAloneStopsNoOtherHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.attempts[claimKey{1, number(9)}] = attemptRow{starts: 1}
		hung := make(chan struct{})
		r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			<-hung
			return nil
		}})
		other := r.handle("other", func(context.Context, *work, *message.Message) error { return nil })
		var wg sync.WaitGroup
		wg.Go(func() { r.consume(msg(1)) })
		synctest.Wait()
		wg.Go(func() { r.consume(again(msg(9))) })
		synctest.Wait()
		began := time.Now()
		if err := other.Consume(msg(1)); err != nil {
			t.Error(err)
		}
		if err := other.Consume(again(msg(2))); err != nil {
			t.Error(err)
		}
		if waited := time.Since(began); waited > 0 {
			t.Errorf("another handler has waited for %v", waited)
		}
		close(hung)
		wg.Wait()
	})
}

func TestHungHandlerStopsNobodyForLongerThanItsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.attempts[claimKey{1, number(9)}] = attemptRow{starts: 1}
		hung := make(chan struct{})
		r := newRig(t, setup{store: store, fn: func(_ context.Context, _ *work, m *message.Message) error {
			if m.UUID == number(0).String() {
				<-hung
			}
			return nil
		}, handler: consumer.HandlerConfig{Timeout: time.Minute}})
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.handler.Consume(msg(0)) })
		synctest.Wait()
		began := time.Now()
		wg.Go(func() { r.consume(again(msg(9))) })
		synctest.Wait()
		r.consume(msg(1))
		if waited := time.Since(began); waited > time.Minute {
			t.Errorf("waited for %v", waited)
		}
		close(hung)
		wg.Wait()
		r.wantDone(number(9), 1)
	})
}

func TestHandlerMayHaveAnotherOneOfItsInboxHandleAMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		for handler := 1; handler <= 2; handler++ {
			store.attempts[claimKey{handler, number(handler)}] = attemptRow{starts: 1}
		}
		var inner *consumer.Handler[*fakeTx]
		r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			return inner.Consume(again(msg(2)))
		}})
		inner = r.handle("inner", func(context.Context, *work, *message.Message) error { return nil })
		r.consume(again(msg(1)))
		r.wantDone(number(1), 1)
	})
}

func TestWaitToBeAloneEndsWithTheMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		store.attempts[claimKey{1, number(9)}] = attemptRow{starts: 1}
		hung := make(chan struct{})
		r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			<-hung
			return nil
		}})
		var wg sync.WaitGroup
		wg.Go(func() { r.consume(msg(0)) })
		synctest.Wait()
		m := again(msg(9))
		ctx, cancel := context.WithTimeout(m.Context(), time.Second)
		defer cancel()
		m.SetContext(ctx)
		if err := r.handler.Consume(m); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Consume: %v", err)
		}
		if a := store.attempts[claimKey{1, number(9)}]; a.attempts != 0 || a.starts != 1 {
			t.Errorf("%d attempts and %d starts are recorded of what was not begun", a.attempts, a.starts)
		}
		close(hung)
		wg.Wait()
	})
}

func TestMessageThatKillsTheProcessIsDeadWithoutBeingRun(t *testing.T) {
	t.Parallel()
	store := newFake()
	// Each process dies within the handler: its start is all that is left.
	for range 4 {
		store.attempts[claimKey{1, number(1)}] = attemptRow{starts: store.attempts[claimKey{1, number(1)}].starts + 1}
	}
	r := newRig(t, setup{store: store})
	r.consume(again(msg(1)))
	r.wantCalls(0)
	r.wantStates(inbox.Dead)
	r.wantLog("level=ERROR", "kills the process", number(1).String())

	// One fewer, and it is still run.
	store = newFake()
	store.attempts[claimKey{1, number(1)}] = attemptRow{starts: 3}
	r = newRig(t, setup{store: store})
	r.consume(again(msg(1)))
	r.wantCalls(1)
	r.wantDone(number(1), 1)
}

func TestDuplicateThatIsRedeliveredIsNotRunAndKeepsNoStart(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{config: consumer.Config{CacheSize: -1}})
	r.consume(msg(1))
	r.consume(again(msg(1)))
	r.wantCalls(1)
	r.wantStarts(0, 0)
	if started := r.store.called("started"); started != 1 {
		t.Errorf("%d starts were recorded, want one that was taken back", started)
	}
}

func TestStartIsRecordedOncePerDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		store.failCalls("begin", 1, 7, errOutage)
		r.consume(again(msg(1)))
		r.wantDone(number(1), 1)
		if n := store.called("started") - store.called("unstarted"); n != 1 {
			t.Errorf("%d starts recorded and not taken back", n)
		}
	})
}

func TestSuspectThatCameBackRunsBesideOthersAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		long, tries := make(chan struct{}), 0
		r := newRig(t, setup{fn: func(_ context.Context, _ *work, m *message.Message) error {
			if m.UUID == number(0).String() {
				<-long
				return nil
			}
			if tries++; tries == 1 {
				return errHandler
			}
			return nil
		}})
		done := make(chan error, 2)
		go func() { done <- r.handler.Consume(again(msg(1))) }()
		synctest.Wait() // it has failed once and waits
		go func() { done <- r.handler.Consume(msg(0)) }()
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.wantDone(number(1), 1)
		close(long)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// The transport marks every second delivery. One that this process gave back itself
// came back, so it cannot have killed anything.
func TestMessageThatThisProcessReturnedIsNoSuspect(t *testing.T) {
	t.Parallel()
	store := newFake()
	r := newRig(t, setup{store: store})
	r.consume(msg(0))
	store.fail("begin", errOutage)
	giveBack(t, r)
	store.setFault(nil)
	r.consume(again(msg(1)))
	r.wantDone(number(1), 1)
	if n := store.called("started"); n != 1 {
		t.Errorf("%d starts recorded, want the first only", n)
	}
}

func TestMessageReturnedBeforeItsConsumerIsKnownIsNoSuspect(t *testing.T) {
	t.Parallel()
	store := newFake()
	r := newRig(t, setup{store: store})
	store.fail("register", errOutage)
	giveBack(t, r)
	store.setFault(nil)
	r.consume(again(msg(1)))
	r.wantDone(number(1), 1)
	if n := store.called("started"); n != 0 {
		t.Errorf("%d starts recorded of a message that was not begun", n)
	}
}

// giveBack delivers a message several times with a context that has ended.
func giveBack(t *testing.T, r *rig) {
	t.Helper()
	for range 10 {
		m := again(msg(1))
		ctx, cancel := context.WithCancel(m.Context())
		cancel()
		m.SetContext(ctx)
		if err := r.handler.Consume(m); err == nil {
			t.Fatal("a message was acknowledged that was not handled")
		}
	}
}

func TestParkedMessageThatKillsTheProcessIsDeadInTheEnd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		killed int // processes, each of which left a recorded start
		runs   int64
		states []inbox.State
	}{
		{"new", 0, 1, nil},
		{"killed three", 3, 1, nil},
		{"killed four", 4, 0, []inbox.State{inbox.Dead}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			store := newFake()
			former := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
				return consumer.RetryAfter(0, errHandler)
			}})
			former.consume(msg(1))
			store.attempts[claimKey{1, number(1)}] = attemptRow{starts: test.killed}

			r := newRig(t, setup{store: store})
			if err := r.inbox.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.wantCalls(test.runs)
			r.wantStates(test.states...)
			if test.states != nil && r.parked().Attempts != 1 {
				t.Errorf("%d attempts: a start that never came back is none", r.parked().Attempts)
			}
			want := int64(1)
			if test.states != nil {
				want = 6 // counted again
			}
			if n := r.handler.Counters().SoloStarts; n != want {
				t.Errorf("%d starts recorded, want %d", n, want)
			}
		})
	}
}

func TestProcessesThatStartTogetherConvictNobody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		former := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			return consumer.RetryAfter(0, errHandler)
		}})
		former.consume(msg(1))
		var stops []func()
		var locks atomic.Int64
		store.setFault(func(step string) error { // time enough for the others to record a start, too, and the last one has the lock
			if step == "apply-parked" {
				time.Sleep(max(0, 4*time.Second-time.Duration(locks.Add(1))*500*time.Millisecond))
			}
			return nil
		})
		for range 8 {
			r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
				time.Sleep(20 * time.Second)
				return nil
			}})
			stops = append(stops, r.run())
		}
		time.Sleep(time.Minute)
		for _, stop := range stops {
			stop()
		}
		former.wantStates()
		former.wantDone(number(1), 1)
	})
}

func TestMessageThatBecomesDueLaterIsNoSuspect(t *testing.T) {
	t.Parallel()
	store := newFake()
	fn, _ := failing(1)
	r := newRig(t, setup{store: store, fn: fn, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}, Parked: consumer.ParkedConfig{MinBackoff: 1}}})
	if err := r.inbox.RunOnce(t.Context()); err != nil { // nothing is due when the process begins
		t.Fatal(err)
	}
	r.consume(msg(1))
	if err := r.inbox.RunOnce(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.wantDone(number(1), 1)
	if n := store.called("started"); n != 0 {
		t.Errorf("%d starts recorded", n)
	}
}

func TestParkedSuspectRunsAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		former := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			return consumer.RetryAfter(0, errHandler)
		}})
		former.consume(msg(9))
		store.attempts[claimKey{1, number(9)}] = attemptRow{starts: 1}

		var running atomic.Int64
		r := newRig(t, setup{store: store, fn: func(_ context.Context, _ *work, m *message.Message) error {
			if n := running.Add(1); m.UUID == number(9).String() && n != 1 {
				t.Errorf("%d handlers run beside the suspect", n-1)
			}
			defer running.Add(-1)
			time.Sleep(time.Second)
			if n := running.Load(); m.UUID == number(9).String() && n != 1 {
				t.Errorf("%d handlers were begun beside the suspect", n-1)
			}
			return nil
		}})
		for n := range 4 {
			go func() { _ = r.handler.Consume(msg(n)) }()
		}
		synctest.Wait()
		stop := r.run()
		synctest.Wait()
		go func() { _ = r.handler.Consume(msg(5)) }()
		time.Sleep(5 * time.Second)
		stop()
		r.wantCalls(6)
		r.wantStates()
	})
}

func TestStartThatNeverBeganIsTakenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		busy := 5 // the transaction of the process that died still has the claim
		store.setFault(func(step string) error {
			if step == "begin" && busy > 0 {
				busy--
				return errConflict
			}
			return nil
		})
		r := newRig(t, setup{store: store, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{MaxSoloStarts: 1}}})
		if err := r.handler.Consume(again(msg(1))); err != nil {
			t.Fatal(err)
		}
		r.wantDone(number(1), 1)
		if n := store.called("started"); n != 6 {
			t.Errorf("%d starts recorded, want one for each try", n)
		}
	})
}

func TestParkedMessageThatCannotBeBegunIsNotConvicted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		fails := true
		r := newRig(t, setup{store: store, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}}, fn: func(context.Context, *work, *message.Message) error {
			if fails {
				return errors.New("not now")
			}
			return nil
		}})
		r.consume(msg(1))
		fails = false
		time.Sleep(time.Minute)
		store.fail("apply-parked", errOutage)
		stop := r.run()
		time.Sleep(10 * time.Minute)
		store.setFault(nil)
		time.Sleep(time.Minute)
		stop()
		r.wantStates()
		r.wantDone(number(1), 1)
	})
}
