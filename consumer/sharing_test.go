package consumer_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

// oneDisk returns a database whose COMMITs take d each, one after another.
func oneDisk(d time.Duration) *fakeStore {
	store, disk := newFake(), make(chan struct{}, 1)
	store.fault = func(step string) error {
		if step == "commit" || step == "park" {
			disk <- struct{}{}
			time.Sleep(d)
			<-disk
		}
		return nil
	}
	return store
}

// flood has the messages first to first+n-1 handled, inFlight at once, and returns how long the slowest took.
func (r *rig) flood(inFlight, first, n int) (slowest time.Duration) {
	r.t.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	numbers := make(chan int)
	for range inFlight {
		wg.Go(func() {
			for n := range numbers {
				began := time.Now()
				if err := r.handler.Consume(msg(n)); err != nil {
					r.t.Errorf("Consume: %v", err)
				}
				mu.Lock()
				slowest = max(slowest, time.Since(began))
				mu.Unlock()
			}
		})
	}
	for n := range n {
		numbers <- first + n
	}
	close(numbers)
	wg.Wait()
	return slowest
}

// floods returns a function that has the next n messages handled, 64 at once, and tells in how many groups,
// and the number of the next message.
func (r *rig) floods() (next *int, flood func(n int) (groups int64)) {
	next = new(int)
	return next, func(n int) int64 {
		before := r.handler.Counters().Groups
		r.flood(64, *next, n)
		*next += n
		return r.handler.Counters().Groups - before
	}
}

// wantEachOnce checks that the effect of each of the first n messages was committed once.
func (r *rig) wantEachOnce(n int) {
	r.t.Helper()
	for n := range n {
		r.wantDone(number(n), 1)
	}
}

func TestMessagesShareTransactionsUnderLoadWhileThatIsFaster(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const messages = 20_000
		r := newRig(t, setup{store: oneDisk(time.Millisecond)})
		began := time.Now()
		r.flood(64, 0, messages)
		if took := time.Since(began); took > 3*time.Second { // 20 s with a COMMIT each
			t.Errorf("%d messages took %v", messages, took)
		}
		r.wantEachOnce(messages)
		r.wantCalls(messages)
		if c := r.handler.Counters(); c.Groups == 0 || c.GroupsUndone != 0 {
			t.Errorf("counters: %+v", c)
		}
	})
}

func TestMessagesHaveTransactionsOfTheirOwnWhereThatIsAsFast(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		inFlight  int
		wait, all time.Duration
	}{
		"quick":            {64, time.Millisecond, 2 * time.Second}, // groups keep within their bounds, and are slower
		"slower":           {64, 5 * time.Millisecond, 10 * time.Second},
		"slow":             {64, 100 * time.Millisecond, 10 * time.Second},
		"few and slow":     {8, 25 * time.Millisecond, 10 * time.Second}, // groups have no measurement in measuredMost
		"few and not slow": {8, 5 * time.Millisecond, 10 * time.Second},
		"as few as a load": {5, 25 * time.Millisecond, 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				messages := int(c.all/c.wait) * c.inFlight // with one transaction each
				var calls atomic.Int64
				r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
					// Not all at the same time: between two waves, the handler would not be under load.
					time.Sleep(c.wait/2 + c.wait*time.Duration(calls.Add(1)%64)/64)
					return nil
				}})
				began := time.Now()
				slowest := r.flood(c.inFlight, 0, messages)
				if took := time.Since(began); took > c.all+time.Second {
					t.Errorf("the messages took %v, want about %v", took, c.all)
				}
				if slowest > time.Second {
					t.Errorf("a message took %v", slowest)
				}
				r.wantEachOnce(messages)
				if c := r.handler.Counters(); c.Groups+c.GroupsUndone == 0 {
					t.Error("no group was tried")
				}
			})
		})
	}
}

func TestPauseInATrialOfGroupsIsNoLoss(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const bursts, burst, rest = 12, 130, 5000
		r := newRig(t, setup{store: oneDisk(time.Millisecond)})
		for i := range bursts {
			r.flood(64, i*burst, burst)
			time.Sleep(3 * time.Second)
		}
		began := time.Now()
		r.flood(64, bursts*burst, rest)
		if took := time.Since(began); took > 1500*time.Millisecond { // 5 s with a COMMIT each
			t.Errorf("%d messages took %v", rest, took)
		}
		r.wantEachOnce(bursts*burst + rest)
	})
}

