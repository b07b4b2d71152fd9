package storetest

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/transport"
)

func messageOperatorTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"filter selects parked messages", filterSelects[TX]},
		{"dead message is redriven with nothing counted", redriveDead[TX]},
		{"every redriven message keeps the reason in its history", redriveKeeps[TX]},
		{"only dead, too old and forced altered messages are redriven", redriveOnly[TX]},
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

func (i *inbox[TX]) redrive(f consumer.Filter, want ...*consumer.Message) {
	i.Helper()
	ids, err := i.Store.RedriveMessages(i.ctx(), f, "mended")
	i.ok(err)
	i.expectMessages("redriven", ids, want)
}

func (i *inbox[TX]) discard(f consumer.Filter, want ...*consumer.Message) {
	i.Helper()
	ids, err := i.Store.DiscardMessages(i.ctx(), f, "because")
	i.ok(err)
	i.expectMessages("discarded", ids, want)
}

func (i *inbox[TX]) expectMessages(what string, got []uuid.UUID, messages []*consumer.Message) {
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

func filterSelects[TX any](i *inbox[TX]) {
	a, b, c := message("a"), message("b"), message("a")
	b.Topic = "other"
	i.retrying(a)
	i.park(consumer.Parking{Message: b, State: consumer.Dead, LastError: "50% of stock"}, consumer.Applied)
	i.park(consumer.Parking{Message: c, State: consumer.AlteredState}, consumer.Applied)
	d := message("a")
	p := consumer.Parking{Consumer: i.register("service/other"), Message: d, State: consumer.Dead}
	_, err := i.Store.ParkMessage(i.ctx(), p)
	i.ok(err)
	first := i.parked(a).Seq
	for _, test := range []struct {
		name   string
		filter consumer.Filter
		want   []*consumer.Message
	}{
		{"all", consumer.Filter{}, []*consumer.Message{a, b, c, d}},
		{"consumer", consumer.Filter{Consumer: "service/handler"}, []*consumer.Message{a, b, c}},
		{"no such consumer", consumer.Filter{Consumer: "service"}, nil},
		{"IDs", consumer.Filter{IDs: []uuid.UUID{c.ID, a.ID, uuid.New()}}, []*consumer.Message{a, c}},
		{"states", consumer.Filter{States: []consumer.State{consumer.Dead, consumer.AlteredState}}, []*consumer.Message{b, c, d}},
		{"topic", consumer.Filter{Topic: "other"}, []*consumer.Message{b}},
		{"key", consumer.Filter{Key: "a"}, []*consumer.Message{a, c, d}},
		{"after", consumer.Filter{After: first}, []*consumer.Message{b, c, d}},
		{"error", consumer.Filter{Error: "0% of"}, []*consumer.Message{b}},
		{"other error", consumer.Filter{Error: "0_ of"}, nil},
		{"since", consumer.Filter{Since: i.parked(c).ParkedAt}, []*consumer.Message{c, d}},
		{"until", consumer.Filter{Until: i.parked(c).ParkedAt}, []*consumer.Message{a, b}},
		{"limit", consumer.Filter{Limit: 2}, []*consumer.Message{a, b}},
		{"several", consumer.Filter{Key: "a", States: []consumer.State{consumer.Dead}}, []*consumer.Message{d}},
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
	i.discard(consumer.Filter{Consumer: "service/handler", Limit: 1}, a)
	i.redrive(consumer.Filter{Topic: "topic"}, d)
}

func redriveDead[TX any](i *inbox[TX]) {
	m := message("key")
	i.park(consumer.Parking{Message: m, State: consumer.Dead, Ordered: true, Attempts: 10}, consumer.Applied)
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.redrive(consumer.Filter{}, m)
	if got := i.parked(m); got.State != consumer.Retrying || got.Attempts != 0 {
		i.Errorf("redriven message is %+v", got)
	}
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.takeUp(m, true)
	i.expectVerdict(i.claim(m), consumer.Duplicate)
	i.expectEffects(m.ID.String())
	i.redrive(consumer.Filter{})
}

func redriveKeeps[TX any](i *inbox[TX]) {
	a, b, left := message("a"), message(""), message("c")
	left.Topic = "other"
	for _, m := range []*consumer.Message{a, b, left} {
		i.park(consumer.Parking{Message: m, State: consumer.Dead, Attempts: 1, LastError: "no stock"}, consumer.Applied)
	}
	redrive := func(f consumer.Filter, reason string, want ...*consumer.Message) {
		i.Helper()
		ids, err := i.Store.RedriveMessages(i.ctx(), f, reason)
		i.ok(err)
		i.expectMessages("redriven", ids, want)
	}
	redrive(consumer.Filter{Topic: "topic", Error: "stock"}, "stock is counted, für alle", a, b)
	if p := i.parked(a); p.Reason != "" {
		i.Errorf("redriven message is %+v", p)
	}
	i.ok(i.Store.RetryMessage(i.ctx(), i.parked(a).Seq, 1, 0, true, "none left"))
	redrive(consumer.Filter{IDs: messageIDs(a)}, "one came", a)
	i.wantHistory(a, "redriven", "stock is counted, für alle", "failed", "none left", "redriven", "one came")
	i.wantHistory(b, "redriven", "stock is counted, für alle")
	i.wantHistory(left)
}

func redriveOnly[TX any](i *inbox[TX]) {
	dead, tooOld, changed := message("a"), message("b"), message("c")
	waits := message("d")
	i.retrying(waits)
	i.following(message("d"))
	i.park(consumer.Parking{Message: dead, State: consumer.Dead}, consumer.Applied)
	i.park(consumer.Parking{Message: tooOld, State: consumer.TooOldState}, consumer.Applied)
	i.park(consumer.Parking{Message: changed, State: consumer.AlteredState}, consumer.Applied)
	gone := message("e")
	i.park(consumer.Parking{Message: gone, State: consumer.Dead}, consumer.Applied)
	i.discard(consumer.Filter{IDs: []uuid.UUID{gone.ID}}, gone)

	i.redrive(consumer.Filter{States: []consumer.State{consumer.Retrying, consumer.Discarded, consumer.AlteredState}}, waits)
	i.redrive(consumer.Filter{IDs: []uuid.UUID{waits.ID}}, waits)
	i.redrive(consumer.Filter{IDs: []uuid.UUID{changed.ID}})
	i.redrive(consumer.Filter{States: []consumer.State{consumer.TooOldState}}, tooOld)
	i.redrive(consumer.Filter{Force: true}, dead, changed)
	i.expectParked(consumer.Retrying, consumer.Following, consumer.Retrying, consumer.Retrying, consumer.Retrying, consumer.Discarded)
}

func redriveTooOld[TX any](i *inbox[TX]) {
	for _, level := range levels {
		m := old("")
		i.forgetTo()
		i.expectVerdict(i.claim(m), consumer.TooOld)
		i.park(consumer.Parking{Message: m, State: consumer.TooOldState}, consumer.Applied)
		i.redrive(consumer.Filter{}, m)
		i.expectVerdict(i.claim(m), consumer.TooOld) // copies are set aside as before
		i.park(consumer.Parking{Message: m, State: consumer.TooOldState}, consumer.Duplicate)
		done, err := i.applyParkedAt(level, i.parked(m).Seq)
		if err != nil || !done {
			i.Fatalf("handling gives %v, %v", done, err)
		}
		i.expectParked()
		i.expectVerdict(i.claim(m), consumer.Duplicate)
		_, err = i.forget(i.consumer, 0, 1000)
		i.ok(err)
		i.expectVerdict(i.claim(m), consumer.Duplicate)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != len(levels) {
		i.Errorf("effects are %q", names)
	}
}

func redriveApplied[TX any](i *inbox[TX]) {
	for _, bare := range []bool{false, true} {
		m, follower := message("key"), message("key")
		i.park(consumer.Parking{Message: m, State: consumer.TooOldState, Ordered: true}, consumer.Applied)
		c := i.claim(m)
		if bare {
			c.Digest = transport.Digest{}
		}
		i.expectVerdict(c, consumer.Applied)
		i.redrive(consumer.Filter{}, m)
		i.following(follower)
		i.takeUp(m, false)
		i.expectParked(consumer.Retrying) // the follower
		i.takeUp(follower, true)
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != 4 {
		i.Errorf("effects are %q", names)
	}
}

func redriveTurnsAltered[TX any](i *inbox[TX]) {
	m, follower := message("key"), message("key")
	i.park(consumer.Parking{Message: m, State: consumer.TooOldState, Ordered: true}, consumer.Applied)
	other := otherContent(m)
	i.expectVerdict(i.claim(other), consumer.Applied)
	i.redrive(consumer.Filter{}, m)
	i.following(follower)
	i.takeUp(m, false)
	i.expectParked(consumer.AlteredState, consumer.Retrying)
	i.expectEffects(other.ID.String())
}

func redriveAltered[TX any](i *inbox[TX]) {
	m := message("")
	i.expectVerdict(i.claim(m), consumer.Applied)
	other := otherContent(m)
	i.park(consumer.Parking{Message: other, State: consumer.AlteredState}, consumer.Applied)
	i.redrive(consumer.Filter{Force: true}, other)
	i.ok(i.Store.RetryMessage(i.ctx(), i.parked(m).Seq, 10, 0, true, "dies again"))
	i.redrive(consumer.Filter{}, other)
	i.takeUp(m, true)
	i.expectParked()
	i.expectEffects(m.ID.String(), m.ID.String())
	i.expectVerdict(i.claim(m), consumer.Duplicate)
	i.expectVerdict(i.claim(other), consumer.Altered)
}

func redriveFirst[TX any](i *inbox[TX]) {
	dead, head, follower := message("key"), message("key"), message("key")
	i.park(consumer.Parking{Message: dead, State: consumer.Dead, Ordered: true}, consumer.Applied)
	i.retrying(head)
	i.following(follower)
	i.redrive(consumer.Filter{}, dead)
	seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
	i.ok(err)
	if want := []int64{i.parked(dead).Seq}; !slices.Equal(seqs, want) {
		i.Errorf("due are %v, want %v", seqs, want)
	}
	i.takeUp(head, false)
	i.drain()
	i.expectEffects(dead.ID.String(), head.ID.String(), follower.ID.String())
}

func redriveFollows[TX any](i *inbox[TX]) {
	var all []*consumer.Message
	var ids []string
	for range 4 {
		m := message("key")
		i.park(consumer.Parking{Message: m, State: consumer.Dead, Ordered: true}, consumer.Applied)
		all, ids = append(all, m), append(ids, m.ID.String())
	}
	i.redrive(consumer.Filter{IDs: messageIDs(all[1])}, all[1])
	i.redrive(consumer.Filter{IDs: messageIDs(all[2])}, all[2])
	i.expectStates(all, consumer.Dead, consumer.Retrying, consumer.Following, consumer.Dead)
	i.redrive(consumer.Filter{}, all[0], all[3])
	i.expectStates(all, consumer.Retrying, consumer.Retrying, consumer.Following, consumer.Following)
	i.drain()
	i.expectEffects(ids...)
}

func (i *inbox[TX]) expectStates(messages []*consumer.Message, want ...consumer.State) {
	i.Helper()
	for n, m := range messages {
		if got := i.parked(m).State; got != want[n] {
			i.Errorf("message %d is %s, want %s", n+1, got, want[n])
		}
	}
}

func redriveWaits[TX any](i *inbox[TX]) {
	dead := message("key")
	i.park(consumer.Parking{Message: dead, State: consumer.Dead, Ordered: true}, consumer.Applied)
	first := i.holdApply(i.ordered(message("key")))
	redriving := i.async(func() error {
		_, err := i.Store.RedriveMessages(i.ctx(), consumer.Filter{}, "mended")
		return err
	})
	i.stays("redriving", redriving)
	i.ok(i.release(first, nil))
	i.ok(i.result(redriving))
	i.expectParked(consumer.Retrying)
}

func discardKeeps[TX any](i *inbox[TX]) {
	m, follower := message("key"), message("key")
	i.park(consumer.Parking{Message: m, State: consumer.Retrying, Ordered: true, RetryIn: time.Hour, LastError: "error"}, consumer.Applied)
	i.following(follower)
	i.discard(consumer.Filter{IDs: []uuid.UUID{m.ID}}, m)
	got := i.parked(m)
	i.expectSame(&got.Message, m)
	if got.State != consumer.Discarded || got.Reason != "because" || got.LastError != "error" || !got.NextAttemptAt.IsZero() {
		i.Errorf("discarded message is %+v", got)
	}
	i.expectVerdict(i.claim(m), consumer.Duplicate)
	i.expectParked(consumer.Discarded, consumer.Retrying)
	i.drain()
	i.expectEffects(follower.ID.String())
	i.discard(consumer.Filter{}) // not again

	aside := message("")
	i.park(consumer.Parking{Message: aside, State: consumer.TooOldState}, consumer.Applied)
	i.discard(consumer.Filter{States: []consumer.State{consumer.TooOldState}}, aside)
	i.park(consumer.Parking{Message: aside, State: consumer.TooOldState}, consumer.Duplicate)
}

func discardFollowing[TX any](i *inbox[TX]) {
	head, second, third := message("key"), message("key"), message("key")
	i.park(consumer.Parking{Message: head, State: consumer.Retrying, Ordered: true, RetryIn: time.Hour}, consumer.Applied)
	i.following(second, third)
	before := i.parked(head).NextAttemptAt
	i.discard(consumer.Filter{IDs: []uuid.UUID{second.ID}}, second)
	i.expectParked(consumer.Retrying, consumer.Discarded, consumer.Following)
	if after := i.parked(head).NextAttemptAt; !after.Equal(before) {
		i.Errorf("next attempt of the head moved from %v to %v", before, after)
	}
}

func discardRaces[TX any](i *inbox[TX]) {
	for _, key := range []string{"", "key"} {
		for _, end := range []error{nil, errHandler} {
			m := message(key)
			i.retrying(m)
			c := consumer.Claim{Consumer: i.consumer, IdleTimeout: patience, LockTimeout: patience}
			seq := i.parked(m).Seq
			first := i.hold(m.ID.String(), func(fn handler[TX]) error {
				_, err := i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, _ *consumer.ParkedMessage) error {
					return fn(ctx, tx)
				})
				return err
			})
			var ids []uuid.UUID
			discarding := i.async(func() (err error) {
				ids, err = i.Store.DiscardMessages(i.ctx(), consumer.Filter{IDs: []uuid.UUID{m.ID}}, "because")
				return err
			})
			i.stays("discarding", discarding)
			_ = i.release(first, end)
			i.ok(i.result(discarding))
			if end == nil {
				i.expectMessages("discarded", ids, nil)
			} else {
				i.expectMessages("discarded", ids, []*consumer.Message{m})
			}
		}
	}
	i.expectParked(consumer.Discarded, consumer.Discarded)
}

// registerHeals stands for rows that an operator deleted by hand: what can be seen
// through the contract is that nothing changes where every key has a head.
func registerHeals[TX any](i *inbox[TX]) {
	i.park(consumer.Parking{Message: message("key"), State: consumer.Retrying, Ordered: true, RetryIn: time.Hour}, consumer.Applied)
	i.following(message("key"))
	i.register("service/handler")
	i.expectParked(consumer.Retrying, consumer.Following)
}
