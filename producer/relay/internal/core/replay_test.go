package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// A replay puts several events of a key back that were delivered a moment ago. Who still looks for
// late commits among the last of them must not take those for such, and send them before the
// others.
func TestEventsReplayedTogetherKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for later := time.Duration(0); later < 60*time.Millisecond; later += time.Millisecond {
		for _, told := range []bool{true, false} {
			for _, size := range []int{64, 1000} { // one fetch brings less, or all of it
				r := newRig(t)
				rel := r.start(Options{FetchSize: size})
				r.run(time.Second)
				var seqs []int64
				for range 8 {
					tx := r.store.Begin()
					seqs = append(seqs, tx.Write("topic", "key"))
					rel.core.Wake(r.now, tx.Commit())
					r.run(4 * time.Millisecond)
				}
				r.run(later)
				r.sends = nil
				for _, seq := range seqs {
					r.store.Replay(seq)
				}
				if told {
					rel.core.Wake(r.now, wakeup.All)
				}
				r.run(20 * time.Second)
				if got := r.sent(transport.Confirmed); !slices.Equal(got, seqs) {
					t.Errorf("replayed %v later, told %v, %d at once: sent %v, want %v", later, told, size, got, seqs)
				}
				r.drained()
			}
		}
	}
}

// The next owner of a shard begins where the one before had left it when it was last kept: what
// that one has delivered since is ahead, and what a replay puts back is partly ahead and partly
// behind.
func TestEventsReplayedAfterATakeoverKeepTheirOrder(t *testing.T) {
	t.Parallel()
	for _, cleared := range []bool{false, true} { // an earlier replay was told of, and done
		r := newRig(t)
		rel := r.start(Options{})
		var seqs []int64
		add := func(n int) {
			for range n {
				seqs = append(seqs, r.store.Add("topic", "key"))
			}
		}
		add(5)
		r.run(time.Minute) // they are delivered, and that is kept
		if cleared {
			r.store.Replay(seqs[4])
			r.run(time.Minute)
		}
		add(3)
		r.run(time.Second)
		r.drained()
		r.kill(rel)
		r.start(Options{})
		r.run(time.Minute)
		r.sends = nil
		for _, seq := range seqs {
			r.store.Replay(seq)
		}
		r.run(time.Minute)
		if got := r.sent(transport.Confirmed); !slices.Equal(got, seqs) {
			t.Errorf("replayed before %v: sent %v, want %v", cleared, got, seqs)
		}
		r.drained()
	}
}

// The mark of an event is committed, and its answer is late. Its row stands in the queue once more
// by then, and is not to be overtaken.
func TestEventThatIsReplayedBeforeItsMarkIsAnsweredKeepsItsPlace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	first, second := r.store.Add("topic", "key"), r.store.Add("topic", "key")
	r.run(time.Minute)
	rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpMark }
	r.store.Replay(first)
	r.run(time.Minute)
	r.sends = nil
	r.store.Replay(first)
	r.store.Replay(second)
	r.run(time.Minute)
	rel.free()
	r.run(time.Minute)
	if got, want := r.sent(transport.Confirmed), []int64{first, second}; !slices.Equal(got, want) {
		t.Errorf("sent %v, want %v", got, want)
	}
	r.drained()
}

