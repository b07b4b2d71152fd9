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

// on returns a broker that answers for one route, and confirms the rest.
func on(topic string, outcome transport.Outcome) func(rigSend) transport.Result {
	return func(s rigSend) transport.Result {
		if s.topic == topic {
			return transport.Result{Outcome: outcome}
		}
		return confirmAll(s)
	}
}

func TestARefusalCountsWhenTheRouteWorksForOthers(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Refused, transport.Returned} {
		r := newRig(t)
		bad := r.store.Add("topic", "bad")
		behind := r.store.Add("topic", "bad")
		var others []int64
		for i := range 20 {
			others = append(others, r.store.Add("topic", fmt.Sprint("key", i)))
		}
		r.outcomes(map[int64]transport.Outcome{bad: outcome})
		rel := r.start(Options{MaxAttempts: 3})
		r.run(100 * time.Millisecond)
		if n := len(r.store.Attempts(bad)); n != 1 || r.store.State(bad) != outbox.Retrying || r.store.State(behind) != outbox.Following {
			t.Errorf("%v: %d attempts counted, states %q and %q", outcome, n, r.store.State(bad), r.store.State(behind))
		}
		if got := r.sent(transport.Confirmed); !slices.Equal(got, others) {
			t.Errorf("%v: sent %v", outcome, got)
		}
		for i := range 60 { // others keep passing
			r.store.Add("topic", fmt.Sprint("key", i))
			rel.core.Wake(r.now, wakeup.All)
			r.run(time.Second)
		}
		if n := len(r.store.Attempts(bad)); n != 3 || r.store.State(bad) != outbox.Dead {
			t.Errorf("%v: %d attempts counted, state %q", outcome, n, r.store.State(bad))
		}
		if rel.noted("event is dead") != 1 || !slices.Contains(r.sent(transport.Confirmed), behind) {
			t.Errorf("%v: the key did not go on past its dead event", outcome)
		}
		r.drained()
	}
}

func TestAPausedRouteCountsNothingAndDelaysNoOther(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Refused, transport.Returned} {
		r := newRig(t)
		r.broker = on("sick", outcome)
		var sick []int64
		for i := range 100 {
			sick = append(sick, r.store.Add("sick", fmt.Sprint("sick", i)))
			r.store.Add("well", fmt.Sprint("well", i))
		}
		rel := r.start(Options{})
		r.run(10 * time.Second)
		if got := len(r.sent(transport.Confirmed)); got != 100 {
			t.Errorf("%v: %d of the other route delivered", outcome, got)
		}
		if n := len(r.store.Failures); n != 0 {
			t.Errorf("%v: %d attempts counted", outcome, n)
		}
		probes := 0
		for _, s := range r.sends {
			if s.topic == "sick" && s.at > 5*time.Second {
				probes++
			}
		}
		if probes < 4 || probes > 6 {
			t.Errorf("%v: %d probes in 5 s", outcome, probes)
		}
		h := rel.core.State(time.Now())
		if len(h.Routes) != 1 || h.Routes[0].Route != "sick" || h.Routes[0].State != outbox.RouteRefusing || h.Routes[0].Overdue {
			t.Errorf("%v: health: %+v", outcome, h.Routes)
		}
		r.broker = confirmAll
		r.run(time.Minute)
		r.drained()
		for _, seq := range sick {
			if n := len(r.store.Attempts(seq)); n > 1 {
				t.Errorf("%v: %d attempts of %d counted", outcome, n, seq)
			}
		}
	}
}

func TestASuccessCountsOneAttemptOfThoseRefusedMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Refused)
	a, b := r.store.Add("sick", "a"), r.store.Add("sick", "b")
	r.start(Options{Backoff: Backoff{Initial: time.Hour}})
	r.run(10 * time.Second)
	if n := len(r.store.Failures); n != 0 {
		t.Fatalf("%d attempts counted while the route was paused", n)
	}
	r.outcomes(map[int64]transport.Outcome{b: transport.Refused})
	r.run(2100 * time.Millisecond)
	if len(r.store.Attempts(a)) != 0 || len(r.store.Attempts(b)) != 1 {
		t.Errorf("attempts: %d of the one that passed, %d of the other", len(r.store.Attempts(a)), len(r.store.Attempts(b)))
	}
}

