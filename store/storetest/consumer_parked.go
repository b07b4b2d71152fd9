package storetest

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func parkTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"parked message comes back whole", parkedIsWhole[TX]},
		{"parked message is claimed, once", parkedIsClaimed[TX]},
		{"message that was applied is not parked", appliedIsNotParked[TX]},
		{"message that is set aside is kept once, without a claim", setAside[TX]},
		{"message that is too old by the time of parking is kept as such", parkedTooLate[TX]},
		{"message that is altered by the time of parking is kept as such", parkedAltered[TX]},
		{"parking forgets what was counted", parkingForgetsCounts[TX]},
	}
}

// expectSame checks that a message came back unchanged.
func (i *inboxRig[TX]) expectSame(got, want *inbox.Message) {
	i.Helper()
	if got.ID != want.ID || got.Topic != want.Topic || got.Key != want.Key || got.Digest != want.Digest ||
		!got.Stamp.Equal(want.Stamp) || !bytes.Equal(got.Payload, want.Payload) || !maps.Equal(got.Metadata, want.Metadata) {
		i.Errorf("message came back as\n%+v, was parked as\n%+v", got, want)
	}
}

func parkedIsWhole[TX any](i *inboxRig[TX]) {
	full := message(`Ключ 'x' "q"`)
	full.Topic = "tøpic\n"
	full.Payload = []byte{0, 1, 0xff, 0xfe, '\'', '\\'}
	full.Metadata = map[string]string{
		"a": "1", "": "nameless", "Ünï \"q\"": "multi\nline, \\u0041", "empty": "", "nul": "a\x00b", "bytes": "\xff\xfe", "\xff": "\x00",
		"\u2028": "<&>",
	}
	bare := &inbox.Message{ID: uuid.New(), Topic: "t"}
	before := time.Now()
	i.park(inbox.Parking{
		Message: full, State: inbox.Retrying, Ordered: true, Attempts: 7, RetryIn: time.Hour, LastError: "error “text”",
	}, inbox.Applied)
	i.park(inbox.Parking{Message: bare, State: inbox.Dead, Attempts: 3}, inbox.Applied)

	got := i.parked(full)
	i.expectSame(&got.Message, full)
	if got.State != inbox.Retrying || got.Consumer != "service/handler" || got.Attempts != 7 ||
		got.LastError != "error “text”" || got.Reason != "" {
		i.Errorf("parked message is %+v", got)
	}
	if d := got.ParkedAt.Sub(before); d < -time.Minute || d > time.Minute {
		i.Errorf("message was parked %v after the test began", d)
	}
	if d := got.NextAttemptAt.Sub(got.ParkedAt); d < 59*time.Minute || d > 61*time.Minute {
		i.Errorf("next attempt is %v after parking", d)
	}
	got = i.parked(bare)
	i.expectSame(&got.Message, bare)
	if got.State != inbox.Dead || !got.NextAttemptAt.IsZero() || got.Attempts != 3 || !got.Digest.IsZero() || !got.Stamp.IsZero() {
		i.Errorf("parked message is %+v", got)
	}
}

func parkedIsClaimed[TX any](i *inboxRig[TX]) {
	for _, state := range []inbox.State{inbox.Retrying, inbox.Dead} {
		m := message("")
		i.park(inbox.Parking{Message: m, State: state, RetryIn: time.Hour, LastError: "first"}, inbox.Applied)
		i.park(inbox.Parking{Message: m, State: inbox.Dead, LastError: "second"}, inbox.Duplicate)
		i.expectVerdict(i.claim(m), inbox.Duplicate)
		i.expectVerdict(i.claim(otherContent(m)), inbox.Altered)
		if got := i.parked(m); got.State != state || got.LastError != "first" {
			i.Errorf("parked message is %+v", got)
		}
	}
	i.expectEffects()
}

func appliedIsNotParked[TX any](i *inboxRig[TX]) {
	m := message("")
	i.expectVerdict(i.claim(m), inbox.Applied)
	for _, state := range []inbox.State{inbox.Retrying, inbox.Dead} {
		i.park(inbox.Parking{Message: m, State: state}, inbox.Duplicate)
	}
	i.expectParked()
}

func setAside[TX any](i *inboxRig[TX]) {
	for _, state := range []inbox.State{inbox.TooOldState, inbox.AlteredState} {
		m, bare := message(""), message("")
		bare.Digest = transport.Digest{}
		for _, m := range []*inbox.Message{m, bare} {
			i.park(inbox.Parking{Message: m, State: state}, inbox.Applied)
			i.park(inbox.Parking{Message: m, State: state}, inbox.Duplicate)
			if got := i.parked(m); got.State != state {
				i.Errorf("parked message is %+v", got)
			}
			i.expectVerdict(i.claim(m), inbox.Applied)
		}
		// Messages of one ID with different contents are all kept.
		i.park(inbox.Parking{Message: otherContent(m), State: state}, inbox.Applied)
	}
	if n := len(i.list(inbox.Filter{})); n != 6 {
		i.Errorf("%d messages are parked, want 6", n)
	}
}

