package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// flapping answers: the routes "sick…" refuse their events, but for the good ones, and "flap" takes one
// event per interval, as a queue at its limit does.
func flapping(r *rig, interval time.Duration, good ...int64) {
	var free time.Duration
	r.broker = func(s rigSend) transport.Result {
		switch {
		case len(good) > 0 && s.seq == good[0]:
		case strings.HasPrefix(s.topic, "sick"), s.topic == "flap" && r.now < free:
			return transport.Result{Outcome: transport.Refused}
		case s.topic == "flap":
			free = r.now + interval
		}
		return confirmAll(s)
	}
}

// slowly lets time pass in steps. The answer to each read comes a step late.
func slowly(rel *rigRelay, step, d time.Duration) {
	rel.delay = func(cl *Call) bool { return cl.fetch() != nil || cl.Op() == statement.OpDue }
	for end := rel.rig.now + d; rel.rig.now < end; {
		rel.rig.run(step)
		rel.reply()
	}
}

// The events of a route take the room of due events while it works, and then the route fails. None
// of them left memory, so no due event of any route was read.
func TestDueEventsOfARouteThatFailsLeaveRoomToOthers(t *testing.T) {
	t.Parallel()
	for _, window := range []int{300, 800} {
		r := newRig(t)
		r.broker = func(s rigSend) transport.Result {
			if s.topic == "sick" {
				return transport.Result{Outcome: transport.Unavailable}
			}
			return confirmAll(s)
		}
		rel := r.start(Options{Window: window, MaxAttempts: 100_000})
		for i := range 520 {
			r.store.ParkDue("sick", fmt.Sprint("sick", i))
		}
		rel.mute = func(s rigSend) bool { return s.topic == "sick" }
		pass := func(d time.Duration) { // answers take half a second
			for end := r.now + d; r.now < end; {
				r.run(500 * time.Millisecond)
				muted := rel.muted
				rel.muted = nil
				for _, s := range muted {
					rel.answer(s)
				}
			}
		}
		pass(30 * time.Second)
		at := r.now
		seq := r.store.ParkDue("well", "well")
		pass(time.Minute)
		if r.seenAt(seq) < at {
			t.Errorf("window %d: a due event of a route that works was not sent in a minute", window)
		}
	}
}

// Each failed statement has all queues read from their beginnings, as it may have been executed.
func TestStatementThatAlwaysFailsLeavesTimeForNewEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flapping(r, time.Second)
	for i := range 5000 {
		r.store.Add("sick", fmt.Sprint("sick", i))
	}
	rel := r.start(Options{Window: 50, FetchSize: 100})
	slowly(rel, 10*time.Millisecond, 20*time.Second)
	r.store.Fail = func(method string) error {
		if method == "Undefer" {
			return errors.New("permission denied")
		}
		return nil
	}
	slowly(rel, 10*time.Millisecond, 5*time.Second)
	at := r.now
	seq := r.store.Add("well", "well")
	rel.calls = nil
	for range 200 {
		rel.core.Wake(r.now, wakeup.All)
		slowly(rel, 10*time.Millisecond, 100*time.Millisecond)
	}
	if n := rel.called(statement.OpUndefer); n > 10 { // each has all queues read from their beginnings
		t.Errorf("the statement was tried %d times in 20 seconds", n)
	}
	if r.seenAt(seq) < at {
		t.Error("an event of a route that works was not sent in 20 seconds")
	}
	r.store.Fail = nil
	deferred := r.store.AddDeferred("well", "later", r.now+time.Second)
	slowly(rel, 10*time.Millisecond, 70*time.Second)
	if r.seenAt(deferred) < at {
		t.Error("a deferred event was not sent a minute after the statement works again")
	}
}

