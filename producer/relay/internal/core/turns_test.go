package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// keysIn returns n keys of the shards from first to last.
func keysIn(first, last, n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("key", i)
		if shard := idgen.Shard(key, [16]byte{}); first <= shard && shard <= last {
			keys = append(keys, key)
		}
	}
	return keys
}

// refusingSome is a rig whose broker refuses the events of a set.
func refusingSome(t *testing.T) (r *rig, bad map[int64]bool) {
	r, bad = newRig(t), make(map[int64]bool)
	r.broker = func(s rigSend) transport.Result {
		if bad[s.seq] {
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	return r, bad
}

// addBad commits a bad event of the route "sick" for each key.
func addBad(r *rig, bad map[int64]bool, keys []string) (seqs []int64) {
	for _, key := range keys {
		seq := r.store.Add("sick", key)
		bad[seq] = true
		seqs = append(seqs, seq)
	}
	return seqs
}

// parkBad commits n bad events of the route "sick" among good ones, and lets ten minutes pass, in
// which the bad ones are parked.
func parkBad(r *rig, bad map[int64]bool, n int) (seqs []int64) {
	r.t.Helper()
	for i := range n {
		seqs = append(seqs, addBad(r, bad, []string{fmt.Sprint("parked", i)})...)
		for j := range 20 {
			r.store.Add("sick", fmt.Sprint("good", i, "/", j))
		}
	}
	minutes(r, 10)
	if got := len(r.store.Parked); got != n {
		r.t.Fatalf("%d events are parked instead of %d", got, n)
	}
	return seqs
}

// probesOf counts the sends of each event since the first so many sends.
func probesOf(r *rig, from int) map[int64]int {
	probes := make(map[int64]int)
	for _, s := range r.sends[from:] {
		probes[s.seq]++
	}
	return probes
}

// unprobed returns the events without a probe.
func unprobed(seqs []int64, probes map[int64]int) []int64 {
	return slices.DeleteFunc(slices.Clone(seqs), func(seq int64) bool { return probes[seq] > 0 })
}

func minutes(r *rig, n int) {
	for range n {
		r.run(time.Minute)
	}
}

// A page of a lap brings more events than find a place. A sweep goes on behind it, and probes come
// back between two pages.
func TestEventsBehindAPageHaveTheirTurn(t *testing.T) {
	t.Parallel()
	for _, sweep := range []time.Duration{5 * time.Minute, 10 * time.Second} {
		r, bad := refusingSome(t)
		seqs := addBad(r, bad, keysIn(0, 0, 600))
		rel := r.start(Options{})
		rel.core.limits.sweep = sweep
		r.run(time.Minute)
		rel.delay = func(cl *Call) bool { return cl.fetch() != nil && cl.fetch().lap }
		from := len(r.sends)
		for range 60 * 60 {
			r.run(time.Second)
			rel.reply()
		}
		if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
			t.Errorf("with a sweep each %v, %d of 600 events were never probed by %d probes", sweep, len(left), len(r.sends)-from)
		}
	}
}

// reply answers the calls that were delayed.
func (rel *rigRelay) reply() {
	delayed := rel.delayed
	rel.delayed = nil
	for _, cl := range delayed {
		rel.core.Reply(rel.rig.now, cl)
	}
}

// A lap pauses where an event finds no place, or each few probes would read a whole backlog.
func TestBacklogOfAStalledRouteIsReadAsItIsProbed(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	addBad(r, bad, keysIn(0, 0, 5000))
	rel := r.start(Options{})
	rel.core.limits.sweep = time.Hour
	r.run(time.Minute)
	rows, from := r.store.Fetched, len(r.sends)
	minutes(r, 30)
	if rows, probes := r.store.Fetched-rows, len(r.sends)-from; probes < 1700 || rows > 10*probes {
		t.Errorf("%d rows were read for %d probes", rows, probes)
	}
}

// A pass over the due events takes several pages, and probes come back in between.
func TestParkedEventsBehindAPageHaveTheirTurn(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	rel := r.start(Options{MaxAttempts: 100, Backoff: Backoff{Initial: time.Minute, Max: time.Minute}})
	rel.core.limits.due = 10
	seqs := parkBad(r, bad, 100)
	rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpDue }
	from := len(r.sends)
	for range 40 * 60 * 5 {
		r.run(200 * time.Millisecond)
		rel.reply()
	}
	if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
		t.Errorf("%d of 100 parked events were never probed by %d probes: %v", len(left), len(r.sends)-from, left)
	}
}

// The last event that was probed in vain stays in memory beside the good ones. It must not be the
// same one for ever.
func TestOldestEventOfAStalledRouteIsProbedAgain(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 63, 400))
	r.start(Options{})
	minutes(r, 10)
	delete(bad, seqs[0])
	minutes(r, 60)
	if !slices.Contains(r.sent(transport.Confirmed), seqs[0]) {
		t.Error("the first event can be sent since an hour")
	}
}

