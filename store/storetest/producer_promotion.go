package storetest

import (
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

func promotionTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "sent head makes the next event the head", run: sentPromotes[TX]},
		{fact: "dead head makes the next event the head", run: deadPromotes[TX]},
		{fact: "dead head on hold keeps the next event following", run: deadHolds[TX]},
		{fact: "dead event holds what was promoted behind it", run: deadHoldsPromoted[TX]},
		{fact: "sent head on hold promotes nothing behind a dead event", run: sentBeforeDead[TX]},
		{fact: "heal promotes what is before a dead event on hold", run: healBeforeDead[TX]},
		{fact: "several sent heads promote one event", run: sentTogether[TX]},
		{fact: "two heads are never due", run: neverTwoHeads[TX]},
		{fact: "heal makes a follower without a head the head", run: healPromotes[TX]},
		{fact: "heal leaves heads, other shards and keys on hold alone", run: healLeavesAlone[TX]},
		{fact: "heal of a lost shard changes nothing", run: healIsFenced[TX]},
		{fact: "follower that was sent and failed is retrying", run: followerFails[TX]},
		{fact: "late failure does not revive a discarded event", run: retryAfterDiscard[TX]},
	}
}

func sentPromotes[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, long)
	h.follow(1, 2)
	h.sent(0)
	o.expectParked(h.state(1, outbox.Retrying, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[1])
	h.sent(1)
	o.expectDue(h.lease.Shard, h.events[2])
	h.sent(2)
	o.expectParked()
	h.expectBlocked(true)
}

func deadPromotes[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, 0)
	h.follow(1, 2)
	h.retry(0, 2, 0, true, false)
	o.expectParked(h.state(0, outbox.Dead, 2), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[1])
}

func deadHolds[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, 0)
	h.follow(1, 2)
	h.retry(0, 2, 0, true, true)
	want := []parkedState{h.state(0, outbox.Dead, 2), h.state(1, outbox.Following, 0), h.state(2, outbox.Following, 0)}
	o.expectParked(want...)
	o.expectDue(h.lease.Shard)
	h.heal(true)
	o.expectParked(want...)
	h.expectBlocked(true, "key")
	h.discard(h.events[0])
	o.expectDue(h.lease.Shard, h.events[1])
}

// deadHoldsPromoted redrives the first of two dead events of a key.
func deadHoldsPromoted[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.park(0, 0)
	h.follow(1, 2)
	h.retry(0, 2, 0, true, true)
	h.retry(1, 1, 0, true, true)
	h.redrive(h.events[0])
	h.dueOnHold(h.events[0])
	h.sent(0)
	h.dueOnHold()
	o.expectDue(h.lease.Shard, h.events[2])
	h.retry(2, 1, long, false, true)
	h.dueOnHold()
	if _, next := o.dueHeld(true, h.lease.Shard); next != 0 {
		o.Errorf("the next is due in %v", next)
	}
	h.retry(2, 2, 0, false, true)
	h.discard(h.events[1])
	h.dueOnHold(h.events[2])
}

// sentBeforeDead redrives the first of two dead events of a key, and then the second.
func sentBeforeDead[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.park(0, 0)
	h.follow(1, 2, 3)
	h.retry(0, 2, 0, true, true)
	h.retry(1, 1, 0, true, true)
	h.redrive(h.events[0])
	h.sentOnHold(true, 0)
	o.expectParked(h.state(1, outbox.Dead, 1), h.state(2, outbox.Following, 0), h.state(3, outbox.Following, 0))
	h.redrive(h.events[1])
	h.sentOnHold(true, 1)
	o.expectParked(h.state(2, outbox.Retrying, 0), h.state(3, outbox.Following, 0))
	h.dueOnHold(h.events[2])
}

func healBeforeDead[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.follow(0, 1, 2)
	h.retry(1, 1, 0, true, true)
	h.dueOnHold()
	h.heal(true)
	h.dueOnHold(h.events[0])
	o.expectParked(h.state(0, outbox.Retrying, 0), h.state(1, outbox.Dead, 1), h.state(2, outbox.Following, 0))
}

// dueOnHold checks the due events if dead events hold their keys.
func (h *held[TX]) dueOnHold(want ...outbox.Queued) {
	h.Helper()
	due, _ := h.dueHeld(true, h.lease.Shard)
	if got, wanted := seqs(due), seqs(want); !slices.Equal(got, wanted) {
		h.Fatalf("due on hold are %v, want %v", got, wanted)
	}
}

func sentTogether[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.park(0, 0)
	h.follow(1, 2, 3)
	h.sent(0, 1)
	o.expectParked(h.state(2, outbox.Retrying, 0), h.state(3, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[2])
}

// neverTwoHeads redrives a dead event while a later event of its key is the head.
func neverTwoHeads[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, 0)
	h.follow(1, 2)
	h.retry(0, 2, 0, true, false)
	o.expectDue(h.lease.Shard, h.events[1])
	h.redrive(h.events[0])
	o.expectDue(h.lease.Shard, h.events[0])
	h.heal(false)
	o.expectDue(h.lease.Shard, h.events[0])
	h.sent(0)
	o.expectDue(h.lease.Shard, h.events[1])
	h.retry(1, 1, long, false, false)
	o.expectDue(h.lease.Shard)
}

func healPromotes[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.follow(1, 2)
	o.expectDue(h.lease.Shard)
	h.heal(false)
	o.expectParked(h.state(1, outbox.Retrying, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[1])
	h.heal(true)
	o.expectDue(h.lease.Shard, h.events[1])
}

func healLeavesAlone[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.park(0, long)
	h.follow(1)
	h.heal(false)
	o.expectDue(h.lease.Shard)
	h.retry(0, 2, 0, true, true)
	h.heal(true)
	o.expectDue(h.lease.Shard)
	o.ok(o.Store.Heal(o.ctx(), "relay", nil, false))
	o.expectDue(h.lease.Shard)
	h.heal(false)
	o.expectDue(h.lease.Shard, h.events[1])
	o.expectParked(h.state(0, outbox.Dead, 2), h.state(1, outbox.Retrying, 0))
}

func healIsFenced[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.follow(0, 1)
	for _, as := range []struct {
		relay string
		epoch int64
	}{{"stranger", h.lease.Epoch}, {"relay", h.lease.Epoch - 1}} {
		o.ok(o.Store.Heal(o.ctx(), as.relay, []outbox.Lease{{Shard: h.lease.Shard, Epoch: as.epoch}}, false))
		o.expectDue(h.lease.Shard)
	}
}

// A follower is sent as soon as the event before it is confirmed, so its failure
// may be recorded before that event's delivery.
func followerFails[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, 0)
	h.follow(1, 2)
	h.retry(1, 1, long, false, false)
	h.sent(0)
	o.expectParked(h.state(1, outbox.Retrying, 1), h.state(2, outbox.Following, 0))
}

func retryAfterDiscard[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, 0)
	h.follow(1, 2)
	h.discard(h.events[0])
	o.expectDue(h.lease.Shard, h.events[1])
	h.retry(0, 2, 0, false, false)
	o.expectParked(h.state(0, outbox.Discarded, 1), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Following, 0))
	// The event was in flight, and arrived: it stays discarded all the same.
	h.sent(0)
	o.expectParked(h.state(0, outbox.Discarded, 1), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Following, 0))
}
