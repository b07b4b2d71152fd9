package consumer_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

func TestSecondRunIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		stop := r.run()
		synctest.Wait()
		if err := r.inbox.Run(t.Context()); !errors.Is(err, consumer.ErrRunning) {
			t.Errorf("Run: %v", err)
		}
		stop()
		r.run()() // and again when it has ended
	})
}

func TestRunWaitsForWhatItHasBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := newRig(t, setup{fn: func(ctx context.Context, _ *work, _ *message.Message) error {
			if n++; n == 1 {
				return consumer.RetryAfter(time.Second, nil)
			}
			time.Sleep(20 * time.Second)
			return ctx.Err()
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- r.inbox.Run(ctx) }()
		r.consume(msg(1))
		time.Sleep(2 * time.Second)
		cancel()
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("Run returned %v while a handler runs", err)
		default:
		}
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.wantDone(number(1), 1)
	})
}

func TestParkingWithoutRunIsAnError(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		later := func(context.Context, *work, *message.Message) error { return consumer.RetryAfter(time.Hour, nil) }
		const says = "level=ERROR msg=\"Inbox.Run was never called"
		r := newRig(t, setup{fn: later})
		r.consume(msg(1))
		r.consume(msg(2))
		time.Sleep(time.Minute)
		r.consume(msg(3))
		if n := strings.Count(r.log.String(), says); n != 2 {
			t.Errorf("reported %d times in two minutes", n)
		}
		r.run()()
		time.Sleep(time.Minute)
		r.consume(msg(4)) // as while the process ends
		if n := strings.Count(r.log.String(), says); n != 2 {
			t.Errorf("reported %d times", n)
		}
		elsewhere := newRig(t, setup{fn: later, config: consumer.Config{RunElsewhere: true}})
		elsewhere.consume(msg(5))
		if strings.Contains(elsewhere.log.String(), says) {
			t.Error("reported though Run is called elsewhere")
		}
	})
}

func TestOneSlowParkedMessageDelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := make(map[string]bool)
		var order []string
		r := newRig(t, setup{
			handler: consumer.HandlerConfig{Parked: consumer.ParkedConfig{Concurrency: 2}},
			fn: func(ctx context.Context, _ *work, m *message.Message) error {
				if !first[m.UUID] {
					first[m.UUID] = true
					return consumer.RetryAfter(time.Second, errHandler)
				}
				if m.UUID == number(0).String() {
					<-ctx.Done()
					return errHandler
				}
				order = append(order, m.UUID)
				return nil
			},
		})
		stop := r.run()
		synctest.Wait()
		for n := range 20 {
			r.consume(msg(n))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if len(order) != 19 {
			t.Errorf("%d others applied while one is stuck", len(order))
		}
		stop()
	})
}

// TestIdleInboxLooksAtEvenTimes: at those times other parts of the process use the connection, too.
func TestIdleInboxLooksAtEvenTimes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store, begun := newFake(), time.Now()
		var calls atomic.Int64
		r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			if calls.Add(1) == 1 {
				return consumer.RetryAfter(2300*time.Millisecond, errHandler)
			}
			return nil
		}})
		defer r.run()()
		at := func(d time.Duration) (looks int) {
			time.Sleep(time.Until(begun.Add(d)))
			synctest.Wait()
			return store.called("due")
		}
		at(7 * time.Second)
		r.consume(msg(1))
		at(9300 * time.Millisecond)
		r.wantDone(number(1), 1)
		for even := 10 * time.Second; even < 30*time.Second; even += 5 * time.Second {
			before := at(even - 1)
			if during := at(even); during != before+1 {
				t.Errorf("%d looks at %v, want 1", during-before, even)
			}
		}
	})
}

func TestParkedMessagesThatAreDueAtTheStartAreHandledAsManyAtOnceAsOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		former := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			return consumer.RetryAfter(0, errHandler)
		}})
		for n := range 6 {
			former.consume(msg(n))
		}
		var running atomic.Int64
		r := newRig(t, setup{store: store, handler: consumer.HandlerConfig{Parked: consumer.ParkedConfig{Concurrency: 3}}, fn: func(context.Context, *work, *message.Message) error {
			running.Add(1)
			defer running.Add(-1)
			time.Sleep(time.Second)
			return nil
		}})
		stop := r.run()
		for range 2 {
			synctest.Wait()
			if n := running.Load(); n != 3 {
				t.Errorf("%d of 6 are handled at once, want 3", n)
			}
			time.Sleep(time.Second)
		}
		synctest.Wait()
		stop()
		r.wantCalls(6)
		r.wantStates()
	})
}

