package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// shardKeys returns keys of the shard of the key "K".
func shardKeys(n int) (keys []string) {
	want := idgen.Shard("K", [16]byte{})
	for i := 0; len(keys) < n; i++ {
		if k := fmt.Sprint("f", i); idgen.Shard(k, [16]byte{}) == want {
			keys = append(keys, k)
		}
	}
	return keys
}

func TestASweepDoesNotGoOnAboveAMarkThatWasSetBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := shardKeys(400)
	for _, k := range keys[:200] {
		r.store.Add("bad", k)
	}
	k1 := r.store.Add("bad", "K")
	var k2 int64
	for i, k := range keys[200:] {
		if i == 25 {
			k2 = r.store.Add("bad", "K")
		}
		r.store.Add("bad", k)
	}
	works := false
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "bad" && !works {
			return transport.Result{Outcome: transport.Unavailable}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{Window: 50, FetchSize: 20})
	rel.core.limits.sweep = 20 * time.Second
	caught := false
	rel.hold = func(cl *Call) bool {
		if f := cl.fetch(); f != nil && f.lap && f.Ranges[0].After >= k1 && f.Ranges[0].After < k2 && !caught {
			caught = true
			return true
		}
		return false
	}
	for range 8 {
		if caught {
			break
		}
		r.store.Add("good", "g")
		r.run(time.Minute)
	}
	if !caught {
		t.Fatal("no lap seen")
	}
	works = true
	r.run(8 * time.Second) // a probe
	rel.free()
	r.run(time.Minute)
	var got []int64
	for _, s := range r.sends {
		if s.key == "K" && s.outcome == transport.Confirmed {
			got = append(got, s.seq)
		}
	}
	if !slices.Equal(got, []int64{k1, k2}) {
		t.Errorf("K: %v, want %v", got, []int64{k1, k2})
	}
	r.drained()
}

func TestFollowersDoNotOvertakeAnEventThatIsStillToBeMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.store.Add("b", "K")
	bad := true
	lost := false
	var second int64
	r.broker = func(s rigSend) transport.Result {
		if s.seq == dead && bad {
			return transport.Result{Outcome: transport.Invalid}
		}
		if s.seq == second && !lost {
			lost = true
			return transport.Result{Outcome: transport.Unavailable}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{})
	r.run(time.Second)
	bad = false
	if r.store.State(dead) != outbox.Dead {
		t.Fatal("not dead")
	}
	second = r.store.Add("a", "K")
	third, fourth := r.store.Add("b", "K"), r.store.Add("b", "K")
	rel.mute = func(s rigSend) bool { return s.seq == second }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	if len(rel.muted) != 1 {
		t.Fatal("the second event is not in flight")
	}
	rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpFollow }
	r.store.Redrive(dead)
	r.run(4 * time.Second)
	m := rel.muted[0]
	rel.muted, rel.mute = nil, nil
	rel.answer(m) // outcome not known
	r.run(20 * time.Millisecond)
	if len(rel.delayed) != 1 {
		t.Fatal("nothing is being moved")
	}
	rel.free()
	r.run(time.Minute)
	got := r.sent(transport.Confirmed)
	if want := []int64{dead, second, third, fourth}; !slices.Equal(got, want) {
		t.Errorf("got %v want %v", got, want)
	}
	r.drained()
}

// A dead event is redriven while the next of its key is in flight. The relay dies, and the redriven
// one is discarded: had the third been moved meanwhile, it would be the head.
func TestNothingIsMovedBeforeAnEventInFlightHasEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.store.Add("b", "K")
	r.broker = func(s rigSend) transport.Result {
		if s.seq == dead {
			return transport.Result{Outcome: transport.Invalid}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{})
	r.run(time.Second)
	second, third := r.store.Add("a", "K"), r.store.Add("b", "K")
	rel.mute = func(s rigSend) bool { return s.seq == second }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	if len(rel.muted) != 1 || !r.store.Redrive(dead) {
		t.Fatal("the second is not in flight, or the first not dead")
	}
	r.run(20 * time.Second)
	if state := r.store.State(third); state == outbox.Following || state == outbox.Retrying {
		t.Errorf("the third is %s before the second has ended", state)
	}
	r.kill(rel)
	r.store.Discard(dead)
	r.sends = nil
	r.start(Options{})
	r.run(time.Minute)
	if got := r.sent(transport.Confirmed); !slices.Equal(got, []int64{second, third}) {
		t.Errorf("sent %v, want %v", got, []int64{second, third})
	}
}

