package core

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// committed adds an event, tells the relay, and lets d pass.
func (r *rig) committed(rel *rigRelay, d time.Duration) int64 {
	r.t.Helper()
	seq := r.store.Add("topic", fmt.Sprint("key", r.now)) // all shards have some
	rel.core.Wake(r.now, wakeup.All)
	r.run(d)
	return seq
}

func (rel *rigRelay) fetches() (n int) { return rel.count(statement.OpFetch) }

func (rel *rigRelay) count(of statement.Op) (n int) {
	for _, op := range rel.calls {
		if op == of {
			n++
		}
	}
	return n
}

func TestEventThatComesAloneWaitsForNoLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	for range 1000 {
		at := r.now
		seq := r.committed(rel, 5500*time.Microsecond) // a little less often than PollMin
		if seen := r.seenAt(seq); seen != at {
			t.Fatalf("event %d was committed at %v and sent at %v", seq, at, seen)
		}
	}
}

// TestRelayThatWasWokenTooEarlyLooksAgainSoon: whoever writes in a transaction of his own wakes the
// relays before he commits, and need not tell them then.
func TestRelayThatWasWokenTooEarlyLooksAgainSoon(t *testing.T) {
	t.Parallel()
	for _, later := range []time.Duration{time.Millisecond, 12 * time.Millisecond, 100 * time.Millisecond} {
		r := newRig(t)
		rel := r.start(Options{})
		r.run(10 * time.Second)
		rel.core.Wake(r.now, wakeup.All)
		r.run(later)
		at := r.now
		seq := r.store.Add("topic", "key")
		r.run(time.Second)
		if waited := r.seenAt(seq) - at; waited > later+5*time.Millisecond {
			t.Errorf("an event that was committed %v after the wake-up was sent %v later", later, waited)
		}
	}
}

func TestManyEventsAreReadTogether(t *testing.T) {
	t.Parallel()
	for every, looks := range map[time.Duration]int{
		2500 * time.Microsecond: 200, // 2 in PollMin
		1000 * time.Microsecond: 120, // 5: polls are 5/3 PollMin apart
		500 * time.Microsecond:  60,
		100 * time.Microsecond:  50, // 4 PollMin
	} {
		for name, commit := range map[string]func(r *rig) wakeup.Wakeup{
			"anywhere": func(r *rig) wakeup.Wakeup {
				r.store.Add("topic", fmt.Sprint("key", r.now)) // all shards have some
				return wakeup.All
			},
			"in known shards": func(r *rig) wakeup.Wakeup {
				tx := r.store.Begin()
				tx.Write("topic", fmt.Sprint("key", r.now))
				return tx.Commit()
			},
		} {
			t.Run(every.String()+" "+name, func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				rel := r.start(Options{})
				r.run(time.Second)
				var from, marks int
				for i := range int(2 * time.Second / every) {
					if i == int(time.Second/every) { // those in advance are used up
						from, marks = rel.count(statement.OpFetch), rel.count(statement.OpMark)
					}
					rel.core.Wake(r.now, commit(r))
					r.run(every)
				}
				if n := rel.count(statement.OpFetch) - from; n < looks-3 || n > looks+5 {
					t.Errorf("%d looks at the queue in a second, not %d", n, looks)
				}
				if n := rel.count(statement.OpMark) - marks; n > looks+5 {
					t.Errorf("%d marks in a second", n)
				}
				r.run(30 * time.Millisecond)
				r.drained()
			})
		}
	}
}

// TestManyEventsAreMarkedTogether has the broker confirm one after another.
func TestManyEventsAreMarkedTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	rel.mute = func(rigSend) bool { return true }
	r.run(time.Second)
	var marks int
	for i := range 4000 {
		if i == 2000 {
			marks = rel.count(statement.OpMark)
		}
		r.committed(rel, 500*time.Microsecond)
		if len(rel.muted) > 0 {
			s := rel.muted[0]
			rel.muted = rel.muted[1:]
			rel.answer(s)
		}
	}
	if n := rel.count(statement.OpMark) - marks; n > 125 { // two per poll
		t.Errorf("%d marks in a second", n)
	}
	rel.free()
	r.run(30 * time.Millisecond)
	r.drained()
}

