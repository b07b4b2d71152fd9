package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/store/outbox"
)

// idling is a relay to which a signal has brought an event, long ago.
func idling(t *testing.T) (*rig, *rigRelay) {
	t.Helper()
	r := newRig(t)
	rel := r.start(Options{PollIdle: 5 * time.Second})
	r.run(time.Second)
	rel.core.Listening(r.now, true)
	r.committed(rel, 29*time.Second)
	return r, rel
}

// minute returns the statements of the next minute.
func (r *rig) minute(rel *rigRelay) map[statement.Op]int {
	rel.calls = nil
	r.run(time.Minute)
	n := make(map[statement.Op]int)
	for _, op := range rel.calls {
		n[op]++
	}
	return n
}

func TestIdleRelayPollsRarelyWhileSignalsArrive(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	n := r.minute(rel)
	if n[statement.OpRenew] > 12 || len(rel.calls)-n[statement.OpRenew] > 5 {
		t.Errorf("in a minute: %v", n)
	}
	for range 3 {
		at := r.now
		if seq := r.committed(rel, time.Second); r.seenAt(seq) != at {
			t.Errorf("an event of which a signal tells was committed at %v and sent at %v", at, r.seenAt(seq))
		}
		r.run(30 * time.Second)
	}
	due := r.now + 61*time.Second
	seq := r.store.AddDeferred("topic", "key", due)
	rel.core.Wake(r.now, wakeup.All)
	r.run(2 * time.Minute)
	if at := r.seenAt(seq); at < due || at > due+time.Millisecond {
		t.Errorf("an event due at %v was sent at %v", due, at)
	}
}

// Each commit wakes all relays, whose shards it is about or not.
func TestSignalsOfOthersShardsRouseNoIdleRelay(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	other := r.start(Options{PollIdle: 5 * time.Second})
	r.run(30 * time.Second)
	if !rel.core.Idle() {
		t.Fatal("the relay is not idle")
	}
	for no, sh := range other.core.shards {
		if sh != nil {
			rel.core.Wake(r.now, wakeup.Wakeup{Shards: 1 << no})
		}
	}
	if !rel.core.Idle() {
		t.Error("the relay is not idle behind commits to shards of another one")
	}
	rel.core.Wake(r.now, wakeup.All)
	if rel.core.Idle() {
		t.Error("the relay is idle behind a commit to its own shards")
	}
}

func TestRenewalTakesNoPollAlongBesideARead(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpFetch }
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Millisecond)
	read := rel.core.reader.busy
	r.run(30 * time.Second)
	if read == nil || rel.core.reader.busy != read || !rel.core.Idle() {
		t.Errorf("a read is under way: %t, the same later: %t; idle: %t", read != nil, rel.core.reader.busy == read, rel.core.Idle())
	}
}

// TestRenewalThatFailsTakesNoEventAlong: an idle relay renews its leases and polls in one transaction.
func TestRenewalThatFailsTakesNoEventAlong(t *testing.T) {
	t.Parallel()
	for _, method := range []string{"Renew", "Fetch"} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			r, rel := idling(t)
			failing := true
			r.store.Fail = func(called string) error {
				if called == method && failing {
					failing = false
					return errRefused
				}
				return nil
			}
			at, seq := r.now, r.store.Add("topic", "key")
			r.run(15 * time.Second)
			if seen := r.seenAt(seq); seen < 0 || seen-at > 6*time.Second || failing {
				t.Errorf("committed at %v, sent at %v; still to fail: %t", at, seen, failing)
			}
			if n := rel.noted("lease lost"); n != 0 || r.store.Calls["Acquire"] != 1 {
				t.Errorf("%d leases lost, %d times acquired", n, r.store.Calls["Acquire"])
			}
			r.drained()
		})
	}
}

// TestIdleRelayBesideAnotherRenewsAsOftenAsABusyOne: the other one waits for its leases when it is dead.
func TestIdleRelayBesideAnotherRenewsAsOftenAsABusyOne(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	if n := r.minute(rel)[statement.OpRenew]; n > 13 {
		t.Errorf("%d renewals in a minute of a relay alone", n)
	}
	r.start(Options{})
	r.run(10 * time.Second)
	if n := r.minute(rel)[statement.OpRenew]; n < 17 || !rel.core.Idle() {
		t.Errorf("%d renewals in a minute beside another relay; idle: %t", n, rel.core.Idle())
	}
}