func TestAParkedHeadThatIsMissingFromTheLogFreesItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.store.Add("t", "K")
	r.store.Add("t", "other")
	r.broker = func(s rigSend) transport.Result {
		if s.seq == e {
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{Backoff: Backoff{Initial: 20 * time.Second}})
	r.run(time.Second)
	delete(r.store.Log, e)
	r.run(3 * time.Minute)
	r.store.Add("t", "K")
	rel.core.Wake(r.now, wakeup.All)
	r.run(5 * time.Minute)
	r.drained()
}

func TestAFollowerThatIsMissingFromTheLogIsNotSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	e := r.store.Add("t", "K")
	f := r.store.Add("t", "K")
	r.store.Add("t", "K")
	r.store.Add("t", "other")
	refuse := true
	r.broker = func(s rigSend) transport.Result {
		if s.seq == e && refuse {
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	r.start(Options{Backoff: Backoff{Initial: 20 * time.Second}})
	r.run(time.Second)
	delete(r.store.Log, f)
	refuse = false
	r.run(3 * time.Minute)
	for _, s := range r.sends {
		if s.seq == f {
			t.Errorf("sent %d topic %q key %q id %v", s.seq, s.topic, s.key, s.outcome)
		}
	}
	r.drained()
}

func TestAWriterThatIsPreparedStaysAWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	late := r.store.Begin()
	first := late.Write("topic", "key")
	passed := r.store.Add("topic", sameShard("key"))
	rel := r.start(Options{})
	r.run(time.Second)
	r.store.Mu.Lock()
	delete(r.store.Open, late.Name)
	late.Name = "p " + late.Name
	r.store.Open[late.Name] = late
	r.store.Mu.Unlock()
	r.run(time.Second)
	late.Commit()
	next := r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(2 * time.Second)
	if got, want := r.sent(), []int64{passed, first, next}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

func TestANewHeadDoesNotOvertakeAnEventThatIsStillToBeMoved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.store.Add("b", "K")
	lost := false
	var second int64
	r.broker = func(s rigSend) transport.Result {
		if s.seq == dead {
			return transport.Result{Outcome: transport.Invalid}
		}
		if s.seq == second && !lost {
			lost = true
			return transport.Result{Outcome: transport.Unavailable}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{})
	r.run(time.Second)
	second = r.store.Add("a", "K")
	third, fourth := r.store.Add("b", "K"), r.store.Add("b", "K")
	rel.mute = func(s rigSend) bool { return s.seq == second }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	r.store.Redrive(dead)
	r.run(4 * time.Second) // the others follow it
	r.store.Discard(dead)
	r.run(6 * time.Second)
	m := rel.muted[0]
	rel.muted, rel.mute = nil, nil
	rel.answer(m)
	r.run(time.Minute)
	if got, want := r.sent(transport.Confirmed), []int64{second, third, fourth}; !slices.Equal(got, want) {
		t.Errorf("got %v want %v", got, want)
	}
	r.drained()
}

// TestWhatIsOnItsWayBehindAHeadGoesBeforeIt has the head of a key come due while an earlier event,
// which was deferred and is due since, is being moved to the head's side.
func TestWhatIsOnItsWayBehindAHeadGoesBeforeIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	deferred := r.store.AddDeferred("topic", "key", 5*time.Second)
	head := r.store.Add("topic", "key")
	r.store.Add("topic", "other") // shows that the route works
	r.broker = func(s rigSend) transport.Result {
		if s.seq == head && r.now < time.Second {
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{Backoff: Backoff{Initial: 10 * time.Second}})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpFollow }
	for len(rel.held) == 0 {
		r.run(100 * time.Millisecond)
		if r.now > 9*time.Second {
			t.Fatal("the deferred event is not being moved")
		}
	}
	r.run(20 * time.Second)
	if at := r.seenAt(deferred); at >= 0 {
		t.Fatalf("the deferred event was sent at %v, before it was moved", at)
	}
	rel.free()
	r.run(time.Minute)
	r.drained()
	want := []int64{deferred, head}
	if got := slices.DeleteFunc(r.sent(transport.Confirmed), func(seq int64) bool { return !slices.Contains(want, seq) }); !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
}

