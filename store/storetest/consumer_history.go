package storetest

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

func historyTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"failed attempts are kept one by one, delivered and parked", historyKeepsFailures[TX]},
		{"only a counted attempt is kept", historyCounts[TX]},
		{"message that is dead without an attempt says why", historyDead[TX]},
		{"what operators did is kept", historyOperators[TX]},
		{"history is one consumer's, or all's", historyOfConsumers[TX]},
		{"old entries are forgotten, the oldest first, and no other", historyForgotten[TX]},
	}
}

// wantHistory checks outcomes and errors, in pairs.
func (i *inboxRig[TX]) wantHistory(m *inbox.Message, want ...string) {
	i.Helper()
	list, err := i.Store.MessageAttempts(i.ctx(), "service/handler", m.ID, 100)
	i.ok(err)
	var got []string
	for n, a := range list {
		got = append(got, a.Outcome, a.Error)
		if a.Consumer != "service/handler" || time.Since(a.At).Abs() > time.Minute || n > 0 && a.At.Before(list[n-1].At) {
			i.Errorf("attempt is %+v", a)
		}
	}
	if !slices.Equal(got, want) {
		i.Errorf("history is %q, want %q", got, want)
	}
}

func (i *inboxRig[TX]) fails(m *inbox.Message, why string) {
	i.Helper()
	_, err := i.Store.Failed(i.ctx(), i.consumer, m.ID, why)
	i.ok(err)
}

// parkedSeq parks m with a number of attempts and returns its Seq.
func (i *inboxRig[TX]) parkedSeq(m *inbox.Message, state inbox.State, attempts int) int64 {
	i.Helper()
	_, err := i.Store.ParkMessage(i.ctx(), inbox.Parking{Consumer: i.consumer, Message: m, State: state, Attempts: attempts, LastError: "parked"})
	i.ok(err)
	list, err := i.Store.ListParkedMessages(i.ctx(), inbox.Filter{IDs: messageIDs(m)})
	i.ok(err)
	if len(list) != 1 {
		i.Fatalf("%d messages are parked", len(list))
	}
	return list[0].Seq
}

func historyKeepsFailures[TX any](i *inboxRig[TX]) {
	m := message("")
	i.fails(m, "first ü")
	i.fails(m, "second")
	seq := i.parkedSeq(m, inbox.Retrying, 2)
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 3, 0, false, "third"))
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 4, 0, true, "last"))
	i.wantHistory(m, "failed", "first ü", "failed", "second", "failed", "third", "failed", "last")
	list, err := i.Store.MessageAttempts(i.ctx(), "", m.ID, 2)
	i.ok(err)
	if len(list) != 2 || list[1].Error != "second" {
		i.Errorf("with a limit the history is %+v", list)
	}
}

func historyCounts[TX any](i *inboxRig[TX]) {
	m := message("")
	seq := i.parkedSeq(m, inbox.Retrying, 2)
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 2, 0, false, "put back"))
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 2, 0, true, "kills the process"))
	i.ok(i.Store.RetryMessage(i.ctx(), seq, 9, 0, false, "too late"))
	i.wantHistory(m, "dead", "kills the process")
}

func historyDead[TX any](i *inboxRig[TX]) {
	refused, counted, again := message(""), message(""), message("")
	i.parkedSeq(refused, inbox.Dead, 0)
	i.wantHistory(refused, "dead", "parked")
	i.parkedSeq(counted, inbox.Dead, 3)
	i.wantHistory(counted)
	for range 2 { // a copy is not another attempt
		i.parkedSeq(again, inbox.Dead, 0)
	}
	i.wantHistory(again, "dead", "parked")
}

func historyOperators[TX any](i *inboxRig[TX]) {
	m := message("")
	i.parkedSeq(m, inbox.Dead, 1)
	i.redrive(inbox.Filter{IDs: messageIDs(m)}, m)
	i.discard(inbox.Filter{IDs: messageIDs(m)}, m)
	i.discard(inbox.Filter{IDs: messageIDs(m)})
	i.wantHistory(m, "redriven", "mended", "discarded", "because")
}

func historyOfConsumers[TX any](i *inboxRig[TX]) {
	m := message("")
	i.fails(m, "mine")
	other := i.register("service/other")
	_, err := i.Store.Failed(i.ctx(), other, m.ID, "theirs")
	i.ok(err)
	i.wantHistory(m, "failed", "mine")
	all, err := i.Store.MessageAttempts(i.ctx(), "", m.ID, 10)
	i.ok(err)
	if len(all) != 2 || all[0].Consumer != "service/handler" || all[1].Consumer != "service/other" {
		i.Errorf("history of all consumers is %+v", all)
	}
}

