package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func windowTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"consumer keeps its number and begins with nothing forgotten", registration[TX]},
		{"newest IDs come in the order of applying, newest last", newestLast[TX]},
		{"parked messages are not among the newest until they are applied", newestWithoutParked[TX]},
		{"young consumer forgets nothing and reads history of any age", youngConsumer[TX]},
		{"what is forgotten only grows", forgottenGrows[TX]},
		{"jump of the clock is refused", clockJump[TX]},
		{"message from a forgotten time is too old and not run", tooOldIsNotRun[TX]},
		{"known copy from a forgotten time is a duplicate", knownOldCopy[TX]},
		{"message without a stamp is deduplicated from its arrival", withoutStamp[TX]},
		{"old IDs are removed, in batches, and no others", forgetsOld[TX]},
		{"nothing is removed before the grace is over", forgetsAfterGrace[TX]},
		{"advancing often does not put off the removal", advancingOften[TX]},
		{"IDs of parked messages stay until they are applied", parkedIDsStay[TX]},
		{"removal can go on from where the last batch ended", forgetsFrom[TX]},
		{"discarded messages are removed by age, and their IDs stay", forgetsDiscarded[TX]},
		{"longest horizon is kept until it is over", keepsHorizon[TX]},
		{"copy that comes after its ID was removed is too old", removedIsTooOld[TX]},
		{"state of an inbox is counted", countedState[TX]},
	}
}

func registration[TX any](i *inboxRig[TX]) {
	for range 3 {
		r, err := i.Store.Register(i.ctx(), "service/handler", time.Hour)
		i.ok(err)
		if r.Consumer != i.consumer || !r.ForgottenUntil.IsZero() {
			i.Errorf("registration is %+v, want consumer %d", r, i.consumer)
		}
	}
	until := i.forgetTo()
	r, err := i.Store.Register(i.ctx(), "service/handler", time.Hour)
	i.ok(err)
	if !r.ForgottenUntil.Equal(until) {
		i.Errorf("forgotten until %v, want %v", r.ForgottenUntil, until)
	}
	numbers := make([]int, 8)
	i.crowd(len(numbers), func(n int) error {
		r, err := i.Store.Register(i.ctx(), "service/at once", time.Hour)
		numbers[n] = r.Consumer
		return err
	})
	if slices.Min(numbers) != slices.Max(numbers) || numbers[0] == i.consumer {
		i.Errorf("concurrent registrations give the numbers %v", numbers)
	}
}

func newestLast[TX any](i *inboxRig[TX]) {
	var want []inbox.Seen
	for n := range 5 {
		m := message("")
		m.Stamp = m.Stamp.Add(-time.Duration(n) * time.Hour)
		if n == 2 {
			m.Digest = transport.Digest{}
		}
		i.expectVerdict(i.claim(m), inbox.Applied)
		i.expectVerdict(i.claim(m), inbox.Duplicate)
		want = append(want, inbox.Seen{ID: m.ID, Digest: m.Digest})
	}
	for _, limit := range []int{1, 3, 5, 100} {
		got, err := i.Store.Newest(i.ctx(), i.consumer, limit)
		i.ok(err)
		if !slices.Equal(got, want[max(0, len(want)-limit):]) {
			i.Errorf("newest %d are %v of %v", limit, got, want)
		}
	}
}

func newestWithoutParked[TX any](i *inboxRig[TX]) {
	dead, head, follower, applied := message(""), message("key"), message("key"), message("")
	i.park(inbox.Parking{Message: dead, State: inbox.Dead}, inbox.Applied)
	i.retrying(head)
	i.following(follower)
	i.expectVerdict(i.claim(applied), inbox.Applied)
	expect := func(messages ...*inbox.Message) {
		i.Helper()
		got, err := i.Store.Newest(i.ctx(), i.consumer, 10)
		i.ok(err)
		var ids, want []uuid.UUID
		for _, s := range got {
			ids = append(ids, s.ID)
		}
		for _, m := range messages {
			want = append(want, m.ID)
		}
		if !slices.Equal(ids, want) {
			i.Fatalf("newest are %v, want %v", ids, want)
		}
	}
	expect(applied)
	i.takeUp(head, true)
	expect(applied, head)
	i.discard(inbox.Filter{IDs: []uuid.UUID{dead.ID}}, dead)
	i.takeUp(follower, true)
	expect(applied, head, follower)
}

