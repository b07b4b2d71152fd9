package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

func messageSearchTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"search finds a message in any state and says why it waits", searchMessageStates[TX]},
		{"search says of a parked message all that is kept", searchMessageTells[TX]},
		{"search selects messages by every field of the query", searchMessageSelects[TX]},
		{"search of messages is bounded", searchMessagesBounded[TX]},
		{"search finds the states of effects", searchEffects[TX]},
		{"causes count parked messages by what they have in common", searchMessageCauses[TX]},
	}
}

func (i *inboxRig[TX]) searcher() inbox.Searcher {
	i.Helper()
	s, ok := i.Store.(inbox.Searcher)
	if !ok {
		i.Fatalf("%T is no inbox.Searcher", i.Store)
	}
	return s
}

func (i *inboxRig[TX]) search(q inbox.Query) inbox.Results {
	i.Helper()
	r, err := i.searcher().SearchMessages(i.ctx(), q)
	i.ok(err)
	return r
}

// expectFound checks the results of a search, in order.
func (i *inboxRig[TX]) expectFound(name string, q inbox.Query, want ...*inbox.Message) inbox.Results {
	i.Helper()
	r := i.search(q)
	var got, ids []uuid.UUID
	for _, m := range r.Messages {
		got = append(got, m.ID)
	}
	for _, m := range want {
		ids = append(ids, m.ID)
	}
	if !slices.Equal(got, ids) {
		i.Errorf("%s: found %v, want %v", name, got, ids)
	}
	return r
}

// expectWhy checks state and reason of the only message with an ID.
func (i *inboxRig[TX]) expectWhy(m *inbox.Message, state inbox.State, why string) inbox.Found {
	i.Helper()
	r := i.search(inbox.Query{IDs: []uuid.UUID{m.ID}})
	if len(r.Messages) != 1 || r.More {
		i.Fatalf("found %d messages, more %t, want 1", len(r.Messages), r.More)
	}
	f := r.Messages[0]
	if f.State != state || f.Why != why || f.Consumer != "service/handler" {
		i.Errorf("message of %s is %s (%s), want %s (%s)", f.Consumer, f.State, f.Why, state, why)
	}
	return f
}

// states are messages in each state.
type states struct{ applied, first, second, dead, gone, other, late *inbox.Message }

func (i *inboxRig[TX]) inStates() states {
	i.Helper()
	s := states{applied: message("a"), first: message("key"), second: message("key"), dead: message("a"), gone: message("a"), late: old("a")}
	s.other = otherContent(s.applied)
	i.expectVerdict(i.claim(s.applied), inbox.Applied)
	i.park(inbox.Parking{Message: s.first, State: inbox.Retrying, Ordered: true, Attempts: 2, RetryIn: long, LastError: "no answer"}, inbox.Applied)
	i.following(s.second)
	i.park(inbox.Parking{Message: s.dead, State: inbox.Dead, Attempts: 10, LastError: "no stock"}, inbox.Applied)
	i.park(inbox.Parking{Message: s.gone, State: inbox.Dead}, inbox.Applied)
	i.discard(inbox.Filter{IDs: []uuid.UUID{s.gone.ID}}, s.gone)
	i.park(inbox.Parking{Message: s.other, State: inbox.AlteredState}, inbox.Applied)
	i.forgetTo()
	i.park(inbox.Parking{Message: s.late, State: inbox.TooOldState}, inbox.Applied)
	return s
}

