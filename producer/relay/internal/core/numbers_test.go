package core

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/transport"
)

const (
	saidAnew  = "sequence of event numbers has begun anew: new events overtake older ones of their keys"
	saidAbove = "sequence of event numbers is above all events again"
)

func TestEventsBelowTheMarksAfterATruncateAreSentWithinALease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 10 {
		r.store.Add("topic", "key")
	}
	rel := r.start(Options{})
	r.run(2 * time.Second)
	r.drained()
	r.store.Truncate()
	sent := len(r.sent())
	for range 3 {
		r.store.Add("topic", "key")
		rel.core.Wake(r.now, wakeup.All)
		r.run(time.Second)
	}
	r.run(rel.core.cfg.LeaseTTL)
	if got := r.sent()[sent:]; !slices.Equal(got, []int64{1, 2, 3}) {
		t.Fatalf("sent %v", got)
	}
	const remedy = ", and there are events up to 10: before anything is written, run SELECT setval('numbers', 10)"
	if said := fmt.Sprint(rel.attr(saidAnew, "error")); rel.noted(saidAnew) != 1 || !strings.HasSuffix(said, remedy) {
		t.Errorf("said %q, %d times", said, rel.noted(saidAnew))
	}
	r.run(rel.core.cfg.LeaseTTL)
	if rel.noted(saidAbove) != 1 {
		t.Error("the relay goes on to look for events below its marks")
	}
	for range 20 {
		r.store.Add("topic", "key")
	}
	r.run(rel.core.cfg.LeaseTTL)
	if got := r.sent()[sent:]; len(got) != 23 || !slices.IsSorted(got) {
		t.Errorf("sent %v", got)
	}
	r.drained()
}

// Events that cannot be sent stand above the sequence. New ones are sent soon, and in order though
// one is committed late. The error is said again and again until somebody runs setval.
func TestEventsOfASequenceThatBeginsAnewAreSentInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Seq = 100
	stuck := r.store.Add("dead", "old")
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "dead" {
			return transport.Result{Outcome: transport.Unavailable}
		}
		return confirmAll(s)
	}
	rel := r.start(Options{})
	r.run(2 * time.Second)
	r.store.Seq = 0
	r.store.Add("topic", "first")
	r.run(rel.core.cfg.LeaseTTL)
	arrived := func() (seqs []int64) {
		for _, s := range r.sends {
			if s.outcome == transport.Confirmed {
				seqs = append(seqs, s.seq)
			}
		}
		return seqs
	}
	if got := arrived(); !slices.Equal(got, []int64{1}) {
		t.Fatalf("arrived %v", got)
	}
	for n := range int64(10) { // the one that is written first is committed last, beside others of its shard
		early := r.store.Begin()
		first := early.Write("topic", "key")
		other := r.store.Begin()
		second := other.Write("topic", "key")
		third := r.store.Begin()
		third.Write("topic", "key")
		rel.core.Wake(r.now, other.Commit())
		r.run(100 * time.Millisecond)
		early.Commit()
		rel.core.Wake(r.now, third.Commit())
		r.run(time.Second)
		if got := arrived(); int64(len(got)) != 3*n+4 || got[3*n+2] != first || got[3*n+1] != second {
			t.Fatalf("arrived %v, want %d after %d", got, first, second)
		}
	}
	r.run(2 * noteSequence)
	if n := rel.noted(saidAnew); n < 2 || n > 4 {
		t.Errorf("said %d times", n)
	}
	r.store.Seq = stuck
	r.broker = confirmAll
	last := r.store.Add("topic", "key")
	r.run(2 * rel.core.cfg.LeaseTTL)
	if got := arrived(); !slices.Contains(got, stuck) || got[len(got)-1] != last && got[len(got)-2] != last {
		t.Errorf("arrived %v", got)
	}
	if rel.core.numbers.anew || rel.noted(saidAbove) != 1 {
		t.Error("the sequence counts as below the events still")
	}
}

// What a relay has read says nothing of a database that has lost commits.
func TestFailOverIsNoSequenceThatBeginsAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Database = "1/00000001"
	for range 10 {
		r.store.Add("topic", "key")
	}
	rel := r.start(Options{})
	r.run(2 * time.Second)
	r.store.Truncate()
	r.store.Database = "1/00000002"
	r.store.Add("topic", "key")
	r.run(2 * rel.core.cfg.LeaseTTL)
	for _, n := range rel.notes {
		if n.Level >= slog.LevelError {
			t.Errorf("said %q", n.Msg)
		}
	}
	r.drained()
}
