package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func messageOperatorTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"filter selects parked messages", filterSelects[TX]},
		{"dead message is redriven with nothing counted", redriveDead[TX]},
		{"every redriven message keeps the reason in its history", redriveKeeps[TX]},
		{"only dead, too old, forced altered and named messages are redriven", redriveOnly[TX]},
		{"redriven message that was discarded runs in the order of its key, and keeps its history", redriveGivenUp[TX]},
		{"redriven message that was altered before its discard runs only by force", redriveGivenUpAltered[TX]},
		{"discarded message is forgotten or redriven, and never half", redriveOrForget[TX]},
		{"redriven message that was too old is applied once and remembered", redriveTooOld[TX]},
		{"redriven message whose copy was applied is removed without running", redriveApplied[TX]},
		{"redriven message that turns out to be altered is set aside again", redriveTurnsAltered[TX]},
		{"forced altered message runs once and leaves the claim of the other content", redriveAltered[TX]},
		{"redriven message runs before later ones of its key, and they wait", redriveFirst[TX]},
		{"redriven messages of one key follow the first live one", redriveFollows[TX]},
		{"redriving waits for a handler of the key", redriveWaits[TX]},
		{"discarded message keeps reason and claim, and lets the next one run", discardKeeps[TX]},
		{"discarded follower releases nobody", discardFollowing[TX]},
		{"message that is being handled is discarded only if it is not applied", discardRaces[TX]},
		{"registering gives a key without a head one", registerHeals[TX]},
	}
}

func (i *inboxRig[TX]) redrive(f inbox.Filter, want ...*inbox.Message) {
	i.Helper()
	ids, err := i.Store.RedriveMessages(i.ctx(), f, "mended")
	i.ok(err)
	i.expectMessages("redriven", ids, want)
}

func (i *inboxRig[TX]) discard(f inbox.Filter, want ...*inbox.Message) {
	i.Helper()
	ids, err := i.Store.DiscardMessages(i.ctx(), f, "because")
	i.ok(err)
	i.expectMessages("discarded", ids, want)
}

func (i *inboxRig[TX]) expectMessages(what string, got []uuid.UUID, messages []*inbox.Message) {
	i.Helper()
	want := make([]uuid.UUID, len(messages))
	for n, m := range messages {
		want[n] = m.ID
	}
	sort := func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
	got = slices.Clone(got)
	slices.SortFunc(got, sort)
	slices.SortFunc(want, sort)
	if !slices.Equal(got, want) {
		i.Fatalf("%s are %v, want %v", what, got, want)
	}
}

func filterSelects[TX any](i *inboxRig[TX]) {
	a, b, c := message("a"), message("b"), message("a")
	b.Topic = "other"
	i.retrying(a)
	i.park(inbox.Parking{Message: b, State: inbox.Dead, LastError: "50% of stock"}, inbox.Applied)
	i.park(inbox.Parking{Message: c, State: inbox.AlteredState}, inbox.Applied)
	d := message("a")
	p := inbox.Parking{Consumer: i.register("service/other"), Message: d, State: inbox.Dead}
	_, err := i.Store.ParkMessage(i.ctx(), p)
	i.ok(err)
	first := i.parked(a).Seq
	for _, test := range []struct {
		name   string
		filter inbox.Filter
		want   []*inbox.Message
	}{
		{"all", inbox.Filter{}, []*inbox.Message{a, b, c, d}},
		{"consumer", inbox.Filter{Consumer: "service/handler"}, []*inbox.Message{a, b, c}},
		{"no such consumer", inbox.Filter{Consumer: "service"}, nil},
		{"IDs", inbox.Filter{IDs: []uuid.UUID{c.ID, a.ID, uuid.New()}}, []*inbox.Message{a, c}},
		{"states", inbox.Filter{States: []inbox.State{inbox.Dead, inbox.AlteredState}}, []*inbox.Message{b, c, d}},
		{"topic", inbox.Filter{Topic: "other"}, []*inbox.Message{b}},
		{"key", inbox.Filter{Key: "a"}, []*inbox.Message{a, c, d}},
		{"after", inbox.Filter{After: first}, []*inbox.Message{b, c, d}},
		{"error", inbox.Filter{Error: "0% of"}, []*inbox.Message{b}},
		{"other error", inbox.Filter{Error: "0_ of"}, nil},
		{"since", inbox.Filter{Since: i.parked(c).ParkedAt}, []*inbox.Message{c, d}},
		{"until", inbox.Filter{Until: i.parked(c).ParkedAt}, []*inbox.Message{a, b}},
		{"limit", inbox.Filter{Limit: 2}, []*inbox.Message{a, b}},
		{"several", inbox.Filter{Key: "a", States: []inbox.State{inbox.Dead}}, []*inbox.Message{d}},
	} {
		list := i.list(test.filter)
		var got, want []uuid.UUID
		for _, m := range list {
			got = append(got, m.ID)
		}
		for _, m := range test.want {
			want = append(want, m.ID)
		}
		if !slices.Equal(got, want) {
			i.Errorf("%s: selected %v, want %v", test.name, got, want)
		}
	}
	i.discard(inbox.Filter{Consumer: "service/handler", Limit: 1}, a)
	i.redrive(inbox.Filter{Topic: "topic"}, d)
}