// Transactions that commit late set the read position back, by less than a lap has still to read.
func TestLapGoesOnBelowAReadPositionThatIsSetBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	keys := keysIn(0, 0, 700)
	const last = 150
	var seqs []int64
	for _, key := range keys[:2*last] {
		seqs = append(seqs, r.store.Add("sick", key))
	}
	good := seqs[last]
	flapping(r, time.Second, good)
	rel := r.start(Options{Window: 50, FetchSize: 100})
	rel.core.limits.sweep, rel.core.limits.page = time.Hour, 16
	rewinds, version := 0, uint32(0)
	for r.now < 15*time.Minute && r.seenAt(good) < 0 {
		tx := r.store.Begin()
		for range 30 {
			tx.Write("well", keys[len(keys)-1])
		}
		r.store.Add("well", keys[len(keys)-2])
		rel.core.Wake(r.now, wakeup.All)
		slowly(rel, 10*time.Millisecond, 100*time.Millisecond)
		rel.core.Wake(r.now, tx.Commit())
		slowly(rel, 10*time.Millisecond, 400*time.Millisecond)
		if sh := rel.core.shards[0]; sh != nil && sh.version != version {
			version = sh.version
			rewinds++
		}
	}
	if rewinds < 100 {
		t.Fatalf("the read position was set back %d times only", rewinds)
	}
	if r.seenAt(good) < 0 {
		t.Errorf("an event that can be sent was not sent in %v", r.now)
	}
}

// A route works again and fails so often that a lap through its backlog is always urgent.
func TestUrgentLapsLeavePagesToOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, key := range keysIn(1, 1, 40) {
		r.store.Add("sick", key)
	}
	good := r.store.Add("sick", keysIn(1, 1, 41)[40])
	keys := keysIn(0, 0, 300)
	for range 20 {
		for _, key := range keys {
			r.store.Add("flap", key)
		}
	}
	flapping(r, 500*time.Millisecond, good)
	rel := r.start(Options{Window: 50, FetchSize: 100, MaxAttempts: 100_000})
	rel.core.limits.sweep = time.Hour
	for r.now < 8*time.Minute && r.seenAt(good) < 0 {
		slowly(rel, 30*time.Millisecond, time.Second)
	}
	if r.seenAt(good) < 0 {
		t.Errorf("an event that can be sent was not sent in %v", r.now)
	}
}

// Each time that a route works again, its due events are looked for from the first on.
func TestPassOverDueEventsEndsBesideARouteThatFlaps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flapping(r, 500*time.Millisecond)
	rel := r.start(Options{MaxAttempts: 100_000, RouteProbeInterval: time.Second, Backoff: Backoff{Initial: time.Second, Max: time.Second}})
	rel.core.limits.due = 2
	for i := range 150 {
		r.store.ParkDue("sick", fmt.Sprint("sick", i))
		r.store.Add("flap", fmt.Sprint("flap", i))
	}
	slowly(rel, 50*time.Millisecond, 10*time.Second)
	at := r.now
	seq := r.store.ParkDue("well", "well")
	for i := range 120 {
		r.store.Add("flap", fmt.Sprint("new", i))
		slowly(rel, 50*time.Millisecond, 500*time.Millisecond)
	}
	if rel.noted("route works again") < 20 {
		t.Fatal("the route did not work now and again")
	}
	if r.seenAt(seq) < at {
		t.Error("a due event of a route that works was not sent in a minute")
	}
}

// The read position is set back while a lap is between two pages, and the events that were skipped
// are dead before it has come up to them again.
func TestRouteIsNotPausedForEventsThatDiedBeforeTheyWereReadAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first, others := transport.Refused, transport.Refused
	r.broker = func(s rigSend) transport.Result {
		if s.seq == 1 {
			return transport.Result{Outcome: first}
		}
		return transport.Result{Outcome: others}
	}
	var seqs []int64
	for _, key := range keysIn(0, 0, 3) {
		seqs = append(seqs, r.store.Add("sick", key))
	}
	rel := r.start(Options{})
	rel.core.limits.stall, rel.core.limits.page = 2, 1
	r.run(50 * time.Millisecond)
	sh := rel.core.shards[0]
	first = transport.Invalid
	rel.hold = func(cl *Call) bool { return cl.fetch() != nil && sh.back.active && sh.back.at >= seqs[2] }
	for len(rel.held) == 0 && r.now < time.Minute {
		r.run(10 * time.Millisecond)
	}
	if len(rel.held) == 0 {
		t.Fatal("no lap has come to the last event")
	}
	held := rel.held
	rel.held = nil
	others = transport.Invalid
	sh.rewind(0)
	for _, cl := range held {
		rel.execute(cl)
	}
	rel.hold = func(cl *Call) bool { return cl.fetch() != nil }
	r.run(6 * time.Second)
	rel.free()
	minutes(r, 10)
	if queued, live := r.store.Left(); queued+live != 0 {
		t.Fatalf("%d events are queued, %d parked", queued, live)
	}
	if len(rel.core.routes.stalled) > 0 {
		t.Error("the route is paused, and nothing waits")
	}
	r.drained()
}