func searchMessageStates[TX any](i *inboxRig[TX]) {
	s := i.inStates()
	i.expectWhy(s.first, inbox.Retrying, "waits for its next attempt")
	found := i.expectWhy(s.second, inbox.Following, "waits for message "+s.first.ID.String()+" of its key")
	if found.WaitsFor != s.first.ID {
		i.Errorf("message waits for %v, want %v", found.WaitsFor, s.first.ID)
	}
	i.expectWhy(s.dead, inbox.Dead, "its attempts are used up, or none would help")
	if found = i.expectWhy(s.gone, inbox.Discarded, "discarded: because"); found.Reason != "because" {
		i.Errorf("discarded message is %+v", found)
	}
	i.expectWhy(s.late, inbox.TooOldState, "the consumer has forgotten the time that it is from")
	both := i.expectFound("altered and applied", inbox.Query{IDs: []uuid.UUID{s.applied.ID}}, s.other, s.applied).Messages
	for n, want := range []inbox.Found{
		{Message: *s.other, State: inbox.AlteredState, Why: "its dispatch ID was claimed with other content"},
		{Message: *s.applied, State: inbox.AppliedState, Why: "applied"},
	} {
		got := both[n]
		if got.State != want.State || got.Why != want.Why || got.Digest != want.Digest || !got.Stamp.Equal(want.Stamp) || got.Since.IsZero() {
			i.Errorf("found %+v, want %+v", got, want)
		}
	}
	for state, want := range map[inbox.State]*inbox.Message{
		inbox.AppliedState: s.applied, inbox.Retrying: s.first, inbox.Following: s.second, inbox.Dead: s.dead, inbox.Discarded: s.gone,
		inbox.AlteredState: s.other, inbox.TooOldState: s.late,
	} {
		i.expectFound(string(state), inbox.Query{States: []inbox.State{state}}, want)
	}
	i.expectFound("all", inbox.Query{}, s.late, s.other, s.gone, s.dead, s.second, s.first, s.applied)
}

func searchMessageTells[TX any](i *inboxRig[TX]) {
	first := i.inStates().first
	for _, content := range []bool{false, true} {
		r := i.search(inbox.Query{IDs: []uuid.UUID{first.ID}, Content: content})
		if len(r.Messages) != 1 {
			i.Fatalf("found %d messages, want 1", len(r.Messages))
		}
		m := r.Messages[0]
		if content != (string(m.Payload) == "payload") || content != (m.Metadata["name"] == "value") || !content && (m.Payload != nil || m.Metadata != nil) {
			i.Errorf("with Content %t, payload is %q and metadata are %v", content, m.Payload, m.Metadata)
		}
		p := i.parked(first)
		want := inbox.Found{
			Message: p.Message, Consumer: "service/handler", State: inbox.Retrying, Why: m.Why, Seq: p.Seq, Attempts: 2, Since: p.ParkedAt,
			NextAttemptAt: p.NextAttemptAt, LastError: "no answer",
		}
		m.Payload, m.Metadata = want.Payload, want.Metadata
		if fmt.Sprintf("%+v", m) != fmt.Sprintf("%+v", want) {
			i.Errorf("found %+v, want %+v", m, want)
		}
	}
}

