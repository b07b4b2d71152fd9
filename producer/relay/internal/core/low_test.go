package core

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/keyset"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// bottom is the highest that the store keeps of a shard.
func (r *rig) bottom() (low int64) {
	for i := range r.store.Shards {
		low = max(low, r.store.Shards[i].Bottom())
	}
	return low
}

// kept looks whether all is so that was kept.
func (r *rig) kept() {
	r.t.Helper()
	for _, text := range r.store.Untrue {
		r.t.Error(text)
	}
}

// A relay that takes over would else step over all that was delivered, for as long as somebody
// holds a snapshot.
func TestNextOwnerReadsFromTheBottomOfItsShards(t *testing.T) {
	t.Parallel()
	for _, gives := range []bool{false, true} {
		r := newRig(t)
		r.store.Held = true
		for range 1000 {
			r.store.Add("topic", "key")
		}
		rel := r.start(Options{})
		r.run(time.Minute)
		r.drained()
		if gives {
			rel.core.Stop(r.now)
			r.run(time.Second)
		}
		r.kill(rel)
		next := r.store.Add("topic", "key")
		r.store.Passed = 0
		r.start(Options{})
		r.run(time.Minute)
		r.drained()
		if sent := r.sent(); sent[len(sent)-1] != next || r.store.Passed > 10 {
			t.Errorf("given back: %v: stepped over %d rows that have gone", gives, r.store.Passed)
		}
		r.kept()
	}
}

func TestBottomIsBelowWhatWaits(t *testing.T) {
	t.Parallel()
	for name, wait := range map[string]func(r *rig, rel *rigRelay) (seq int64){
		"an event in flight": func(r *rig, rel *rigRelay) int64 {
			seq := r.store.Add("topic", "key")
			rel.mute = func(s rigSend) bool { return s.seq == seq }
			return seq
		},
		"an event that is not committed": func(r *rig, _ *rigRelay) int64 { return r.store.Begin().Write("topic", "key") },
		"events passed over":             func(r *rig, _ *rigRelay) int64 { return r.stall(100) },
		"events of a hot key": func(r *rig, rel *rigRelay) int64 {
			seq := r.store.Add("topic", "key")
			for range 100 {
				r.store.Add("topic", "key")
			}
			rel.mute = func(s rigSend) bool { return s.key == "key" }
			return seq
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			rel := r.start(Options{MaxPerKey: 2})
			seq := wait(r, rel)
			for range 200 {
				r.store.Add("topic", "")
			}
			r.run(time.Minute)
			if low := r.store.Shards[r.store.Log[seq].Shard].Bottom(); low >= seq {
				t.Errorf("bottom is %d, and %d waits", low, seq)
			}
			rel.core.Stop(r.now)
			r.run(time.Second)
			r.kept()
		})
	}
}

// stall adds events of a route that refuses, and returns the first.
func (r *rig) stall(n int) (first int64) {
	r.broker = func(s rigSend) transport.Result {
		if s.topic == "dead" {
			return transport.Result{Outcome: transport.Returned, Err: errors.New("no queue")}
		}
		return confirmAll(s)
	}
	for i := range n {
		if seq := r.store.Add("dead", ""); i == 0 {
			first = seq
		}
	}
	return first
}

// What another relay kept before the database lost commits is of numbers that are given out again.
func TestBottomOfALostDatabaseIsNotBelieved(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Database = "before"
	for range 100 {
		r.store.Add("topic", "key")
	}
	rel := r.start(Options{})
	r.run(time.Minute)
	r.kill(rel)
	r.store.Database = "after"
	low := r.bottom()
	again := r.store.Add("topic", "key")
	shard := r.store.Log[again].Shard
	delete(r.store.Queue[shard], again)
	r.store.Log[low] = r.store.Log[again]
	r.store.Enqueue(shard, low, -1)
	r.start(Options{})
	r.run(time.Minute)
	r.drained()
}