// A route that works again once and again has laps go through its shard all the time. The events of
// a paused route that lie there must not take the turns of the events in other shards.
func TestEachShardHasItsTurnsBesideARouteThatFlaps(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flapping(r, 2*time.Second)
	rel := r.start(Options{MaxAttempts: 100_000})
	rel.core.limits.stall, rel.core.limits.sweep = 8, time.Hour
	keys, n := keysIn(0, 0, 200), 0
	flap := func(d time.Duration) {
		for end := r.now + d; r.now < end; n++ {
			r.store.Add("flap", keys[n%50])
			r.store.Add("flap", keys[n%50])
			slowly(rel, 20*time.Millisecond, 2*time.Second)
		}
	}
	flap(20 * time.Second)
	for _, key := range keys[50:] {
		r.store.Add("sick", key)
	}
	good := r.store.Add("sick", keysIn(40, 40, 1)[0])
	flap(4 * time.Second)
	flapping(r, 2*time.Second, good)
	for r.now < 8*time.Minute && !slices.Contains(r.sent(transport.Confirmed), good) {
		flap(2 * time.Second)
	}
	if n := rel.noted("route works again"); n < 10 {
		t.Fatalf("the route worked again %d times only", n)
	}
	if !slices.Contains(r.sent(transport.Confirmed), good) {
		t.Errorf("an event that can be sent was not sent in %v", r.now)
	}
}

// A queue is read again from one of its events on, again and again. A lap that ends there has not seen
// the events behind.
func TestTurnsOutlastAQueueThatIsReadAgain(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 0, 60))
	rel := r.start(Options{MaxAttempts: 100_000})
	rel.core.limits.stall, rel.core.limits.sweep = 8, 64*time.Second
	r.run(10 * time.Second)
	from := len(r.sends)
	for i := range 600 {
		slowly(rel, 50*time.Millisecond, 2*time.Second)
		rel.core.shards[0].back.hurry() // for another route, which works again
		rel.core.shards[0].rewind(seqs[i%20])
	}
	wantFairProbes(t, r, seqs, from)
}

// wantFairProbes fails if an event had less than a quarter of the probes of the average.
func wantFairProbes(t *testing.T, r *rig, seqs []int64, from int) {
	t.Helper()
	probes, fair := probesOf(r, from), (len(r.sends)-from)/len(seqs)
	for _, seq := range seqs {
		if probes[seq] < fair/4 {
			t.Errorf("event %d was probed %d times, and each %d times on an average", seq, probes[seq], fair)
		}
	}
}

// The places of a paused route become fewer and more, as others pause and work again. The same events
// must not have the places that become free, nor lose their turns with a place.
func TestTurnsBesideAChangingNumberOfPlaces(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"keyed", "without keys", "parked"} {
		r, bad := refusingSome(t)
		rel := r.start(Options{MaxAttempts: 100_000, Backoff: Backoff{Initial: time.Second, Max: time.Second}})
		rel.core.limits.sweep, rel.core.limits.due = 10*time.Second, 10
		var seqs []int64
		for _, key := range keysIn(0, 0, 60) {
			switch kind {
			case "parked":
				seqs = append(seqs, r.store.ParkDue("sick", key))
				bad[seqs[len(seqs)-1]] = true
			case "keyed":
				seqs = append(seqs, addBad(r, bad, []string{key})...)
			default:
				seqs = append(seqs, addBad(r, bad, []string{""})...)
			}
		}
		rel.core.limits.stall = 10
		r.run(10 * time.Second)
		from := len(r.sends)
		for i := range 3000 {
			rel.core.limits.stall = []int{10, 6}[i%2]
			rel.core.routes.byName["sick"].evictAt = 0
			rel.core.routes.evictSurplus()
			slowly(rel, 50*time.Millisecond, 400*time.Millisecond)
		}
		wantFairProbes(t, r, seqs, from)
	}
}