func searchMessageSelects[TX any](i *inboxRig[TX]) {
	one, two, a, b := message("x"), message("y"), message("key a"), message("key b")
	b.Topic = "other"
	a.Metadata = map[string]string{transport.MetaSource: "order/7", transport.MetaCorrelationID: "request 7"}
	i.expectVerdict(i.claim(one), inbox.Applied)
	since := i.search(inbox.Query{}).Messages[0].Since
	i.eventually("the clock goes on", func() bool { return time.Since(since) > 2*time.Millisecond })
	i.expectVerdict(i.claim(two), inbox.Applied)
	i.park(inbox.Parking{Message: a, State: inbox.Retrying, Ordered: true, Attempts: 1, LastError: "50% of stock"}, inbox.Applied)
	elsewhere := i.register("service/other")
	_, err := i.Store.ParkMessage(i.ctx(), inbox.Parking{Consumer: elsewhere, Message: b, State: inbox.Dead})
	i.ok(err)
	from, to := a.ID, a.ID
	for at := 6; at < len(from); at++ {
		from[at], to[at] = 0, 0xff
	}
	appliedFrom, appliedTo := one.ID, one.ID
	appliedFrom[15], appliedTo[15] = 0, 0xff
	later := i.search(inbox.Query{IDs: []uuid.UUID{two.ID}}).Messages[0].Since
	for _, c := range []struct {
		name string
		q    inbox.Query
		want []*inbox.Message
	}{
		{"IDs", inbox.Query{IDs: []uuid.UUID{b.ID, uuid.New(), two.ID, a.ID}}, []*inbox.Message{b, a, two}},
		{"first digits of a parked message", inbox.Query{From: from, To: to}, []*inbox.Message{a}},
		{"first digits of an applied message", inbox.Query{From: appliedFrom, To: appliedTo}, []*inbox.Message{one}},
		{"consumer", inbox.Query{Consumer: "service/other"}, []*inbox.Message{b}},
		{"other consumer", inbox.Query{Consumer: "service"}, nil},
		{"topic", inbox.Query{Topic: "other"}, []*inbox.Message{b}},
		{"key", inbox.Query{Key: "key a"}, []*inbox.Message{a}},
		{"named by the key", inbox.Query{Named: "key b"}, []*inbox.Message{b}},
		{"named by the key, which waits", inbox.Query{Named: "key a", Scan: 1}, []*inbox.Message{a}},
		{"named by the source", inbox.Query{Named: "order/7"}, []*inbox.Message{a}},
		{"named by the correlation ID", inbox.Query{Named: "request 7", States: []inbox.State{inbox.Retrying}}, []*inbox.Message{a}},
		{"named by the correlation ID, in another state", inbox.Query{Named: "request 7", States: []inbox.State{inbox.Dead}}, nil},
		{"named by the correlation ID, beyond the bound", inbox.Query{Named: "request 7", Scan: 1}, nil},
		{"part of a name", inbox.Query{Named: "request"}, nil},
		{"part of the error", inbox.Query{Error: "0% of"}, []*inbox.Message{a}},
		{"other error", inbox.Query{Error: "0_ of"}, nil},
		{"states", inbox.Query{States: []inbox.State{inbox.Dead, inbox.AppliedState}}, []*inbox.Message{b, two, one}},
		{"since", inbox.Query{Since: later}, []*inbox.Message{b, a, two}},
		{"until", inbox.Query{Until: later}, []*inbox.Message{one}},
		{"limit", inbox.Query{Limit: 3}, []*inbox.Message{b, a, two}},
	} {
		r := i.expectFound(c.name, c.q, c.want...)
		if r.More != (c.q.Limit > 0) {
			i.Errorf("%s: more is %t", c.name, r.More)
		}
	}
}

func searchMessagesBounded[TX any](i *inboxRig[TX]) {
	first := message("a")
	i.expectVerdict(i.claim(first), inbox.Applied)
	until := i.search(inbox.Query{}).Messages[0].Since.Add(time.Microsecond)
	i.eventually("the clock goes on", func() bool { return time.Since(until) > 2*time.Millisecond })
	for range 10 {
		i.expectVerdict(i.claim(message("a")), inbox.Applied)
	}
	if r := i.expectFound("within the bound", inbox.Query{Until: until, Scan: 5}); !r.More {
		i.Error("search that was ended by its bound does not say so")
	}
	if r := i.expectFound("beyond the bound", inbox.Query{Until: until, Scan: 50}, first); r.More {
		i.Error("search that has seen all says that there is more")
	}
}

