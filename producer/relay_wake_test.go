package producer

import (
	"fmt"
	"testing"
	"time"
)

// committed adds an event, tells the relay, and lets d pass.
func (r *rig) committed(rel *rigRelay, d time.Duration) int64 {
	r.t.Helper()
	seq := r.store.add("topic", fmt.Sprint("key", r.now)) // all shards have some
	rel.core.wake(r.now)
	r.run(d)
	return seq
}

func (rel *rigRelay) fetches() (n int) {
	for _, op := range rel.calls {
		if op == opFetch {
			n++
		}
	}
	return n
}

func TestEventThatComesAloneWaitsForNoLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(RelayConfig{})
	r.run(time.Second)
	for range 1000 {
		at := r.now
		seq := r.committed(rel, 5500*time.Microsecond) // a little less often than PollMin
		if seen := r.seenAt(seq); seen != at {
			t.Fatalf("event %d was committed at %v and sent at %v", seq, at, seen)
		}
	}
}

// TestRelayThatWasWokenTooEarlyLooksAgainSoon: whoever writes in a transaction of his own wakes the relays before he commits,
// and need not tell them then.
func TestRelayThatWasWokenTooEarlyLooksAgainSoon(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{time.Millisecond, 12 * time.Millisecond, 100 * time.Millisecond} {
		r := newRig(t)
		rel := r.start(RelayConfig{})
		r.run(10 * time.Second)
		rel.core.wake(r.now)
		r.run(later)
		at := r.now
		seq := r.store.add("topic", "key")
		r.run(time.Second)
		if waited := r.seenAt(seq) - at; waited > later+5*time.Millisecond {
			t.Errorf("an event that was committed %v after the wake-up was sent %v later", later, waited)
		}
	}
}

func TestManyEventsAreReadTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(RelayConfig{})
	r.run(time.Second)
	before := rel.fetches()
	for range 10_000 {
		r.committed(rel, 100*time.Microsecond)
	}
	// One per PollMin, those in advance, and one after the last event.
	if n := rel.fetches() - before; n > 200+wakesAhead+1 {
		t.Errorf("%d looks at the queue in a second", n)
	}
	r.run(5 * time.Millisecond)
	r.drained()
}
