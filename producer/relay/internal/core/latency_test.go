package core

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/transport"
)

// slowly runs one relay for d whose statements take a time each. Every tick, each is called.
func (r *rig) slowly(rel *rigRelay, d, takes, tick time.Duration, each func()) {
	r.t.Helper()
	type answer struct {
		at time.Duration
		cl *Call
	}
	var answers []answer
	end, next := r.now+d, r.now
	rel.delay = func(*Call) bool { return true }
	for r.now < end && !rel.core.stopped {
		if each != nil && r.now >= next {
			each()
			next += tick
		}
		for busy := true; busy; {
			busy = rel.step()
			for _, cl := range rel.delayed {
				answers = append(answers, answer{r.now + takes, cl})
			}
			rel.delayed = nil
			for len(answers) > 0 && answers[0].at <= r.now {
				rel.core.Reply(r.now, answers[0].cl)
				answers, busy = answers[1:], true
			}
		}
		wake := min(end, rel.core.wakeAt)
		if len(answers) > 0 {
			wake = min(wake, answers[0].at)
		}
		if each != nil {
			wake = min(wake, next)
		}
		r.now = max(wake, r.now+time.Microsecond)
	}
	for _, a := range answers {
		rel.core.Reply(r.now, a.cl)
	}
	rel.delay = nil
}

// add adds an event and wakes the relay.
func (rel *rigRelay) add(topic, key string) {
	rel.rig.store.Add(topic, key)
	rel.core.Wake(rel.rig.now, wakeup.All)
}

func TestLimitAsksAFewTimesASecond(t *testing.T) {
	t.Parallel()
	for _, perSecond := range []float64{20, 1000} {
		r := newRig(t)
		r.downstream = limited(perSecond)
		for i := range 10_000 {
			r.store.Add("slow", fmt.Sprint("k", i%5000))
		}
		rel := r.start(Options{})
		r.slowly(rel, 3*time.Second, 2*time.Millisecond, 0, nil)
		rel.calls, r.sends = nil, nil
		r.slowly(rel, 5*time.Second, 2*time.Millisecond, 0, nil)
		if n := rel.count(statement.OpTakeTokens); n > 30 {
			t.Errorf("%v/s: asked %d times in 5 s", perSecond, n)
		}
		if n := float64(len(r.sends)); n < 4.9*perSecond || n > 5.4*perSecond {
			t.Errorf("%v/s: %v were sent in 5 s", perSecond, n)
		}
	}
	r := newRig(t)
	r.downstream = limited(50)
	rel := r.start(Options{})
	r.slowly(rel, 20*time.Second, 2*time.Millisecond, 25*time.Millisecond, func() { rel.add("slow", "") })
	if n := rel.count(statement.OpTakeTokens); n > 120 || len(r.sends) < 795 {
		t.Errorf("below the limit: asked %d times in 20 s for %d events", n, len(r.sends))
	}
}

func TestSlowReadsOfPausesDoNotStopSending(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{LeaseTTL: 30 * time.Second})
	r.slowly(rel, time.Minute, 1100*time.Millisecond, 100*time.Millisecond, func() { rel.add("a", "") })
	if len(r.sends) < 550 {
		t.Errorf("%d of 600 events were sent", len(r.sends))
	}
}

func TestRelayThatMayNotReadPausesSaysWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Fail = func(method string) error {
		if method == "Pauses" {
			return errors.New("permission denied for table pauses")
		}
		return nil
	}
	rel := r.start(Options{})
	r.produce(30*time.Second, 100*time.Millisecond, "a")
	if len(r.sends) != 0 {
		t.Fatal("events were sent without a list of pauses")
	}
	if !slices.ContainsFunc(rel.notes, func(n Note) bool { return strings.HasPrefix(n.Msg, "nothing is sent: ") }) {
		t.Error("the log does not say that nothing is sent")
	}
	if s := rel.core.State(time.Now()); s.HeldSince.IsZero() || !strings.Contains(s.PausesError, "permission denied") {
		t.Errorf("health: %+v", s)
	}
	r.store.Fail = nil
	r.run(10 * time.Second)
	r.drained()
	if s := rel.core.State(time.Now()); !s.HeldSince.IsZero() {
		t.Errorf("health: %+v", s)
	}
}

