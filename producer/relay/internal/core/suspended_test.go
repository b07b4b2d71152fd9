package core

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// A process that stood still may have lost its session, and its shards, without knowing it yet.
func TestNothingIsSentAfterAStandstillBeforeARenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.witnessed(1)[0]
	renewal := func(cl *Call) bool { return cl.Op() == statement.OpRenew }
	rel.delay = renewal
	rel.core.leases.renewAt = 0
	r.run(time.Millisecond) // executed before the standstill, and answered behind it
	if len(rel.delayed) != 1 {
		t.Fatalf("%d renewals", len(rel.delayed))
	}
	rel.delay, rel.hold = nil, renewal
	r.now += time.Second
	rel.core.Suspended(r.now)
	rel.core.Reply(r.now, rel.delayed[0])
	rel.delayed = nil
	r.store.Add("topic", "key")
	r.wake()
	r.run(2 * time.Second)
	if len(r.sends) != 0 {
		t.Error("an event was sent")
	}
	rel.free()
	r.run(10 * time.Millisecond)
	r.drained()
}

func TestShardsAreLostWhoseSessionEndedInAStandstill(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	relays := r.witnessed(2)
	still, other := relays[0], relays[1]
	delete(r.store.Sessions, 1)
	r.relays = []*rigRelay{other}
	r.eventOf(still)
	r.wake()
	r.run(time.Second)
	r.drained() // by the other relay
	sends := len(r.sends)
	r.relays = append(r.relays, still)
	still.core.Suspended(r.now) // goes on, and does not know of the end
	r.run(100 * time.Millisecond)
	if still.noted("lease lost") != 32 || len(r.sends) != sends {
		t.Errorf("%d leases lost, %d events sent", still.noted("lease lost"), len(r.sends)-sends)
	}
}

func TestStandstillWithoutAWitnessLeavesTheLeases(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpRenew }
	rel.core.Suspended(r.now)
	r.store.Add("topic", "key")
	r.wake()
	r.run(10 * time.Millisecond)
	r.drained()
}