func parkedTooLate[TX any](i *inboxRig[TX]) {
	m := old("")
	i.forgetTo()
	i.park(inbox.Parking{Message: m, State: inbox.Retrying}, inbox.Applied)
	i.expectParked(inbox.TooOldState)
	i.expectVerdict(i.claim(m), inbox.TooOld)
	i.expectEffects()
}

func parkedAltered[TX any](i *inboxRig[TX]) {
	m := message("")
	i.expectVerdict(i.claim(m), inbox.Applied)
	i.park(inbox.Parking{Message: otherContent(m), State: inbox.Dead}, inbox.Applied)
	i.expectParked(inbox.AlteredState)
	i.expectVerdict(i.claim(m), inbox.Duplicate)
}

func parkingForgetsCounts[TX any](i *inboxRig[TX]) {
	m := message("")
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.park(inbox.Parking{Message: m, State: inbox.Retrying, Attempts: 1}, inbox.Applied)
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
}

func takeUpTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"due messages are named, the longest due ones first, and the next one", dueAreNamed[TX]},
		{"only the first live message of a key is due", onlyHeadsAreDue[TX]},
		{"parked message is applied once and keeps its claim", takenUpOnce[TX]},
		{"handler gets the parked message", handlerGetsParked[TX]},
		{"message that may not run now is left alone", notToRun[TX]},
		{"failed handler of a parked message leaves everything as it was", takeUpFails[TX]},
		{"panic and Goexit in the handler of a parked message roll back", takeUpAbrupt[TX]},
		{"swallowed error in the handler of a parked message is no success", takeUpSwallows[TX]},
		{"message that another process has is not taken up twice", takeUpRaces[TX]},
		{"messages of a key are taken up in order, and later ones become due", takeUpInOrder[TX]},
		{"failed attempt is counted and the message retries later", retriesLater[TX]},
		{"message that dies lets the next one of its key run", dyingReleases[TX]},
		{"late failure does not change a message that is not retrying", lateFailure[TX]},
	}
}

func dueAreNamed[TX any](i *inboxRig[TX]) {
	seqs, next, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
	i.ok(err)
	if len(seqs) != 0 || next != 0 {
		i.Errorf("without messages, %v are due and the next in %v", seqs, next)
	}
	a, b, later := message("a"), message("b"), message("c")
	i.park(inbox.Parking{Message: later, State: inbox.Retrying, RetryIn: time.Hour}, inbox.Applied)
	i.park(inbox.Parking{Message: message("d"), State: inbox.Dead}, inbox.Applied)
	i.retrying(a, b)
	want := []int64{i.parked(a).Seq, i.parked(b).Seq}
	seqs, next, err = i.Store.DueMessages(i.ctx(), i.consumer, 10)
	i.ok(err)
	if !slices.Equal(seqs, want) || next < 50*time.Minute || next > time.Hour {
		i.Errorf("due are %v and the next in %v, want %v and an hour", seqs, next, want)
	}
	seqs, _, err = i.Store.DueMessages(i.ctx(), i.consumer, 1)
	i.ok(err)
	if !slices.Equal(seqs, want[:1]) {
		i.Errorf("first due message is %v, want %v", seqs, want[:1])
	}
}

func onlyHeadsAreDue[TX any](i *inboxRig[TX]) {
	head, second, third, free := message("key"), message("key"), message("key"), message("key")
	i.park(inbox.Parking{Message: head, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour}, inbox.Applied)
	i.following(second)
	i.retrying(third)
	i.park(inbox.Parking{Message: free, State: inbox.Retrying}, inbox.Applied)
	seqs, _, err := i.Store.DueMessages(i.ctx(), i.consumer, 10)
	i.ok(err)
	if want := []int64{i.parked(free).Seq}; !slices.Equal(seqs, want) {
		i.Errorf("due are %v, want %v", seqs, want)
	}
}