// TestHeadThatIsDiscardedInFlightHoldsUpNothing discards a head of which the outcome is not known
// afterwards, on a route that stays down: what waits behind it takes another one.
func TestHeadThatIsDiscardedInFlightHoldsUpNothing(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Unavailable, transport.Refused} {
		r := newRig(t)
		head, next := r.store.Add("down", "key"), r.store.Add("up", "key")
		r.store.Add("up", "other") // shows that the transport works
		refused := false
		r.broker = func(s rigSend) transport.Result {
			switch {
			case s.seq == head && !refused:
				refused = true
				return transport.Result{Outcome: transport.Refused}
			case s.seq == head:
				return transport.Result{Outcome: outcome}
			}
			return confirmAll(s)
		}
		rel := r.start(Options{})
		rel.mute = func(s rigSend) bool { return s.seq == head && refused }
		for len(rel.muted) == 0 {
			r.run(100 * time.Millisecond)
			if r.now > time.Minute {
				t.Fatal("the head is not sent again")
			}
		}
		if !r.store.Discard(head) {
			t.Fatalf("the head is %q", r.store.State(head))
		}
		r.run(10 * time.Second) // the relay hears of it
		later := r.store.Add("up", "key")
		r.run(10 * time.Second)
		sends := len(r.sends)
		rel.free()
		r.run(10 * time.Second)
		if r.seenAt(next) < 0 || r.seenAt(later) < r.seenAt(next) {
			t.Errorf("%s: of %d and %d behind the discarded head arrived %v", outcome, next, later, r.sent(transport.Confirmed))
		}
		for _, s := range r.sends[sends+1:] {
			if s.seq == head {
				t.Errorf("%s: sent at %v though it was discarded", outcome, s.at)
			}
		}
	}
}

// Replayed events that cannot be kept, because their route takes nothing, are read and left out
// again and again. They were there before, so the shard is not read from the beginning for them,
// and what is behind them gets through.
func TestReplayedEventsOfARouteThatTakesNothingHoldUpNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	down := false
	r.broker = func(s rigSend) transport.Result {
		if down && s.topic == "bad" {
			return transport.Result{Outcome: transport.Returned}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{FetchSize: 16, Window: 64})
	r.run(time.Second)
	keys := shardKeys(200)
	var seqs []int64
	for _, key := range keys[:150] {
		seqs = append(seqs, r.store.Add("bad", key))
	}
	rel.core.Wake(r.now, wakeup.All)
	r.run(10 * time.Second)
	r.drained()
	down = true
	for _, seq := range seqs {
		r.store.Replay(seq)
	}
	for i := range 50 {
		tx := r.store.Begin()
		seq := tx.Write("good", keys[150+i])
		at := r.now
		rel.core.Wake(r.now, tx.Commit())
		r.run(2 * time.Second)
		if seen := r.seenAt(seq); seen < at {
			t.Fatalf("event %d of a healthy route is not sent behind replayed ones of another", i)
		}
	}
	down = false
	r.run(2 * time.Minute)
	r.drained()
}