func TestDeferredEventThatIsQueuedIsFoundByTheNextOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	seq := r.store.AddDeferred("topic", "key", 70*time.Second)
	for range 100 {
		r.store.Add("topic", "key")
	}
	rel := r.start(Options{})
	rel.delay = func(cl *Call) bool { s, ok := cl.Statement.(*statement.Undefer); return ok && len(s.Moved) > 0 }
	r.run(2 * time.Minute)
	r.kept()
	r.kill(rel)
	r.start(Options{})
	r.run(time.Minute)
	r.drained()
	if sent := r.sent(); sent[len(sent)-1] != seq {
		t.Errorf("sent %v", sent)
	}
}

// left writes n events of keys of their own for a route that is known to refuse, has a relay pass
// them over and keep so, and ends it.
func (r *rig) left(n int, gives bool, cfg Options) (dead map[int64]bool) {
	r.t.Helper()
	r.stall(0)
	dead = make(map[int64]bool)
	for i := range 20 {
		dead[r.store.Add("dead", fmt.Sprint("early", i))] = true
	}
	rel := r.start(cfg)
	r.run(time.Minute)
	for i := range n {
		dead[r.store.Add("dead", fmt.Sprint("key", i))] = true
	}
	r.run(time.Minute)
	for range 10 {
		r.store.Add("topic", "")
	}
	r.run(time.Minute)
	if gives {
		rel.core.Stop(r.now)
		r.run(time.Second)
	}
	r.kept()
	r.kill(rel)
	return dead
}

func TestNextOwnerSendsNewEventsBeforeItReadsTheBacklogOfADeadRoute(t *testing.T) {
	t.Parallel()
	for _, gives := range []bool{false, true} {
		r := newRig(t)
		const dead = 4000
		r.left(dead, gives, Options{})
		want := r.store.Add("topic", "new")
		r.store.Fetched = 0
		fetched := -1
		before := r.broker
		r.broker = func(s rigSend) transport.Result {
			if s.seq == want {
				fetched = r.store.Fetched
			}
			return before(s)
		}
		r.start(Options{})
		r.run(time.Minute)
		if fetched < 0 || fetched > dead/10 {
			t.Errorf("given back: %v: %d rows were read before the new event was sent", gives, fetched)
		}
		r.kept()
	}
}

// Of a writer that was there before it, a relay knows no floor. It can write above the tail only,
// so what is left below is read once, by a lap.
func TestWriterThatWasThereBeforeTheNextOwnerHasTheBacklogReadOnce(t *testing.T) {
	t.Parallel()
	for name, writes := range map[string]time.Duration{"a short one": 500 * time.Millisecond, "a long one": 5 * time.Second} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			const dead = 4000
			r.left(dead, true, Options{})
			open := r.store.Begin()
			late := open.Write("topic", "late")
			rel := r.start(Options{})
			r.store.Fetched = 0
			for end := r.now + writes; r.now < end; r.run(50 * time.Millisecond) {
				r.store.Add("topic", "new")
				rel.core.Wake(r.now, wakeup.All)
			}
			r.store.Add("topic", "new")
			open.Commit()
			r.run(time.Second)
			if !slices.Contains(r.sent(transport.Confirmed), late) {
				t.Error("what the writer has committed was not sent")
			}
			if r.store.Fetched > dead+dead/2 {
				t.Errorf("%d rows were read", r.store.Fetched)
			}
			r.kept()
		})
	}
}

func TestEventsOfAKeyFollowThoseThatAnEarlierOwnerHasLeft(t *testing.T) {
	t.Parallel()
	for _, gives := range []bool{false, true} {
		r := newRig(t)
		dead := r.left(300, gives, Options{})
		for i := range 300 {
			r.store.Add("topic", fmt.Sprint("key", i))
		}
		rel := r.start(Options{})
		r.run(10 * time.Second)
		for _, s := range r.sends {
			if strings.HasPrefix(s.key, "key") && s.topic == "topic" {
				t.Fatalf("event %d of %s was sent before the earlier one of its key", s.seq, s.key)
			}
		}
		r.run(time.Minute) // what is kept once more is of what the relay was handed
		r.kept()
		r.kill(rel)
		r.broker = confirmAll // the route works again
		r.start(Options{})
		r.run(2 * time.Minute)
		r.drained()
		confirmed := make(map[string]int64)
		for _, s := range r.sends {
			if s.outcome != transport.Confirmed || s.key == "" {
				continue
			}
			if s.seq < confirmed[s.key] {
				t.Errorf("event %d of %s came after %d", s.seq, s.key, confirmed[s.key])
			}
			confirmed[s.key] = s.seq
			delete(dead, s.seq)
		}
		if len(dead) > 0 {
			t.Errorf("given back: %v: %d events of the dead route did not come", gives, len(dead))
		}
	}
}

