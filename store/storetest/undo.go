package storetest

import (
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

func redriveRetrying[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.park(0, long)
	h.follow(1)
	h.retry(0, 2, long, false, false)
	o.expectDue(h.lease.Shard)
	h.redrive(h.events[0])
	o.expectDue(h.lease.Shard, h.events[0])
	h.retry(0, 3, long, true, false) // the failure of an attempt that was under way
	o.expectParked(h.state(0, outbox.Retrying, 0), h.state(1, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[0])
	h.retry(0, 1, long, false, false)
	o.expectParked(h.state(0, outbox.Retrying, 1), h.state(1, outbox.Following, 0))
	if r := h.renew(); !r.Rewind || r.RewindTo > h.events[0].Seq {
		o.Errorf("renewal is %+v after a redrive of %d", r, h.events[0].Seq)
	}
}

func redriveDiscarded[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.park(0, long)
	h.follow(1, 2)
	h.discard(h.events[0], h.events[2])
	o.expectParked(h.state(0, outbox.Discarded, 1), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Discarded, 0))
	undo := outbox.Filter{States: []outbox.State{outbox.Discarded}}
	got, _, err := o.Store.Redrive(o.ctx(), undo, "discarded by mistake")
	o.ok(err)
	if !slices.Equal(got, []uuid.UUID{h.events[0].ID, h.events[2].ID}) {
		o.Fatalf("redriven are %v", got)
	}
	o.expectParked(h.state(0, outbox.Retrying, 0), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Retrying, 0))
	if p := o.parked()[0]; p.Reason != "" || string(p.Payload) != "0" || p.LastError == "" {
		o.Errorf("redriven event is %+v", p)
	}
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 3 || attempts[1].Outcome != "discarded" || attempts[1].Error != "the operator's reason" ||
		attempts[2].Outcome != "redriven" || attempts[2].Error != "discarded by mistake" {
		o.Errorf("attempts are %+v", attempts)
	}
	r, err := o.Store.RemoveDiscarded(o.ctx(), over, 10)
	o.ok(err)
	o.expectRemoved(r, 0, 0, 0)
	for i := range 3 {
		o.expectDue(h.lease.Shard, h.events[i])
		h.sent(i)
	}
	o.expectParked()
}

// redriveOrRemove races operators with a janitor. An event that neither has is a discarded event.
func redriveOrRemove[TX any](o *outboxRig[TX]) {
	const n = 40
	h := o.ownKey(n)
	for i := range n {
		h.parkDead(i)
	}
	again := func(do func() error) <-chan error {
		return o.async(func() (err error) {
			for err = do(); err != nil && o.Store.Retryable(err); {
				err = do()
			}
			return err
		})
	}
	var redriven []uuid.UUID
	removed := 0
	for _, e := range h.events { // both begin at once, for each event
		h.discard(e)
		redriving := again(func() error {
			got, _, err := o.Store.Redrive(o.ctx(), outbox.Filter{IDs: []uuid.UUID{e.ID}, States: []outbox.State{outbox.Discarded}}, "reason")
			redriven = append(redriven, got...)
			return err
		})
		removing := again(func() error {
			r, err := o.Store.RemoveDiscarded(o.ctx(), over, n)
			removed += r.Events
			return err
		})
		o.ok(o.result(redriving))
		o.ok(o.result(removing))
	}
	if len(redriven)+removed != n {
		o.Errorf("%d events are redriven and %d are removed, want %d in all", len(redriven), removed, n)
	}
	left := make(map[uuid.UUID]bool)
	for _, p := range o.parked() {
		left[p.ID] = true
		if p.State != outbox.Retrying || len(p.Payload) == 0 {
			o.Errorf("event that is left is %+v", p)
		}
	}
	for _, e := range h.events {
		attempts, err := o.Store.Attempts(o.ctx(), e.ID, 10)
		o.ok(err)
		if want := slices.Contains(redriven, e.ID); left[e.ID] != want || (len(attempts) == 3) != want || (len(attempts) == 0) == want {
			o.Errorf("event %d: redriven %v, parked %v, attempts %+v", e.Seq, want, left[e.ID], attempts)
		}
	}
}

var undo = inbox.Filter{States: []inbox.State{inbox.Discarded}}

