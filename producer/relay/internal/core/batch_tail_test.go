package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// batching starts a relay whose transport takes so many messages as one.
func (r *rig) batching(cfg Options, messages int) *rigRelay {
	r.t.Helper()
	rel := r.start(cfg)
	rel.core.topics.Batch = func(string) (int, int) { return messages, 1 << 20 }
	return rel
}

// arrived returns the Seqs that the broker has taken, with those in batches, in its order.
func (r *rig) arrived() (seqs []int64) {
	for _, s := range r.sends {
		if s.outcome == transport.Confirmed {
			seqs = append(append(seqs, s.seq), s.tail...)
		}
	}
	return seqs
}

// refusing is a broker that answers so for what has one of the events in it.
func refusing(outcome transport.Outcome, bad ...int64) func(rigSend) transport.Result {
	return func(s rigSend) transport.Result {
		for _, seq := range append([]int64{s.seq}, s.tail...) {
			if slices.Contains(bad, seq) {
				return transport.Result{Outcome: outcome, Err: errRefused}
			}
		}
		return confirmAll(s)
	}
}

func TestEventsOfAKeyTravelTogetherInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := []string{"a", "b", "c", "d", ""}
	want := make(map[string][]int64)
	for i := range 200 {
		key := keys[i%len(keys)]
		want[key] = append(want[key], r.store.Add("topic", key))
	}
	most, largest := 0, 0
	r.broker = func(s rigSend) transport.Result {
		most = max(most, s.inflight)
		largest = max(largest, 1+len(s.tail))
		return confirmAll(s)
	}
	rel := r.batching(Options{Window: 20}, 5)
	r.run(2 * time.Second)
	r.drained()
	got := make(map[string][]int64)
	for _, seq := range r.arrived() {
		key := r.store.Log[seq].Key
		got[key] = append(got[key], seq)
	}
	delete(want, "")
	for key := range want {
		if !slices.Equal(got[key], want[key]) {
			t.Errorf("%v arrived of key %s", got[key], key)
		}
	}
	if largest != 5 || most != 20 {
		t.Errorf("batches of up to %d, up to %d in flight", largest, most)
	}
	if rel.core.report.Delivered != 200 {
		t.Errorf("report: %+v", rel.core.report)
	}
}

func TestBatchesKeepWithinTheWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 400 {
		r.store.Add("topic", string(rune('a'+i%12))) // whose batches together would be three windows
	}
	most := 0
	rel := r.batching(Options{Window: 18}, 5) // no multiple of a batch
	rel.mute = func(s rigSend) bool {
		most = max(most, rel.core.dispatch.inflight)
		return true
	}
	for range 100 {
		r.run(100 * time.Millisecond)
		muted := rel.muted
		rel.muted = nil
		for _, s := range muted {
			rel.answer(s)
		}
	}
	r.drained()
	if most != 18 {
		t.Errorf("up to %d events in flight, with a window of 18", most)
	}
}

func TestBatchesAreOfOneTopicAndSize(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 12 {
		r.store.Add([]string{"r/a", "r/b"}[i/3%2], "key")
	}
	rel := r.start(Options{})
	rel.core.topics.Batch = func(string) (int, int) { return 10, 2*len("payload") + 1 }
	for _, e := range r.store.Log {
		e.Payload = []byte("payload")
	}
	r.run(time.Second)
	r.drained()
	for _, s := range r.sends {
		for _, seq := range s.tail {
			if r.store.Log[seq].Topic != s.topic {
				t.Errorf("%d of another topic travels with %d", seq, s.seq)
			}
		}
		if len(s.tail) > 1 {
			t.Errorf("%d events travel with %d", len(s.tail), s.seq)
		}
	}
	if len(r.sends) != 8 {
		t.Errorf("%d sends", len(r.sends))
	}
}