// The laps of the only shard are urgent all the time, for a route that works again once and again.
func TestTurnsInAShardWhoseLapsAreAlwaysUrgent(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := addBad(r, bad, keysIn(0, 0, 60))
	rel := r.start(Options{MaxAttempts: 100_000})
	rel.core.limits.stall, rel.core.limits.sweep = 8, time.Hour
	r.run(10 * time.Second)
	from := len(r.sends)
	for range 12_000 {
		rel.core.shards[0].back.hurry() // for another route
		slowly(rel, 50*time.Millisecond, 50*time.Millisecond)
	}
	wantFairProbes(t, r, seqs, from)
}

// A pass that was begun for a route that works again goes on when another one works again. The next
// pass then follows at once.
func TestAnotherPassFollowsForARouteThatWorksAgainMeanwhile(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	rel := r.start(Options{MaxAttempts: 100_000, Backoff: Backoff{Initial: time.Second, Max: time.Second}})
	rel.core.limits.due = 10
	for _, key := range keysIn(0, 63, 60) {
		bad[r.store.ParkDue("sick", key)] = true
	}
	slowly(rel, 50*time.Millisecond, time.Minute)
	rel.core.due.restart()
	slowly(rel, 50*time.Millisecond, 100*time.Millisecond)
	pass := rel.core.due.pass
	rel.core.due.restart()
	slowly(rel, 50*time.Millisecond, 1500*time.Millisecond)
	if rel.core.due.pass <= pass {
		t.Error("no pass has followed in a second")
	}
}

// The queue ended far behind the events that are left: their round does not end there any more.
func TestTurnsBeginAgainInAQueueThatIsShorter(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	keys := keysIn(0, 0, 61)
	seqs := addBad(r, bad, keys[:60])
	for range 200 {
		r.store.Add("well", keys[60])
	}
	rel := r.start(Options{MaxAttempts: 100_000})
	rel.core.limits.stall, rel.core.limits.sweep = 8, 64*time.Second
	slowly(rel, 50*time.Millisecond, 30*time.Second)
	rel.core.shards[0].rewind(0)
	slowly(rel, 50*time.Millisecond, 10*time.Second)
	from := len(r.sends)
	slowly(rel, 50*time.Millisecond, 15*time.Minute)
	wantFairProbes(t, r, seqs, from)
}

// Laps of one shard are urgent all the time, and its events must not have the turns of the other.
func TestTurnsInAShardBesideOneWhoseLapsAreAlwaysUrgent(t *testing.T) {
	t.Parallel()
	r, bad := refusingSome(t)
	seqs := append(addBad(r, bad, keysIn(0, 0, 30)), addBad(r, bad, keysIn(40, 40, 30))...)
	rel := r.start(Options{MaxAttempts: 100_000})
	rel.core.limits.stall, rel.core.limits.sweep = 8, 5*time.Minute
	r.run(10 * time.Second)
	from := len(r.sends)
	for range 2400 {
		rel.core.shards[0].back.hurry() // for another route
		slowly(rel, 50*time.Millisecond, 250*time.Millisecond)
	}
	if left := unprobed(seqs, probesOf(r, from)); len(left) > 0 {
		t.Errorf("events %v were not probed in ten minutes", left)
	}
}

func TestUrgentLapsGoFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	flapping(r, time.Hour)
	for i, key := range keysIn(0, 0, 1000) {
		r.store.Add("flap", key)
		r.store.Add("sick", keysIn(1, 1, 1+i%100)[i%100])
	}
	rel := r.start(Options{Window: 50, FetchSize: 100})
	rel.core.limits.sweep, rel.core.limits.page = time.Hour, 16
	slowly(rel, 10*time.Millisecond, 20*time.Second)
	urgent, calm := 0, 0
	rel.core.shards[0].back.hurry()
	rel.core.shards[1].back.sweep = true
	for end := r.now + 500*time.Millisecond; r.now < end && rel.core.shards[0].back.urgent > 0; {
		r.run(10 * time.Millisecond)
		for _, cl := range rel.delayed {
			if f := cl.fetch(); f != nil && f.lap && f.urgent {
				urgent++
			} else if f != nil && f.lap {
				calm++
			}
		}
		rel.reply()
	}
	if urgent < 5 || calm > 1 {
		t.Errorf("%d urgent pages and %d others were read", urgent, calm)
	}
}