func redriveGivenUp[TX any](i *inboxRig[TX]) {
	first, head, follower, other := message("key"), message("key"), message("key"), message("")
	i.park(inbox.Parking{Message: first, State: inbox.Dead, Ordered: true, Attempts: 10, LastError: "no stock"}, inbox.Applied)
	i.retrying(head)
	i.following(follower)
	i.park(inbox.Parking{Message: other, State: inbox.Dead, Attempts: 10}, inbox.Applied)
	i.discard(inbox.Filter{IDs: messageIDs(first, follower, other)}, first, follower, other)
	i.redrive(undo, first, follower, other)
	i.redrive(undo)
	i.expectStates([]*inbox.Message{first, head, follower, other}, inbox.Retrying, inbox.Retrying, inbox.Following, inbox.Retrying)
	got := i.parked(first)
	i.expectSame(&got.Message, first)
	if got.Reason != "" || got.Attempts != 0 || got.NextAttemptAt.IsZero() {
		i.Errorf("redriven message is %+v", got)
	}
	i.wantHistory(first, "discarded", "because", "redriven", "mended")
	n, err := i.Store.ForgetDiscarded(i.ctx(), i.consumer, over, 10)
	i.ok(err)
	if n != 0 {
		i.Errorf("%d redriven messages were removed", n)
	}
	i.discard(inbox.Filter{IDs: messageIDs(other)}, other)
	i.drain()
	i.expectEffects(first.ID.String(), head.ID.String(), follower.ID.String())
	i.expectParked(inbox.Discarded)
	for _, m := range []*inbox.Message{first, follower, other} {
		i.expectVerdict(i.claim(m), inbox.Duplicate)
	}
}

func redriveGivenUpAltered[TX any](i *inboxRig[TX]) {
	m := message("")
	i.expectVerdict(i.claim(m), inbox.Applied)
	other := otherContent(m)
	i.park(inbox.Parking{Message: other, State: inbox.AlteredState}, inbox.Applied)
	giveUp := func() {
		i.Helper()
		i.discard(inbox.Filter{States: []inbox.State{inbox.AlteredState}}, other)
	}
	giveUp()
	i.redrive(undo, other)
	i.takeUp(m, false)
	i.expectParked(inbox.AlteredState)
	giveUp()
	i.redrive(inbox.Filter{States: undo.States, Force: true}, other)
	i.takeUp(m, true)
	i.expectParked()
	i.expectEffects(m.ID.String(), m.ID.String())
	i.expectVerdict(i.claim(m), inbox.Duplicate)

	late := message("")
	i.park(inbox.Parking{Message: late, State: inbox.TooOldState}, inbox.Applied)
	i.discard(inbox.Filter{IDs: messageIDs(late)}, late)
	i.redrive(undo, late)
	i.takeUp(late, true)
	i.expectVerdict(i.claim(late), inbox.Duplicate)
}

// redriveOrForget races an operator with a janitor.
func redriveOrForget[TX any](i *inboxRig[TX]) {
	const n = 40
	all := make(map[uuid.UUID]*inbox.Message, n)
	for range n {
		m := message("")
		all[m.ID] = m
		i.park(inbox.Parking{Message: m, State: inbox.Dead}, inbox.Applied)
	}
	_, err := i.Store.DiscardMessages(i.ctx(), inbox.Filter{Limit: n}, "because")
	i.ok(err)
	var redriven []uuid.UUID
	forgotten := 0
	redriving := i.async(func() error {
		for {
			var got []uuid.UUID
			err := i.again(func() (err error) {
				got, err = i.Store.RedriveMessages(i.ctx(), inbox.Filter{States: undo.States, Limit: 3}, "mended")
				return err
			})
			if redriven = append(redriven, got...); err != nil || len(got) == 0 {
				return err
			}
		}
	})
	forgetting := i.async(func() error {
		for {
			gone := 0
			err := i.again(func() (err error) {
				gone, err = i.Store.ForgetDiscarded(i.ctx(), i.consumer, over, 3)
				return err
			})
			if forgotten += gone; err != nil || gone == 0 {
				return err
			}
		}
	})
	i.ok(i.result(redriving))
	i.ok(i.result(forgetting))
	if len(redriven)+forgotten != n {
		i.Errorf("%d messages are redriven and %d are forgotten, want %d in all", len(redriven), forgotten, n)
	}
	left := 0
	for _, p := range i.list(inbox.Filter{Limit: n}) {
		if left++; p.State != inbox.Retrying || !slices.Contains(redriven, p.ID) {
			i.Errorf("message that is left is %+v", p)
		}
	}
	if left != len(redriven) {
		i.Errorf("%d messages are left of %d that were redriven", left, len(redriven))
	}
	for id, m := range all {
		attempts, err := i.Store.MessageAttempts(i.ctx(), "", id, 10)
		i.ok(err)
		was := slices.ContainsFunc(attempts, func(a inbox.Attempt) bool { return a.Outcome == "redriven" })
		if was != slices.Contains(redriven, id) {
			i.Errorf("history of message %v is %+v", m.ID, attempts)
		}
	}
}
