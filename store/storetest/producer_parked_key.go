package storetest

import (
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

func parkedOfKey[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.follow(4, 2)
	h.follow(3)
	h.park(1, 0)
	h.parkDead(0)
	all, err := o.Store.FetchParked(o.ctx(), h.lease.Shard, "key", false, 3)
	o.ok(err)
	if !slices.Equal(seqs(all), seqs(h.events[1:4])) {
		o.Errorf("parked events of the key are %v, want %v", seqs(all), seqs(h.events[1:4]))
	}
	held, err := o.Store.FetchParked(o.ctx(), h.lease.Shard, "key", true, 3)
	o.ok(err)
	if !slices.Equal(seqs(held), seqs(h.events[:3])) || held[0].State != outbox.Dead {
		o.Errorf("parked events of a key held by a dead event are %v, want %v", seqs(held), seqs(h.events[:3]))
	}
	f := failureOf(h.events[3], 1, 0)
	f.Dead = true
	h.kept(h.Store.Retry(h.ctx(), "relay", h.lease, []outbox.Failure{f}, true))
	held, err = o.Store.FetchParked(o.ctx(), h.lease.Shard, "key", true, 10)
	o.ok(err)
	if want := []int64{h.events[0].Seq, h.events[1].Seq, h.events[2].Seq, h.events[4].Seq}; !slices.Equal(seqs(held), want) {
		o.Errorf("parked events of a key with two dead events are %v, want %v", seqs(held), want)
	}
}