func youngConsumer[TX any](i *inboxRig[TX]) {
	until, err := i.Store.AdvanceForgotten(i.ctx(), i.consumer, 24*time.Hour, time.Hour)
	i.ok(err)
	if !until.IsZero() {
		i.Errorf("young consumer has forgotten until %v", until)
	}
	m := message("")
	m.Stamp = m.Stamp.Add(-10 * 365 * 24 * time.Hour)
	i.expectVerdict(i.claim(m), inbox.Applied)
	n, err := i.forget(i.consumer, 0, 10)
	i.ok(err)
	if n != 0 {
		i.Errorf("%d IDs were removed", n)
	}
	i.expectVerdict(i.claim(m), inbox.Duplicate)
}

func forgottenGrows[TX any](i *inboxRig[TX]) {
	until := i.forgetTo()
	for _, window := range []time.Duration{time.Hour, 24 * time.Hour} {
		got, err := i.Store.AdvanceForgotten(i.ctx(), i.consumer, window, time.Hour)
		i.ok(err)
		if !got.Equal(until) {
			i.Errorf("forgotten until %v with a window of %v, want %v", got, window, until)
		}
	}
	i.eventually("advance", func() bool {
		got := i.forgetTo()
		if got.Before(until) {
			i.Fatalf("forgotten until %v went back to %v", until, got)
		}
		return got.After(until)
	})
	if off := time.Until(i.forgetTo()); off > time.Minute || off < -time.Minute {
		i.Errorf("forgotten until %v from now", off)
	}
}

func clockJump[TX any](i *inboxRig[TX]) {
	jump := func() {
		i.eventually("jump", func() bool {
			_, err := i.Store.AdvanceForgotten(i.ctx(), i.consumer, time.Microsecond, time.Microsecond)
			if err == nil {
				return false
			}
			jump, is := errors.AsType[*inbox.ClockJumpError](err)
			if !is || !errors.Is(err, inbox.ErrClockJump) {
				i.Fatal(err)
			}
			if off := time.Since(jump.Since); off > time.Minute || off < -time.Minute {
				i.Errorf("the last pass was %v ago", off)
			}
			return true
		})
	}
	before := i.forgetTo()
	jump()
	stats, err := i.Store.InboxStats(i.ctx(), i.consumer)
	i.ok(err)
	jump()
	again, err := i.Store.InboxStats(i.ctx(), i.consumer)
	i.ok(err)
	if stats.ForgottenUntil.Before(before) || !again.ForgottenUntil.Equal(stats.ForgottenUntil) {
		i.Errorf("forgotten until %v, then until %v and %v after jumps", before, stats.ForgottenUntil, again.ForgottenUntil)
	}
}

