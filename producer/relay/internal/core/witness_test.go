package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
)

// listens gives a relay a session with a witness.
func (rel *rigRelay) listens(witness int64) {
	rel.rig.store.Sessions[witness] = true
	rel.core.Witness(rel.rig.now, witness)
}

// crash ends a relay and its session as SIGKILL does.
func (r *rig) crash(rel *rigRelay) {
	delete(r.store.Sessions, rel.core.witness.own)
	r.kill(rel)
}

// witnessed starts relays with witnesses, which share the shards.
func (r *rig) witnessed(n int) []*rigRelay {
	r.t.Helper()
	for i := range n {
		r.start(Options{Witnesses: true}).listens(int64(i + 1))
	}
	r.run(20 * time.Second)
	for _, rel := range r.relays {
		if held := rel.core.leases.held; held < idgen.Shards/n-2 || held > idgen.Shards/n+1 {
			r.t.Fatalf("%s has %d shards", rel.name, held)
		}
	}
	return r.relays
}

// eventOf writes an event to a shard of a relay.
func (r *rig) eventOf(rel *rigRelay) {
	for i := 0; ; i++ {
		if key := fmt.Sprint("key", i); rel.core.shards[idgen.Shard(key, [16]byte{})] != nil {
			r.store.Add("topic", key)
			return
		}
	}
}

func (r *rig) wake() {
	for _, rel := range r.relays {
		rel.core.Wake(r.now, wakeup.All)
	}
}

func TestShardsOfARelayWhoseWitnessHasEndedAreTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3} {
		r := newRig(t)
		dead := r.witnessed(n)[0]
		r.crash(dead)
		r.eventOf(dead)
		r.wake()
		r.run(400 * time.Millisecond)
		if len(r.sends) != 1 {
			t.Errorf("of %d relays: %d events were sent", n, len(r.sends))
		}
		held := 0
		for _, rel := range r.relays {
			held += rel.core.leases.held
		}
		if held != idgen.Shards {
			t.Errorf("of %d relays: the others have %d shards", n, held)
		}
		if n == 2 && len(r.relays[0].takenOver(t)) != 32 {
			t.Error("take-over was not said")
		}
		r.drained()
	}
}

// TestManyRelaysLookAtWitnessesAsOftenAsFew, all together: each commit tells all of them.
func TestManyRelaysLookAtWitnessesAsOftenAsFew(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 8, 16} {
		r := newRig(t)
		looks := 0
		for _, rel := range r.witnessed(n) {
			rel.hold = func(cl *Call) bool {
				if cl.Op() == statement.OpEndedWitnesses {
					looks++
				}
				return false
			}
		}
		most := 0 // looks at the first commit after a pause
		for i := range 1000 {
			if i%100 == 0 {
				r.run(2 * time.Second)
			}
			before := looks
			r.eventOf(r.relays[i%n])
			r.wake()
			r.run(5 * time.Millisecond)
			if i%100 == 0 {
				most = max(most, looks-before)
			}
		}
		if looks < 40 || looks > 250 || n > 2 && most > n/4 {
			t.Errorf("%d relays looked %d times in 25 s, and up to %d of them at once", n, looks, most)
		}
		dead := r.relays[0]
		r.crash(dead)
		for range 300 {
			r.eventOf(r.relays[0])
			r.wake()
			r.run(10 * time.Millisecond)
		}
		held := 0
		for _, rel := range r.relays {
			held += rel.core.leases.held
		}
		if held != idgen.Shards {
			t.Errorf("of %d relays: the others have %d shards 3 s after a crash", n, held)
		}
		r.drained()
	}
}

func TestRelayThatStartsAfterACrashTakesOverAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.crash(r.witnessed(1)[0])
	r.store.Add("topic", "key")
	r.start(Options{Witnesses: true}) // without a session of its own yet
	r.run(400 * time.Millisecond)
	r.drained()
}

func TestRelayWithoutAWitnessIsTakenOverAtTheEndOfItsLeases(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.witnessed(2)[0]
	delete(r.store.Sessions, 1)
	dead.core.Witness(r.now, 0)
	r.run(time.Second)
	r.crash(dead)
	r.eventOf(dead)
	r.wake()
	r.run(5 * time.Second)
	if len(r.sends) != 0 {
		t.Error("a relay without a witness was taken for one that has ended")
	}
	r.run(10 * time.Second)
	r.drained()
}

