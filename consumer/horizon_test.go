package consumer_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/store/inbox"
)

const day = 24 * time.Hour

// resendable returns the n-th message, which may be sent again for d.
func resendable(n int, d time.Duration) *message.Message {
	e := event(n)
	e.ResendUntil = e.Stamp.Add(d)
	return fresh(e)
}

func TestWindowThatIsShorterThanAKnownHorizonIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		verifying := func(cfg consumer.Config) setup {
			s := verifying(t)
			s.store, s.config.Window, s.config.ShortWindow = store, cfg.Window, cfg.ShortWindow
			return s
		}
		newRig(t, verifying(consumer.Config{})).consume(signed(t, resendable(1, 20*day))) // at run time it is reported only
		r := newRig(t, verifying(consumer.Config{}))                                      // the next start
		if err := r.handler.Consume(signed(t, msg(2))); !errors.Is(err, consumer.ErrShortWindow) {
			t.Errorf("Consume: %v", err)
		}
		if err := r.inbox.Check(t.Context()); !errors.Is(err, consumer.ErrShortWindow) || !strings.Contains(err.Error(), "stock/reserve") {
			t.Errorf("Check: %v", err)
		}
		if err := r.inbox.Run(t.Context()); !errors.Is(err, consumer.ErrShortWindow) || !strings.Contains(err.Error(), "480h") {
			t.Errorf("Run: %v", err)
		}
		r.wantCalls(0)
		reporting := newRig(t, verifying(consumer.Config{ShortWindow: consumer.ReportShortWindow}))
		if err := reporting.inbox.Check(t.Context()); err != nil {
			t.Errorf("Check where it is to be reported: %v", err)
		}
		enough := newRig(t, verifying(consumer.Config{Window: 20 * day}))
		enough.consume(signed(t, msg(2)))
		if err := enough.inbox.Check(t.Context()); err != nil {
			t.Errorf("Check with a window that is long enough: %v", err)
		}
		time.Sleep(21 * day) // nothing can come any more
		newRig(t, verifying(consumer.Config{})).consume(signed(t, msg(3)))
	})
}

func TestMessageWithoutASignatureKeepsNoServiceFromStarting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newFake()
		former := newRig(t, setup{store: store})
		former.consume(resendable(1, 20*day))
		former.consume(resendable(2, 20*day))
		former.wantLog("level=ERROR", "window is shorter", "horizon=480h")
		if n := strings.Count(former.log.String(), "window is shorter"); n != 1 {
			t.Errorf("reported %d times", n)
		}
		if c := former.handler.Counters(); c.ShortWindow != 2 {
			t.Errorf("counters: %+v", c)
		}
		if store.horizon > 14*day {
			t.Errorf("a horizon of %v is kept", store.horizon)
		}
		store.horizon, store.horizonUntil = 20*day, time.Now().Add(20*day) // as an earlier version kept it
		r := newRig(t, setup{store: store})
		r.consume(msg(3))
		if err := r.inbox.Check(t.Context()); err != nil {
			t.Errorf("Check: %v", err)
		}
		r.wantCalls(1)
		r.wantLog("level=ERROR", "window is shorter", "horizon=480h")
	})
}