// TestFailedBatchCountsNoAttemptOfTheOthers, since nobody can tell whose it is before each was sent
// alone.
func TestFailedBatchCountsNoAttemptOfTheOthers(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Invalid, transport.Returned, transport.Refused} {
		t.Run(outcome.String(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var seqs []int64
			for range 9 {
				seqs = append(seqs, r.store.Add("topic", "key"))
			}
			bad := seqs[4]
			r.broker = refusing(outcome, bad)
			rel := r.batching(Options{MaxAttempts: 1}, 7)
			for range 30 { // what tells that the route works
				r.store.Add("topic", "")
				rel.core.Wake(r.now, wakeup.All)
				r.run(2 * time.Second)
			}
			r.drained()
			for _, seq := range seqs {
				if n := len(r.store.Attempts(seq)); n != 0 && seq != bad {
					t.Errorf("%d attempts of %d are counted, and %d is the bad one", n, seq, bad)
				}
			}
			refused := 0
			for _, s := range r.sends {
				if len(s.tail) > 0 && s.outcome != transport.Confirmed {
					refused++
				}
			}
			// What nobody takes at the moment may be taken together again.
			if refused == 0 || refused > 1 && outcome == transport.Invalid {
				t.Errorf("%d batches were refused", refused)
			}
			if r.store.State(bad) != outbox.Dead {
				t.Errorf("the bad one is %v", r.store.State(bad))
			}
			got := slices.DeleteFunc(r.arrived(), func(seq int64) bool { return seq > seqs[8] })
			if want := slices.Delete(slices.Clone(seqs), 4, 5); !slices.Equal(got, want) {
				t.Errorf("arrived %v", got)
			}
		})
	}
}

// TestWhatMayBeToBlameTravelsAlone: the head of a key that has failed, and what probes a route.
func TestWhatMayBeToBlameTravelsAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 30 {
		r.store.Add("topic", fmt.Sprint("key", i%10))
	}
	works, doubt := false, time.Duration(-1)
	r.broker = func(s rigSend) transport.Result {
		if works {
			return confirmAll(s)
		}
		if doubt >= 0 && s.at > doubt && len(s.tail) > 0 {
			t.Errorf("%d travels with %d while the route is in doubt", s.tail, s.seq)
		}
		if doubt < 0 && len(s.tail) == 0 {
			doubt = s.at
		}
		return transport.Result{Outcome: transport.Refused, Err: errRefused}
	}
	r.batching(Options{Window: 4}, 10)
	r.run(20 * time.Second)
	works = true
	r.run(time.Minute)
	r.drained()
	if n := len(r.arrived()); n != 30 {
		t.Errorf("%d arrived", n)
	}
}

// TestLateEventGoesBeforeABatchThatIsSentAgain.
func TestLateEventGoesBeforeABatchThatIsSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.store.Add("topic", "key")
	open := r.store.Begin()
	late := open.Write("topic", "key")
	rest := []int64{r.store.Add("topic", "key"), r.store.Add("topic", "key")}
	rel := r.batching(Options{}, 10)
	rel.mute = func(rigSend) bool { return true }
	r.run(time.Second)
	if len(rel.muted) != 1 || !slices.Equal(rel.muted[0].tail, rest) {
		t.Fatalf("under way: %+v", rel.muted)
	}
	rel.core.Wake(r.now, open.Commit())
	r.run(time.Second)
	lost := true
	r.broker = func(s rigSend) transport.Result {
		if lost {
			return transport.Result{Outcome: transport.Unavailable, Err: errRefused}
		}
		return confirmAll(s)
	}
	rel.free()
	lost = false
	r.run(10 * time.Second)
	r.drained()
	if got, want := r.arrived(), append([]int64{first, late}, rest...); !slices.Equal(got, want) {
		t.Errorf("arrived %v, want %v", got, want)
	}
}

// TestLateEventDoesNotGoBetweenWhatIsUnderWay, which it would be marked before.
func TestLateEventDoesNotGoBetweenWhatIsUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := r.store.Begin()
	late := open.Write("topic", "key")
	sent := []int64{r.store.Add("topic", "key"), r.store.Add("topic", "key"), r.store.Add("topic", "key")}
	rel := r.batching(Options{}, 10)
	rel.mute = func(rigSend) bool { return true }
	r.run(time.Second)
	rel.core.Wake(r.now, open.Commit())
	r.run(time.Second)
	rel.free()
	r.run(time.Second)
	r.drained()
	if got, want := r.arrived(), append(sent, late); !slices.Equal(got, want) {
		t.Errorf("arrived %v, want %v", got, want)
	}
	if rel.core.report.Delivered != 4 {
		t.Errorf("report: %+v", rel.core.report)
	}
}

