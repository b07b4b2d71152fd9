package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/transport"
)

// stallBeside starts a relay beside a backlog of a route that takes nothing until works is set, in
// many keys of two events each, and lets it read all of that.
func stallBeside(t *testing.T, backlog int) (r *rig, rel *rigRelay, works *bool) {
	r = newRig(t)
	for range 2 {
		for i := range backlog / 2 {
			r.store.Add("dead", fmt.Sprint("dead", i))
		}
	}
	works = new(bool)
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "dead" && !*works {
			return transport.Result{Outcome: transport.Returned}
		}
		return confirmAll(s)
	}
	rel = r.start(Options{Window: 50, FetchSize: 200})
	rel.core.limits.sweep = 10 * time.Second
	r.run(2 * time.Second)
	return r, rel, works
}

func TestEventOfARouteThatWorksDoesNotWaitForTheBacklogOfOneThatDoesNot(t *testing.T) {
	t.Parallel()
	r, rel, _ := stallBeside(t, 20_000)
	for range 200 { // with 10 sweeps
		at := r.now
		seq := r.committed(rel, 500*time.Millisecond)
		if seen := r.seenAt(seq); seen < at || seen > at+100*time.Millisecond {
			t.Fatalf("an event that was committed at %v was sent at %v", at, seen)
		}
	}
	if n := rel.core.keys.buffered; n > 2*rel.core.limits.stall {
		t.Errorf("%d events in memory", n)
	}
}

func TestBacklogOfARouteThatWorksAgainIsReadWithoutAPause(t *testing.T) {
	t.Parallel()
	r, rel, works := stallBeside(t, 10_000)
	rel.core.limits.sweep = time.Hour
	*works = true
	r.run(5 * time.Second)
	r.drained()
}

func TestKeysPassedOverKeepTheirOrderWhenTheirRouteWorks(t *testing.T) {
	t.Parallel()
	r, rel, works := stallBeside(t, 2000)
	*works = true
	for i := range 1000 { // the third of each key, by the tail
		r.store.Add("dead", fmt.Sprint("dead", i))
	}
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Minute)
	r.drained()
	last := make(map[string]int64)
	for _, s := range r.sends {
		if s.outcome != transport.Confirmed {
			continue
		}
		if last[s.key] > s.seq {
			t.Fatalf("key %s: %d was sent behind %d", s.key, s.seq, last[s.key])
		}
		last[s.key] = s.seq
	}
}

func TestFetchBringsNoMoreThanItIsAskedFor(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 10, 100, 1000} {
		r := newRig(t)
		for i := range 3000 {
			r.store.Add("topic", fmt.Sprint("key", i))
		}
		tx := r.store.Begin()
		for i := range 3000 {
			tx.Write("topic", fmt.Sprint("late", i))
		}
		r.store.Add("topic", "behind")
		rel := r.start(Options{Window: 1000, FetchSize: size})
		most := 0
		rel.delay = func(cl *Call) bool {
			most = max(most, len(rowsOf(cl)))
			return false
		}
		r.run(5 * time.Second)
		tx.Commit()
		r.run(20 * time.Second)
		r.drained()
		if most > 2*size {
			t.Errorf("%d events in one statement of %d", most, size)
		}
	}
}

func TestLargeEventsAreReadFewAtATime(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	r := newRig(t)
	add := func() {
		for i := range 500 {
			seq := r.store.Add("topic", fmt.Sprint("key", i))
			r.store.Log[seq].Payload = make([]byte, 1, size)[:size]
		}
	}
	rel := r.start(Options{Window: 400, WindowBytes: 32 * size})
	add()
	r.run(10 * time.Second)
	r.drained() // from then on it knows how large they are
	rel.mute = func(rigSend) bool { return true }
	add()
	r.run(5 * time.Second)
	if n := rel.core.keys.buffered; n > 40 {
		t.Errorf("%d events of 1 MiB in memory, with room for 32", n)
	}
	rel.mute = nil
	rel.free()
	r.run(10 * time.Second)
	r.drained()
}

// Nobody knows how large they are before any was read.
func TestFirstFetchBringsFewEventsSinceTheyMayBeLarge(t *testing.T) {
	t.Parallel()
	const size = 1 << 20
	for _, large := range []bool{false, true} {
		r := newRig(t)
		for i := range 1000 {
			seq := r.store.Add("topic", fmt.Sprint("key", i))
			if large {
				r.store.Log[seq].Payload = make([]byte, 1, size)[:size]
			}
		}
		rel := r.start(Options{})
		rel.core.reader.budget = New(rel.core.cfg, Topics{}, nil, false).reader.budget
		most := 0
		rel.hold = func(cl *Call) bool {
			if f := cl.fetch(); f != nil {
				rows := 0
				for _, x := range f.Ranges {
					rows += x.Limit
				}
				most = max(most, rows)
			}
			return false
		}
		r.run(10 * time.Second)
		r.drained()
		if large && most > 64 {
			t.Errorf("a fetch may bring %d events of 1 MiB", most)
		}
		if !large && most < 500 {
			t.Errorf("no fetch brings more than %d small events", most)
		}
	}
}

func TestFetchThatTakesTooLongIsFollowedBySmallerOnes(t *testing.T) {
	t.Parallel()
	b := budget{most: 1000, now: 1000}
	b.booked(nil, true, nil)
	if got := b.rows(); got != 250 {
		t.Errorf("%d rows after a fetch that took too long", got)
	}
	for range 30 {
		b.booked(nil, false, nil)
	}
	if got := b.rows(); got != 1000 {
		t.Errorf("%d rows after many quick ones", got)
	}
}