func TestMessageInOtherHandsIsPassedOverWithoutAHotLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
			return consumer.RetryAfter(time.Second, errHandler)
		}})
		stop := r.run()
		r.consume(msg(1))
		synctest.Wait()
		store.mu.Lock()
		store.parked[0].locked = true
		store.mu.Unlock()
		time.Sleep(time.Minute)
		if n := store.called("due"); n > 40 {
			t.Errorf("asked %d times in a minute", n)
		}
		stop()
		r.wantCalls(1)
	})
}

func TestRunSurvivesAnOutageWithoutAHotLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		fn, _ := failing(1)
		r := newRig(t, setup{store: store, fn: fn, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}}})
		store.setFault(func(string) error { return errOutage })
		stop := r.run()
		time.Sleep(10 * time.Minute)
		if n := store.called("register"); n > 90 { // by whoever asks, each every 15 s or so
			t.Errorf("%d tries to register in ten minutes", n)
		}
		store.setFault(nil)
		r.consume(msg(1))
		time.Sleep(2 * time.Minute)
		r.wantDone(number(1), 1)

		store.setFault(func(string) error { return errOutage })
		before := store.called("due")
		time.Sleep(10 * time.Minute)
		if n := store.called("due") - before; n > 60 {
			t.Errorf("%d tries in ten minutes", n)
		}
		stop()
	})
}

func TestMessagesThatCannotBeTakenUpCauseNoHotLoop(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		first := make(map[string]bool)
		r := newRig(t, setup{store: store, fn: func(_ context.Context, _ *work, m *message.Message) error {
			if !first[m.UUID] {
				first[m.UUID] = true
				return consumer.RetryAfter(time.Second, errHandler)
			}
			return nil
		}})
		store.fail("apply-parked", errOutage)
		stop := r.run()
		synctest.Wait()
		for n := range 20 {
			r.consume(msg(n))
		}
		time.Sleep(10 * time.Minute)
		if n := store.called("apply-parked"); n > 300 {
			t.Errorf("%d tries in ten minutes", n)
		}
		store.setFault(nil)
		time.Sleep(2 * time.Minute)
		stop()
		r.wantStates()
	})
}

func TestUnknownCommitOfAParkedMessageIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]string{"committed": "answer", "not committed": "commit"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFake()
				fn, _ := failing(1)
				r := newRig(t, setup{store: store, fn: fn, handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}}})
				store.failCalls(lost, 1, 1, inbox.ErrCommitUnknown)
				r.consume(msg(1))
				stop := r.run()
				time.Sleep(time.Minute)
				stop()
				r.wantDone(number(1), 1)
				r.wantStates()
				if c := r.handler.Counters(); c.Applied != 1 || c.Failed != 1 {
					t.Errorf("counters: %+v", c)
				}
			})
		})
	}
}

func TestOutageCountsNoAttemptsOfParkedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first := make(map[string]bool)
		var down atomic.Bool
		r := newRig(t, setup{fn: func(_ context.Context, _ *work, m *message.Message) error {
			if !first[m.UUID] {
				first[m.UUID] = true
				return consumer.RetryAfter(time.Second, errHandler)
			}
			if down.Load() {
				time.Sleep(time.Millisecond)
				return errOutage
			}
			return nil
		}})
		down.Store(true)
		stop := r.run()
		synctest.Wait()
		for n := range 4 {
			r.consume(msg(n))
		}
		time.Sleep(30 * time.Second)
		found, err := r.inbox.ListParked(t.Context(), inbox.Filter{})
		if err != nil || len(found) != 4 {
			t.Errorf("%d parked, %v", len(found), err)
		}
		for _, p := range found {
			if p.Attempts != 1 {
				t.Errorf("%d attempts counted", p.Attempts)
			}
		}
		down.Store(false)
		time.Sleep(30 * time.Second)
		stop()
		r.wantStates()
		if c := r.handler.Counters(); c.Applied != 4 || c.Failed != 4 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestHandlerAddedWhileRunningIsTakenIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		stop := r.run()
		synctest.Wait()
		fn, calls := failing(1)
		late, err := r.inbox.Handle("late", fn, consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := late.Consume(msg(1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		stop()
		if calls.Load() != 2 {
			t.Errorf("%d calls", calls.Load())
		}
	})
}