func TestProbesTakeAPartOfALimitOnly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = func(string) Downstream { return Downstream{Name: "d", PerSecond: 10} }
	r.broker = func(s rigSend) transport.Result {
		if strings.HasPrefix(s.topic, "sick") {
			return transport.Result{Outcome: transport.Returned}
		}
		return confirmAll(s)
	}
	for i := range 600 {
		r.store.Add(fmt.Sprint("sick", i%20), fmt.Sprint("k", i))
	}
	rel := r.start(Options{})
	r.slowly(rel, 2*time.Minute, time.Millisecond, 0, nil)
	since := r.now
	r.slowly(rel, time.Minute, time.Millisecond, 200*time.Millisecond, func() { rel.add("well", "") })
	if n := r.sentOf("well", since); n < 290 {
		t.Errorf("%d of 300 events of the topic that works were sent", n)
	}

	r = newRig(t) // the probes of an hour leave no debt
	r.downstream = limited(0.5)
	r.broker = on("slow", transport.Refused)
	for i := range 50 {
		r.store.Add("slow", fmt.Sprint("k", i))
	}
	rel = r.start(Options{})
	r.slowly(rel, time.Hour, time.Millisecond, 0, nil)
	if n := len(r.sends); n > 3600/2+10 {
		t.Errorf("%d probes in an hour at 0.5/s", n)
	}
	r.broker = confirmAll
	since = r.now
	r.slowly(rel, time.Minute, time.Millisecond, 0, nil)
	if n := r.sentOf("slow", since); n < 20 {
		t.Errorf("%d events were sent in the minute after the outage", n)
	}
}

func TestBatchTakesNoMoreThanTheTokens(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(1)
	for range 50 {
		r.store.Add("slow", "one key")
	}
	rel := r.start(Options{})
	rel.core.topics.Batch = func(string) (int, int) { return 100, 1 << 20 }
	r.run(10 * time.Second)
	n := 0
	for _, s := range r.sends {
		n += 1 + len(s.tail)
	}
	if n > 13 || n < 9 {
		t.Errorf("%d events were sent in 10 s at one a second", n)
	}
}

func TestManyTopicsOfALimitAreSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = func(string) Downstream { return Downstream{Name: "d", PerSecond: 1000} }
	for i := range 6000 {
		r.store.Add(fmt.Sprint("t", i%2000), "")
	}
	rel := r.start(Options{Window: 100})
	r.slowly(rel, 30*time.Second, time.Millisecond, 0, nil)
	if len(r.sends) != 6000 {
		t.Errorf("%d of 6000 events were sent", len(r.sends))
	}
}

func TestOldEventsOfAnOverloadedLimitAreSent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(50)
	refusedAt := make(map[int64]time.Duration)
	r.broker = func(s rigSend) transport.Result {
		if s.at > time.Minute && s.seq%97 == 0 && refusedAt[s.seq] == 0 {
			refusedAt[s.seq] = s.at
			return transport.Result{Outcome: transport.Refused}
		}
		return confirmAll(s)
	}
	for i := range 3000 {
		r.store.Add("slow", fmt.Sprint("old", i))
	}
	rel := r.start(Options{Window: 200, MaxAttempts: 1000, Backoff: Backoff{Initial: 5 * time.Second, Max: 5 * time.Second}})
	i := 0
	r.slowly(rel, 5*time.Minute, time.Millisecond, 18*time.Millisecond, func() {
		rel.add("slow", fmt.Sprint("new", i))
		i++
	})
	old := 0
	again := make(map[int64]int)
	for _, s := range r.sends {
		if strings.HasPrefix(s.key, "old") && s.outcome == transport.Confirmed {
			old++
		}
		if refusedAt[s.seq] > 0 {
			again[s.seq]++
		}
	}
	if old < 2900 {
		t.Errorf("%d of 3000 old events were sent", old)
	}
	for seq, n := range again {
		// An event that is refused at the end has no time for its backoff of 5 s and its token. The Seq
		// does not tell when: laps take events of shards in a random order, not by their age.
		if n < 2 && refusedAt[seq] < r.now-15*time.Second {
			t.Errorf("%d was refused at %v, and not sent again", seq, refusedAt[seq])
		}
	}
}

func TestLimitedEventsLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t) // a hundred limits
	r.downstream = func(topic string) Downstream {
		if topic == "well" {
			return Downstream{}
		}
		return Downstream{Name: topic, PerSecond: 0.01}
	}
	for i := range 1000 {
		r.store.Add(fmt.Sprint("slow", i%100), "")
	}
	rel := r.start(Options{Window: 100})
	r.slowly(rel, 5*time.Second, time.Millisecond, 0, nil)
	since := r.now
	r.slowly(rel, 30*time.Second, time.Millisecond, 100*time.Millisecond, func() { rel.add("well", "") })
	if n := r.sentOf("well", since); n < 299 {
		t.Errorf("%d of 300 events of another topic were sent", n)
	}

	r = newRig(t) // memory that shrinks, for large events of others
	r.downstream = limited(0.5)
	for range 1000 {
		r.store.Add("slow", "")
	}
	rel = r.start(Options{WindowBytes: 64 << 20})
	r.slowly(rel, 5*time.Second, time.Millisecond, 0, nil)
	rel.core.reader.budget.average = 1 << 20
	r.slowly(rel, 10*time.Second, time.Millisecond, 100*time.Millisecond, func() {
		rel.core.reader.budget.average = 1 << 20
		rel.add("well", "")
	})
	if n := r.sentOf("well", 0); n < 95 {
		t.Errorf("%d of 100 large events were sent", n)
	}
}

