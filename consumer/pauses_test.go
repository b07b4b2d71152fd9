package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/inbox"
)

// wantNothingCounted checks that no failure was counted, and that nothing was parked.
func (r *rig) wantNothingCounted() {
	r.t.Helper()
	c := r.handler.Counters()
	if c.Failed+c.Parked+c.Dead+c.DatabaseErrors+c.SoloStarts != 0 || r.store.called("failed")+r.store.called("park") != 0 {
		r.t.Errorf("counters: %+v", c)
	}
}

func TestPausedConsumerHandlesNothingAndGoesOnWithinASecond(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"stock/reserve", "stock/*"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, setup{})
				r.pause(name, time.Time{})
				var wg sync.WaitGroup
				for n := range 3 {
					wg.Go(func() { r.consume(msg(n)) })
				}
				time.Sleep(20*time.Second + 10*time.Millisecond)
				r.wantCalls(0)
				if n := r.store.called("pauses"); n > 41 {
					t.Errorf("pauses were read %d times in 20 s", n)
				}
				r.resume(name)
				resumed := time.Now()
				wg.Wait()
				if took := time.Since(resumed); took > time.Second {
					t.Errorf("went on after %v", took)
				}
				r.wantCalls(3)
				r.wantNothingCounted()
				if c := r.handler.Counters(); c.Held != 3 || c.Paused != 0 {
					t.Errorf("counters: %+v", c)
				}
				r.wantLog("level=INFO", "consumer is paused", "consumer=stock/reserve", "reason=maintenance", "by=ann")
				r.wantLog("level=INFO", "consumer goes on")
				if n := strings.Count(r.log.String(), "level=INFO"); n != 2 {
					t.Errorf("%d records of a pause and its end:\n%s", n, r.log)
				}
			})
		})
	}
}

func TestPausesOfOthersHoldNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		for _, name := range []string{"stock/ship", "stoc/*", "stock", "reserve", "*"} {
			r.pause(name, time.Time{})
		}
		if err := r.store.SetPause(t.Context(), control.Pause{Kind: control.Topic, Name: "orders", Reason: "another kind"}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		r.consume(msg(0))
		if took := time.Since(begun); took != 0 {
			t.Errorf("held for %v", took)
		}
	})
}

func TestPauseEndsAtItsTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		begun := time.Now()
		r.pause("stock/reserve", begun.Add(30*time.Second))
		r.consume(msg(0))
		if took := time.Since(begun); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("held for %v", took)
		}
		r.wantNothingCounted()
	})
}

func TestPauseIsSeenWithinASecondWhileThereIsWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := range 300 {
				r.consume(msg(n))
				time.Sleep(100 * time.Millisecond)
			}
		})
		time.Sleep(5*time.Second + 50*time.Millisecond)
		r.pause("stock/reserve", time.Now().Add(20*time.Second))
		before := r.calls.Load()
		time.Sleep(19 * time.Second)
		if n := r.calls.Load() - before; n > 10 {
			t.Errorf("%d messages were handled after the pause had begun", n)
		}
		wg.Wait()
		r.wantCalls(300)
	})
}

func TestHandlerThatRunsWhenAPauseBeginsFinishes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
			time.Sleep(10 * time.Second)
			return nil
		}})
		begun := time.Now()
		go func() {
			time.Sleep(time.Second)
			r.pause("stock/reserve", time.Time{})
		}()
		r.consume(msg(0))
		if took := time.Since(begun); took != 10*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestLongPauseReturnsTheMessageToTheTransport(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"alone": 1, "in a group": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, setup{
					config:  consumer.Config{MaxHold: 10 * time.Second},
					handler: consumer.HandlerConfig{Group: consumer.GroupConfig{Size: batch}},
				})
				r.consume(msg(1))
				time.Sleep(time.Second)
				r.pause("stock/reserve", time.Now().Add(time.Hour))
				begun := time.Now()
				err := r.handler.Consume(msg(0))
				if took := time.Since(begun); took != 10*time.Second {
					t.Errorf("held for %v", took)
				}
				if !errors.Is(err, consumer.ErrPaused) {
					t.Fatalf("Consume: %v", err)
				}
				for _, word := range []string{"stock/reserve", "maintenance", "by ann", "until 2000-01-01T01:00:01Z", number(0).String()} {
					if !strings.Contains(err.Error(), word) {
						t.Errorf("no %q in %q", word, err)
					}
				}
				r.consume(msg(1)) // the window knows the copy
				if c := r.handler.Counters(); c.Returned != 1 || c.DuplicatesByWindow != 1 || c.Paused != 1 {
					t.Errorf("counters: %+v", c)
				}
				r.resume("stock/reserve")
				r.consume(again(msg(0)))
				r.wantCalls(2)
				r.wantNothingCounted() // the returned message is no suspect
			})
		})
	}
}

