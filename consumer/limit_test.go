package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
)

// limited is a setup with a rate limit.
func limited(perSecond float64, fn consumer.HandlerFunc[*fakeTx]) setup {
	return setup{handler: consumer.HandlerConfig{MaxPerSecond: perSecond, Retry: consumer.RetryConfig{QuickAttempts: 1}}, fn: fn}
}

// flood has many goroutines for each rig handle messages for a time, and returns how many were
// handled. Each goroutine waits between its messages.
func flood(goroutines int, pause, d time.Duration, rigs ...*rig) int64 {
	until := time.Now().Add(d)
	var wg sync.WaitGroup
	var next, handled atomic.Int64
	for _, r := range rigs {
		for range goroutines {
			wg.Go(func() {
				for time.Now().Before(until) {
					m := msg(int(next.Add(1)))
					ctx, cancel := context.WithDeadline(r.t.Context(), until)
					m.SetContext(ctx)
					if r.handler.Consume(m) == nil {
						handled.Add(1)
					}
					cancel()
					time.Sleep(pause)
				}
			})
		}
	}
	wg.Wait()
	return handled.Load()
}

func TestProcessesShareTheLimit(t *testing.T) {
	t.Parallel()
	const seconds = 20
	for _, perSecond := range []float64{0.5, 1, 3, 5, 6, 10, 90, 1000} {
		for _, goroutines := range []int{1, 50} {
			t.Run(fmt.Sprint(perSecond, " a second by ", goroutines), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					s := limited(perSecond, nil)
					one := newRig(t, s)
					s.store = one.store
					two := newRig(t, s)
					n := float64(flood(goroutines, time.Microsecond*500, seconds*time.Second, one, two))
					most := max(1, perSecond) + perSecond*seconds
					if n > most || n < 0.9*perSecond*seconds {
						t.Errorf("%v messages in %d seconds, at most %v", n, seconds, most)
					}
					if calls := one.store.called("take"); calls > 2*8*seconds {
						t.Errorf("the database was asked %d times", calls)
					}
				})
			})
		}
	}
}

func TestHandlerBelowItsLimitHardlyAsks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(1000, nil))
		if n := flood(1, 10*time.Millisecond, 20*time.Second, r); n < 1990 {
			t.Errorf("%d messages were handled", n)
		}
		if calls := r.store.called("take"); calls > 8*20 {
			t.Errorf("the database was asked %d times in 20 s", calls)
		}
		if c := r.handler.Counters(); c.Held != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestOnlyMessagesThatTheLimitHoldsCount(t *testing.T) {
	t.Parallel()
	for perSecond, want := range map[float64]int64{100: 0, 10: 20} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, limited(perSecond, nil))
			r.consume(msg(1000))
			time.Sleep(time.Second)
			r.store.setFault(func(step string) error {
				if step == "take" {
					time.Sleep(10 * time.Millisecond) // meanwhile all messages queue
				}
				return nil
			})
			var wg sync.WaitGroup
			for n := range 30 {
				wg.Go(func() { r.consume(msg(n)) })
			}
			wg.Wait()
			if c := r.handler.Counters(); c.Held < want || c.Held > want+5 || want == 0 && c.Held > 0 {
				t.Errorf("at %v a second: %d messages were held", perSecond, c.Held)
			}
		})
	}
}

func TestUnusedTokensExpire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(100, nil))
		flood(20, time.Millisecond, 10*time.Second, r)
		for range 5 { // tokens remain in the process
			r.consume(msg(1_000_000 + int(r.calls.Load())))
		}
		time.Sleep(time.Second)
		before := r.store.called("take")
		r.consume(msg(2_000_000))
		if r.store.called("take") == before {
			t.Error("a token was used after a second")
		}
	})
}

