package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// crowd has messages handled at the same time, in the order in which they are given, and
// returns when all are. It runs in a synctest bubble: before the messages, one that holds the first
// group open until all others wait for the next one.
func (r *rig) crowd(msgs ...*message.Message) []error {
	r.t.Helper()
	gate := make(chan struct{})
	r.gate.Store(&gate)
	errs := make([]error, len(msgs))
	var wg sync.WaitGroup
	wg.Go(func() { r.consume(msg(opener)) })
	synctest.Wait()
	for i, m := range msgs {
		wg.Go(func() { errs[i] = r.handler.Consume(m) })
		synctest.Wait()
	}
	close(gate)
	wg.Wait()
	return errs
}

// opener is the number of the message that holds a group open.
const opener = 1 << 20

// wantAll checks that all of crowd were acknowledged.
func (r *rig) wantAll(errs []error) {
	r.t.Helper()
	if err := errors.Join(errs...); err != nil {
		r.t.Errorf("Consume: %v", err)
	}
}

func (r *rig) wantGroups(groups, undone int64) {
	r.t.Helper()
	if c := r.handler.Counters(); c.Groups != groups || c.GroupsUndone != undone {
		r.t.Errorf("%d groups and %d undone, want %d and %d", c.Groups, c.GroupsUndone, groups, undone)
	}
}

func msgs(n int) []*message.Message {
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = msg(i)
	}
	return all
}

// grouped is a setup with groups of up to 8.
func grouped(fn consumer.HandlerFunc[*fakeTx]) setup {
	return setup{handler: consumer.HandlerConfig{Group: consumer.GroupConfig{Size: 8, Concurrency: 1}, Retry: consumer.RetryConfig{QuickAttempts: 1}}, fn: fn}
}

// failingAt fails for one message.
func failingAt(n int) consumer.HandlerFunc[*fakeTx] {
	return func(_ context.Context, w *work, _ *message.Message) error {
		if w.Event().ID == number(n) {
			return errHandler
		}
		return nil
	}
}

func TestMessagesThatWaitShareATransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(nil))
		r.wantAll(r.crowd(msgs(10)...))
		for n := range 10 {
			r.wantDone(number(n), 1)
		}
		r.wantGroups(2, 0) // of 8 and of 2
		if n := r.store.called("begin"); n != 3 {
			t.Errorf("%d transactions, want 3", n)
		}
		r.wantAll([]error{r.handler.Consume(msg(3))}) // remembered
		if c := r.handler.Counters(); c.Applied != 11 || c.DuplicatesByWindow != 1 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestOneFailureInAGroupFailsNoNeighbourAndLosesNoClaim(t *testing.T) {
	t.Parallel()
	for _, bad := range []int{0, 3, 7} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, grouped(failingAt(bad)))
			r.wantAll(r.crowd(msgs(8)...))
			for n := range 8 {
				want := 1
				if n == bad {
					want = 0
				}
				r.wantDone(number(n), want)
			}
			r.wantGroups(1, 1)
			r.wantStates(inbox.Retrying)
			if p := r.parked(); p.ID != number(bad) || p.Attempts != 1 {
				t.Errorf("parked: %+v", p)
			}
		})
	}
}

func TestEveryMemberOfAGroupMayFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
			if w.Event().ID == number(opener) {
				return nil
			}
			return errHandler
		}))
		r.wantAll(r.crowd(msgs(8)...))
		r.wantStates(slices.Repeat([]inbox.State{inbox.Retrying}, 8)...)
		r.wantCalls(1 + 1 + 1 + 8) // the opener, two groups that end at their first, each alone
	})
}

func TestLaterMembersOfAFailedKeyWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var done []string
		failures := 2 // in the group, and alone
		s := grouped(func(_ context.Context, w *work, msg *message.Message) error {
			mu.Lock()
			defer mu.Unlock()
			if w.Event().ID == number(1) && failures > 0 {
				failures--
				return errHandler
			}
			done = append(done, w.Event().Key+" "+msg.UUID[len(msg.UUID)-1:])
			return nil
		})
		s.handler.Order.ByKey, s.handler.Retry.QuickAttempts = true, 3
		r := newRig(t, s)
		r.wantAll(r.crowd(keyed(0, "a"), keyed(1, "b"), keyed(2, "c"), keyed(3, "b"), keyed(4, "a"), keyed(5, "b")))
		for n := range 6 {
			r.wantDone(number(n), 1)
		}
		at := func(s string) int { // of the last run, which was committed
			mu.Lock()
			defer mu.Unlock()
			for i := len(done) - 1; i >= 0; i-- {
				if done[i] == s {
					return i
				}
			}
			t.Errorf("no %q in %q", s, done)
			return -1
		}
		if at("b 2") > at("b 4") || at("b 4") > at("b 6") || at("a 1") > at("a 5") {
			t.Errorf("order is %q", done)
		}
		r.wantStates()
	})
}

func TestLaterMembersFollowAParkedOneOfTheirGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(failingAt(1))
		s.handler.Order.ByKey = true
		r := newRig(t, s)
		r.wantAll(r.crowd(keyed(0, "a"), keyed(1, "b"), keyed(2, "b"), keyed(3, "a"), keyed(4, "b")))
		r.wantStates(inbox.Retrying, inbox.Following, inbox.Following)
		r.wantDone(number(0), 1)
		r.wantDone(number(3), 1)
	})
}

func TestLaterMembersOfAReturnedMessageAreReturned(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(failingAt(1))
		s.handler.Order.ByKey = true
		s.config.MaxHold = time.Second
		r := newRig(t, s)
		r.store.fail("failed", errOutage) // the attempt cannot be counted
		errs := r.crowd(keyed(0, "a"), keyed(1, "b"), keyed(2, "b"), keyed(3, "c"))
		for i, want := range []bool{false, true, true, false} {
			if (errs[i] != nil) != want {
				t.Errorf("message %d: %v", i, errs[i])
			}
		}
		r.wantDone(number(2), 0)
		r.wantDone(number(3), 1)
	})
}

func TestCopiesDoNotShareAGroup(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(nil))
		r.wantAll(r.crowd(msg(1), msg(2), msg(1), msg(3), msg(1)))
		for n := 1; n <= 3; n++ {
			r.wantDone(number(n), 1)
		}
		if c := r.handler.Counters(); c.Applied != 4 || c.Duplicates() != 2 {
			t.Errorf("counters: %+v", c)
		}
		r.wantGroups(1, 0)
	})
}

func TestUnknownCommitOfAGroupIsAskedForMemberByMember(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"answer", "commit"} { // it happened, and it did not
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, grouped(nil))
			r.store.failCalls(step, 2, 2, fmt.Errorf("lost: %w", inbox.ErrCommitUnknown)) // after that of the opener
			r.wantAll(r.crowd(msgs(5)...))
			for k := range 5 {
				r.wantDone(number(k), 1)
			}
			c := r.handler.Counters()
			if c.Applied != 6 || c.Duplicates() != 0 || c.CommitsUnknown != 1 {
				t.Errorf("%s: counters: %+v", step, c)
			}
			want := int64(1 + 5)
			if step == "commit" {
				want += 5
			}
			r.wantCalls(want)
		})
	}
}

func TestConflictOfAGroupCountsNoAttempt(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{errConflict, errOutage} {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, grouped(nil))
			r.store.failCalls("commit", 2, 2, fault)
			r.wantAll(r.crowd(msgs(4)...))
			for k := range 4 {
				r.wantDone(number(k), 1)
			}
			if c := r.handler.Counters(); c.Failed != 0 || c.GroupsUndone != 1 {
				t.Errorf("counters: %+v", c)
			}
		})
	}
}

func TestPanicAndGoexitInAGroupAreFailuresOfOne(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(){"panic": func() { panic("at the disco") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
					if w.Event().ID == number(2) {
						end()
					}
					return nil
				}))
				r.wantAll(r.crowd(msgs(5)...))
				r.wantStates(inbox.Retrying)
				for _, n := range []int{0, 1, 3, 4} {
					r.wantDone(number(n), 1)
				}
			})
		})
	}
}