func historyForgotten[TX any](i *inboxRig[TX]) {
	m := message("")
	other := i.register("service/other")
	_, err := i.Store.Failed(i.ctx(), other, m.ID, "theirs")
	i.ok(err)
	for _, why := range []string{"1", "2", "3"} {
		i.fails(m, why)
	}
	forget := func(age time.Duration, limit, want int) {
		n, err := i.Store.ForgetHistory(i.ctx(), i.consumer, age, limit)
		i.ok(err)
		if n != want {
			i.Errorf("%d entries are forgotten, want %d", n, want)
		}
	}
	forget(time.Hour, 10, 0)
	forget(-time.Hour, 2, 2)
	i.wantHistory(m, "failed", "3")
	forget(-time.Hour, 2, 1)
	all, err := i.Store.MessageAttempts(i.ctx(), "", m.ID, 10)
	i.ok(err)
	if len(all) != 1 || all[0].Error != "theirs" {
		i.Errorf("remaining history is %+v", all)
	}
}

func messageIDs(messages ...*inbox.Message) []uuid.UUID {
	ids := make([]uuid.UUID, len(messages))
	for n, m := range messages {
		ids[n] = m.ID
	}
	return ids
}

// AllAttempts tests that a store with the setting AllAttempts keeps applied messages in the
// history: messages applied alone, in a group, and after they were parked.
func AllAttempts[TX any](t *testing.T, f InboxFixture[TX]) {
	t.Helper()
	i := &inboxRig[TX]{rig: rig{t}, InboxFixture: f}
	i.consumer = i.register("service/handler")
	alone, together, parked := message(""), message(""), message("")
	work := func(context.Context, TX) error { return nil }
	_, err := i.Store.Apply(i.ctx(), i.claim(alone), work)
	i.ok(err)
	_, err = i.Store.ApplyGroup(i.ctx(), []inbox.Claim{i.claim(alone), i.claim(together)},
		func(context.Context, TX, []int) error { return nil })
	i.ok(err)
	seq := i.parkedSeq(parked, inbox.Retrying, 1)
	_, err = i.Store.ApplyParked(i.ctx(), i.claim(parked), seq,
		func(context.Context, TX, *inbox.Parked) error { return nil })
	i.ok(err)
	for _, m := range []*inbox.Message{alone, together, parked} {
		i.wantHistory(m, "applied", "")
	}
}

// InboxStatus tests the view inbox_status of a store, from which status reads one row.
func InboxStatus[TX any](t *testing.T, f InboxFixture[TX], status func(id uuid.UUID) (state, why string, attempts int, err error)) {
	t.Helper()
	i := &inboxRig[TX]{rig: rig{t}, InboxFixture: f}
	i.consumer = i.register("service/handler")
	want := func(m *inbox.Message, wantState, wantWhy string, wantAttempts int) {
		t.Helper()
		state, why, attempts, err := status(m.ID)
		if err != nil || state != wantState || !strings.Contains(why, wantWhy) || attempts != wantAttempts {
			t.Errorf("status is %s (%s) after %d attempts, %v; want %s (%s) after %d", state, why, attempts, err, wantState, wantWhy, wantAttempts)
		}
	}
	m, first, second := message(""), message("key"), message("key")
	i.fails(m, "once")
	_, err := i.Store.Apply(i.ctx(), i.claim(m), func(context.Context, TX) error { return nil })
	i.ok(err)
	want(m, "applied", "applied", 1)
	_, err = i.Store.ParkMessage(i.ctx(), inbox.Parking{
		Consumer: i.consumer, Message: first, State: inbox.Retrying, Ordered: true, Attempts: 3, RetryIn: time.Hour,
	})
	i.ok(err)
	_, err = i.Store.Apply(i.ctx(), i.ordered(second), func(context.Context, TX) error { return nil })
	i.ok(err)
	want(first, "retrying", "waits for its next attempt", 3)
	want(second, "following", "of its key", 0)
	i.discard(inbox.Filter{IDs: messageIDs(first)}, first)
	want(first, "discarded", "because", 3)
	i.eventually("the follower is due, by a clock that may tell milliseconds only", func() bool {
		_, why, _, err := status(second.ID)
		i.ok(err)
		return strings.Contains(why, "to be taken up")
	})
	want(second, "retrying", "to be taken up", 0)
}