func searchEffects[TX any](i *inboxRig[TX]) {
	store, ok := i.Store.(inbox.EffectStore[TX])
	if !ok {
		i.Fatalf("%T is no inbox.EffectStore", i.Store)
	}
	first, second, done := message("key"), message("key"), message("other")
	first.Metadata = map[string]string{transport.MetaCorrelationID: "request 1"}
	for _, m := range []*inbox.Message{first, second, done} {
		_, err := i.Store.Apply(i.ctx(), i.claim(m), i.preparing(store, m))
		i.ok(err)
	}
	runs, _, err := store.TakeEffects(i.ctx(), inbox.EffectTake{Consumer: i.consumer, Limit: 10, Lease: long, MaxAttempts: 3})
	i.ok(err)
	for n := range runs {
		r := &runs[n]
		switch r.ID {
		case first.ID:
			_, err = store.SettleEffect(i.ctx(), r, inbox.EffectOutcome{State: inbox.EffectUncertain, Uncertain: true, Attempts: 1, LastError: "no answer"})
		case done.ID:
			c := inbox.Claim{Consumer: i.consumer, IdleTimeout: patience, LockTimeout: patience}
			_, err = store.FinishEffect(i.ctx(), c, r, []byte("result"), i.effect("done"))
		}
		i.ok(err)
	}
	found := i.expectWhy(first, "effect_uncertain", "it may have been carried out, and nobody asks again: to be resolved")
	if found.LastError != "no answer" || found.Topic != "topic" || found.Key != "key" || found.Attempts != 1 || found.Digest != first.Digest || !found.Stamp.Equal(first.Stamp) {
		i.Errorf("message with an uncertain effect is %+v", found)
	}
	found = i.expectWhy(second, "effect_pending", "waits for the effect of message "+first.ID.String()+" of its key")
	if found.WaitsFor != first.ID {
		i.Errorf("effect waits for %v, want %v", found.WaitsFor, first.ID)
	}
	i.expectWhy(done, inbox.AppliedState, "applied")
	i.expectFound("by state", inbox.Query{States: []inbox.State{"effect_uncertain"}}, first)
	i.expectFound("by key", inbox.Query{Key: "key"}, second, first)
	i.expectFound("named by the key", inbox.Query{Named: "key"}, second, first)
	i.expectFound("named by the correlation ID", inbox.Query{Named: "request 1"}, first)
	i.expectFound("by error", inbox.Query{Error: "no answer"}, first)
	_, err = store.ChangeEffects(i.ctx(), inbox.EffectFilter{IDs: []uuid.UUID{first.ID}}, inbox.EffectChange{State: inbox.EffectDiscarded, Reason: "given up"})
	i.ok(err)
	if found = i.expectWhy(first, "effect_discarded", "discarded: given up"); found.Reason != "given up" {
		i.Errorf("message with a discarded effect is %+v", found)
	}
	i.expectFound("discarded", inbox.Query{States: []inbox.State{"effect_discarded"}}, first)
	if r := i.search(inbox.Query{}); len(r.Messages) != 3 || !strings.HasPrefix(string(r.Messages[2].State), "effect_") {
		i.Errorf("found %+v", r.Messages)
	}
}

// preparing is a handler that records an effect of a message.
func (i *inboxRig[TX]) preparing(store inbox.EffectStore[TX], m *inbox.Message) handler[TX] {
	return func(ctx context.Context, tx TX) error {
		return store.PrepareEffect(ctx, tx, inbox.EffectIntent{
			Consumer: i.consumer, ID: m.ID, Key: uuid.New(), Topic: m.Topic, OrderKey: m.Key, Ordered: true, Metadata: m.Metadata, Intent: []byte("intent"),
		})
	}
}

func searchMessageCauses[TX any](i *inboxRig[TX]) {
	for range 3 {
		i.park(inbox.Parking{Message: message("a"), State: inbox.Dead, LastError: "no stock"}, inbox.Applied)
	}
	last := i.list(inbox.Filter{})[2]
	i.retrying(message("key"))
	list, err := i.searcher().MessageCauses(i.ctx(), inbox.Filter{After: 1 << 40})
	i.ok(err)
	if len(list) != 2 || list[0].Count != 3 || list[0].Consumer != "service/handler" || list[0].State != inbox.Dead || list[0].Topic != "topic" ||
		list[0].Error != "no stock" || list[0].Example != last.ID || !list[0].Last.Equal(last.ParkedAt) || list[0].First.After(list[0].Last) || list[0].First.IsZero() {
		i.Errorf("causes are %+v", list)
	}
	list, err = i.searcher().MessageCauses(i.ctx(), inbox.Filter{Limit: 1, States: []inbox.State{inbox.Retrying}})
	i.ok(err)
	if len(list) != 1 || list[0].Count != 1 {
		i.Errorf("causes of retrying messages are %+v", list)
	}
}