func redriveDead[TX any](i *inboxRig[TX]) {
	m := message("key")
	i.park(inbox.Parking{Message: m, State: inbox.Dead, Ordered: true, Attempts: 10}, inbox.Applied)
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.redrive(inbox.Filter{}, m)
	if got := i.parked(m); got.State != inbox.Retrying || got.Attempts != 0 {
		i.Errorf("redriven message is %+v", got)
	}
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.takeUp(m, true)
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectEffects(m.ID.String())
	i.redrive(inbox.Filter{})
}

func redriveKeeps[TX any](i *inboxRig[TX]) {
	a, b, left := message("a"), message(""), message("c")
	left.Topic = "other"
	for _, m := range []*inbox.Message{a, b, left} {
		i.park(inbox.Parking{Message: m, State: inbox.Dead, Attempts: 1, LastError: "no stock"}, inbox.Applied)
	}
	redrive := func(f inbox.Filter, reason string, want ...*inbox.Message) {
		i.Helper()
		ids, err := i.Store.RedriveMessages(i.ctx(), f, reason)
		i.ok(err)
		i.expectMessages("redriven", ids, want)
	}
	redrive(inbox.Filter{Topic: "topic", Error: "stock"}, "stock is counted, für alle", a, b)
	if p := i.parked(a); p.Reason != "" {
		i.Errorf("redriven message is %+v", p)
	}
	i.ok(i.Store.RetryMessage(i.ctx(), i.parked(a).Seq, 1, 0, true, "none left"))
	redrive(inbox.Filter{IDs: messageIDs(a)}, "one came", a)
	i.wantHistory(a, "redriven", "stock is counted, für alle", "failed", "none left", "redriven", "one came")
	i.wantHistory(b, "redriven", "stock is counted, für alle")
	i.wantHistory(left)
}

func redriveOnly[TX any](i *inboxRig[TX]) {
	dead, tooOld, changed := message("a"), message("b"), message("c")
	waits := message("d")
	i.retrying(waits)
	i.following(message("d"))
	i.park(inbox.Parking{Message: dead, State: inbox.Dead}, inbox.Applied)
	i.park(inbox.Parking{Message: tooOld, State: inbox.TooOldState}, inbox.Applied)
	i.park(inbox.Parking{Message: changed, State: inbox.AlteredState}, inbox.Applied)
	gone := message("e")
	i.park(inbox.Parking{Message: gone, State: inbox.Dead}, inbox.Applied)
	i.discard(inbox.Filter{IDs: []uuid.UUID{gone.ID}}, gone)

	i.redrive(inbox.Filter{States: []inbox.State{inbox.Retrying, inbox.AlteredState}}, waits)
	i.redrive(inbox.Filter{IDs: []uuid.UUID{waits.ID, gone.ID}}, waits)
	i.redrive(inbox.Filter{IDs: []uuid.UUID{changed.ID}})
	i.redrive(inbox.Filter{States: []inbox.State{inbox.TooOldState}}, tooOld)
	i.redrive(inbox.Filter{Force: true}, dead, changed)
	i.expectParked(inbox.Retrying, inbox.Following, inbox.Retrying, inbox.Retrying, inbox.Retrying, inbox.Discarded)
}