func takenUpOnce[TX any](i *inboxRig[TX]) {
	for _, level := range levels {
		for _, key := range []string{"", "key"} {
			m := message(key)
			i.retrying(m)
			seq := i.parked(m).Seq
			done, err := i.applyParkedAt(level, seq)
			if err != nil || !done {
				i.Fatalf("handling a parked message gives %v, %v", done, err)
			}
			done, err = i.applyParkedAt(level, seq)
			if err != nil || done {
				i.Fatalf("handling the message again gives %v, %v", done, err)
			}
			i.expectParked()
			i.expectVerdict(i.claim(m), inbox.Duplicate)
			i.park(inbox.Parking{Message: m, State: inbox.Dead}, inbox.Duplicate)
		}
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != 2*len(levels) {
		i.Errorf("effects are %q", names)
	}
}

func handlerGetsParked[TX any](i *inboxRig[TX]) {
	m := message("key")
	m.Metadata = map[string]string{"\xff": "\x00"}
	i.retrying(m)
	seq := i.parked(m).Seq
	c := inbox.Claim{Consumer: i.consumer, IdleTimeout: patience, LockTimeout: patience}
	_, err := i.Store.ApplyParked(i.ctx(), c, seq, func(_ context.Context, _ TX, got *inbox.Parked) error {
		i.expectSame(&got.Message, m)
		if got.Seq != seq || got.Attempts != 1 || got.State != inbox.Retrying || got.Consumer != "service/handler" {
			i.Errorf("handler got %+v", got)
		}
		return nil
	})
	i.ok(err)
}

func notToRun[TX any](i *inboxRig[TX]) {
	later, dead, tooOld, changed := message("a"), message("b"), message("c"), message("d")
	head, follower := message("e"), message("e")
	i.park(inbox.Parking{Message: later, State: inbox.Retrying, RetryIn: time.Hour}, inbox.Applied)
	i.park(inbox.Parking{Message: dead, State: inbox.Dead}, inbox.Applied)
	i.park(inbox.Parking{Message: tooOld, State: inbox.TooOldState}, inbox.Applied)
	i.park(inbox.Parking{Message: changed, State: inbox.AlteredState}, inbox.Applied)
	i.park(inbox.Parking{Message: head, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour}, inbox.Applied)
	i.following(follower)
	for _, m := range []*inbox.Message{later, dead, tooOld, changed, head, follower} {
		i.takeUp(m, false)
	}
	c := inbox.Claim{Consumer: i.register("service/other"), IdleTimeout: patience, LockTimeout: patience}
	due := message("f")
	i.retrying(due)
	done, err := i.Store.ApplyParked(i.ctx(), c, i.parked(due).Seq, func(context.Context, TX, *inbox.Parked) error {
		i.Error("handler got a message of another consumer")
		return nil
	})
	if err != nil || done {
		i.Errorf("handling a message of another consumer gives %v, %v", done, err)
	}
	i.expectEffects()
}

// takeUpWith handles a parked message with fn.
func (i *inboxRig[TX]) takeUpWith(m *inbox.Message, fn handler[TX]) (bool, error) {
	c := inbox.Claim{Consumer: i.consumer, IdleTimeout: patience, LockTimeout: patience}
	return i.Store.ApplyParked(i.ctx(), c, i.parked(m).Seq, func(ctx context.Context, tx TX, _ *inbox.Parked) error {
		if err := i.Effect(ctx, tx, "lost"); err != nil {
			return err
		}
		return fn(ctx, tx)
	})
}

func takeUpFails[TX any](i *inboxRig[TX]) {
	m, follower := message("key"), message("key")
	i.retrying(m)
	i.following(follower)
	before := i.parked(m)
	done, err := i.takeUpWith(m, func(context.Context, TX) error { return errHandler })
	if done || err != errHandler { //nolint:errorlint // as it is
		i.Errorf("handling gives %v, %v", done, err)
	}
	if after := i.parked(m); after.Attempts != before.Attempts || !after.NextAttemptAt.Equal(before.NextAttemptAt) {
		i.Errorf("message changed from %+v to %+v", before, after)
	}
	i.expectParked(inbox.Retrying, inbox.Following)
	i.expectEffects()
}

func takeUpAbrupt[TX any](i *inboxRig[TX]) {
	m := message("key")
	i.retrying(m)
	i.exits(func() {
		_, _ = i.takeUpWith(m, func(context.Context, TX) error {
			runtime.Goexit()
			return nil
		})
	})
	var value any
	i.ok(i.result(i.async(func() error {
		defer func() { value = recover() }()
		_, err := i.takeUpWith(m, func(context.Context, TX) error { panic("panic of a handler") })
		return err
	})))
	if value != "panic of a handler" {
		i.Errorf("recovered %v", value)
	}
	i.expectEffects()
	i.takeUp(m, true)
	i.expectEffects(m.ID.String())
}

func takeUpSwallows[TX any](i *inboxRig[TX]) {
	if !i.ErrorsDoom {
		return
	}
	m := message("key")
	i.retrying(m)
	done, err := i.takeUpWith(m, func(ctx context.Context, tx TX) error {
		if err := i.Break(ctx, tx); err == nil {
			return errors.New("the statement has not failed")
		}
		return nil
	})
	if done || !errors.Is(err, inbox.ErrRolledBack) {
		i.Errorf("handling gives %v, %v", done, err)
	}
	i.expectClass(err, inbox.HandlerError)
	i.expectEffects()
	i.expectParked(inbox.Retrying)
}

func takeUpRaces[TX any](i *inboxRig[TX]) {
	for _, key := range []string{"", "key"} {
		m := message(key)
		i.retrying(m)
		seq := i.parked(m).Seq
		c := inbox.Claim{Consumer: i.consumer, IdleTimeout: patience, LockTimeout: patience}
		first := i.hold(m.ID.String(), func(fn handler[TX]) error {
			_, err := i.Store.ApplyParked(i.ctx(), c, seq, func(ctx context.Context, tx TX, _ *inbox.Parked) error {
				return fn(ctx, tx)
			})
			return err
		})
		var done bool
		second := i.async(func() (err error) {
			done, err = i.applyParked(seq)
			return err
		})
		if !i.OneWriter {
			i.ok(i.result(second)) // at once
		}
		i.ok(i.release(first, nil))
		if i.OneWriter {
			i.ok(i.result(second))
		}
		if done {
			i.Error("message was handled twice")
		}
	}
	names, err := i.Effects(i.ctx())
	i.ok(err)
	if len(names) != 2 {
		i.Errorf("effects are %q", names)
	}
}

func takeUpInOrder[TX any](i *inboxRig[TX]) {
	a, b, due, later, last := message("key"), message("key"), message("key"), message("key"), message("key")
	i.retrying(a)
	i.following(b)
	i.retrying(due)
	i.park(inbox.Parking{Message: later, State: inbox.Retrying, Ordered: true, RetryIn: time.Hour}, inbox.Applied)
	i.following(last)
	for _, level := range levels {
		done, err := i.applyParkedAt(level, i.parked(due).Seq)
		if err != nil || done {
			i.Errorf("handling a message before its predecessors gives %v, %v", done, err)
		}
	}
	i.takeUp(b, false)
	i.takeUp(a, true)
	i.expectParked(inbox.Retrying, inbox.Retrying, inbox.Retrying, inbox.Following)
	i.takeUp(due, false)
	i.drain()
	i.expectParked()
	i.expectEffects(a.ID.String(), b.ID.String(), due.ID.String(), later.ID.String(), last.ID.String())
	i.expectVerdict(i.ordered(message("key")), inbox.Applied)
}

func retriesLater[TX any](i *inboxRig[TX]) {
	m, follower := message("key"), message("key")
	i.retrying(m)
	i.following(follower)
	seq := i.parked(m).Seq
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 2, time.Hour, false, "second error"))
	got := i.parked(m)
	if got.State != inbox.Retrying || got.Attempts != 2 || got.LastError != "second error" ||
		got.NextAttemptAt.Sub(got.ParkedAt) < 59*time.Minute {
		i.Errorf("message is %+v", got)
	}
	i.takeUp(m, false)
	i.expectParked(inbox.Retrying, inbox.Following)
	i.expectStarts(0, []uuid.UUID{m.ID}, 1)
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 3, 0, false, ""))
	i.takeUp(m, true)
}

