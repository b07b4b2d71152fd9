package core

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// A queue at its limit refuses what comes while it is full. Consumers make room for one
// message at a time.
func TestAFullQueueThatTakesSomeBuriesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 {
		r.store.Add("full", fmt.Sprint("key", i))
	}
	bad := r.store.Add("full", "bad")
	roomAt := time.Duration(0)
	r.broker = func(s rigSend) transport.Result {
		if s.seq == bad || s.at < roomAt {
			return transport.Result{Outcome: transport.Refused}
		}
		roomAt = s.at + 30*time.Millisecond
		return confirmAll(s)
	}
	r.start(Options{Window: 100, Backoff: Backoff{Initial: 50 * time.Millisecond, Max: 200 * time.Millisecond}, RouteProbeInterval: 200 * time.Millisecond})
	r.run(time.Minute)
	for range 200 { // with the backlog gone, the bad one is told from the others
		r.store.Add("full", "")
		r.run(500 * time.Millisecond)
	}
	counted := 0
	for _, x := range r.store.Failures {
		if x.Seq != bad {
			counted++
		}
		if x.Dead != (x.Seq == bad && x.Attempts == 10) {
			t.Errorf("%d is dead %t after %d attempts", x.Seq, x.Dead, x.Attempts)
		}
	}
	if r.store.State(bad) != outbox.Dead {
		t.Errorf("the bad event is %q after %d attempts", r.store.State(bad), len(r.store.Attempts(bad)))
	}
	if counted > 100 {
		t.Errorf("%d attempts counted of 300 events without a fault", counted)
	}
	r.drained()
}

func TestAStalledRouteTriesWhatLiesBehindBadEvents(t *testing.T) {
	t.Parallel()
	for _, works := range []bool{false, true} { // another route
		r := newRig(t)
		bad := make(map[int64]bool)
		for i := range 200 {
			bad[r.store.Add("bad", fmt.Sprint("key", i))] = true
		}
		good := r.store.Add("bad", "good")
		r.broker = func(s rigSend) transport.Result {
			if bad[s.seq] {
				return transport.Result{Outcome: transport.Refused}
			}
			return confirmAll(s)
		}
		rel := r.start(Options{Window: 50, RouteProbeInterval: 10 * time.Millisecond})
		rel.core.limits.sweep = 10 * time.Second
		for range 20 {
			if works {
				r.store.Add("other", "o")
			}
			r.run(10 * time.Second)
		}
		if _, queued := r.store.Queue[r.store.Log[good].Shard][good]; queued {
			t.Errorf("with another route %t, the good event was not sent", works)
		}
	}
}

func TestParkedHeadsBehindThoseOfAStalledRouteAreSent(t *testing.T) {
	t.Parallel()
	const stuck = 300
	r := newRig(t)
	for i := range stuck {
		r.store.ParkDue("down", fmt.Sprint("key", i))
	}
	behind := r.store.ParkDue("up", "good")
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "down" {
			return transport.Result{Outcome: transport.Unavailable}
		}
		return confirmAll(s)
	}
	most := 0
	rel := r.start(Options{Window: 50})
	rel.core.limits.due = 10
	rel.hold = func(cl *Call) bool {
		if cl.Op() == statement.OpDue {
			most = max(most, cl.Statement.(*statement.Due).Limit)
		}
		return false
	}
	for range 60 {
		r.store.Add("up", "")
		r.run(time.Second)
	}
	if r.store.State(behind) != "" {
		t.Errorf("the event behind %d of a stalled route is %q", stuck, r.store.State(behind))
	}
	if most > rel.core.limits.due {
		t.Errorf("a look asked for %d heads", most)
	}
}