func TestStoreThatNeedsTheMethodsOneByOneIsPolledBehindTheRenewal(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	seq := r.store.Add("topic", "key")
	s := &statement.Renew{Beat: new(statement.Heartbeat), Poll: new(statement.Fetch)}
	for no, sh := range rel.core.shards {
		s.Leases = append(s.Leases, sh.lease())
		s.Poll.Ranges = append(s.Poll.Ranges, outbox.Range{Shard: no, After: seq - 1, Limit: 1})
	}
	parts := struct{ outbox.RelayStore }{r.store}
	err := s.Execute(t.Context(), parts, rel.core.cfg.Asker())
	if err != nil || s.PollErr != nil || len(s.Renewals) != len(s.Leases) || s.Beat != nil || len(s.Poll.Rows) != 1 {
		t.Errorf("%d renewals, heartbeat %v, %d events: %v, %v", len(s.Renewals), s.Beat, len(s.Poll.Rows), err, s.PollErr)
	}
	r.store.Fail = func(method string) error {
		if method == "Fetch" {
			return errRefused
		}
		return nil
	}
	if err := s.Execute(t.Context(), parts, rel.core.cfg.Asker()); err != nil || !errors.Is(s.PollErr, errRefused) {
		t.Errorf("a poll that fails behind a renewal: %v, %v", err, s.PollErr)
	}
}

func TestRelayWithoutSignalsPollsAsOften(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(r *rig, rel *rigRelay){
		"none has arrived": func(*rig, *rigRelay) {},
		"listening has ended": func(r *rig, rel *rigRelay) {
			rel.core.Listening(r.now, true)
			r.run(33 * time.Second)
			rel.core.Listening(r.now, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			rel := r.start(Options{PollIdle: 5 * time.Second})
			r.run(30 * time.Second)
			prepare(r, rel)
			if n := r.minute(rel); n[statement.OpFetch] < 119 {
				t.Errorf("in a minute: %v", n)
			}
		})
	}
}

func TestEventWithoutASignalMakesTheRelayPollOften(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	unannounced := func(most time.Duration) {
		t.Helper()
		at := r.now
		seq := r.store.Add("topic", fmt.Sprint("key", at))
		r.run(37 * time.Second)
		if seen := r.seenAt(seq); seen < 0 || seen-at > most {
			t.Errorf("committed at %v, sent at %v", at, seen)
		}
	}
	unannounced(5 * time.Second)
	unannounced(500 * time.Millisecond)
	rel.core.Listening(r.now, true)  // others send signals
	r.committed(rel, 33*time.Second) // not when a rare poll would come
	unannounced(500 * time.Millisecond)
	r.run(time.Hour)
	rel.core.Listening(r.now, true)
	r.run(30 * time.Second)
	if n := r.minute(rel); n[statement.OpFetch] > 13 {
		t.Errorf("in a minute, an hour later: %v", n)
	}
}

func TestSignalMayComeAfterItsEvent(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	seq := r.store.Add("topic", "key")
	for r.seenAt(seq) < 0 {
		r.run(10 * time.Millisecond)
	}
	r.run(time.Second)
	rel.core.Listening(r.now, true)
	rel.core.Wake(r.now, wakeup.All)
	r.run(30 * time.Second)
	if n := r.minute(rel); n[statement.OpFetch] > 13 {
		t.Errorf("in a minute: %v", n)
	}
}

func TestEarlySignalIsFollowedByFrequentPolls(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	rel.core.Wake(r.now, wakeup.All)
	r.run(9 * time.Second)
	at := r.now
	seq := r.store.Add("topic", "key")
	r.run(time.Minute)
	if seen := r.seenAt(seq); seen-at > 500*time.Millisecond {
		t.Errorf("committed at %v, sent at %v", at, seen)
	}
}

func TestDeferredEventWithoutASignalIsFoundByAPoll(t *testing.T) {
	t.Parallel()
	for name, after := range map[string]time.Duration{"due before the poll": time.Second, "due after it": 7 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, _ := idling(t)
			at := r.now
			seq := r.store.AddDeferred("topic", "key", at+after)
			r.run(30 * time.Second)
			if seen, most := r.seenAt(seq), max(after, 5*time.Second); seen < at+after || seen > at+most+10*time.Millisecond {
				t.Errorf("due at %v, sent at %v", at+after, seen)
			}
		})
	}
}

func TestHeartbeatThatFailsCostsNoLease(t *testing.T) {
	t.Parallel()
	r, rel := idling(t)
	failing := true
	r.store.Fail = func(step string) error {
		if step == "Heartbeat" && failing {
			return errRefused
		}
		return nil
	}
	r.run(time.Minute)
	if n := rel.core.leases.held; n != idgen.Shards {
		t.Errorf("%d shards are left", n)
	}
	for no, sh := range rel.core.shards {
		if sh != nil && sh.until < r.now {
			t.Errorf("the lease of shard %d has ended", no)
		}
	}
	failing = false
	r.run(10 * time.Second)
	if n := r.minute(rel); n[statement.OpHeartbeat] > 0 || n[statement.OpRenew] > 19 {
		t.Errorf("in a minute: %v", n)
	}
}
