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
	"github.com/boxpair/boxpair/store/control"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func (r *rig) pause(p control.Pause) {
	r.t.Helper()
	if p.Reason == "" {
		p.Reason = "maintenance"
	}
	if err := r.store.SetPause(r.t.Context(), p); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) resume(kind control.Kind, name string) {
	r.t.Helper()
	if ended, err := r.store.EndPause(r.t.Context(), kind, name); err != nil || !ended {
		r.t.Fatalf("ended a pause: %v, %v", ended, err)
	}
}

// sentOf counts the sends of a topic since a time.
func (r *rig) sentOf(topic string, since time.Duration) (n int) {
	for _, s := range r.sends {
		if s.topic == topic && s.at >= since {
			n++
		}
	}
	return n
}

// produce adds an event of each topic every interval, for d.
func (r *rig) produce(d, interval time.Duration, topics ...string) {
	for end := r.now + d; r.now < end; {
		for _, topic := range topics {
			r.store.Add(topic, fmt.Sprint(topic, r.now%7))
		}
		for _, rel := range r.relays {
			rel.core.Wake(r.now, wakeup.All)
		}
		r.run(interval)
	}
}

func TestPausedTopicIsNotSentAndOthersAre(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.pause(control.Pause{Kind: control.Topic, Name: "held"})
	var held []int64
	for i := range 3000 { // more than memory holds
		held = append(held, r.store.Add("held", fmt.Sprint("held", i%10)))
	}
	rel := r.start(Options{})
	r.run(time.Second)
	since := r.now
	r.produce(5*time.Second, 10*time.Millisecond, "well")
	if n := r.sentOf("held", 0); n != 0 {
		t.Errorf("%d events of the paused topic were sent", n)
	}
	if n := r.sentOf("well", since); n != 500 {
		t.Errorf("%d events of the other topic were sent", n)
	}
	for _, s := range r.sends {
		if wait := s.at - since; s.topic == "well" && wait%(10*time.Millisecond) > 9*time.Millisecond {
			t.Fatalf("an event of the other topic waited: sent at %v", s.at)
		}
	}
	if n := len(r.store.Failures); n != 0 {
		t.Errorf("%d attempts were counted", n)
	}
	h := rel.core.State(time.Now())
	if len(h.Routes) != 1 || h.Routes[0].State != outbox.RoutePaused || !strings.Contains(h.Routes[0].LastError, "maintenance") {
		t.Errorf("health: %+v", h.Routes)
	}
	if got := r.store.Routes[rel.name]; len(got) != 1 || got[0].State != outbox.RoutePaused || got[0].Topic != "held" {
		t.Errorf("reported: %+v", got)
	}
	if rel.noted("nothing on the route has succeeded for its grace period") != 0 {
		t.Error("the pause was reported as an outage")
	}

	r.resume(control.Topic, "held")
	resumed := r.now
	r.run(time.Second)
	if n := r.sentOf("held", 0); n != len(held) {
		t.Errorf("%d of %d events were sent within a second after the pause", n, len(held))
	}
	if first := r.sends[slices.IndexFunc(r.sends, func(s rigSend) bool { return s.topic == "held" })]; first.at < resumed {
		t.Error("sent before it was resumed")
	}
	r.drained()
}

func TestPauseIsSeenWithinASecondAndEndsByItself(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.produce(2*time.Second, 20*time.Millisecond, "a")
	began := r.now
	r.pause(control.Pause{Kind: control.Topic, Name: "a", Until: time.Unix(0, 0).Add(began + 10*time.Second)})
	r.produce(12*time.Second, 20*time.Millisecond, "a")
	for _, s := range r.sends {
		if since := s.at - began; since > time.Second && since < 10*time.Second {
			t.Fatalf("an event was sent %v after the pause began", since)
		}
	}
	if n := r.sentOf("a", began+11*time.Second); n == 0 {
		t.Error("nothing was sent after the end of the pause")
	}
	if rel.noted("pause has begun") != 1 || rel.noted("pause has ended") != 1 {
		t.Error("the log does not tell of the pause")
	}
	r.run(time.Second)
	r.drained()
}

func TestDownstreamIsPaused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.downstream = func(topic string) Downstream { return Downstream{Name: strings.ToUpper(topic[:1])} }
	r.pause(control.Pause{Kind: control.Downstream, Name: "A"})
	r.start(Options{})
	r.produce(2*time.Second, 100*time.Millisecond, "a1", "a2", "b")
	if r.sentOf("a1", 0)+r.sentOf("a2", 0) != 0 || r.sentOf("b", 0) != 20 {
		t.Errorf("sent %d, %d and %d", r.sentOf("a1", 0), r.sentOf("a2", 0), r.sentOf("b", 0))
	}
	r.resume(control.Downstream, "A")
	r.run(time.Second)
	r.drained()
}

