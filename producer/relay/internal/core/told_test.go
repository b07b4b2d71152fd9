package core

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

// A relay that is told of a change does not wait for its next renewal. Many changes do not make it renew
// all the time.
func TestChangeOfAnOperatorIsSeenAtOnceIfTheRelayIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := r.store.Add("topic", "key")
	r.outcomes(map[int64]transport.Outcome{bad: transport.Refused})
	rel := r.start(Options{MaxAttempts: 1})
	r.run(4 * time.Second) // the next renewal is more than two seconds away
	r.broker = confirmAll
	r.store.Redrive(bad)
	rel.core.Wake(r.now, wakeup.All)
	r.run(time.Second)
	if got := r.sent(transport.Confirmed); len(got) != 0 {
		t.Fatal("sent before the relay is told")
	}
	rel.core.Wake(r.now, wakeup.Changed)
	r.run(10 * time.Millisecond)
	r.drained()
	rel.calls = nil
	for range 1000 {
		rel.core.Wake(r.now, wakeup.Changed)
		r.run(time.Millisecond)
	}
	if n := rel.called(statement.OpRenew); n < 9 || n > 11 {
		t.Errorf("%d renewals in a second full of changes, want one every 100 ms", n)
	}
}

// A relay that is told of shards that were given back takes them at once, also if it does not know that
// the other relay has ended. Many such signals cause few statements.
func TestShardsOfARelayThatEndsAreTakenAtOnceIfTheOtherIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	left, ends := r.start(Options{}), r.start(Options{})
	r.run(10 * time.Second) // they share the shards, and the next heartbeat is more than two seconds away
	if left.core.leases.held != 32 {
		t.Fatalf("%d shards", left.core.leases.held)
	}
	ends.core.Stop(r.now)
	r.run(time.Second)
	if got := left.core.leases.held; got != 32 {
		t.Fatalf("it has %d shards before it is told", got)
	}
	left.core.Wake(r.now, wakeup.Freed)
	r.run(10 * time.Millisecond)
	if got := left.core.leases.held; got != 64 {
		t.Errorf("it has %d shards after it was told", got)
	}
	r.start(Options{})
	left.calls = nil
	for range 1000 {
		left.core.Wake(r.now, wakeup.Freed)
		r.run(time.Millisecond)
	}
	if n := left.called(statement.OpHeartbeat) + left.called(statement.OpRenew); n > 12 {
		t.Errorf("%d heartbeats in a second full of signals, want one every 100 ms", n)
	}
}

// A relay that lacks shards and is told that some were given back does not wait for its next attempt.
// Many such signals cause few attempts.
func TestRelayThatLacksShardsAsksAtOnceIfItIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	owner := r.start(Options{})
	r.run(time.Second)
	joins := r.start(Options{})
	r.run(200 * time.Millisecond)
	joins.calls = nil
	for range 1000 { // the owner gives nothing back yet
		joins.core.Wake(r.now, wakeup.Freed)
		r.run(time.Millisecond)
	}
	if n := joins.called(statement.OpAcquire); n > 12 || owner.core.leases.held != 64 {
		t.Errorf("it has asked %d times in a second full of signals, want once every 100 ms", n)
	}
	for owner.core.leases.held == 64 {
		r.run(time.Millisecond)
	}
	if owner.core.leases.held != 32 || joins.core.leases.held != 0 {
		t.Fatalf("they have %d and %d shards", owner.core.leases.held, joins.core.leases.held)
	}
	joins.core.leases.beatAt = r.now + time.Minute // a heartbeat that finds another number of relays asks, too
	joins.core.Wake(r.now, wakeup.Freed)
	joins.core.leases.beatAt = r.now + time.Minute
	r.run(newsInterval)
	if got := joins.core.leases.held; got != 32 {
		t.Errorf("it has %d shards after it was told", got)
	}
}