func TestWhatWaitsInTheMemoryOfAShardThatIsGivenBackIsHandedOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stall(3)
	rel := r.start(Options{})
	r.run(time.Minute)
	for i := range 10 {
		r.store.Add("dead", fmt.Sprint("key", i))
	}
	r.run(1500 * time.Millisecond) // nothing is kept meanwhile
	rel.core.Stop(r.now)
	r.run(time.Second)
	r.kept()
	handed := 0
	for i := range r.store.Shards {
		handed += len(r.store.Shards[i].Tail.Passed) / 4
	}
	if handed != 10 {
		t.Errorf("%d keys are handed over, want 10", handed)
	}
}

// One statement keeps so much that its tails are kept in turns, and each shard stands in it once.
func TestTailsOfManyKeysAreKeptInTurns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.start(Options{}).core
	for i := range c.shards {
		sh := &shardState{no: i, shardQueue: shardQueue{low: 10, known: 10, bottom: 5}, shardEvents: shardEvents{index: make(map[int64]*Entry)}}
		sh.back.inherit(make(keyset.Set, skippedAtOnce/20), 6)
		for k := range sh.back.inherited {
			sh.back.inherited[k] = uint32(k)
		}
		c.shards[i] = sh
	}
	kept := make(map[int]int)
	for range 4 {
		c.lows.wanted = true
		cl := c.lows.call()
		if cl == nil {
			t.Fatal("nothing is kept")
		}
		seen := make(map[int]bool)
		for _, low := range cl.Statement.(*statement.KeepLow).Lows {
			if seen[low.Shard] {
				t.Errorf("shard %d stands in one statement twice", low.Shard)
			}
			seen[low.Shard] = true
			if low.Tail != nil {
				kept[low.Shard]++
			}
		}
		c.lows.reply(cl)
	}
	if len(kept) != len(c.shards) {
		t.Errorf("tails of %d shards were kept", len(kept))
	}
	for no, n := range kept {
		if n != 1 {
			t.Errorf("tail of shard %d was kept %d times", no, n)
		}
	}
}

// Nobody reads on from what cannot be what a relay has kept.
func TestTailThatCannotBeReadIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, tail := range map[string]outbox.Tail{
		"half a key":       {Seq: 90, Passed: []byte{0, 0, 0, 1, 0}},
		"keys descend":     {Seq: 90, Passed: []byte{0, 0, 0, 2, 0, 0, 0, 1}},
		"below the bottom": {Seq: 10, Passed: []byte{0, 0, 0, 1}},
	} {
		sh := &shardState{}
		if sh.resume(20, tail); sh.low != 20 || sh.sealed != 20 || sh.back.inherited != nil {
			t.Errorf("%s: reads on from %d", name, sh.low)
		}
	}
}

func TestKeysThatWerePassedOverComeBackAsTheyWere(t *testing.T) {
	t.Parallel()
	sh := &shardState{}
	for i := range 1000 {
		sh.back.skip(keyset.Hash(fmt.Sprint(i)), true, int64(i+1))
	}
	keys, ok := keyset.Parse(sh.skippedKeys().Bytes())
	if !ok || len(keys) < 999 {
		t.Fatalf("%d keys, %v", len(keys), ok)
	}
	strangers := 0
	for i := range 100_000 {
		if has := keys.Has(keyset.Hash(fmt.Sprint(i))); i < 1000 && !has {
			t.Errorf("key %d is missing", i)
		} else if i >= 1000 && has {
			strangers++
		}
	}
	if strangers > 3 { // 0.02 are expected
		t.Errorf("%d of 99,000 other keys are taken for some of them", strangers)
	}
}