func TestMessageWaitsForTheLimitForMaxHold(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]int{"alone": 1, "in a group": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := limited(0.01, nil)
				s.config.MaxHold, s.handler.Group.Size = 10*time.Second, batch
				r := newRig(t, s)
				r.consume(msg(0))
				var wg sync.WaitGroup
				begun := time.Now()
				for n := 1; n < 4; n++ {
					wg.Go(func() {
						err := r.handler.Consume(msg(n))
						if took := time.Since(begun); !errors.Is(err, consumer.ErrRateLimited) || took != 10*time.Second {
							t.Errorf("Consume: %v after %v", err, took)
						}
					})
				}
				wg.Wait()
				r.wantNothingCounted()
				time.Sleep(90 * time.Second)
				r.consume(again(msg(1)))
				r.wantCalls(2)
			})
		})
	}
}

func TestMessagesGetTokensInTheOrderOfTheirArrival(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var order []string
		r := newRig(t, limited(2, func(_ context.Context, _ *work, m *message.Message) error {
			order = append(order, m.UUID)
			return nil
		}))
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() { r.consume(msg(n)) })
			synctest.Wait()
		}
		wg.Wait()
		for n, id := range order {
			if id != number(n).String() {
				t.Fatalf("message %d came as number %d", n, n)
			}
		}
	})
}

func TestEveryMemberOfAGroupNeedsAToken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := limited(20, func(context.Context, *work, *message.Message) error {
			time.Sleep(50 * time.Millisecond)
			return nil
		})
		s.handler.Group = consumer.GroupConfig{Size: 16}
		r := newRig(t, s)
		if n := flood(32, 0, 10*time.Second, r); n > 220 || n < 180 {
			t.Errorf("%d messages in 10 seconds", n)
		}
		if c := r.handler.Counters(); c.Groups == 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestParkedMessagesNeedTokens(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		failing.Store(true)
		r := newRig(t, limited(2, func(context.Context, *work, *message.Message) error {
			if failing.Load() {
				return consumer.RetryAfter(0, errHandler)
			}
			return nil
		}))
		for n := range 30 {
			r.consume(msg(n))
		}
		failing.Store(false)
		stop := r.run()
		time.Sleep(10 * time.Second)
		if n := r.calls.Load() - 30; n > 22 || n < 18 {
			t.Errorf("%d parked messages in 10 seconds", n)
		}
		time.Sleep(10 * time.Second)
		stop()
		r.wantStates()
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestTokensThatCannotBeTakenAreAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(100, nil))
		r.store.fail("take", errOutage)
		begun := time.Now()
		if err := r.handler.Consume(msg(0)); !errors.Is(err, errOutage) || time.Since(begun) < 50*time.Second {
			t.Errorf("Consume: %v after %v", err, time.Since(begun))
		}
		if n := r.store.called("take"); n > 40 {
			t.Errorf("%d tries in a minute", n)
		}
		r.store.setFault(nil)
		r.consume(again(msg(0)))
		if c := r.handler.Counters(); c.Failed != 0 || c.Applied != 1 {
			t.Errorf("counters: %+v", c)
		}
	})
}

// Messages that wait for a pause have no tokens: with tokens, all would be handled at its end.
func TestEndOfAPauseIsNoBurst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, limited(10, nil))
		var wg sync.WaitGroup
		for n := range 60 {
			wg.Go(func() { r.consume(msg(n)) })
		}
		time.Sleep(time.Second)
		r.pause("stock/*", time.Time{})
		time.Sleep(40 * time.Second)
		before := r.calls.Load()
		r.resume("stock/*")
		time.Sleep(2 * time.Second)
		if n := r.calls.Load() - before; n < 10 || n > 30 {
			t.Errorf("%d messages within two seconds of the pause", n)
		}
		wg.Wait()
	})
}

func TestBadLimitsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{})
	fn := func(context.Context, *work, *message.Message) error { return nil }
	for _, rate := range []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1), 1.1e9, math.MaxFloat64} {
		_, err := r.inbox.Handle("bad", fn, consumer.HandlerConfig{MaxPerSecond: rate})
		wantProblems(t, err, "MaxPerSecond")
	}
	if _, err := r.inbox.Handle("good", fn, consumer.HandlerConfig{MaxPerSecond: 1e9}); err != nil {
		t.Error(err)
	}
}