func TestForgettingAdvancesFirstAndRemovesInBatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store, config: consumer.Config{Window: time.Hour, CacheSize: -1}})
		for n := range 2500 {
			r.consume(msg(n))
		}
		r.consume(message.NewMessage(number(9999).String(), nil)) // without a stamp
		time.Sleep(2 * time.Hour)
		var steps []string
		store.setFault(func(step string) error {
			steps = append(steps, step)
			return nil
		})
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		if i := slices.Index(steps, "advance"); i < 0 || slices.Index(steps, "forget") < i {
			t.Errorf("steps: %v", steps)
		}
		if !slices.Equal(store.forgets, []int{200, 400, 800, 1100}) {
			t.Errorf("removed %v", store.forgets)
		}
		if c := r.handler.Counters(); c.Forgotten != 2500 {
			t.Errorf("counters: %+v", c)
		}
		// What is within the window is not forgotten.
		young := event(9998)
		young.Stamp = time.Now().Add(-30 * time.Minute)
		r.consume(fresh(young))
		r.wantDone(young.ID, 1)
		// What was forgotten is set aside, not run.
		old := event(1)
		old.Stamp = time.Now().Add(-90 * time.Minute)
		r.consume(fresh(old))
		r.wantStates(inbox.TooOldState)
	})
}

func TestClockThatJumpedIsReportedAndForgetsNothingMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		r := newRig(t, setup{store: store})
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		until := store.forgotten
		store.ahead = 365 * 24 * time.Hour
		if err := r.inbox.RunOnce(t.Context()); !errors.Is(err, inbox.ErrClockJump) {
			t.Errorf("RunOnce: %v", err)
		}
		if !store.forgotten.Equal(until) {
			t.Error("the clock's jump was believed")
		}
		if n := store.called("forget"); n != 2 {
			t.Errorf("forgot %d times: what was forgotten before can still be removed", n)
		}
		stop := r.run()
		synctest.Wait()
		stop()
		r.wantLog("level=ERROR", "forgetting failed", "clock jumped")
	})
}

// TestServiceThatStoodStillForgetsAgain, also if it had forgotten nothing before, as a young one or one
// whose window is shorter than the time between two passes.
func TestServiceThatStoodStillForgetsAgain(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	for name, c := range map[string]struct{ window, between time.Duration }{
		"old":          {14 * day, 30 * day},
		"young":        {14 * day, 10 * day},
		"short window": {2 * time.Minute, 10 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := newFake()
				r := newRig(t, setup{store: store, config: consumer.Config{Window: c.window}})
				for range 3 {
					if err := r.inbox.RunOnce(t.Context()); err != nil {
						t.Fatal(err)
					}
					time.Sleep(c.between)
				}
				if behind := time.Since(store.forgotten); behind > c.between+c.window+time.Minute {
					t.Errorf("forgets nothing younger than %v", behind)
				}
			})
		})
	}
}

func TestOperatorsNeedAReasonToDiscard(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error { return consumer.Reject(errHandler) }})
	r.consume(msg(1))
	for _, reason := range []string{"", "a\x00b"} {
		if _, err := r.inbox.Discard(t.Context(), inbox.Filter{}, reason); err == nil {
			t.Errorf("discarded for %q", reason)
		}
	}
	ids, err := r.inbox.Discard(t.Context(), inbox.Filter{}, "order was cancelled")
	if err != nil || len(ids) != 1 || ids[0] != number(1) {
		t.Errorf("Discard: %v, %v", ids, err)
	}
	r.wantLog("discarded", "dispatch_id="+number(1).String(), "order was cancelled")
	r.consume(msg(1)) // its copies stay duplicates
	r.wantCalls(1)
}

func TestStatsTellWhatIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error { return consumer.Reject(errHandler) }})
	r.consume(msg(1))
	stats, err := r.inbox.Stats(t.Context())
	if err != nil || stats["stock/reserve"].Dead != 1 {
		t.Errorf("Stats: %+v, %v", stats, err)
	}
}