// TestLateEventTravelsWithNoLaterOne: behind the first of a batch that failed, which may have been
// sent, it goes next.
func TestLateEventTravelsWithNoLaterOne(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	open := r.store.Begin()
	late := open.Write("topic", "key")
	first, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	rel := r.batching(Options{}, 10)
	rel.mute = func(s rigSend) bool { return s.key != "" }
	r.run(time.Second)
	rel.core.Wake(r.now, open.Commit())
	other := r.store.Add("topic", "") // so that the route is not in doubt
	r.run(time.Second)
	lost := true
	r.broker = func(s rigSend) transport.Result {
		if lost {
			return transport.Result{Outcome: transport.Unavailable, Err: errRefused}
		}
		if s.seq == first && len(s.tail) > 0 {
			t.Errorf("%d travels with %v", s.seq, s.tail)
		}
		return confirmAll(s)
	}
	rel.free()
	lost = false
	r.run(10 * time.Second)
	r.drained()
	if got, want := r.arrived(), []int64{other, first, late, second}; !slices.Equal(got, want) {
		t.Errorf("arrived %v, want %v", got, want)
	}
}

// TestRelayThatStopsForgetsABatch whose outcome is not known, and the next one sends all of it.
func TestRelayThatStopsForgetsABatch(t *testing.T) {
	t.Parallel()
	for _, gone := range []bool{false, true} {
		r := newRig(t)
		var want []int64
		for range 6 {
			want = append(want, r.store.Add("topic", "key"))
		}
		rel := r.batching(Options{LeaseTTL: time.Second}, 4)
		rel.mute = func(rigSend) bool { return true }
		r.run(100 * time.Millisecond)
		if gone { // its leases are another's before it knows
			rel.stopped = true
			r.run(5 * time.Second)
			r.batching(Options{}, 4)
			r.run(5 * time.Second)
			rel.stopped = false
			r.run(5 * time.Second)
		} else {
			rel.core.Stop(r.now)
		}
		r.broker = func(s rigSend) transport.Result {
			if s.relay == rel {
				return transport.Result{Outcome: transport.Unavailable, Err: errRefused}
			}
			return confirmAll(s)
		}
		rel.free()
		r.run(5 * time.Second)
		if problem := rel.core.forgotten(); problem != "" {
			t.Errorf("lost its leases: %v; it still remembers: %s", gone, problem)
		}
		if !gone {
			r.kill(rel)
			r.batching(Options{}, 4)
			r.run(5 * time.Second)
		}
		if got := r.arrived(); !slices.Equal(got, want) {
			t.Errorf("lost its leases: %v; arrived %v", gone, got)
		}
		for _, s := range r.sends {
			if gone && s.relay != rel && !s.redelivered {
				t.Errorf("%d and %v are not said to have been sent before", s.seq, s.tail)
			}
		}
	}
}

// TestBatchOfAKeyThatIsBlockedMeanwhile: an operator redrives a dead event while later ones of its
// key are under way.
func TestBatchOfAKeyThatIsBlockedMeanwhile(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Unavailable, transport.Confirmed, transport.Refused} {
		r := newRig(t)
		dead := r.store.Add("topic", "key")
		r.broker = refusing(transport.Invalid, dead)
		rel := r.batching(Options{}, 10)
		r.run(time.Second)
		rest := []int64{r.store.Add("topic", "key"), r.store.Add("topic", "key"), r.store.Add("topic", "key")}
		rel.mute = func(s rigSend) bool { return s.seq == rest[0] }
		r.run(time.Second)
		if len(rel.muted) != 1 || len(rel.muted[0].tail) != 2 {
			t.Fatalf("under way: %+v", rel.muted)
		}
		if !r.store.Redrive(dead) {
			t.Fatal("not redriven")
		}
		r.run(10 * time.Second)
		l := rel.muted[0].entry.line
		if !l.blocked || l.n != 3 {
			t.Fatalf("the key is blocked: %v, %d of its events are under way", l.blocked, l.n)
		}
		answered := false
		r.broker = func(s rigSend) transport.Result {
			if s.seq == rest[0] && !answered {
				answered = true
				return transport.Result{Outcome: outcome, Err: errRefused}
			}
			return confirmAll(s)
		}
		rel.free()
		r.run(20 * time.Second)
		r.drained()
		want := append([]int64{dead}, rest...)
		if outcome == transport.Confirmed {
			want = append(rest, dead)
		}
		if got := r.arrived(); !slices.Equal(got, want) {
			t.Errorf("after %v, %v arrived, want %v", outcome, got, want)
		}
	}
}