// TestEventAfterManyWaitsForNoLook: what is far apart for many events is not for the one that comes
// alone behind them.
func TestEventAfterManyWaitsForNoLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	for range 2000 {
		r.committed(rel, 500*time.Microsecond)
	}
	r.run(30 * time.Millisecond) // wake-ups are paid back
	for range 200 {
		at := r.now
		if seq := r.committed(rel, 5500*time.Microsecond); r.seenAt(seq)-at > 5*time.Millisecond {
			t.Fatalf("event %d was committed at %v and sent at %v", seq, at, r.seenAt(seq))
		}
	}
	r.run(5 * time.Millisecond)
	r.drained()
}

// TestOnlyTheShardsOfACommitAreReadForIt: most shards have nothing, and to look there costs more
// than what is found.
func TestOnlyTheShardsOfACommitAreReadForIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(10 * time.Second) // polls have slowed down
	ranges, looks := r.store.Ranges, rel.fetches()
	for range 20 {
		tx := r.store.Begin()
		seq := tx.Write("topic", fmt.Sprint("key", r.now))
		at := r.now
		rel.core.Wake(r.now, tx.Commit())
		r.run(5500 * time.Microsecond)
		if seen := r.seenAt(seq); seen != at {
			t.Fatalf("event %d was committed at %v and sent at %v", seq, at, seen)
		}
	}
	ranges, looks = r.store.Ranges-ranges, rel.fetches()-looks
	if polls := looks - 20; polls < 0 || polls > 10 || ranges > 3*20+2*idgen.Shards*polls {
		t.Errorf("%d looks at %d ranges for 20 commits", looks, ranges)
	}
	r.drained()
}

// TestNewsOfAnotherRelaysShardAreNoLook: whoever owns it is woken as well.
func TestNewsOfAnotherRelaysShardAreNoLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.start(Options{})
	r.run(time.Minute)
	before := rel.fetches()
	looked := 0
	for shard := range rel.core.shards {
		if rel.core.shards[shard] == nil {
			rel.core.Wake(r.now, wakeup.Wakeup{Shards: 1 << shard})
			looked++
			r.run(time.Millisecond)
		}
	}
	if n := rel.fetches() - before; looked < 20 || n > 1 {
		t.Errorf("%d looks for news of %d shards of another relay", n, looked)
	}
}

// wake tells some relays of a commit.
func (s *simulation) wake(n wakeup.Wakeup) {
	if s.chance(3) {
		n = n.And(wakeup.All)
	}
	for _, rel := range s.relays {
		if s.chance(2) {
			rel.core.Listening(s.now, !s.chance(8))
			rel.core.Wake(s.now, n)
		}
	}
}

// execute runs a statement, or lets it fail before or after its work.
func (s *simulation) execute(rel *simRelay, cl *Call) {
	fault := 0
	if s.wild.storeErrors && !s.calm && s.chance(12) {
		fault = 1 + s.rnd.IntN(2)
	}
	if fault != 1 {
		cl.Err = cl.Execute(context.Background(), memstore.Witnessed{Store: s.store}, rel.core.cfg.Asker())
	}
	if fault != 0 {
		s.counts.Statements++
		cl.Err = errors.New("connection lost")
	}
	switch cl.Op() {
	case statement.OpExpire:
		s.counts.Expiries++
	case statement.OpRelease:
		for _, other := range s.relays {
			if s.wild.freed && s.chance(2) {
				other.core.Wake(s.now, wakeup.Freed)
			}
		}
	}
	rel.done = append(rel.done, cl)
}