func tooOldIsNotRun[TX any](i *inboxRig[TX]) {
	before := i.forgetTo()
	for _, level := range levels {
		m := message("")
		c := i.claim(m)
		c.Isolation, c.Stamp = level, before.Add(-time.Microsecond)
		i.expectVerdict(c, inbox.TooOld)
		i.expectVerdict(c, inbox.TooOld) // nothing was claimed
		c.Stamp = before
		i.expectVerdict(c, inbox.Applied)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != len(levels) {
		i.Errorf("effects are %q", names)
	}
}

func knownOldCopy[TX any](i *inboxRig[TX]) {
	m := old("")
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.forgetTo()
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectVerdict(i.claim(otherContent(m)), inbox.Altered)
	i.expectEffects(m.ID.String())
}

func withoutStamp[TX any](i *inboxRig[TX]) {
	i.forgetTo()
	m := message("")
	m.Stamp = time.Time{}
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.eventually("forget", func() bool {
		i.forgetTo()
		n, err := i.forget(i.consumer, 0, 10)
		i.ok(err)
		return n == 1
	})
	i.expectVerdict(i.claim(m), inbox.Applied) // beyond the window the copy is not recognised
}

func forgetsOld[TX any](i *inboxRig[TX]) {
	other := i.register("service/other")
	kept := lasting("")
	for range 5 {
		m := old("")
		i.expectVerdict(i.claim(m), inbox.Applied)
		c := i.claim(m)
		c.Consumer = other
		i.expectVerdict(c, inbox.Applied)
	}
	i.expectVerdict(i.claim(kept), inbox.Applied)
	forget := func(consumerID, limit, want int) {
		i.Helper()
		n, err := i.forget(consumerID, 0, limit)
		i.ok(err)
		if n != want {
			i.Fatalf("%d IDs were removed, want %d", n, want)
		}
	}
	forget(i.consumer, 10, 0) // nothing is forgotten yet
	i.forgetTo()
	forget(other, 10, 0)
	forget(i.consumer, 3, 3)
	forget(i.consumer, 3, 2)
	forget(i.consumer, 3, 0)
	i.expectVerdict(i.claim(kept), inbox.Duplicate)
	seen, err := i.Store.Newest(i.ctx(), other, 10)
	i.ok(err)
	if len(seen) != 5 {
		i.Errorf("other consumer knows %d IDs, want 5", len(seen))
	}
}

func forgetsAfterGrace[TX any](i *inboxRig[TX]) {
	i.expectVerdict(i.claim(old("")), inbox.Applied)
	i.forgetTo()
	n, err := i.forget(i.consumer, time.Hour, 10)
	i.ok(err)
	if n != 0 {
		i.Errorf("%d IDs were removed within the grace", n)
	}
	n, err = i.forget(i.consumer, 0, 10)
	i.ok(err)
	if n != 1 {
		i.Errorf("%d IDs were removed after the grace, want 1", n)
	}
}

func advancingOften[TX any](i *inboxRig[TX]) {
	i.expectVerdict(i.claim(old("")), inbox.Applied)
	i.eventually("removal", func() bool {
		i.forgetTo()
		n, err := i.forget(i.consumer, 200*time.Millisecond, 10)
		i.ok(err)
		return n == 1
	})
}

func parkedIDsStay[TX any](i *inboxRig[TX]) {
	m, dead, given := old("key"), old(""), old("")
	i.retrying(m)
	i.park(inbox.Parking{Message: dead, State: inbox.Dead}, inbox.Applied)
	i.park(inbox.Parking{Message: given, State: inbox.Dead}, inbox.Applied)
	i.discard(inbox.Filter{IDs: []uuid.UUID{given.ID}}, given)
	i.forgetTo()
	forget := func(want int) {
		i.Helper()
		n, err := i.forget(i.consumer, 0, 10)
		i.ok(err)
		if n != want {
			i.Fatalf("%d IDs were removed, want %d", n, want)
		}
	}
	forget(0)
	for _, m := range []*inbox.Message{m, dead, given} {
		i.expectVerdict(i.claim(m), inbox.Duplicate)
	}
	i.takeUp(m, true)
	forget(1)
	i.expectVerdict(i.claim(m), inbox.TooOld)
	i.expectEffects(m.ID.String())
}

// forget removes dispatch IDs and returns the number of removed IDs.
func (i *inboxRig[TX]) forget(consumerID int, grace time.Duration, limit int) (int, error) {
	f, err := i.Store.Forget(i.ctx(), consumerID, grace, time.Time{}, limit)
	return f.IDs, err
}

func forgetsFrom[TX any](i *inboxRig[TX]) {
	var stamps []time.Time
	for n := range 5 {
		m := old("")
		m.Stamp = m.Stamp.Add(time.Duration(n) * time.Minute)
		stamps = append(stamps, m.Stamp)
		i.expectVerdict(i.claim(m), inbox.Applied)
	}
	i.forgetTo()
	forget := func(after time.Time, limit, want int, through time.Time) {
		i.Helper()
		f, err := i.Store.Forget(i.ctx(), i.consumer, 0, after, limit)
		i.ok(err)
		if f.IDs != want || !f.Through.Equal(through) {
			i.Fatalf("removed %+v, want %d through %v", f, want, through)
		}
	}
	forget(stamps[3], 10, 2, stamps[4])
	forget(time.Time{}, 2, 2, stamps[1])
	forget(stamps[1], 10, 1, stamps[2])
	forget(time.Time{}, 10, 0, time.Time{})
}

func forgetsDiscarded[TX any](i *inboxRig[TX]) {
	var gone []*inbox.Message
	for n := range 3 {
		m := message("")
		gone = append(gone, m)
		i.park(inbox.Parking{Message: m, State: []inbox.State{inbox.Dead, inbox.TooOldState, inbox.Retrying}[n]}, inbox.Applied)
		i.discard(inbox.Filter{IDs: []uuid.UUID{m.ID}}, m)
	}
	kept := message("")
	i.park(inbox.Parking{Message: kept, State: inbox.Dead}, inbox.Applied)
	forget := func(age time.Duration, limit, want int) {
		i.Helper()
		n, err := i.Store.ForgetDiscarded(i.ctx(), i.consumer, age, limit)
		i.ok(err)
		if n != want {
			i.Fatalf("%d messages were removed, want %d", n, want)
		}
	}
	other := i.register("service/other")
	n, err := i.Store.ForgetDiscarded(i.ctx(), other, over, 10)
	i.ok(err)
	if n != 0 {
		i.Fatalf("%d messages of another consumer were removed", n)
	}
	forget(time.Hour, 10, 0)
	forget(over, 2, 2)
	forget(over, 2, 1)
	i.expectParked(inbox.Dead)
	i.expectVerdict(i.claim(gone[0]), inbox.Duplicate)
	i.expectVerdict(i.claim(gone[1]), inbox.Applied) // the message was never claimed
	i.expectVerdict(i.claim(gone[2]), inbox.Duplicate)
}

func keepsHorizon[TX any](i *inboxRig[TX]) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	expect := func(horizon time.Duration, until time.Time) {
		i.Helper()
		r, err := i.Store.Register(i.ctx(), "service/handler", time.Hour)
		i.ok(err)
		st, err := i.Store.InboxStats(i.ctx(), i.consumer)
		i.ok(err)
		if r.Horizon != horizon || st.Horizon != horizon || !r.HorizonUntil.Equal(until) {
			i.Fatalf("horizon is %v until %v, in the stats %v; want %v until %v", r.Horizon, r.HorizonUntil, st.Horizon, horizon, until)
		}
	}
	note := func(horizon time.Duration, until time.Time) {
		i.Helper()
		i.ok(i.Store.NoteHorizon(i.ctx(), i.consumer, horizon, until))
	}
	expect(0, time.Time{})
	note(24*time.Hour, now.Add(24*time.Hour))
	expect(24*time.Hour, now.Add(24*time.Hour))
	note(24*time.Hour, now.Add(time.Hour))
	expect(24*time.Hour, now.Add(24*time.Hour)) // the latest end of the longest horizon
	note(time.Hour, now.Add(48*time.Hour))
	expect(24*time.Hour, now.Add(24*time.Hour)) // a shorter horizon does not extend the longest
	note(24*time.Hour, now.Add(25*time.Hour))
	expect(24*time.Hour, now.Add(25*time.Hour))
	note(36*time.Hour, now.Add(-time.Hour))
	expect(0, time.Time{}) // the horizon is over
	note(time.Hour, now.Add(time.Hour))
	expect(time.Hour, now.Add(time.Hour))
	r, err := i.Store.Register(i.ctx(), "service/other", time.Hour)
	i.ok(err)
	if r.Horizon != 0 {
		i.Errorf("horizon of another consumer is %v", r.Horizon)
	}
}

