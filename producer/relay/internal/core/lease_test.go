package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

func TestShardsAreSharedFairly(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 300 {
		r.store.Add("topic", fmt.Sprint("key", i))
	}
	for n, want := range []int{64, 32, 22, 16} {
		r.start(Options{})
		r.run(20 * time.Second)
		total := 0
		for _, rel := range r.relays {
			held := rel.core.leases.held
			if total += held; held > want || held < want-3 {
				t.Errorf("of %d relays, %s has %d shards", n+1, rel.name, held)
			}
		}
		if total != idgen.Shards {
			t.Errorf("%d relays have %d shards", n+1, total)
		}
	}
	r.drained()
}

func TestShardsOfADeadRelayAreTakenOverWithinTheLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.start(Options{})
	r.run(time.Second)
	dead.mute = func(rigSend) bool { return true }
	var first []int64
	for i := range 40 {
		first = append(first, r.store.Add("topic", fmt.Sprint("key", i)))
	}
	dead.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	r.kill(dead)
	heir := r.start(Options{Window: 60})
	r.run(11 * time.Second) // the lease, and a moment
	if heir.core.leases.held != idgen.Shards {
		t.Errorf("%d shards taken over", heir.core.leases.held)
	}
	if n := len(heir.takenOver(t)); n != idgen.Shards {
		t.Errorf("%d shards were said to be taken over", n)
	}
	seqs := r.sent(transport.Confirmed)
	slices.Sort(seqs)
	if !slices.Equal(seqs, first) {
		t.Errorf("sent %v", seqs)
	}
	for _, s := range r.sends {
		if !s.redelivered {
			t.Errorf("%d is not marked as redelivered", s.seq)
		}
	}
	r.drained()
}

func TestOnlyTheFirstWindowAfterAnAbruptTakeoverIsRedelivered(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.kill(func() *rigRelay { rel := r.start(Options{}); r.run(time.Second); return rel }())
	for range 30 {
		r.store.Add("topic", "key")
	}
	r.start(Options{Window: 10})
	r.run(15 * time.Second)
	for i, s := range r.sends {
		if want := i < 10; s.redelivered != want {
			t.Errorf("send %d: redelivered is %v", i, s.redelivered)
		}
	}
}

func TestGivenBackShardsAreNotTakenForCrashed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	first := r.start(Options{})
	r.run(time.Second)
	first.core.Stop(r.now)
	r.run(time.Second)
	if !first.core.stopped || len(r.store.Relays) != 0 {
		t.Fatal("relay did not leave")
	}
	r.kill(first)
	r.store.Add("topic", "key")
	heir := r.start(Options{})
	r.run(2 * time.Second)
	if len(heir.takenOver(t)) != 0 || r.sends[0].redelivered {
		t.Error("a shard that was given back counts as crashed")
	}
	r.drained()
}

func TestStoppedRelayThatWakesUpChangesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	zombie := r.start(Options{})
	r.run(time.Second)
	seq := r.store.Add("topic", "key")
	zombie.mute = func(rigSend) bool { return true }
	zombie.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	zombie.stopped = true
	r.start(Options{})
	r.run(12 * time.Second)
	if !r.store.Replay(seq) { // an operator sends it again
		t.Fatal("not delivered")
	}
	zombie.stopped = false
	zombie.free()
	r.run(20 * time.Second)
	if zombie.noted("lease lost") == 0 {
		t.Error("the lost lease was not said")
	}
	if n := r.store.Receipts[seq]; n != 2 {
		t.Errorf("%d deliveries recorded, want the first and the replay", n)
	}
	r.drained()
}

func TestNothingIsSentAfterTheLeaseHasEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{Window: 1})
	r.broker = func(s rigSend) transport.Result { return transport.Result{Outcome: transport.Unavailable} }
	for i := range 10 {
		r.store.Add("topic", fmt.Sprint("key", i))
	}
	r.run(5 * time.Second)
	r.store.Fail = func(string) error { return errors.New("database is down") }
	r.run(20 * time.Second) // the rig fails the test if anything is sent late
	if at := r.sends[len(r.sends)-1].at; at > 15*time.Second {
		t.Errorf("sent at %v", at)
	}
	r.broker = confirmAll
	r.store.Fail = nil
	r.run(20 * time.Second)
	r.drained()
	if rel.core.health.callErr == "" {
		t.Error("health does not tell of the database")
	}
}

func TestALeaseCountsFromBeforeItsRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpAcquire }
	r.run(8 * time.Second)
	rel.free()
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpRenew }
	r.run(time.Millisecond)
	for _, sh := range rel.core.shards {
		if sh.until > 10*time.Second {
			t.Fatalf("a lease that was asked for at 0 s runs until %v", sh.until)
		}
	}
}

func TestARenewedLeaseCountsFromBeforeItsRenewal(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(3 * time.Second)
	renewal := func(cl *Call) bool { return cl.Op() == statement.OpRenew }
	rel.delay = renewal
	r.run(4 * time.Second) // the answer to what was asked after a third of the lease comes late
	rel.free()
	rel.hold = renewal
	r.run(time.Millisecond)
	for _, sh := range rel.core.shards {
		if sh.until < 12*time.Second || sh.until > 13*time.Second {
			t.Fatalf("a lease that was renewed at 3.3 s runs until %v", sh.until)
		}
	}
}

func TestSurplusIsGivenBackWhenItsSendsHaveEnded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	rel.mute = func(rigSend) bool { return true }
	for i := range 400 {
		r.store.Add("topic", fmt.Sprint("key", i))
	}
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	other := r.start(Options{})
	r.run(7 * time.Second)
	if held := other.core.leases.held; held != 0 {
		t.Errorf("%d shards were given away with events in flight", held)
	}
	rel.free()
	r.run(7 * time.Second)
	if held := other.core.leases.held; held != 32 {
		t.Errorf("the newcomer has %d shards", held)
	}
	r.drained()
	if got := len(r.sends); got != 400 {
		t.Errorf("%d sends for 400 events", got)
	}
}

func TestAShardIsHealedThenLoadedThenRead(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	order := []statement.Op{statement.OpHeartbeat, statement.OpAcquire, statement.OpHeal, statement.OpBlocked, statement.OpFetch}
	at := -1
	for _, o := range order {
		i := slices.Index(rel.calls, o)
		if i <= at {
			t.Fatalf("%v comes at %d in %v", o, i, rel.calls)
		}
		at = i
	}
}

func TestAMarkThatIsLostLosesTheShard(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpMark }
	seq := r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	r.store.Mu.Lock()
	shard := r.store.Log[seq].Shard
	r.store.Shards[shard].Epoch++ // another relay has it
	r.store.Shards[shard].Owner = "thief"
	r.store.Mu.Unlock()
	rel.free()
	r.run(time.Millisecond)
	if rel.core.shards[shard] != nil || rel.attr("lease lost", "found_by").String() != "mark" {
		t.Error("the shard is still held")
	}
	if queued, _ := r.store.Left(); queued != 1 {
		t.Error("the mark went through the fence")
	}
}

func TestWhatIsInFlightAtTheEndIsMarkedBeforeTheShardsAreGivenBack(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	rel.mute = func(rigSend) bool { return true }
	r.store.Add("topic", "key")
	second := r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	rel.core.Stop(r.now)
	r.run(time.Second)
	if rel.core.stopped {
		t.Fatal("stopped with an event in flight")
	}
	rel.free()
	r.run(time.Second)
	if !rel.core.stopped {
		t.Fatal("did not stop")
	}
	if got := r.sent(); slices.Contains(got, second) {
		t.Errorf("sent %v: an event was begun after the stop", got)
	}
	if queued, _ := r.store.Left(); queued != 1 {
		t.Errorf("%d events left, want the one that was not begun", queued)
	}
}

func TestAShardWithSomethingInFlightIsNotGivenBackInTheEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	rel.mute = func(rigSend) bool { return true }
	seq := r.store.Add("topic", "key")
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	rel.core.Stop(r.now)
	r.run(time.Second)
	rel.core.Abandon(r.now)
	r.run(time.Second)
	if !rel.core.stopped {
		t.Fatal("did not stop")
	}
	owned := 0
	for i, s := range r.store.Shards {
		if s.Owner != "" {
			if owned++; i != r.store.Log[seq].Shard {
				t.Errorf("shard %d was not given back", i)
			}
		}
	}
	if owned != 1 {
		t.Errorf("%d shards are still owned", owned)
	}
}
