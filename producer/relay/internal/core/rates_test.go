package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// limited gives the topic "slow" a rate limit.
func limited(perSecond float64) func(string) Downstream {
	return func(topic string) Downstream {
		if topic == "slow" {
			return Downstream{Name: "slow", PerSecond: perSecond}
		}
		return Downstream{Name: "other"}
	}
}

func TestRelaysShareARate(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(100)
	for i := range 5000 {
		r.store.Add("slow", fmt.Sprint("k", i%500))
	}
	r.start(Options{})
	r.start(Options{})
	r.run(20 * time.Second)
	if n := r.sentOf("slow", 0); n < 2000 || n > 2000+100+2*20+20 {
		t.Errorf("%d events were sent in 20 s", n)
	}
	of := make(map[string]int)
	for _, s := range r.sends {
		of[s.relay.name]++
	}
	for name, n := range of {
		if n < 500 {
			t.Errorf("%s has sent %d", name, n)
		}
	}
}

func TestLimitedBacklogDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{0.5, 20, 1000} {
		r := newRig(t)
		r.downstream = limited(perSecond)
		rel := r.start(Options{Window: 100})
		for i := range 20_000 {
			key := fmt.Sprint("k", i%3000)
			if i%4 == 0 {
				key = ""
			}
			r.store.Add("slow", key)
		}
		r.run(3 * time.Second)
		since, calls := r.now, len(rel.calls)
		r.produce(10*time.Second, 10*time.Millisecond, "well")
		if n := r.sentOf("well", since); n != 1000 {
			t.Errorf("%v/s: %d of the other topic were sent", perSecond, n)
		}
		for _, s := range r.sends {
			if s.topic == "well" && (s.at-since)%(10*time.Millisecond) > 9*time.Millisecond {
				t.Fatalf("%v/s: an event of the other topic waited", perSecond)
			}
		}
		n := float64(r.sentOf("slow", since))
		if n < 0.95*10*perSecond-1 || n > 10*perSecond+0.2*perSecond+1 {
			t.Errorf("%v/s: %v were sent in 10 s", perSecond, n)
		}
		if most := rel.core.rates.share() + 2; rel.core.rates.all[0].events > most {
			t.Errorf("%v/s: %d events in memory, at most %d", perSecond, rel.core.rates.all[0].events, most)
		}
		t.Logf("%v/s: %d statements in 10 s", perSecond, len(rel.calls)-calls)
		r.drainedInOrder(t)
	}
}

// drainedInOrder checks that the events of each key were sent in their order.
func (r *rig) drainedInOrder(t *testing.T) {
	t.Helper()
	last := make(map[string]int64)
	for _, s := range r.sends {
		if s.key != "" && s.seq < last[s.key] {
			t.Fatalf("%d of key %s was sent after %d", s.seq, s.key, last[s.key])
		}
		last[s.key] = s.seq
	}
}

func TestKeyKeepsItsOrderOverALimitedTopicAndAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(50)
	for i := range 1000 {
		r.store.Add([]string{"slow", "well"}[i%2], fmt.Sprint("k", i%7))
	}
	r.start(Options{Window: 10})
	r.run(5 * time.Second)
	second := r.start(Options{Window: 10})
	r.run(5 * time.Second)
	r.kill(second)
	r.run(30 * time.Second)
	r.drained()
	r.drainedInOrder(t)
}

// Events of the limited topic that are in memory behind an event of a route that does not work would
// otherwise keep all others of their topic from being read, for as long as the route does not work.
func TestPlacesOfALimitAreNotTakenByEventsBehindAStalledRoute(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Unavailable, transport.Refused, transport.Returned} {
		for _, behind := range []int{2, 3, 4} { // some, nearly all and all of the places
			testPlacesOfALimit(t, outcome, behind)
		}
	}
}

func testPlacesOfALimit(t *testing.T, outcome transport.Outcome, behind int) {
	t.Helper()
	r := newRig(t)
	r.downstream = limited(100)
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "bad" {
			return transport.Result{Outcome: outcome, Err: errRefused}
		}
		return transport.Result{Outcome: transport.Confirmed}
	}
	for i := range 2 {
		r.store.Add("bad", fmt.Sprint("k", i))
	}
	for i := range behind {
		r.store.Add("slow", fmt.Sprint("k", i%2))
	}
	rel := r.start(Options{Window: 8})
	rel.mute = func(s rigSend) bool { return s.topic == "bad" }
	r.run(500 * time.Millisecond) // the events behind are read meanwhile
	for range 1000 {              // in all shards
		r.store.Add("slow", "")
	}
	rel.core.Wake(r.now, wakeup.All)
	r.run(300 * time.Millisecond)
	muted := rel.muted
	rel.muted, rel.mute = nil, nil
	for _, s := range muted {
		rel.answer(s)
	}
	r.produce(5*time.Second, 100*time.Millisecond, "slow")
	r.run(10 * time.Second)
	if n := r.sentOf("slow", 0); n != 1050 {
		t.Errorf("%v, %d behind: %d events of the limited topic were sent, want 1050", outcome, behind, n)
	}
	r.broker = confirmAll
	r.run(30 * time.Second)
	r.drained()
	r.drainedInOrder(t)
}

func TestLimitThatCannotBeAskedForHoldsUpItsTopicOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(50)
	r.store.Fail = func(method string) error {
		if method == "TakeTokens" {
			return errors.New("permission denied")
		}
		return nil
	}
	rel := r.start(Options{})
	r.produce(5*time.Second, 100*time.Millisecond, "slow", "well")
	if r.sentOf("slow", 0) != 0 || r.sentOf("well", 0) != 50 {
		t.Errorf("sent %d and %d", r.sentOf("slow", 0), r.sentOf("well", 0))
	}
	if rel.noted("statement failed") == 0 {
		t.Error("the log does not tell")
	}
	r.store.Fail = nil
	rel.core.Wake(r.now, wakeup.All)
	r.run(10 * time.Second)
	r.drained()
}

func TestIdleLimitAsksForNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(50)
	rel := r.start(Options{})
	r.produce(time.Second, 100*time.Millisecond, "slow")
	r.run(time.Second)
	rel.calls = nil
	r.run(time.Minute)
	for _, op := range rel.calls {
		if op == statement.OpTakeTokens {
			t.Fatal("asked for tokens without an event")
		}
	}
}