func TestParkedEventsLeaveTurnsToTheQueue(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{time.Second, 2 * time.Second} {
		r, bad := refusingSome(t)
		rel := r.start(Options{RouteProbeInterval: interval, MaxAttempts: 100, Backoff: Backoff{Initial: time.Minute, Max: time.Minute}})
		parkBad(r, bad, 150)
		addBad(r, bad, keysIn(0, 63, 60))
		rel.core.Wake(r.now, wakeup.All)
		r.run(time.Minute)
		at := r.now
		good := r.store.Add("sick", "good")
		rel.core.Wake(r.now, wakeup.All)
		minutes(r, 20)
		if r.seenAt(good) < at {
			t.Errorf("with a probe in %v, an event in the queue that can be sent was not sent in 20 minutes", interval)
		}
	}
}

func TestBothKindsHaveHalfOfThePlaces(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	rel := r.start(Options{MaxAttempts: 100, Backoff: Backoff{Initial: time.Minute, Max: time.Minute}})
	parkBad(r, bad, 100)
	addBad(r, bad, keysIn(0, 63, 200))
	rel.core.Wake(r.now, wakeup.All)
	minutes(r, 5)
	route := rel.core.routes.byName["sick"]
	for range 60 {
		r.run(10 * time.Second)
		parked := 0
		all := route.candidates()
		for _, e := range all {
			if e.parked {
				parked++
			}
		}
		if parked != rel.core.limits.stall/2 || len(all) != rel.core.limits.stall {
			t.Fatalf("%d of %d events in memory are parked", parked, len(all))
		}
	}
}

// With two places, laps take each that is free before the next pass over the due events. Each probe
// takes six seconds.
func TestParkedEventHasItsTurnBesideTwoPlaces(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 0, 20)) // the first one is parked
	rel := r.start(Options{Window: 20})
	rel.core.limits.stall, rel.core.limits.sweep = 2, time.Second
	r.run(10 * time.Second)
	rel.mute = func(rigSend) bool { return true }
	from := len(r.sends)
	for range 300 {
		r.run(6 * time.Second)
		muted := rel.muted
		rel.muted = nil
		for _, s := range muted {
			rel.answer(s)
		}
	}
	if len(r.store.Parked) == 0 {
		t.Fatal("no event is parked")
	}
	if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
		t.Errorf("events %v were not probed in half an hour", left)
	}
}

// A success has all events sent, and a paused route begins with the first ones again.
func TestTurnsOutlastASuccess(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 0, 1000))
	rel := r.start(Options{Window: 100})
	minutes(r, 10)
	delete(bad, seqs[915])
	for i, key := range keysIn(1, 1, 120) {
		if i%2 == 0 {
			r.store.Add("sick", key)
			rel.core.Wake(r.now, wakeup.All)
		}
		r.run(time.Minute)
	}
	if rel.noted("route works again") < 2 {
		t.Fatal("the route did not work in between")
	}
	if !slices.Contains(r.sent(transport.Confirmed), seqs[915]) {
		t.Error("an event that can be sent was not sent in two hours")
	}
}

func TestRouteOfAShardThatIsLostIsNotStalled(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	addBad(r, bad, keysIn(0, 0, 100))
	first := r.start(Options{})
	r.run(time.Minute)
	r.start(Options{})
	r.run(time.Minute)
	first.stopped = true
	r.run(30 * time.Second)
	first.stopped = false
	r.run(time.Minute)
	if first.core.shards[0] != nil {
		t.Fatal("the shard was not lost")
	}
	if n := len(first.core.routes.stalled); n != 0 {
		t.Errorf("%d routes are stalled, and no event of theirs is in a shard of the relay", n)
	}
}

// Two events are kept, probes take long, and other routes fill half of the memory.
func TestTurnsBesideSlowProbesAndFewPlaces(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 0, 8))
	rel := r.start(Options{Window: 20})
	rel.core.limits.stall = 2
	r.run(10 * time.Second)
	rel.mute = func(rigSend) bool { return true }
	from := len(r.sends)
	for i := range 4 * 60 * 12 {
		if i%2 == 0 {
			for j := range 24 {
				r.store.Add(fmt.Sprint("well", j%3), fmt.Sprint("well", j%12))
			}
		}
		rel.core.Wake(r.now, wakeup.All)
		r.run(250 * time.Millisecond)
		muted := rel.muted
		rel.muted = nil
		for _, s := range muted {
			if s.topic == "sick" && i%24 > 0 {
				rel.muted = append(rel.muted, s)
			} else {
				rel.answer(s)
			}
		}
	}
	if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
		t.Errorf("events %v were not probed in twelve minutes", left)
	}
}