// A message that was held for most of MaxHold is no sign of a database in trouble.
func TestErrorAfterAPauseIsNoStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var n notices
		r := newRig(t, setup{config: consumer.Config{Observer: n.observer()}})
		r.consume(msg(0))
		r.pause("stock/reserve", time.Now().Add(60*time.Second+500*time.Millisecond))
		time.Sleep(time.Second)
		failed := 0
		r.store.setFault(func(step string) error {
			if step == "pauses" || failed == 1 {
				return nil
			}
			failed++
			return errOutage
		})
		begun := time.Now()
		r.consume(msg(1))
		if took := time.Since(begun); took < 59*time.Second || took > 61*time.Second || failed != 1 {
			t.Errorf("took %v, with %d errors", took, failed)
		}
		n.want(t, `stock/reserve paused true "maintenance"`, `stock/reserve paused false ""`)
	})
}

func TestPausedMessageIsReturnedWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		r.pause("stock/*", time.Time{})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		m := msg(0)
		m.SetContext(ctx)
		begun := time.Now()
		if err := r.handler.Consume(m); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Consume: %v", err)
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("returned after %v", took)
		}
		r.wantNothingCounted()
	})
}

func TestPauseHoldsRefusedMessagesToo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		r.pause("stock/reserve", time.Now().Add(30*time.Second))
		done := make(chan struct{})
		go func() {
			defer close(done)
			r.consume(message.NewMessage("no dispatch ID", nil))
		}()
		time.Sleep(29 * time.Second)
		r.wantStates()
		<-done
		r.wantStates(inbox.Dead)
	})
}

func TestPauseBeginsBetweenTwoAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{
			handler: consumer.HandlerConfig{Retry: consumer.RetryConfig{QuickAttempts: 2, QuickBackoff: 10 * time.Second}},
			fn:      func(context.Context, *work, *message.Message) error { return errHandler },
		})
		done := make(chan error)
		go func() { done <- r.handler.Consume(msg(0)) }()
		time.Sleep(time.Second)
		r.pause("stock/reserve", time.Time{})
		if err := <-done; !errors.Is(err, consumer.ErrPaused) {
			t.Errorf("Consume: %v", err)
		}
		r.wantCalls(1)
		r.wantStates()
	})
}

func TestGroupThatHasWaitedDoesNotBeginInAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(nil))
		gate := make(chan struct{})
		r.gate.Store(&gate)
		var wg sync.WaitGroup
		wg.Go(func() { r.consume(msg(opener)) })
		synctest.Wait()
		for n := range 5 {
			wg.Go(func() { r.consume(msg(n)) })
		}
		time.Sleep(time.Second)
		r.pause("stock/reserve", time.Time{})
		close(gate)
		time.Sleep(20 * time.Second)
		r.wantCalls(1)
		r.resume("stock/reserve")
		wg.Wait()
		r.wantCalls(6)
		r.wantNothingCounted()
	})
}

func TestParkedMessagesWaitForTheEndOfAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		failing := true
		r := newRig(t, setup{config: consumer.Config{MaxHold: 5 * time.Second}, fn: func(context.Context, *work, *message.Message) error {
			if failing {
				return consumer.RetryAfter(0, errHandler)
			}
			return nil
		}})
		for n := range 6 { // more than are handled at once
			r.consume(msg(n))
		}
		failing = false
		r.pause("stock/*", time.Time{})
		time.Sleep(time.Second)
		r.store.setFault(func(step string) error {
			if step == "pauses" { // while one message reads, the others look
				time.Sleep(10 * time.Millisecond)
			}
			return nil
		})
		stop := r.run()
		time.Sleep(time.Minute)
		r.wantCalls(6)
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Errorf("RunOnce: %v", err)
		}
		r.wantCalls(6)
		if n := r.store.called("due"); n > 60 {
			t.Errorf("due messages were read %d times", n)
		}
		r.resume("stock/*")
		time.Sleep(time.Second)
		r.wantCalls(12)
		r.wantStates()
		stop()
		if c := r.handler.Counters(); c.Failed != 6 || c.Applied != 6 || c.SoloStarts != 6 { // due when Run began
			t.Errorf("counters: %+v", c)
		}
		if strings.Contains(r.log.String(), "cannot be taken up") {
			t.Errorf("a pause passes for an error:\n%s", r.log)
		}
	})
}

func TestRunEndsInAPause(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error { return consumer.RetryAfter(0, errHandler) }})
		r.consume(msg(0))
		r.pause("stock/*", time.Time{})
		time.Sleep(time.Second)
		stop := r.run()
		time.Sleep(10 * time.Second)
		begun := time.Now()
		stop()
		if took := time.Since(begun); took != 0 {
			t.Errorf("took %v", took)
		}
		r.wantCalls(1)
	})
}

func TestIdleInboxReadsNoPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		stop := r.run()
		time.Sleep(time.Hour)
		stop()
		if n := r.store.called("pauses"); n != 0 {
			t.Errorf("pauses were read %d times", n)
		}
	})
}

func TestBusyHandlersReadPausesTogetherTwiceASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		fn := func(context.Context, *work, *message.Message) error { return nil }
		handlers := []*consumer.Handler[*fakeTx]{r.handler, r.handle("ship", fn), r.handle("bill", fn)}
		var wg sync.WaitGroup
		for _, h := range handlers {
			wg.Go(func() {
				for n := range 1000 {
					if err := h.Consume(msg(n)); err != nil {
						t.Errorf("Consume: %v", err)
					}
					time.Sleep(10 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if n := r.store.called("pauses"); n < 19 || n > 21 {
			t.Errorf("pauses were read %d times in 10 s", n)
		}
	})
}

func TestPausesThatCannotBeReadRemainAndBlockNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		reserve, ship := r.handler, r.handle("ship", func(context.Context, *work, *message.Message) error { return nil })
		r.pause("stock/reserve", time.Time{})
		done := make(chan error)
		go func() { done <- reserve.Consume(msg(0)) }()
		time.Sleep(time.Second)
		r.store.fail("pauses", errOutage)
		r.resume("stock/reserve")
		time.Sleep(30 * time.Second)
		r.wantCalls(0)
		begun := time.Now()
		if err := ship.Consume(msg(0)); err != nil || time.Since(begun) != 0 {
			t.Errorf("Consume: %v after %v", err, time.Since(begun))
		}
		if n := strings.Count(r.log.String(), "pauses cannot be read"); n != 1 {
			t.Errorf("%d records:\n%s", n, r.log)
		}
		r.store.setFault(nil)
		time.Sleep(time.Second)
		if err := <-done; err != nil {
			t.Errorf("Consume: %v", err)
		}
		r.wantCalls(1)
	})
}

// A commit without an answer has perhaps happened. Its message is handled to the end: returned, it
// would be handled as another one.
func TestPauseDoesNotHoldAMessageWithAnUnknownCommit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		r.store.setFault(func(step string) error {
			if step == "answer" && r.store.called("answer") == 1 {
				time.Sleep(2 * time.Second)
				r.pause("stock/reserve", time.Time{})
				return inbox.ErrCommitUnknown
			}
			return nil
		})
		r.consume(msg(0))
		r.wantDone(number(0), 1)
		if c := r.handler.Counters(); c.Applied != 1 || c.Returned != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}