// TestABlockedKeyTakesLittleMemory loads many of them, and passes as many over.
//
//nolint:paralleltest // it measures the memory of the process
func TestABlockedKeyTakesLittleMemory(t *testing.T) {
	const keys = 200_000
	c := New(Options{Name: "relay"}, Topics{Route: func(s string) string { return s }}, rand.New(rand.NewPCG(1, 1)), false)
	sh := &shardState{shardEvents: shardEvents{lines: make(map[string]*keyLine), index: make(map[int64]*Entry)}}
	c.shards[0] = sh
	before := heap()
	sh.phase, sh.loaded = phaseLoad, make(map[string]struct{})
	for i := range keys {
		sh.loaded[fmt.Sprint("customer-", 1_000_000+i)] = struct{}{}
	}
	c.loading.open(sh)
	blocked := heap()
	r := c.routes.of("topic")
	for i := range keys {
		c.laps.skip(sh, r, fmt.Sprint("other-", 1_000_000+i), int64(i+1))
	}
	passed := heap()
	t.Logf("bytes per blocked key: %d, per key that was passed over: %d", (blocked-before)/keys, (passed-blocked)/keys)
	if each := (blocked - before) / keys; each > 120 {
		t.Errorf("%d bytes per blocked key", each)
	}
	if each := (passed - blocked) / keys; each > 40 {
		t.Errorf("%d bytes per key that was passed over", each)
	}
	if len(sh.blockedHeads) != keys {
		t.Errorf("%d keys rest", len(sh.blockedHeads))
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// The answer of the statement that buried an event is lost, and an operator redrives the event
// before the statement is repeated.
func TestARepeatedFailureDoesNotBuryWhatWasRedriven(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "key")
	refuse := true
	r.broker = func(s rigSend) transport.Result {
		if s.seq == bad && refuse {
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{MaxAttempts: 2, Backoff: Backoff{Initial: time.Millisecond}})
	rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpRetry }
	for len(rel.delayed) == 0 {
		r.store.Add("topic", "")
		r.run(100 * time.Millisecond)
	}
	if r.store.State(bad) != outbox.Dead {
		t.Fatalf("the event is %q", r.store.State(bad))
	}
	refuse = false
	r.store.Redrive(bad)
	rel.delayed[0].Err = errors.New("connection lost")
	rel.free()
	r.run(20 * time.Second)
	if r.store.State(bad) != "" {
		t.Errorf("the redriven event is %q", r.store.State(bad))
	}
	r.drained()
}

// As before, but the event had been redriven before it failed: it has as many attempts again as
// when it failed.
func TestARepeatedFailureDoesNotBuryWhatWasRedrivenTwice(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"key", ""} {
		r := newRig(t)
		bad := r.store.Add("topic", key)
		refuse := true
		r.broker = func(s rigSend) transport.Result {
			if s.seq == bad && refuse {
				return transport.Result{Outcome: transport.Refused}
			}
			return confirmAll(s)
		}
		rel := r.start(Options{MaxAttempts: 1})
		for r.store.State(bad) != outbox.Dead {
			r.store.Add("topic", "")
			r.run(100 * time.Millisecond)
		}
		r.store.Redrive(bad)
		rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpRetry }
		for len(rel.delayed) == 0 {
			r.store.Add("topic", "")
			r.run(100 * time.Millisecond)
		}
		refuse = false
		if !r.store.Redrive(bad) {
			t.Fatalf("key %q: the event is %q", key, r.store.State(bad))
		}
		rel.delayed[0].Err = errors.New("connection lost")
		rel.free()
		r.run(20 * time.Second)
		if r.store.State(bad) != "" {
			t.Errorf("key %q: the redriven event is %q", key, r.store.State(bad))
		}
		r.drained()
	}
}

// The answer of the statement that parked an event is lost, an operator discards the event, and the
// relay learns of that before the statement is repeated: nothing is there to hold the key up.
func TestARepeatedParkDoesNotHoldUpTheKeyOfWhatWasDiscarded(t *testing.T) {
	t.Parallel()
	for _, cfg := range []Options{
		{MaxAttempts: 1, HoldDeadKeys: true},
		{MaxAttempts: 2, Backoff: Backoff{Initial: time.Minute}},
	} {
		r := newRig(t)
		r.store.Add("topic", "other")
		bad := r.store.Add("topic", "key")
		next := r.store.Add("topic", "key")
		r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
		rel := r.start(cfg)
		rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpPark }
		for len(rel.delayed) == 0 {
			r.store.Add("topic", "")
			r.run(100 * time.Millisecond)
		}
		if !r.store.Discard(bad) {
			t.Fatalf("the event is %q", r.store.State(bad))
		}
		lost := errors.New("connection lost")
		r.store.Fail = func(method string) error {
			if method == "Park" {
				return lost
			}
			return nil
		}
		rel.delayed[0].Err = lost
		rel.free()
		r.run(20 * time.Second) // shards are renewed, and loaded again
		r.store.Fail = nil
		r.run(20 * time.Second)
		r.drained()
		if !slices.Contains(r.sent(transport.Confirmed), next) {
			t.Errorf("hold %v: the next event of the key did not go", cfg.HoldDeadKeys)
		}
	}
}
