package storetest

import (
	"bytes"

	"github.com/boxpair/boxpair/store/outbox"
)

func lowTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "what is kept of a shard comes with the next lease, and the one after", run: lowIsKept[TX]},
		{fact: "nothing is kept for a lease that is lost", run: lostKeepsNothing[TX]},
		{fact: "what is kept does not count above all events of the log", run: lowAboveTheLog[TX]},
		{fact: "tail that is kept stays until another one is, and comes with each lease", run: tailIsKept[TX]},
		{fact: "tail does not count above all events of the log", run: tailAboveTheLog[TX]},
		{fact: "deferred event that is queued lowers what is kept", run: undeferLowers[TX]},
		{fact: "event that is queued again lowers what is kept, whatever is kept meanwhile", run: requeueLowers[TX]},
	}
}

const lowHistory = "timeline 1"

// keep keeps a low-water mark of h's shard.
func (h *held[TX]) keep(seq int64) {
	h.Helper()
	h.ok(h.Store.KeepLow(h.ctx(), "relay", []outbox.Low{{Lease: h.lease, Seq: seq}}, lowHistory))
}

// expectLow acquires h's shard for the next owner, and checks the kept low-water mark.
func (h *held[TX]) expectLow(low int64) {
	h.Helper()
	h.ok(h.Store.Release(h.ctx(), "relay", []outbox.Lease{h.lease}, false))
	grants := h.acquire("relay", long)
	if len(grants) != 1 {
		h.Fatalf("%d shards were acquired", len(grants))
	}
	g := grants[0]
	history := lowHistory
	if low == 0 {
		history = g.History // is of no matter
	}
	if g.Low != low || g.History != history {
		h.Errorf("granted with %d of %q, want %d", g.Low, g.History, low)
	}
	h.lease = g.Lease
}

func lowIsKept[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.expectLow(0)
	h.keep(h.events[1].Seq)
	h.expectLow(h.events[1].Seq)
	h.expectLow(h.events[1].Seq)
	h.keep(h.events[2].Seq)
	h.keep(h.events[3].Seq)
	h.expectLow(h.events[3].Seq)
	h.keep(0)
	h.expectLow(0)
	h.ok(h.Store.KeepLow(h.ctx(), "relay", nil, lowHistory))
}

func lostKeepsNothing[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.keep(h.events[0].Seq)
	before := h.lease
	h.expectLow(h.events[0].Seq)
	h.ok(h.Store.KeepLow(h.ctx(), "relay", []outbox.Low{{Lease: before, Seq: h.events[1].Seq}}, lowHistory))
	h.ok(h.Store.KeepLow(h.ctx(), "other", []outbox.Low{{Lease: h.lease, Seq: h.events[1].Seq}}, lowHistory))
	h.expectLow(h.events[0].Seq)
}

// keepTail keeps a low-water mark and a tail of h's shard.
func (h *held[TX]) keepTail(low, tail int64, passed []byte) {
	h.Helper()
	h.ok(h.Store.KeepLow(h.ctx(), "relay", []outbox.Low{{Lease: h.lease, Seq: low, Tail: &outbox.Tail{Seq: tail, Passed: passed}}}, lowHistory))
}

// expectTail is expectLow for the tail.
func (h *held[TX]) expectTail(low, seq int64, passed []byte) {
	h.Helper()
	h.ok(h.Store.Release(h.ctx(), "relay", []outbox.Lease{h.lease}, false))
	grants := h.acquire("relay", long)
	if len(grants) != 1 {
		h.Fatalf("%d shards were acquired", len(grants))
	}
	g := grants[0]
	if g.Low != low || g.Tail.Seq != seq || seq > 0 && !bytes.Equal(g.Tail.Passed, passed) {
		h.Errorf("granted with %d and %+v, want %d, %d, %x", g.Low, g.Tail, low, seq, passed)
	}
	h.lease = g.Lease
}

func tailIsKept[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	first, second, last := h.events[0].Seq, h.events[1].Seq, h.events[3].Seq
	large := bytes.Repeat([]byte{0, 1, 2, 255}, 100_000)
	h.expectTail(0, 0, nil)
	h.keepTail(first, second, []byte{0, 0, 0, 1})
	h.expectTail(first, second, []byte{0, 0, 0, 1})
	h.keep(second)
	h.expectTail(second, second, []byte{0, 0, 0, 1})
	h.keepTail(second, last, large)
	h.expectTail(second, last, large)
	h.keepTail(second, last, nil)
	h.expectTail(second, last, nil)
	h.keepTail(0, 0, nil)
	h.expectTail(0, 0, nil)
}

func tailAboveTheLog[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	h.keepTail(1, h.events[0].Seq+1, nil)
	h.expectTail(0, 0, nil)
	h.expectTail(0, 0, nil)
}

// After a reset of the sequence, as by TRUNCATE, new numbers are lower than all earlier numbers.
func lowAboveTheLog[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	h.keep(h.events[0].Seq + 1)
	h.expectLow(0)
	h.expectLow(0)
}

func undeferLowers[TX any](o *outboxRig[TX]) {
	o.writeDueSoon(record("key", "deferred"))
	h := o.ownKey(3)
	h.keepTail(h.events[1].Seq, h.events[2].Seq, nil)
	var moved []outbox.Moved
	h.eventually("move of what is due", func() bool {
		moved = h.undefer("relay", 10, h.lease).Moved
		return len(moved) == 1
	})
	if moved[0].Seq >= h.events[0].Seq {
		h.Fatalf("moved %v", moved)
	}
	h.expectTail(moved[0].Seq-1, moved[0].Seq-1, nil)
}

func requeueLowers[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.deliver(0, 1, 2, 3)
	h.keep(h.events[2].Seq)
	h.requeue(h.events[1])
	h.expectLow(h.events[1].Seq - 1)
	h.keep(h.events[3].Seq) // by a relay that does not know of the rewind
	h.expectLow(h.events[1].Seq - 1)
	h.keep(h.events[3].Seq)
	h.ok(h.Store.ClearRewind(h.ctx(), "relay", h.lease, h.renew().Ticket))
	h.expectLow(h.events[1].Seq - 1)
	h.keep(h.events[3].Seq)
	h.expectLow(h.events[3].Seq)
	h.keepTail(h.events[0].Seq, h.events[3].Seq, nil)
	h.requeue(h.events[2])
	h.expectTail(h.events[0].Seq, h.events[2].Seq-1, nil)
	h.ok(h.Store.ClearRewind(h.ctx(), "relay", h.lease, h.renew().Ticket))
	h.expectTail(h.events[0].Seq, h.events[2].Seq-1, nil)
}
