package producer

import (
	"errors"
	"testing"
	"time"

	"github.com/boxpair/boxpair/transport"
)

// bottom is the highest that the store keeps of a shard.
func (r *rig) bottom() (low int64) {
	for i := range r.store.shards {
		low = max(low, r.store.shards[i].bottom())
	}
	return low
}

// kept looks whether all is so that was kept.
func (r *rig) kept() {
	r.t.Helper()
	for _, text := range r.store.untrue {
		r.t.Error(text)
	}
}

// A relay that takes over would else step over all that was delivered, for as long as somebody holds a snapshot.
func TestNextOwnerReadsFromTheBottomOfItsShards(t *testing.T) {
	t.Parallel()
	for _, gives := range []bool{false, true} {
		r := newRig(t)
		r.store.held = true
		for range 1000 {
			r.store.add("topic", "key")
		}
		rel := r.start(RelayConfig{})
		r.run(time.Minute)
		r.drained()
		if gives {
			rel.core.stop(r.now)
			r.run(time.Second)
		}
		r.kill(rel)
		next := r.store.add("topic", "key")
		r.store.passed = 0
		r.start(RelayConfig{})
		r.run(time.Minute)
		r.drained()
		if sent := r.sent(); sent[len(sent)-1] != next || r.store.passed > 10 {
			t.Errorf("given back: %v: stepped over %d rows that have gone", gives, r.store.passed)
		}
		r.kept()
	}
}

func TestBottomIsBelowWhatWaits(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(r *rig, rel *rigRelay) (seq int64){
		"an event in flight": func(r *rig, rel *rigRelay) int64 {
			seq := r.store.add("topic", "key")
			rel.mute = func(s rigSend) bool { return s.seq == seq }
			return seq
		},
		"an event that is not committed": func(r *rig, _ *rigRelay) int64 { return r.store.begin().write("topic", "key") },
		"events passed over":             func(r *rig, _ *rigRelay) int64 { return r.stall(100) },
		"events of a hot key": func(r *rig, rel *rigRelay) int64 {
			seq := r.store.add("topic", "key")
			for range 100 {
				r.store.add("topic", "key")
			}
			rel.mute = func(s rigSend) bool { return s.key == "key" }
			return seq
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			rel := r.start(RelayConfig{MaxPerKey: 2})
			seq := wait(r, rel)
			for range 200 {
				r.store.add("topic", "")
			}
			r.run(time.Minute)
			if low := r.store.shards[r.store.log[seq].Shard].bottom(); low >= seq {
				t.Errorf("bottom is %d, and %d waits", low, seq)
			}
			rel.core.stop(r.now)
			r.run(time.Second)
			r.kept()
		})
	}
}

// stall adds events of a route that refuses, and returns the first.
func (r *rig) stall(n int) (first int64) {
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "dead" {
			return transport.Result{Outcome: transport.Returned, Err: errors.New("no queue")}
		}
		return confirmAll(s)
	}
	for i := range n {
		if seq := r.store.add("dead", ""); i == 0 {
			first = seq
		}
	}
	return first
}

// What another relay kept before the database lost commits is of numbers that are given out again.
func TestBottomOfALostDatabaseIsNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.identity = "before"
	for range 100 {
		r.store.add("topic", "key")
	}
	rel := r.start(RelayConfig{})
	r.run(time.Minute)
	r.kill(rel)
	r.store.identity = "after"
	low := r.bottom()
	again := r.store.add("topic", "key")
	shard := r.store.log[again].Shard
	delete(r.store.queue[shard], again)
	r.store.log[low] = r.store.log[again]
	r.store.enqueue(shard, low, -1)
	r.start(RelayConfig{})
	r.run(time.Minute)
	r.drained()
}

func TestDeferredEventThatIsQueuedIsFoundByTheNextOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seq := r.store.addDeferred("topic", "key", 70*time.Second)
	for range 100 {
		r.store.add("topic", "key")
	}
	rel := r.start(RelayConfig{})
	rel.delay = func(cl *call) bool { return cl.op == opUndefer && len(cl.moved) > 0 }
	r.run(2 * time.Minute)
	r.kept()
	r.kill(rel)
	r.start(RelayConfig{})
	r.run(time.Minute)
	r.drained()
	if sent := r.sent(); sent[len(sent)-1] != seq {
		t.Errorf("sent %v", sent)
	}
}