func TestHorizonIsNotedWhenItGrowsAndOnceInAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		want := func(notes int, horizon time.Duration, until time.Time) {
			t.Helper()
			if n := r.store.called("horizon"); n != notes || r.store.horizon != horizon || !r.store.horizonUntil.Equal(until) {
				t.Fatalf("noted %d times: %v until %v, want %d: %v until %v", n, r.store.horizon, r.store.horizonUntil, notes, horizon, until)
			}
		}
		begun := time.Now()
		for n := range 10 {
			r.consume(resendable(n, day))
		}
		want(1, day, begun.Add(day))
		r.consume(resendable(10, 2*day))
		want(2, 2*day, begun.Add(2*day))
		time.Sleep(2 * time.Hour)
		r.consume(resendable(11, day)) // a shorter one does not keep the longer alive
		want(2, 2*day, begun.Add(2*day))
		r.consume(resendable(12, 2*day))
		want(3, 2*day, begun.Add(2*day+2*time.Hour))
		time.Sleep(3 * day)
		r.consume(resendable(13, day)) // the longer one is over
		want(4, day, time.Now().Add(day))
		r.consume(resendable(14, 1000*day)) // whoever claims that
		want(5, 14*day, time.Now().Add(14*day))
		past := event(15)
		past.ResendUntil = past.Stamp.Add(-time.Hour)
		r.consume(fresh(past))
		want(5, 14*day, time.Now().Add(14*day))
		r.wantCalls(16)
	})
}

func TestHorizonThatCannotBeNotedIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{})
		r.store.failCalls("horizon", 1, 1, errOutage)
		r.consume(resendable(1, day))
		r.consume(resendable(2, day))
		r.wantCalls(2)
		if n := r.store.called("horizon"); n != 2 || r.store.horizon != day {
			t.Errorf("noted %d times: %v", n, r.store.horizon)
		}
	})
}

// TestFateOfStamps is the table of what becomes of a message by its stamp.
func TestFateOfStamps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const window = 2 * day
		r := newRig(t, setup{config: consumer.Config{Window: window, MaxClockStep: 100 * day, CacheSize: -1}})
		forget := func() {
			t.Helper()
			if err := r.inbox.RunOnce(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		forget()
		time.Sleep(10 * day) // the consumer is old enough to have forgotten something
		forget()
		stamped := func(n int, after time.Duration) *message.Message {
			e := event(n)
			e.Stamp = e.Stamp.Add(after)
			return fresh(e)
		}
		within, old, ahead, far := stamped(1, -day), stamped(2, -3*day), stamped(3, 4*time.Minute), stamped(4, 20*day)
		unstamped := message.NewMessage(number(5).String(), nil)
		for _, m := range []*message.Message{within, old, ahead, far, unstamped} {
			r.consume(m)
			r.consume(m.Copy())
		}
		r.wantCalls(4)
		r.wantStates(inbox.TooOldState, inbox.TooOldState) // set aside; stores keep it once
		c := r.handler.Counters()
		if c.Applied != 4 || c.DuplicatesByTable != 4 || c.Unstamped != 2 || c.Ahead != 2 {
			t.Errorf("counters: %+v", c)
		}
		if n := strings.Count(r.log.String(), "stamped in the future"); n != 1 {
			t.Errorf("reported %d times", n)
		}
		time.Sleep(21 * day) // one day after the stamp that was far ahead
		forget()
		r.consume(far.Copy()) // still known
		r.consume(within.Copy())
		r.wantCalls(4)
		r.wantStates(inbox.TooOldState, inbox.TooOldState, inbox.TooOldState)
	})
}

func TestRedriveTakesWhatIsTooOldOnlyIfItIsNamed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, setup{config: consumer.Config{Window: day, MaxClockStep: 100 * day}})
		r.consume(msg(2)) // registers the consumer
		time.Sleep(10 * day)
		if err := r.inbox.RunOnce(t.Context()); err != nil {
			t.Fatal(err)
		}
		old := event(1)
		old.Stamp = old.Stamp.Add(-2 * day)
		r.consume(fresh(old))
		r.wantStates(inbox.TooOldState)
		for _, c := range []struct {
			f    inbox.Filter
			want int
		}{{inbox.Filter{}, 0}, {inbox.Filter{Topic: "orders"}, 0}, {inbox.Filter{States: []inbox.State{inbox.TooOldState}}, 1}} {
			ids, err := r.inbox.Redrive(t.Context(), c.f, "checked by hand")
			if err != nil || len(ids) != c.want {
				t.Errorf("redrive of %+v: %v, %v", c.f, ids, err)
			}
		}
	})
}