// TestMessagesThatArriveShareTransactionsWhileThatKeepsUp, although no more are handled in a second: the
// database has less work.
func TestMessagesThatArriveShareTransactionsWhileThatKeepsUp(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		commit, handler time.Duration
		least, most     int64 // groups
	}{
		"keeps up":            {6 * time.Millisecond, 0, 500, 5000},
		"keeps up, but late":  {4 * time.Millisecond, 700 * time.Microsecond, 1, 150},
		"slower than arrival": {6 * time.Millisecond, 8 * time.Millisecond, 1, 150},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const messages = 5000
				store := newFake()
				store.fault = func(step string) error {
					if step == "commit" {
						time.Sleep(c.commit)
					}
					return nil
				}
				r := newRig(t, setup{store: store, fn: func(context.Context, *work, *message.Message) error {
					time.Sleep(c.handler)
					return nil
				}})
				var wg sync.WaitGroup
				for n := range messages { // one each millisecond
					wg.Go(func() { r.consume(msg(n)) })
					time.Sleep(time.Millisecond)
				}
				wg.Wait()
				r.wantEachOnce(messages)
				if n := r.handler.Counters().Groups; n < c.least || n > c.most {
					t.Errorf("%d groups, want %d to %d", n, c.least, c.most)
				}
			})
		})
	}
}

// TestGroupsAreTriedUnderLoadOnly: a trial delays messages.
func TestGroupsAreTriedUnderLoadOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{store: oneDisk(time.Millisecond)})
		r.flood(3, 0, 2000)
		r.wantGroups(0, 0)
		r.flood(5, 2000, 2000)
		if c := r.handler.Counters(); c.Groups == 0 {
			t.Error("no group was tried under load")
		}
	})
}

// TestGroupsThatBecomeFasterAreMeasuredAgain, before a trial is lost.
func TestGroupsThatBecomeFasterAreMeasuredAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var shared atomic.Int64
		r := newRig(t, setup{store: oneDisk(time.Millisecond), fn: func(ctx context.Context, _ *work, _ *message.Message) error {
			if inbox.SharesTransaction(ctx) && shared.Add(1) < 200 {
				time.Sleep(3900 * time.Microsecond)
			}
			return nil
		}})
		began := time.Now()
		r.flood(64, 0, 2000)
		if took := time.Since(began); took > time.Second { // 2 s with a transaction each
			t.Errorf("the messages took %v", took)
		}
	})
}

// TestTimeWithoutLoadIsNotMeasured: beside messages that came one by one, groups would seem to be quick.
func TestTimeWithoutLoadIsNotMeasured(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		}})
		for n := range 40 {
			r.consume(msg(n))
			time.Sleep(time.Second)
		}
		const messages = 16 * 200 * 5 // of five seconds
		began := time.Now()
		r.flood(16, 40, messages)
		if took := time.Since(began); took > 8*time.Second { // with the trials
			t.Errorf("the messages of five seconds took %v", took)
		}
	})
}

// TestTrialsOfGroupsBecomeRare for a handler that is better without.
func TestTrialsOfGroupsBecomeRare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const minute = 8 * 200 * 60 // messages
		r := newRig(t, setup{fn: func(context.Context, *work, *message.Message) error {
			time.Sleep(5 * time.Millisecond)
			return nil
		}})
		began := time.Now()
		r.flood(8, 0, minute)
		if took := time.Since(began); took > 62*time.Second {
			t.Errorf("the messages of a minute took %v", took)
		}
		if c := r.handler.Counters(); c.Groups == 0 {
			t.Error("no group was tried")
		}
	})
}

// noWork is an extension that has nothing to do.
type noWork struct{}

func (noWork) Run(ctx context.Context)                                 { <-ctx.Done() }
func (noWork) RunOnce(context.Context) error                           { return nil }
func (noWork) Wake()                                                   {}
func (noWork) Forget(context.Context, time.Duration, int) (int, error) { return 0, nil }
func (noWork) AddStats(context.Context, *inbox.Stats) error            { return nil }

func TestMessagesOfAnExtensionShareNoTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{store: oneDisk(time.Millisecond)})
		var err error
		r.handler, err = r.inbox.HandleExtended("pay", func(context.Context, *work, *message.Message) error { return nil },
			consumer.HandlerConfig{Topic: "orders"}, func(*consumer.Host[*fakeTx]) consumer.Extension { return noWork{} })
		if err != nil {
			t.Fatal(err)
		}
		r.flood(64, 0, 2000)
		r.wantGroups(0, 0)
	})
}

func TestMessagesShareNoTransactionIfTheUserHasDecidedOtherwise(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]consumer.HandlerConfig{
		"size":       {Group: consumer.GroupConfig{Size: 1}},
		"isolation":  {Isolation: inbox.RepeatableRead},
		"optimistic": {Optimistic: true},
		"limit":      {MaxPerSecond: 1e9},
		"stores":     {StoreFirst: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, setup{store: oneDisk(time.Millisecond), handler: cfg})
				defer r.run()()
				r.flood(64, 0, 2000)
				if c := r.handler.Counters(); c.Groups != 0 {
					t.Errorf("%d groups, want none", c.Groups)
				}
			})
		})
	}
}

// shares returns a rig whose messages share transactions from the beginning, and go on to do so if a
// group is neither rolled back nor slow.
func shares(t *testing.T, s setup) *rig {
	t.Helper()
	r := newRig(t, s)
	r.handler.Share(1)
	return r
}

func TestFailureInASharedTransactionEndsThemForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := setup{fn: failingAt(2), store: oneDisk(time.Millisecond)}
		s.handler.Retry.QuickAttempts = 1
		r := shares(t, s)
		r.wantAll(r.crowd(msgs(4)...))
		for n, want := range []int{1, 1, 0, 1} {
			r.wantDone(number(n), want)
		}
		r.wantStates(inbox.Retrying)
		r.wantGroups(0, 1)
		if p := r.parked(); p.Attempts != 1 {
			t.Errorf("parked: %+v", p)
		}
		if strings.Contains(r.log.String(), "level=WARN msg=\"group") {
			t.Errorf("log of groups that nobody has asked for:\n%s", r.log)
		}
	})
}

func TestGroupsComeBackAfterARefusal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bad := 1000
		s := setup{store: oneDisk(time.Millisecond)}
		s.fn = func(ctx context.Context, w *work, m *message.Message) error { return failingAt(bad)(ctx, w, m) }
		s.handler.Retry.QuickAttempts = 1
		r := newRig(t, s)
		next, flood := r.floods()
		if flood(2000) == 0 {
			t.Fatal("no groups")
		}
		if c := r.handler.Counters(); c.GroupsUndone != 1 {
			t.Errorf("%d groups were rolled back, want 1", c.GroupsUndone)
		}
		if n := flood(2000); n != 0 {
			t.Errorf("%d groups soon after a failure", n)
		}
		time.Sleep(time.Minute)
		bad = *next + 3000
		if flood(4000) == 0 {
			t.Error("no groups after a minute")
		}
		if c := r.handler.Counters(); c.GroupsUndone != 2 {
			t.Errorf("%d groups were rolled back, want 2", c.GroupsUndone)
		}
		time.Sleep(time.Minute)
		if n := flood(2000); n != 0 {
			t.Errorf("%d groups a minute after the second failure in a row", n)
		}
		time.Sleep(time.Minute)
		if flood(4000) == 0 {
			t.Error("no groups after two minutes")
		}
	})
}

func TestHandlerThatHangsHoldsUpOthersForASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var deadlines []time.Duration
		r := newRig(t, setup{fn: func(ctx context.Context, w *work, _ *message.Message) error {
			if w.Event().ID != number(1) {
				return nil
			}
			deadline, _ := ctx.Deadline()
			deadlines = append(deadlines, time.Until(deadline))
			select {
			case <-time.After(10 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}})
		r.handler.Share(1)
		began := time.Now()
		took := make([]time.Duration, 6)
		gate := make(chan struct{})
		r.gate.Store(&gate)
		var wg sync.WaitGroup
		handle := func(n int) {
			wg.Go(func() {
				if err := r.handler.Consume(msg(n)); err != nil {
					t.Errorf("Consume: %v", err)
				}
				took[n] = time.Since(began)
			})
			synctest.Wait()
		}
		wg.Go(func() { r.consume(msg(opener)) })
		synctest.Wait()
		for n := range 3 { // a group of three
			handle(n)
		}
		close(gate)
		synctest.Wait()
		for n := 3; n < 6; n++ { // wait for its end
			handle(n)
		}
		wg.Wait()
		r.wantEachOnce(6)
		for n, most := range []time.Duration{time.Second, 11 * time.Second, time.Second, 250 * time.Millisecond, 250 * time.Millisecond, 250 * time.Millisecond} {
			if took[n] > most {
				t.Errorf("message %d took %v, want at most %v", n, took[n], most)
			}
		}
		if len(deadlines) != 2 || deadlines[0] > time.Second || deadlines[1] != 30*time.Second {
			t.Errorf("the handler had %v, want at most a second in the group and then 30s", deadlines)
		}
		if c := r.handler.Counters(); c.Failed != 0 {
			t.Errorf("%d attempts were counted", c.Failed)
		}
	})
}

func TestRedeliveredMessagesShareNoTransaction(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := shares(t, setup{})
		r.wantAll(r.crowd(redelivered(4)...))
		r.wantEachOnce(4)
		r.wantGroups(0, 0)
		r.wantStarts(0, 0, 0, 0)
	})
}

func TestUnknownCommitOfASharedTransactionIsAskedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := shares(t, setup{})
		r.store.setFault(func(step string) error {
			if step == "answer" && r.store.called("answer") == 2 { // the first is the opener's
				return errors.Join(inbox.ErrCommitUnknown)
			}
			return nil
		})
		r.wantAll(r.crowd(msgs(4)...))
		r.wantEachOnce(4)
		r.wantCalls(1 + 4)
		if c := r.handler.Counters(); c.CommitsUnknown != 1 || c.DuplicatesByTable != 0 || c.Applied != 5 {
			t.Errorf("counters: %+v", c)
		}
	})
}