func TestSwallowedErrorInAGroupIsNoSuccess(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(func(_ context.Context, w *work, _ *message.Message) error {
			w.DB().broken = w.DB().broken || w.Event().ID == number(2)
			return nil
		}))
		r.wantAll(r.crowd(msgs(5)...))
		r.wantStates(inbox.Retrying)
		for _, n := range []int{0, 1, 3, 4} {
			r.wantDone(number(n), 1)
		}
	})
}

func TestGroupThatOverrunsItsDeadlineIsHandledAloneAndShrinks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(func(ctx context.Context, w *work, _ *message.Message) error {
			if w.Event().ID == number(opener) {
				return nil
			}
			time.Sleep(400 * time.Millisecond)
			return ctx.Err()
		})
		s.handler.Timeout = time.Second
		r := newRig(t, s)
		r.wantAll(r.crowd(msgs(8)...))
		for n := range 8 {
			r.wantDone(number(n), 1)
		}
		if c := r.handler.Counters(); c.Failed != 0 || c.GroupsUndone != 1 {
			t.Errorf("counters: %+v", c)
		}
		r.together(msgs(16)[8:])
		for n := 8; n < 16; n++ {
			r.wantDone(number(n), 1)
		}
	})
}

// together has messages handled at once, without an opener.
func (r *rig) together(msgs []*message.Message) {
	r.t.Helper()
	errs := make([]error, len(msgs))
	var wg sync.WaitGroup
	for i, m := range msgs {
		wg.Go(func() { errs[i] = r.handler.Consume(m) })
	}
	wg.Wait()
	r.wantAll(errs)
}

func TestGroupWaitsNoLongerThanItIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := grouped(nil)
		s.handler.Group.Wait = 20 * time.Millisecond
		r := newRig(t, s)
		began := time.Now()
		var wg sync.WaitGroup
		for n := range 3 {
			wg.Go(func() { r.consume(msg(n)) })
			time.Sleep(5 * time.Millisecond)
		}
		wg.Wait()
		if took := time.Since(began); took != 20*time.Millisecond {
			t.Errorf("group began after %v", took)
		}
		r.wantGroups(1, 0)
		began = time.Now()
		r.together(msgs(12)[4:])
		if took := time.Since(began); took != 0 {
			t.Errorf("full group began after %v", took)
		}
	})
}

func TestEndedContextTakesAMessageOutOfTheNextGroupOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := grouped(func(_ context.Context, w *work, _ *message.Message) error {
			if w.Event().ID == number(opener) {
				cancel() // while the others wait
				time.Sleep(time.Millisecond)
			}
			return nil
		})
		r := newRig(t, s)
		waiting := msg(1)
		waiting.SetContext(ctx)
		errs := r.crowd(waiting, msg(2))
		if !errors.Is(errs[0], context.Canceled) || errs[1] != nil {
			t.Errorf("Consume: %v", errs)
		}
		r.wantDone(number(1), 0)
		r.wantDone(number(2), 1)
		r.wantDone(number(opener), 1)
	})
}

func TestHandlersInAGroupHaveTheValuesOfTheirMessage(t *testing.T) {
	t.Parallel()
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, grouped(func(ctx context.Context, w *work, msg *message.Message) error {
			if v := ctx.Value(key{}); w.Event().ID != number(opener) && (v != msg.UUID || msg.Context().Value(key{}) != v) {
				t.Errorf("value is %v", v)
			}
			if _, ok := ctx.Deadline(); !ok {
				t.Error("there is no deadline")
			}
			return nil
		}))
		all := msgs(3)
		for _, m := range all {
			m.SetContext(context.WithValue(t.Context(), key{}, m.UUID))
		}
		r.wantAll(r.crowd(all...))
		r.wantGroups(1, 0)
	})
}