func TestNothingIsSentBeforeThePausesAreKnown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Add("a", "k")
	rel := r.start(Options{})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpPauses }
	r.run(time.Minute)
	if len(r.sends) != 0 || len(rel.held) != 1 {
		t.Fatalf("%d sends, %d reads of the pauses", len(r.sends), len(rel.held))
	}
	rel.free()
	r.run(time.Millisecond)
	if len(r.sends) != 1 {
		t.Fatal("nothing was sent")
	}
}

func TestNothingIsSentByAnOldListOfPauses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.produce(time.Second, 100*time.Millisecond, "a")
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpPauses }
	since := r.now
	r.produce(10*time.Second, 100*time.Millisecond, "a")
	for _, s := range r.sends {
		if s.at > since+pausesHold {
			t.Fatalf("an event was sent %v after the last answer", s.at-since)
		}
	}
	rel.free()
	r.run(time.Second)
	r.drained()
}

func TestPausesThatCannotBeReadStayAsTheyWere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.pause(control.Pause{Kind: control.Topic, Name: "a"})
	r.start(Options{})
	r.produce(time.Second, 100*time.Millisecond, "a", "b")
	r.store.Fail = func(method string) error {
		if method == "Pauses" {
			return errors.New("permission denied")
		}
		return nil
	}
	since := r.now
	r.produce(10*time.Second, 100*time.Millisecond, "a", "b")
	if r.sentOf("a", 0) != 0 || r.sentOf("b", since) != 100 {
		t.Errorf("sent %d and %d", r.sentOf("a", 0), r.sentOf("b", since))
	}
}

func TestPauseOfARouteThatTakesNothing(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Refused, transport.Returned, transport.Unavailable} {
		r := newRig(t)
		r.broker = on("sick", outcome)
		r.start(Options{})
		r.produce(3*time.Second, 100*time.Millisecond, "sick", "well")
		r.pause(control.Pause{Kind: control.Topic, Name: "sick"})
		r.produce(time.Second, 100*time.Millisecond, "sick", "well")
		since, counted := r.now, len(r.store.Failures)
		r.produce(3*time.Second, 100*time.Millisecond, "sick", "well")
		if r.sentOf("sick", since) != 0 || len(r.store.Failures) != counted || r.sentOf("well", since) != 30 {
			t.Errorf("%v: while paused, %d were sent and %d attempts counted", outcome, r.sentOf("sick", since), len(r.store.Failures)-counted)
		}
		r.broker = confirmAll
		r.resume(control.Topic, "sick")
		r.run(10 * time.Second)
		r.drained()
	}
}

func TestParkedEventsOfAPausedTopicWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("a", "bad")
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	r.start(Options{Backoff: Backoff{Initial: 100 * time.Millisecond, Max: 100 * time.Millisecond}, MaxAttempts: 1000})
	r.produce(time.Second, 20*time.Millisecond, "a")
	if len(r.store.Attempts(bad)) == 0 {
		t.Fatal("the event was not parked")
	}
	r.pause(control.Pause{Kind: control.Topic, Name: "a"})
	r.run(time.Second)
	before := len(r.store.Attempts(bad))
	r.run(20 * time.Second)
	if n := len(r.store.Attempts(bad)); n != before {
		t.Errorf("%d attempts were made while paused", n-before)
	}
	r.broker = confirmAll
	r.resume(control.Topic, "a")
	r.run(time.Second)
	r.drained()
}

func TestEventsThatComeBackToAPausedRouteWait(t *testing.T) {
	t.Parallel()
	for _, outcome := range []transport.Outcome{transport.Refused, transport.Unavailable} {
		r := newRig(t)
		r.broker = on("a", outcome)
		for i := range 40 {
			r.store.Add("a", fmt.Sprint("k", i))
		}
		rel := r.start(Options{})
		rel.mute = func(s rigSend) bool { return s.topic == "a" }
		r.produce(time.Second, 100*time.Millisecond, "b")
		r.pause(control.Pause{Kind: control.Topic, Name: "a"})
		r.produce(2*time.Second, 100*time.Millisecond, "b")
		rel.free() // the answers come when the topic is paused
		since := r.now + 1
		r.produce(30*time.Second, 100*time.Millisecond, "b")
		if n := r.sentOf("a", since); n != 0 {
			t.Errorf("%v: %d events of the paused topic were sent", outcome, n)
		}
		r.broker = confirmAll
		r.resume(control.Topic, "a")
		r.run(10 * time.Second)
		r.drained()
	}
}

func TestIdleRelayReadsNoPauses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.produce(time.Second, 100*time.Millisecond, "a")
	reads := func() int { return rel.called(statement.OpPauses) }
	if n := reads(); n > 4 {
		t.Errorf("%d reads in a second", n)
	}
	r.run(time.Second)
	before := reads()
	r.run(time.Hour)
	if n := reads(); n != before {
		t.Errorf("%d reads while idle", n-before)
	}
}