func TestProbesRotateOverKeysOldestFirst(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Refused)
	var heads []int64
	for i := range 5 {
		heads = append(heads, r.store.Add("sick", fmt.Sprint("key", i)))
		r.store.Add("sick", fmt.Sprint("key", i))
	}
	r.start(Options{})
	r.run(10 * time.Second)
	probes := r.sends[len(heads):]
	for i, s := range probes {
		if want := heads[i%len(heads)]; s.seq != want {
			t.Errorf("probe %d was of %d, want %d", i, s.seq, want)
		}
	}
	if n := len(probes); n < 10 || n > 13 {
		t.Errorf("%d probes in 10 s", n)
	}
}

func TestOneBadEventDoesNotKeepARouteClosed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "bad") // the oldest
	r.broker = on("topic", transport.Returned)
	for i := range 5 {
		r.store.Add("topic", fmt.Sprint("key", i))
	}
	r.start(Options{})
	r.run(5 * time.Second)
	r.outcomes(map[int64]transport.Outcome{bad: transport.Returned})
	r.run(10 * time.Second)
	if got := len(r.sent(transport.Confirmed)); got != 5 {
		t.Errorf("%d of 5 delivered", got)
	}
}

func TestARouteWithOneKeyCountsOnTheBackoffSchedule(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "bad")
	r.store.Add("topic", "bad")
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	rel := r.start(Options{MaxAttempts: 4})
	r.run(time.Second)
	if n := len(r.store.Attempts(bad)); n == 0 {
		t.Error("nothing counted")
	}
	r.run(time.Minute)
	if r.store.State(bad) != outbox.Dead || len(r.store.Attempts(bad)) != 4 {
		t.Errorf("state %q after %d attempts", r.store.State(bad), len(r.store.Attempts(bad)))
	}
	if rel.noted("route stalled: nothing on it succeeds") != 0 {
		t.Error("the route was paused")
	}
	r.drained()
}

func TestTwoBadEventsOneAfterTheOtherDie(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("topic", transport.Refused)
	first := r.store.Add("topic", "one")
	r.start(Options{MaxAttempts: 2})
	r.run(time.Minute)
	second := r.store.Add("topic", "two")
	r.run(time.Minute)
	if r.store.State(first) != outbox.Dead || r.store.State(second) != outbox.Dead {
		t.Errorf("states %q and %q", r.store.State(first), r.store.State(second))
	}
}

// A missing queue is the route's fault: an event every twenty minutes finds nobody else there to
// tell.
func TestAMissingQueueCostsTheEventsOfAQuietTopicNoAttempts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("quiet", transport.Returned)
	rel := r.start(Options{})
	var events []int64
	for i := range 6 {
		events = append(events, r.store.Add("quiet", fmt.Sprint("key", i)))
		rel.core.Wake(r.now, wakeup.All)
		r.run(20 * time.Minute)
	}
	for _, seq := range events {
		if n := len(r.store.Attempts(seq)); n != 0 {
			t.Errorf("%d attempts of event %d counted, state %q", n, seq, r.store.State(seq))
		}
	}
	if h := rel.core.State(time.Now()); len(h.Routes) != 1 || h.Routes[0].State != outbox.RouteRefusing || !h.Routes[0].Overdue {
		t.Errorf("health: %+v", h.Routes)
	}
	r.broker = confirmAll
	r.run(time.Minute)
	if got := r.sent(transport.Confirmed); len(got) != len(events) {
		t.Errorf("delivered %v, want %v", got, events)
	}
	r.drained()
}

func TestARouteOnWhichNothingSucceedsIsReportedAfterItsGrace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Refused)
	r.store.Add("sick", "a")
	r.store.Add("sick", "b")
	rel := r.start(Options{RouteGrace: 30 * time.Second})
	report := "nothing on the route has succeeded for its grace period"
	r.run(29 * time.Second)
	if rel.noted(report) != 0 {
		t.Error("reported early")
	}
	r.run(10 * time.Second)
	if rel.noted(report) != 1 || !rel.core.State(time.Now()).Routes[0].Overdue {
		t.Error("not reported")
	}
	r.broker = confirmAll
	r.run(10 * time.Second)
	if rel.noted("route works again") != 1 || len(rel.core.State(time.Now()).Routes) != 0 {
		t.Error("the route did not open again")
	}
	r.drained()
}

func TestTopicsOfOneRouteArePausedTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = func(rigSend) transport.Result { return transport.Result{Outcome: transport.Returned} }
	for i := range 8 {
		r.store.Add("r/a", fmt.Sprint("a", i))
		r.store.Add("r/b", fmt.Sprint("b", i))
	}
	r.start(Options{})
	r.run(2 * time.Second)
	before := len(r.sends)
	r.run(5 * time.Second)
	if probes := len(r.sends) - before; probes != 5 {
		t.Errorf("%d probes in 5 s", probes)
	}
}

func TestAnUnreachableTransportCountsNothingAndKeepsTheOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = func(rigSend) transport.Result { return transport.Result{Outcome: transport.Unavailable} }
	want := make(map[string][]int64)
	for i := range 60 {
		key := fmt.Sprint("key", i%6)
		want[key] = append(want[key], r.store.Add(fmt.Sprint("topic", i%3), key))
	}
	rel := r.start(Options{})
	r.run(time.Minute)
	if n := len(r.sends); n > 200 {
		t.Errorf("%d sends in a minute of outage", n)
	}
	r.broker = confirmAll
	r.run(10 * time.Second)
	got := make(map[string][]int64)
	for _, s := range r.sends {
		if s.outcome == transport.Confirmed {
			got[s.key] = append(got[s.key], s.seq)
		}
	}
	for key, seqs := range want {
		if !slices.Equal(got[key], seqs) {
			t.Errorf("%s: sent %v, want %v", key, got[key], seqs)
		}
	}
	if n := len(r.store.Failures); n != 0 || rel.core.report.Failed != 0 {
		t.Errorf("%d attempts counted", n)
	}
	r.drained()
}

func TestASlowMessageDoesNotCloseARouteThatWorks(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	slow := r.store.Add("topic", "slow")
	rel.mute = func(s rigSend) bool { return s.seq == slow }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	r.outcomes(map[int64]transport.Outcome{slow: transport.Unavailable})
	rel.free()
	if len(rel.core.routes.stalled) != 0 {
		t.Error("the route is taken for unavailable")
	}
}

func TestTheBacklogOfAStalledRouteTakesNoRoomFromOthers(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Returned, transport.Unavailable} {
		r := newRig(t)
		r.broker = on("sick", outcome)
		for i := range 2000 {
			r.store.Add("sick", fmt.Sprint("sick", i))
		}
		for i := range 10 {
			r.store.Add("well", fmt.Sprint("well", i))
		}
		rel := r.start(Options{Window: 50})
		r.run(30 * time.Second)
		if got := len(r.sent(transport.Confirmed)); got != 10 {
			t.Errorf("%v: %d of 10 delivered", outcome, got)
		}
		if n := rel.core.keys.buffered; n > 200 {
			t.Errorf("%v: %d events in memory", outcome, n)
		}
		r.broker = confirmAll
		r.run(time.Minute)
		r.drained()
		order := make(map[string]int64)
		for _, s := range r.sends {
			if s.outcome == transport.Confirmed && s.seq < order[s.key] {
				t.Errorf("%v: %d of %s behind %d", outcome, s.seq, s.key, order[s.key])
			}
			order[s.key] = max(order[s.key], s.seq)
		}
	}
}

func TestKeysWithAnEventOnAStalledRouteKeepTheirOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Returned)
	for i := range 500 {
		r.store.Add("sick", fmt.Sprint("key", i))
		r.store.Add("well", fmt.Sprint("key", i))
	}
	r.start(Options{Window: 20})
	r.run(10 * time.Second)
	if got := r.sent(transport.Confirmed); len(got) != 0 {
		t.Errorf("%v overtook an event of their key", got)
	}
	r.broker = confirmAll
	r.run(time.Minute)
	r.drained()
	seen := make(map[string]int64)
	for _, s := range r.sends {
		if s.outcome == transport.Confirmed {
			if s.seq < seen[s.key] {
				t.Errorf("%d of %s behind %d", s.seq, s.key, seen[s.key])
			}
			seen[s.key] = s.seq
		}
	}
}

