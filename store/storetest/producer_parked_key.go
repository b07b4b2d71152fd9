package storetest

import (
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

func parkedOfKey[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.follow(4, 2)
	h.follow(3)
	h.park(1, 0)
	h.parkDead(0)
	all := o.parkedOf(h.lease.Shard, "key", false, 3)
	if !slices.Equal(seqs(all), seqs(h.events[1:4])) {
		o.Errorf("parked events of the key are %v, want %v", seqs(all), seqs(h.events[1:4]))
	}
	held := o.parkedOf(h.lease.Shard, "key", true, 3)
	if !slices.Equal(seqs(held), seqs(h.events[:3])) || held[0].State != outbox.Dead {
		o.Errorf("parked events of a key held by a dead event are %v, want %v", seqs(held), seqs(h.events[:3]))
	}
	f := failureOf(h.events[3], 1, 0)
	f.Dead = true
	h.kept(h.Store.Retry(h.ctx(), "relay", h.lease, []outbox.Failure{f}, true))
	held = o.parkedOf(h.lease.Shard, "key", true, 10)
	if want := []int64{h.events[0].Seq, h.events[1].Seq, h.events[2].Seq, h.events[4].Seq}; !slices.Equal(seqs(held), want) {
		o.Errorf("parked events of a key with two dead events are %v, want %v", seqs(held), want)
	}
}

// parkedOf reads the parked events of one key.
func (o *outboxRig[TX]) parkedOf(shard int, key string, hold bool, limit int) []outbox.Queued {
	o.Helper()
	all, err := o.Store.FetchParked(o.ctx(), []outbox.BlockedKey{{Shard: shard, Key: key}}, hold, limit)
	o.ok(err)
	if len(all) != 1 {
		o.Fatalf("the parked events of one key are %d lists", len(all))
	}
	return all[0]
}

func keyOf(q outbox.Queued) outbox.BlockedKey { return outbox.BlockedKey{Shard: q.Shard, Key: q.Key} }

// leased makes "relay" the owner of all shards.
func (o *outboxRig[TX]) leased() map[int]outbox.Lease {
	o.Helper()
	leases := make(map[int]outbox.Lease)
	for _, g := range o.acquire("relay", long) {
		leases[g.Shard] = g.Lease
	}
	return leases
}

func parkedOfKeys[TX any](o *outboxRig[TX]) {
	events := o.queued(recordIn(7, "b"), recordIn(7, "a"), recordIn(8, "a"), recordIn(7, "b"), recordIn(7, "b"))
	leases := o.leased()
	for _, q := range events {
		_, err := o.Store.Park(o.ctx(), "relay", leases[q.Shard], []outbox.Failure{failureOf(q, 1, 0)})
		o.ok(err)
	}
	keys := []outbox.BlockedKey{keyOf(events[2]), {Shard: 8, Key: events[0].Key}, keyOf(events[0]), keyOf(events[1])}
	all, err := o.Store.FetchParked(o.ctx(), keys, false, 2)
	o.ok(err)
	if want := [][]int64{{events[2].Seq}, {}, {events[0].Seq, events[3].Seq}, {events[1].Seq}}; len(all) == len(want) {
		for i := range want {
			if !slices.Equal(seqs(all[i]), want[i]) {
				o.Errorf("parked events of %+v are %v, want %v", keys[i], seqs(all[i]), want[i])
			}
		}
	} else {
		o.Errorf("%d lists of parked events, want %d", len(all), len(want))
	}
	if none, err := o.Store.FetchParked(o.ctx(), nil, false, 2); len(none) != 0 || err != nil {
		o.Errorf("parked events of no key: %v, %v", none, err)
	}
}

func sentOfShards[TX any](o *outboxRig[TX]) {
	events := o.queued(recordIn(7, "a"), recordIn(8, "b"), recordIn(9, "c"), recordIn(9, "c"), recordIn(8, "d"), recordIn(9, "e"))
	leases := o.leased()
	for _, q := range events {
		_, err := o.Store.Park(o.ctx(), "relay", leases[q.Shard], []outbox.Failure{failureOf(q, 1, time.Hour)})
		o.ok(err)
	}
	former, earlier := leases[7], leases[9]
	former.Epoch--
	earlier.Epoch--
	lost, err := o.Store.Sent(o.ctx(), "relay", []outbox.Mark{
		markOf(leases[8], events[1]), markOf(former, events[0]), markOf(leases[9], events[2]), markOf(leases[9], events[4]), // 4 is in another shard
		markOf(earlier, events[5]),
	}, false)
	o.ok(err)
	if !slices.Equal(lost, []int{7, 9}) {
		o.Errorf("lost are %v, want shard 7, and 9 of an earlier lease", lost)
	}
	var left []int64
	for _, i := range []int{0, 1, 2, 4, 5} {
		left = append(left, seqs(o.parkedOf(events[i].Shard, events[i].Key, false, 10))...)
	}
	if want := []int64{events[0].Seq, events[3].Seq, events[4].Seq, events[5].Seq}; !slices.Equal(left, want) {
		o.Errorf("parked are %v, want %v", left, want)
	}
	if due, _ := o.dueNow(9); !slices.Equal(seqs(due), []int64{events[3].Seq}) { // the next one of its key
		o.Errorf("due are %v, want %d", seqs(due), events[3].Seq)
	}
}