// A key has more events than are kept in memory: what is behind those is read from there on, and
// not before a replay that comes meanwhile has the shard read from an earlier one.
func TestReplayOfALongKeyIsReadFromItsFirstEvent(t *testing.T) {
	t.Parallel()
	for later := time.Duration(0); later < 20*time.Millisecond; later += time.Millisecond {
		r := newRig(t)
		rel := r.start(Options{MaxPerKey: 2})
		var seqs []int64
		for range 8 {
			seqs = append(seqs, r.store.Add("topic", "key"))
		}
		r.run(time.Minute)
		rel.mute = func(s rigSend) bool { return s.seq == seqs[4] }
		for _, seq := range seqs[:6] {
			r.store.Replay(seq)
		}
		r.run(time.Minute) // the fifth is under way and the sixth behind it: the key is to be read on from the next one
		rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpBlocked }
		r.sends = nil
		replayed := slices.Concat(seqs[:4], seqs[6:])
		for _, seq := range replayed {
			r.store.Replay(seq)
		}
		r.run(10*time.Second + later) // the relay is told
		for _, s := range rel.muted {
			rel.answer(s)
		}
		rel.muted, rel.mute = nil, nil
		r.run(5*time.Millisecond + later)
		rel.free()
		r.run(time.Minute)
		got := slices.DeleteFunc(r.sent(transport.Confirmed), func(seq int64) bool { return !slices.Contains(replayed, seq) })
		if !slices.Equal(got, replayed) {
			t.Errorf("%v later: sent %v, want %v", later, got, replayed)
		}
		r.drained()
	}
}

// A relay of before has removed the ticket of a replay, and given the shard back with the events of
// that. Each has a ticket of its own.
func TestReplayWithoutItsTicketIsToldPageByPage(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	var seqs []int64
	for range 50 {
		seqs = append(seqs, r.store.Add("topic", "key"))
	}
	r.run(time.Minute)
	r.kill(rel)
	r.sends = nil
	for _, seq := range seqs {
		r.store.Replay(seq)
	}
	sh := &r.store.Shards[r.store.Log[seqs[0]].Shard]
	sh.Low, sh.Tail, sh.Ticket, sh.RewindTo, sh.Told = sh.Bottom(), sh.Kept(), 0, 0, 0
	rel = r.start(Options{})
	r.run(15 * time.Second)
	if got := r.sent(transport.Confirmed); !slices.Equal(got, seqs) {
		t.Errorf("sent %v, want %v", got, seqs)
	}
	renewals := 0
	for _, op := range rel.calls {
		if op == statement.OpRenew {
			renewals++
		}
	}
	if renewals > 10 {
		t.Errorf("%d renewals", renewals)
	}
}

func TestRenewalForAReplayKeepsNothingElseFromBeingDone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c := r.start(Options{}).core
	r.run(time.Minute)
	if !c.shardsQuiescent() {
		t.Fatal("something is left to be done")
	}
	sh := c.shards[0]
	sh.replaysAwaited, c.leases.replaysAwaited, c.leases.beatAt = 7, true, c.now
	if c.shardsQuiescent() {
		t.Error("nothing is to be done in a shard that waits to be told of a replay")
	}
	if cl := c.leases.next(); cl == nil || cl.Op() != statement.OpHeartbeat {
		t.Errorf("next is %+v, want a heartbeat", cl)
	}
	c.leases.beatAt, c.leases.renewedAt = c.now+time.Second, c.now-time.Second
	if cl := c.leases.next(); cl == nil || cl.Op() != statement.OpRenew {
		t.Errorf("next is %+v, want a renewal", cl)
	}
	c.leases.renewedAt = c.now
	if cl := c.leases.next(); cl != nil {
		t.Errorf("next is %s at once", cl.Op())
	}
}

// TestAnEventIsReplayedThoughItsMarkIsUnderWay has the owner read the new row while it holds the old
// one. With a key the shard waits for the mark; without one the row is asked for by its Seq later.
func TestAnEventIsReplayedThoughItsMarkIsUnderWay(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"key", ""} {
		t.Run(fmt.Sprintf("key %q", key), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			rel := r.start(Options{})
			r.run(time.Second)
			rel.delay = func(cl *Call) bool { return cl.Op() == statement.OpMark } // done, and the relay does not know
			seq := r.store.Add("topic", key)
			rel.core.Wake(r.now, wakeup.All)
			r.run(time.Second)
			if !r.store.Replay(seq) {
				t.Fatal("not delivered")
			}
			r.run(10 * time.Second)
			rel.free()
			r.run(2 * time.Second)
			r.drained()
			if n := r.store.Receipts[seq]; n != 2 {
				t.Errorf("%d deliveries recorded", n)
			}
		})
	}
}