func dyingReleases[TX any](i *inboxRig[TX]) {
	m, second, third := message("key"), message("key"), message("key")
	i.retrying(m)
	i.following(second, third)
	i.ok(i.Store.RetryMessage(i.ctx(), i.parked(m).Seq, 10, 0, true, "last error"))
	got := i.parked(m)
	if got.State != inbox.Dead || got.Attempts != 10 || got.LastError != "last error" || !got.NextAttemptAt.IsZero() {
		i.Errorf("message is %+v", got)
	}
	i.expectParked(inbox.Dead, inbox.Retrying, inbox.Following)
	i.expectVerdict(i.claim(m), inbox.Duplicate)
	i.drain()
	i.expectEffects(second.ID.String(), third.ID.String())
	i.expectParked(inbox.Dead)
}

func lateFailure[TX any](i *inboxRig[TX]) {
	m := message("")
	i.retrying(m)
	seq := i.parked(m).Seq
	_, err := i.Store.DiscardMessages(i.ctx(), inbox.Filter{IDs: []uuid.UUID{m.ID}}, "reason")
	i.ok(err)
	for _, dead := range []bool{false, true} {
		i.ok(i.Store.RetryMessage(i.ctx(), seq, 2, 0, dead, "late"))
		i.ok(i.Store.RetryMessage(i.ctx(), seq+1000, 2, 0, dead, "none"))
	}
	i.expectParked(inbox.Discarded)
}