func TestRelayThatLosesItsWitnessInTimeKeepsItsShards(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	alive := r.witnessed(2)[0]
	delete(r.store.Sessions, 1)
	r.wake()
	r.run(witnessGrace - 10*time.Millisecond)
	alive.core.Witness(r.now, 0)
	r.run(time.Second)
	alive.listens(3)
	r.run(5 * time.Second)
	if alive.noted("lease lost") != 0 || alive.core.leases.held != 32 {
		t.Errorf("the relay has %d shards", alive.core.leases.held)
	}
	r.eventOf(alive)
	r.wake()
	r.run(10 * time.Millisecond)
	r.drained()
	r.crash(alive) // the new witness counts
	r.eventOf(alive)
	r.wake()
	r.run(400 * time.Millisecond)
	r.drained()
}

func TestNothingIsSentWhileAnEndedWitnessIsRecorded(t *testing.T) {
	t.Parallel()
	for what, lose := range map[string]func(rel *rigRelay){
		"ended":    func(rel *rigRelay) { rel.core.Witness(rel.rig.now, 0) },
		"replaced": func(rel *rigRelay) { rel.listens(2) },
	} {
		r := newRig(t)
		rel := r.witnessed(1)[0]
		rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpAttest }
		renewal := func(cl *Call) bool { return cl.Op() == statement.OpRenew }
		rel.delay = renewal
		rel.core.leases.renewAt = 0
		r.run(time.Millisecond) // its answer comes after the loss
		lose(rel)
		for _, cl := range rel.delayed {
			rel.core.Reply(r.now, cl)
		}
		rel.delayed, rel.delay = nil, nil
		r.store.Add("topic", "key")
		r.wake()
		r.run(5 * time.Second)
		if len(r.sends) != 0 {
			t.Errorf("%s: an event was sent", what)
		}
		rel.free()
		r.run(10 * time.Millisecond)
		r.drained()
	}
}

// What a statement has recorded whose answer was lost may be recorded all the same.
func TestWitnessOfAStatementThatFailedMayBeRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{Witnesses: true})
	r.store.Fail = func(method string) error {
		if method == "Attest" {
			return errors.New("connection lost")
		}
		return nil
	}
	rel.listens(1)
	r.run(time.Second)
	rel.core.Witness(r.now, 0)
	r.store.Add("topic", "key")
	r.wake()
	r.run(5 * time.Second)
	if len(r.sends) != 0 {
		t.Error("an event was sent")
	}
	r.store.Fail = nil
	r.run(5 * time.Second)
	r.drained()
}

func TestRelayThatDiesAfterALookIsTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dead := r.witnessed(2)[0]
	r.kill(dead) // and the server has not noticed yet
	r.eventOf(dead)
	r.wake()
	r.run(100 * time.Millisecond)
	delete(r.store.Sessions, 1)
	r.run(400 * time.Millisecond)
	r.drained()
}

func TestIdleRelaysSeldomLookAtWitnesses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.witnessed(2)
	clear(r.store.Calls)
	r.run(time.Minute)
	if n, beats := r.store.Calls["EndedWitnesses"], r.store.Calls["Heartbeat"]; n > beats || n == 0 {
		t.Errorf("%d looks at witnesses and %d heartbeats in a minute", n, beats)
	}
	if n := r.store.Calls["Attest"]; n != 0 {
		t.Errorf("witnesses were recorded %d times again", n)
	}
	clear(r.store.Calls)
	for range 1000 {
		r.wake()
		r.run(time.Millisecond)
	}
	if n := r.store.Calls["EndedWitnesses"]; n < 10 || n > 30 { // of two relays
		t.Errorf("%d looks at witnesses in a second of commits", n)
	}
}

func TestRelayThatOwnsAllShardsLooksAtNoWitness(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.witnessed(1)
	clear(r.store.Calls)
	r.wake()
	r.run(time.Minute)
	if n := r.store.Calls["EndedWitnesses"]; n != 0 {
		t.Errorf("%d looks at witnesses in a minute", n)
	}
}