func removedIsTooOld[TX any](i *inboxRig[TX]) {
	claims := make([]inbox.Claim, len(levels))
	for n, level := range levels {
		claims[n] = i.claim(old(""))
		claims[n].Isolation = level
		i.expectVerdict(claims[n], inbox.Applied)
	}
	i.forgetTo()
	n, err := i.forget(i.consumer, 0, 10)
	i.ok(err)
	if n != len(levels) {
		i.Fatalf("%d IDs were removed, want %d", n, len(levels))
	}
	for _, c := range claims {
		i.expectVerdict(c, inbox.TooOld)
	}
}

func countedState[TX any](i *inboxRig[TX]) {
	empty, err := i.Store.InboxStats(i.ctx(), i.consumer)
	i.ok(err)
	if empty != (inbox.Stats{}) {
		i.Errorf("state of an empty inbox is %+v", empty)
	}
	i.retrying(message("a"))
	i.following(message("a"), message("a"))
	for n, state := range []inbox.State{inbox.Dead, inbox.TooOldState, inbox.AlteredState} {
		for range n + 3 {
			i.park(inbox.Parking{Message: message(""), State: state}, inbox.Applied)
		}
	}
	gone := message("")
	i.park(inbox.Parking{Message: gone, State: inbox.Dead}, inbox.Applied)
	i.discard(inbox.Filter{IDs: []uuid.UUID{gone.ID}}, gone)
	until := i.forgetTo()
	var got inbox.Stats
	i.eventually("age", func() bool {
		got, err = i.Store.InboxStats(i.ctx(), i.consumer)
		i.ok(err)
		return got.OldestParked > 0
	})
	if got.OldestParked > time.Minute {
		i.Errorf("oldest parked message is %v old", got.OldestParked)
	}
	got.OldestParked = 0
	want := inbox.Stats{Retrying: 1, Following: 2, Dead: 3, TooOld: 4, Altered: 5, ForgottenUntil: until}
	if !got.ForgottenUntil.Equal(until) {
		i.Errorf("forgotten until %v, want %v", got.ForgottenUntil, until)
	}
	if got.ForgottenUntil = until; got != want {
		i.Errorf("state is %+v, want %+v", got, want)
	}
}
