package core

import (
	"slices"
	"testing"
	"time"
)

func TestASendWithoutAnOutcomeIsGivenUpAndSentAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := r.store.Add("topic", "key")
	next := r.store.Add("topic", "key")
	rel := r.start(Options{})
	rel.mute = func(s rigSend) bool { return s.seq == lost }
	r.run(time.Minute)
	origin := time.Unix(0, 0)
	if h := rel.core.State(origin); h.InFlight != 1 || origin.Add(r.now).Sub(h.OldestInFlight) < 50*time.Second {
		t.Fatalf("%d in flight, the oldest since %v", h.InFlight, h.OldestInFlight)
	}
	late := rel.muted
	rel.mute = nil
	rel.core.Overdue(r.now, rel.core.dispatch.unanswered.last-1)
	if rel.core.dispatch.inflight != 1 {
		t.Fatal("a send was given up before its time")
	}
	rel.core.Overdue(r.now, rel.core.dispatch.unanswered.last)
	rel.muted = nil
	r.run(10 * time.Second)
	r.drained()
	if got, want := r.sent(), []int64{lost, next}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	for _, s := range late { // nobody waits for it any more
		rel.core.Outcome(r.now, SendResult{Entry: s.entry, Gen: s.gen, Result: confirmAll(s)})
	}
	r.run(time.Second)
	if h := rel.core.State(origin); h.InFlight != 0 || !h.OldestInFlight.IsZero() || h.Unmarked != 0 {
		t.Errorf("at the end the health is %+v", h)
	}
}

func TestSendsThatAreAnsweredAreForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{Window: 4})
	stuck := r.store.Add("topic", "stuck")
	rel.mute = func(s rigSend) bool { return s.seq == stuck }
	for range 100 {
		r.store.Add("topic", "key")
	}
	r.run(time.Minute)
	if n := len(rel.core.dispatch.unanswered.sends); n > 16 {
		t.Errorf("%d sends are remembered for a window of 4", n)
	}
}