func TestRunOnceSendsALimitedBacklog(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(1000)
	for i := range 3000 {
		r.store.Add("slow", fmt.Sprint("k", i%500))
	}
	rel := r.start(Options{Window: 50})
	rel.core.once = true
	r.slowly(rel, 2*time.Minute, 2*time.Millisecond, 0, nil)
	if !rel.core.stopped || len(r.sends) != 3000 {
		t.Errorf("stopped: %v, %d of 3000 events were sent", rel.core.stopped, len(r.sends))
	}
}

func TestPauseBesideALimitReadsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(50)
	r.pause(control.Pause{Kind: control.Topic, Name: "held"})
	for i := range 3000 {
		key := fmt.Sprint("k", i%300)
		if i < 300 {
			r.store.Add("held", key)
		} else {
			r.store.Add("slow", key)
		}
	}
	rel := r.start(Options{})
	r.slowly(rel, 10*time.Second, time.Millisecond, 0, nil)
	r.store.Fetched = 0
	r.slowly(rel, time.Minute, time.Millisecond, 0, nil)
	if r.store.Fetched > 3000 || len(r.sends) != 0 {
		t.Errorf("%d rows were read, %d events sent", r.store.Fetched, len(r.sends))
	}
	r.resume(control.Topic, "held")
	r.slowly(rel, 2*time.Minute, time.Millisecond, 0, nil)
	r.drained()
	r.drainedInOrder(t)
}

func TestPausedTopicsKeepNothingInMemory(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.pause(control.Pause{Kind: control.Downstream, Name: "users"})
	r.downstream = func(topic string) Downstream {
		if topic == "well" {
			return Downstream{}
		}
		return Downstream{Name: "users"}
	}
	const topics = 6000
	for i := range topics {
		r.store.Add(fmt.Sprint("user", i), "")
	}
	rel := r.start(Options{})
	r.produce(2*time.Second, 10*time.Millisecond, "well")
	if n := rel.core.keys.buffered; n > 0 {
		t.Errorf("%d events in memory", n)
	}
	if n := len(rel.core.routes.byTopic); n > 5*maxRoutes {
		t.Errorf("%d topics in memory", n)
	}
	if n := r.sentOf("well", 0); n != 200 {
		t.Errorf("%d events of another topic were sent", n)
	}
	r.resume(control.Downstream, "users")
	r.run(5 * time.Second)
	r.drained()
}

func TestHotKeyOfALimitLeavesPlacesForOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = limited(1000)
	rel := r.start(Options{Window: 200})
	for range 2000 {
		r.store.Add("slow", "hot")
	}
	for i := range 2000 {
		r.store.Add("slow", fmt.Sprint("k", i))
	}
	type late struct {
		at time.Duration
		s  rigSend
	}
	var answers []late
	rel.mute = func(s rigSend) bool {
		answers = append(answers, late{r.now + 20*time.Millisecond, s})
		return true
	}
	r.slowly(rel, 5*time.Second, time.Millisecond, time.Millisecond, func() {
		for len(answers) > 0 && answers[0].at <= r.now {
			rel.answer(answers[0].s)
			answers = answers[1:]
		}
	})
	others := 0
	for _, s := range r.sends {
		if s.key != "hot" {
			others++
		}
	}
	if others < 1900 {
		t.Errorf("%d of 2000 events of other keys were sent", others)
	}
}

func TestChangedPauseIsNoEndOfIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.pause(control.Pause{Kind: control.Topic, Name: "held"})
	rel := r.start(Options{Observed: true})
	r.produce(time.Second, 100*time.Millisecond, "held")
	rel.core.Notices()
	r.pause(control.Pause{Kind: control.Topic, Name: "held", Reason: "another"})
	r.produce(time.Second, 100*time.Millisecond, "held")
	if n := rel.core.Notices(); len(n) != 1 || n[0].Kind != NoticePaused || n[0].Pause.Reason != "another" {
		t.Errorf("%+v", n)
	}
}

func TestPausedRouteIsNoOutage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Refused)
	rel := r.start(Options{})
	r.produce(3*time.Second, 100*time.Millisecond, "sick", "well")
	r.pause(control.Pause{Kind: control.Topic, Name: "sick"})
	r.run(5 * time.Minute)
	if rel.noted("nothing on the route has succeeded for its grace period") != 0 {
		t.Error("the paused route was reported")
	}
}

// TestTopicsAreForgottenInTime adds many topics whose events stay in memory: none is looked through
// for each new topic.
func TestTopicsAreForgottenInTime(t *testing.T) {
	t.Parallel()
	c := New(Options{Name: "relay"}, Topics{Route: func(s string) string { return s }}, rand.New(rand.NewPCG(1, 1)), false)
	sweeps := 0
	for i := range 100_000 {
		before := c.routes.sweepAt
		c.routes.of(fmt.Sprint(i)).events = 1
		if c.routes.sweepAt != before {
			sweeps++
		}
	}
	if sweeps > 8 {
		t.Errorf("%d sweeps for 100,000 topics", sweeps)
	}
}