func redriveTooOld[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		m := old("")
		i.forgetTo()
		i.expectVerdict(i.claim(m), inbox.TooOld)
		i.park(inbox.Parking{Message: m, State: inbox.TooOldState}, inbox.Applied)
		i.redrive(inbox.Filter{}, m)
		i.expectVerdict(i.claim(m), inbox.TooOld) // copies are set aside as before
		i.park(inbox.Parking{Message: m, State: inbox.TooOldState}, inbox.Duplicate)
		done, err := i.applyParkedAt(level, i.parked(m).Seq)
		if err != nil || !done {
			i.Fatalf("handling gives %v, %v", done, err)
		}
		i.expectParked()
		i.expectVerdict(i.claim(m), inbox.Duplicate)
		_, err = i.forget(i.consumer, 0, 1000)
		i.ok(err)
		i.expectVerdict(i.claim(m), inbox.Duplicate)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != len(levels) {
		i.Errorf("effects are %q", names)
	}
}

func redriveApplied[TX any](i *inboxRig[TX]) {
	for _, bare := range []bool{false, true} {
		m, follower := message("key"), message("key")
		i.park(inbox.Parking{Message: m, State: inbox.TooOldState, Ordered: true}, inbox.Applied)
		c := i.claim(m)
		if bare {
			c.Digest = transport.Digest{}
		}
		i.expectVerdict(c, inbox.Applied)
		i.redrive(inbox.Filter{}, m)
		i.following(follower)
		i.takeUp(m, false)
		i.expectParked(inbox.Retrying) // the follower
		i.takeUp(follower, true)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != 4 {
		i.Errorf("effects are %q", names)
	}
}

func redriveTurnsAltered[TX any](i *inboxRig[TX]) {
	m, follower := message("key"), message("key")
	i.park(inbox.Parking{Message: m, State: inbox.TooOldState, Ordered: true}, inbox.Applied)
	other := otherContent(m)
	i.expectVerdict(i.claim(other), inbox.Applied)
	i.redrive(inbox.Filter{}, m)
	i.following(follower)
	i.takeUp(m, false)
	i.expectParked(inbox.AlteredState, inbox.Retrying)
	i.expectEffects(other.ID.String())
}

func redriveAltered[TX any](i *inboxRig[TX]) {
	m := message("")
	i.expectVerdict(i.claim(m), inbox.Applied)
	other := otherContent(m)
	i.park(inbox.Parking{Message: other, State: inbox.AlteredState}, inbox.Applied)
	i.redrive(inbox.Filter{Force: true}, other)
	i.ok(i.Store.RetryMessage(i.ctx(), i.parked(m).Seq, 10, 0, true, "dies again"))
	i.redrive(inbox.Filter{}, other)
	i.takeUp(m, true)
	i.expectParked()
	i.expectEffects(m.ID.String(), m.ID.String())
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectVerdict(i.claim(other), inbox.Altered)
}

func redriveFirst[TX any](i *inboxRig[TX]) {
	dead, head, follower := message("key"), message("key"), message("key")
	i.park(inbox.Parking{Message: dead, State: inbox.Dead, Ordered: true}, inbox.Applied)
	i.retrying(head)
	i.following(follower)
	i.redrive(inbox.Filter{}, dead)
	seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
	i.ok(err)
	if want := []int64{i.parked(dead).Seq}; !slices.Equal(seqs, want) {
		i.Errorf("due are %v, want %v", seqs, want)
	}
	i.takeUp(head, false)
	i.drain()
	i.expectEffects(dead.ID.String(), head.ID.String(), follower.ID.String())
}

func redriveFollows[TX any](i *inboxRig[TX]) {
	var all []*inbox.Message
	var ids []string
	for range 4 {
		m := message("key")
		i.park(inbox.Parking{Message: m, State: inbox.Dead, Ordered: true}, inbox.Applied)
		all, ids = append(all, m), append(ids, m.ID.String())
	}
	i.redrive(inbox.Filter{IDs: messageIDs(all[1])}, all[1])
	i.redrive(inbox.Filter{IDs: messageIDs(all[2])}, all[2])
	i.expectStates(all, inbox.Dead, inbox.Retrying, inbox.Following, inbox.Dead)
	i.redrive(inbox.Filter{}, all[0], all[3])
	i.expectStates(all, inbox.Retrying, inbox.Retrying, inbox.Following, inbox.Following)
	i.drain()
	i.expectEffects(ids...)
}

func (i *inboxRig[TX]) expectStates(messages []*inbox.Message, want ...inbox.State) {
	i.Helper()
	for n, m := range messages {
		if got := i.parked(m).State; got != want[n] {
			i.Errorf("message %d is %s, want %s", n+1, got, want[n])
		}
	}
}

func redriveWaits[TX any](i *inboxRig[TX]) {
	dead := message("key")
	i.park(inbox.Parking{Message: dead, State: inbox.Dead, Ordered: true}, inbox.Applied)
	first := i.holdApply(i.ordered(message("key")))
	redriving := i.async(func() error {
		_, err := i.Store.RedriveMessages(i.ctx(), inbox.Filter{}, "mended")
		return err
	})
	i.stays("redriving", redriving)
	i.ok(i.release(first, nil))
	i.ok(i.result(redriving))
	i.expectParked(inbox.Retrying)
}

func discardKeeps[TX any](i *inboxRig[TX]) {
	m, follower := message("key"), message("key")
	i.park(inbox.Parking{Message: m, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour, LastError: "error"}, inbox.Applied)
	i.following(follower)
	i.discard(inbox.Filter{IDs: []uuid.UUID{m.ID}}, m)
	got := i.parked(m)
	i.expectSame(&got.Message, m)
	if got.State != inbox.Discarded || got.Reason != "because" || got.LastError != "error" || !got.NextAttemptAt.IsZero() {
		i.Errorf("discarded message is %+v", got)
	}
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.expectParked(inbox.Discarded, inbox.Retrying)
	i.drain()
	i.expectEffects(follower.ID.String())
	i.discard(inbox.Filter{}) // not again

	aside := message("")
	i.park(inbox.Parking{Message: aside, State: inbox.TooOldState}, inbox.Applied)
	i.discard(inbox.Filter{States: []inbox.State{inbox.TooOldState}}, aside)
	i.park(inbox.Parking{Message: aside, State: inbox.TooOldState}, inbox.Duplicate)
}

func discardFollowing[TX any](i *inboxRig[TX]) {
	head, second, third := message("key"), message("key"), message("key")
	i.park(inbox.Parking{Message: head, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour}, inbox.Applied)
	i.following(second, third)
	before := i.parked(head).NextAttemptAt
	i.discard(inbox.Filter{IDs: []uuid.UUID{second.ID}}, second)
	i.expectParked(inbox.Retrying, inbox.Discarded, inbox.Following)
	if after := i.parked(head).NextAttemptAt; !after.Equal(before) {
		i.Errorf("next attempt of the head moved from %v to %v", before, after)
	}
}

func discardRaces[TX any](i *inboxRig[TX]) {
	for _, key := range []string{"", "key"} {
		for _, end := range []error{nil, errHandler} {
			m := message(key)
			i.retrying(m)
			c := inbox.Claim{Consumer: i.consumer, IdleTimeout: patience, LockTimeout: patience}
			seq := i.parked(m).Seq
			first := i.hold(m.ID.String(), func(fn handler[TX]) error {
				_, err := i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, _ *inbox.Parked) error {
					return fn(ctx, tx)
				})
				return err
			})
			var ids []uuid.UUID
			discarding := i.async(func() (err error) {
				ids, err = i.Store.DiscardMessages(i.ctx(), inbox.Filter{IDs: []uuid.UUID{m.ID}}, "because")
				return err
			})
			i.stays("discarding", discarding)
			_ = i.release(first, end)
			i.ok(i.result(discarding))
			if end == nil {
				i.expectMessages("discarded", ids, nil)
			} else {
				i.expectMessages("discarded", ids, []*inbox.Message{m})
			}
		}
	}
	i.expectParked(inbox.Discarded, inbox.Discarded)
}

// registerHeals tests the repair of keys without a head, as after rows were deleted by hand. The
// contract can only show that keys with a head do not change.
func registerHeals[TX any](i *inboxRig[TX]) {
	i.park(inbox.Parking{Message: message("key"), State: inbox.Retrying, Ordered: true, RetryIn: time.Hour}, inbox.Applied)
	i.following(message("key"))
	i.register("service/handler")
	i.expectParked(inbox.Retrying, inbox.Following)
}
