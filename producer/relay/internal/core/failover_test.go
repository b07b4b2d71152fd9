package core

import (
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/transport"
)

// A standby that is promoted may lack the last marks: what was delivered is queued there,
// far below what the relay has read.
func TestWhatAFailOverBroughtBackIsSentAgainAtOnce(t *testing.T) {
	t.Parallel()
	for identity, within := range map[string]bool{"1/00000002": true, "1/00000001": false, "": false} {
		r := newRig(t)
		r.store.Database = "1/00000001"
		var seqs []int64
		for range 10 {
			seqs = append(seqs, r.store.Add("topic", "key"))
		}
		rel := r.start(Options{})
		r.run(2 * time.Second)
		if got := r.sent(); !slices.Equal(got, seqs) {
			t.Fatalf("sent %v, want %v", got, seqs)
		}
		lost := seqs[4]
		r.store.Enqueue(r.store.Log[lost].Shard, lost, 0)
		r.store.Database = identity
		r.run(rel.core.cfg.LeaseTTL)
		again := len(r.sent()) == 11
		if again != within {
			t.Errorf("with the identity %q: sent %v", identity, r.sent())
		}
		if failed := !rel.core.State(time.Time{}).FailedOverAt.IsZero(); failed != within {
			t.Errorf("with the identity %q: health tells of a fail-over: %v", identity, failed)
		}
		if within {
			r.drained()
		}
	}
}

// The ID of an event that the database has lost, which is in flight, is given out again. The relay
// finds it before the database tells that it is another one, and forgets what it knew by it.
func TestEventThatHasTheIDOfALostOneIsSent(t *testing.T) {
	t.Parallel()
	for what, parked := range map[string]bool{"queued": false, "parked": true} {
		r := newRig(t)
		seq := r.store.Add("topic", "key")
		rel := r.start(Options{Backoff: Backoff{Initial: time.Millisecond, Max: time.Millisecond}})
		if parked {
			r.broker = func(rigSend) transport.Result { return transport.Result{Outcome: transport.Refused} }
			r.run(10 * time.Millisecond)
			r.broker = confirmAll
		}
		rel.mute = func(rigSend) bool { return true }
		r.run(time.Second)
		if len(rel.muted) == 0 || rel.muted[0].entry.parked != parked {
			t.Fatalf("%s: in flight are %+v", what, rel.muted)
		}
		shard := r.store.Log[seq].Shard
		clear(r.store.Queue[shard])
		clear(r.store.Parked)
		r.store.Seq = seq - 1
		if again := r.store.Add("topic", "key"); again != seq {
			t.Fatalf("%s: the ID of the new event is %d, want %d", what, again, seq)
		}
		rel.core.shards[shard].rewind(0) // as when its sweep comes
		rel.core.Wake(r.now, wakeup.All)
		r.run(time.Second)
		if n := rel.noted("database has lost committed events, and given out their IDs again: reading everything again"); n != 1 {
			t.Errorf("%s: the loss was noted %d times", what, n)
		}
		rel.free()
		r.run(rel.core.cfg.LeaseTTL)
		if r.store.Receipts[seq] != 1 {
			t.Errorf("%s: the new event has %d receipts", what, r.store.Receipts[seq])
		}
		r.drained()
	}
}

// The old owner of a shard of the lost state may have sent what the new state has again. The copies are
// marked, and the shards taken over for it once.
func TestShardsAreTakenOverAfterAFailOver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Database = "1/00000001"
	seq := r.store.Add("topic", "key")
	rel := r.start(Options{})
	r.run(2 * time.Second)
	r.store.Enqueue(r.store.Log[seq].Shard, seq, 0)
	r.store.Database = "1/00000002"
	r.run(rel.core.cfg.LeaseTTL)
	if n := len(rel.takenOver(t)); n != idgen.Shards {
		t.Errorf("%d shards were said to be taken over", n)
	}
	if len(r.sends) != 2 || r.sends[0].redelivered || !r.sends[1].redelivered {
		t.Errorf("sent %+v", r.sends)
	}
	other := r.start(Options{})
	r.run(2 * rel.core.cfg.LeaseTTL)
	if other.core.leases.held == 0 {
		t.Fatal("the other relay has no shards")
	}
	other.core.Stop(r.now)
	r.run(2 * rel.core.cfg.LeaseTTL)
	if rel.takenOver(t); rel.core.leases.held != idgen.Shards {
		t.Errorf("%d shards after the other relay has given back its own", rel.core.leases.held)
	}
	r.drained()
}