// The tail never ends, and what is read of it fills more than half of the memory.
func TestTurnsBesideMoreThanCanBeSent(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 0, 8))
	rel := r.start(Options{Window: 20})
	rel.core.limits.stall = 2
	r.run(10 * time.Second)
	for i := range 30_000 {
		r.store.Add("well", fmt.Sprint("well", i%500))
	}
	rel.mute = func(s rigSend) bool { return s.topic == "well" }
	rel.core.Wake(r.now, wakeup.All)
	from := len(r.sends)
	for range 10 * 60 * 10 {
		r.run(100 * time.Millisecond)
		muted := rel.muted
		rel.muted = nil
		for i, s := range muted {
			if i < 3 {
				rel.answer(s)
			} else {
				rel.muted = append(rel.muted, s)
			}
		}
	}
	if queued, _ := r.store.Left(); queued < 1000 {
		t.Fatalf("only %d events are left", queued)
	}
	if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
		t.Errorf("events %v were not probed in ten minutes", left)
	}
}

// The read positions are set back while the events of a route that works again are read.
func TestRewindKeepsTheHurryOfALap(t *testing.T) {
	t.Parallel()
	r, rel, works := stallBeside(t, 10_000)
	rel.core.limits.sweep = time.Hour
	rel.core.laps.sweepAt = r.now + time.Hour
	*works = true
	pages := 0
	rel.hold = func(cl *Call) bool {
		f := cl.fetch()
		if f != nil && f.urgent {
			pages++
		}
		return pages > 3 && f != nil
	}
	for rel.noted("route works again") == 0 {
		r.run(time.Millisecond)
	}
	r.run(time.Second)
	for _, sh := range rel.core.shards {
		sh.rewind(0)
	}
	rel.free()
	r.run(10 * time.Minute)
	r.drained()
}

// A dead event was redriven, and its key has an event in the queue that was probed in vain.
func TestParkedEventDoesNotTakeThePlaceOfItsKey(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	outcomes := make(map[int64]transport.Outcome)
	r.outcomes(outcomes)
	keys := keysIn(0, 63, 60)
	var dead []int64
	for _, key := range keys {
		seq := r.store.Add("sick", key)
		outcomes[seq] = transport.Invalid
		dead = append(dead, seq)
	}
	rel := r.start(Options{})
	r.run(5 * time.Second)
	for _, key := range keys {
		outcomes[r.store.Add("sick", key)] = transport.Refused
	}
	rel.core.Wake(r.now, wakeup.All)
	r.run(20 * time.Second)
	for _, seq := range dead {
		r.store.Redrive(seq)
	}
	rel.core.due.soon(r.now) // before the next renewal, which tells of the redrive
	r.run(time.Millisecond)
	clear(outcomes)
	underway := make(map[string]int64) // parked heads, by key
	rel.mute = func(s rigSend) bool {
		if head := underway[s.key]; head != 0 && s.seq > head {
			t.Errorf("key %s: %d was sent while its parked head %d is under way", s.key, s.seq, head)
		}
		if slices.Contains(dead, s.seq) && len(r.sent(transport.Confirmed)) > 0 {
			underway[s.key] = s.seq
			return true
		}
		return false
	}
	r.run(1500 * time.Millisecond)
	if len(underway) == 0 {
		t.Fatal("no parked head is under way")
	}
	rel.free()
	minutes(r, 10)
	r.drained()
}

// More events come to a paused route than it is probed.
func TestTurnsBesideMoreThanIsProbed(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	keys := keysIn(0, 0, 3100)
	deferred := r.store.AddDeferred("sick", keys[0], 10*time.Minute) // comes to stand among the first
	seqs := addBad(r, bad, keys[1:61])
	rel := r.start(Options{})
	from := 0
	for i := range 3000 {
		if i == 1200 {
			from = len(r.sends)
		}
		addBad(r, bad, keys[61+i:62+i])
		rel.core.Wake(r.now, wakeup.All)
		r.run(600 * time.Millisecond)
	}
	if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
		t.Errorf("%d of the first 60 events were not probed again in 18 minutes", len(left))
	}
	if r.seenAt(deferred) < 0 {
		t.Error("an event that is due since 20 minutes was not sent")
	}
}

// The read positions are set back when a lap has had all skipped events delivered.
func TestRewindBehindTheSkippedEventsLeavesNothingToDo(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	works := false
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "sick" && !works {
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	keys := keysIn(0, 0, 61)
	for range 3 {
		for _, key := range keys[:60] {
			r.store.Add("sick", key)
		}
	}
	for range 20_000 { // more numbers than a page of a lap goes over
		r.store.Add("well", keys[60])
	}
	rel := r.start(Options{})
	minutes(r, 3)
	sh := rel.core.shards[0]
	works, rel.core.laps.span = true, 0
	rel.hold = func(cl *Call) bool { f := cl.fetch(); return f != nil && f.urgent && sh.back.at > 200 }
	for len(rel.held) == 0 && r.now < 10*time.Minute {
		r.run(10 * time.Millisecond)
	}
	r.run(3 * time.Second)
	if queued, _ := r.store.Left(); queued > 0 || sh.back.urgent == 0 {
		t.Fatalf("%d are queued, %d laps are urgent", queued, sh.back.urgent)
	}
	sh.rewind(0)
	rel.free()
	minutes(r, 10)
	if !rel.core.quiescent() {
		t.Errorf("something is still to be done: %d urgent laps from %d on, read up to %d", sh.back.urgent, sh.back.first, sh.low)
	}
	r.drained()
}