// An event that commits late stands behind the later one of its key that is in flight. When the
// later one makes room for others, its place is where reading begins again.
func TestAnOlderEventBehindOneThatMakesRoomIsReadAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Returned)
	late := r.store.Begin()
	first := late.Write("sick", "key")
	for i := range 200 {
		r.store.Add("sick", fmt.Sprint("other", i))
	}
	head := r.store.Add("sick", "key")
	rel := r.start(Options{Window: 500})
	rel.mute = func(rigSend) bool { return true }
	r.run(time.Second)
	late.Commit()
	r.run(time.Second)
	sh := rel.core.shards[r.store.Log[head].Shard]
	if l := sh.lines["key"]; l == nil || l.first.Seq != head || l.last.Seq != first {
		t.Fatal("the older event is not behind the one in flight")
	}
	rel.free()
	r.run(10 * time.Second)
	if sh.lines["key"] != nil {
		t.Fatal("the key has not made room")
	}
	r.broker = confirmAll
	r.run(time.Minute)
	r.drained()
}

// TestEventThatEndsItsChannelCountsAloneAndDies: the publisher finds out for which event the broker
// ends the channel, and publishes the others again.
func TestEventThatEndsItsChannelCountsAloneAndDies(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Refused, transport.Returned, transport.Invalid} {
		r := newRig(t)
		var culprit int64
		for i := range 30 {
			seq := r.store.Add("topic", fmt.Sprint("key", i))
			if i == 17 {
				culprit = seq
			}
		}
		r.broker = refusing(outcome, culprit)
		rel := r.start(Options{MaxAttempts: 3})
		r.run(900 * time.Millisecond)
		if n := len(r.sent(transport.Confirmed)); n != 29 {
			t.Errorf("%v: %d delivered", outcome, n)
		}
		for i := range 300 {
			r.store.Add("topic", fmt.Sprint("key", i))
			rel.core.Wake(r.now, wakeup.All)
			r.run(100 * time.Millisecond)
		}
		attempts := 3
		if outcome == transport.Invalid {
			attempts = 1
		}
		if r.store.State(culprit) != outbox.Dead || len(r.store.Failures) != attempts || len(r.store.Attempts(culprit)) != attempts {
			t.Errorf("%v: state %q, %d attempts counted", outcome, r.store.State(culprit), len(r.store.Failures))
		}
		r.drained()
	}
}

// TestBadEventBesideASilentRouteStopsNoOther: what is in flight on the silent route has no outcome
// for as long as its contexts last.
func TestBadEventBesideASilentRouteStopsNoOther(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Refused, transport.Returned, transport.Invalid} {
		r := newRig(t)
		for i := range 10 {
			r.store.Add("silent", fmt.Sprint("silent", i))
		}
		bad := r.store.Add("mixed", "bad")
		r.broker = refusing(outcome, bad)
		rel := r.start(Options{MaxAttempts: 3})
		rel.mute = func(s rigSend) bool { return s.topic == "silent" }
		for i := range 200 {
			begun := r.now
			r.store.Add("mixed", fmt.Sprint("good", i))
			other := r.store.Add("other", fmt.Sprint("other", i))
			rel.core.Wake(r.now, wakeup.All)
			r.run(100 * time.Millisecond)
			if at := r.seenAt(other); at < begun || at > begun+50*time.Millisecond {
				t.Fatalf("%v: %d was written at %v and sent at %v", outcome, other, begun, at)
			}
		}
		if n := len(r.sent(transport.Confirmed)); n != 400 {
			t.Errorf("%v: %d of 400 delivered", outcome, n)
		}
		if r.store.State(bad) != outbox.Dead {
			t.Errorf("%v: the bad one is %q", outcome, r.store.State(bad))
		}
		if len(rel.muted) != 10 {
			t.Errorf("%v: %d are in flight on the silent route", outcome, len(rel.muted))
		}
	}
}

func TestRoutesOfManyTopicsAreForgottenWithTheirTopics(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 3 * maxRoutes {
		r.store.Add(fmt.Sprintf("r%d/a", i), "")
		r.store.Add(fmt.Sprintf("r%d/b", i), "")
	}
	rel := r.start(Options{})
	r.run(time.Minute)
	r.drained()
	c := rel.core
	if len(c.routes.byName) > maxRoutes || len(c.routes.byTopic) > 4*maxRoutes {
		t.Errorf("%d routes and %d topics are remembered", len(c.routes.byName), len(c.routes.byTopic))
	}
	for topic, route := range c.routes.byTopic {
		if c.routes.byName[route.name] != route {
			t.Fatalf("topic %s leads to a route that is forgotten", topic)
		}
	}
	known := 0
	for _, route := range c.routes.byName {
		known += len(route.topics)
	}
	if known != len(c.routes.byTopic) {
		t.Errorf("routes know %d topics of %d", known, len(c.routes.byTopic))
	}
}
