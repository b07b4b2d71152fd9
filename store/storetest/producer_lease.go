package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// long is a lease that does not expire within a test; soon is a lease that does.
const (
	long = time.Hour
	// longest is the longest backoff of an event.
	longest = 24 * time.Hour
	soon    = time.Millisecond
)

// acquire leases all free shards to relay.
func (o *outboxRig[TX]) acquire(relay string, ttl time.Duration) []outbox.Grant {
	o.Helper()
	grants, err := o.Store.Acquire(o.ctx(), relay, ttl, idgen.Shards)
	o.ok(err)
	return grants
}

// lease leases all free shards to relay and returns the lease of one.
func (o *outboxRig[TX]) lease(relay string, shard int) outbox.Lease {
	o.Helper()
	for _, g := range o.acquire(relay, long) {
		if g.Shard == shard {
			return g.Lease
		}
	}
	o.Fatalf("shard %d was not free", shard)
	return outbox.Lease{}
}

// takeOver makes relay the owner of all shards once the leases of soon have expired.
func (o *outboxRig[TX]) takeOver(relay string) map[int]outbox.Lease {
	o.Helper()
	leases := make(map[int]outbox.Lease)
	o.eventually("takeover of all shards", func() bool {
		for _, g := range o.acquire(relay, long) {
			leases[g.Shard] = g.Lease
		}
		return len(leases) == idgen.Shards
	})
	return leases
}

func leaseTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "relay acquires free shards, and others do not", run: acquireFree[TX]},
		{fact: "relays that acquire at once share no shard", run: acquireDisjoint[TX]},
		{fact: "released shard is free at once and not abrupt", run: releasedIsFree[TX]},
		{fact: "expired lease is taken over abruptly with a higher epoch", run: expiredIsTaken[TX]},
		{fact: "lease lasts as long as its owner asked for", run: lastsAsAsked[TX]},
		{fact: "renewed lease does not expire", run: renewedLives[TX]},
		{fact: "lost lease is not renewed", run: lostIsNotRenewed[TX]},
		{fact: "lost lease is not released", run: lostIsNotReleased[TX]},
		{fact: "relays are visible for as long as they say", run: heartbeats[TX]},
		{fact: "signal wakes those who listen", run: signalWakes[TX]},
	}
}

func acquireFree[TX any](o *outboxRig[TX]) {
	some, err := o.Store.Acquire(o.ctx(), "a", long, 10)
	o.ok(err)
	rest := o.acquire("b", long)
	if len(some) != 10 || len(rest) != idgen.Shards-10 {
		o.Fatalf("%d and %d shards were acquired", len(some), len(rest))
	}
	owned := make(map[int]bool)
	for _, g := range slices.Concat(some, rest) {
		if owned[g.Shard] || g.Shard < 0 || g.Shard >= idgen.Shards || g.Abrupt || g.Epoch <= 0 {
			o.Errorf("grant %+v", g)
		}
		owned[g.Shard] = true
	}
	for _, relay := range []string{"a", "b", "c"} {
		if more := o.acquire(relay, long); len(more) != 0 {
			o.Errorf("%s acquired leased shards: %v", relay, more)
		}
	}
}

func acquireDisjoint[TX any](o *outboxRig[TX]) {
	const relays = 4
	results := make([]<-chan error, relays)
	grants := make([][]outbox.Grant, relays)
	for i := range results {
		results[i] = o.async(func() (err error) {
			grants[i], err = o.Store.Acquire(o.ctx(), string(rune('a'+i)), long, idgen.Shards/relays)
			return err
		})
	}
	owners := make(map[int]int)
	for i := range results {
		if err := o.result(results[i]); err != nil && !o.Store.Retryable(err) {
			o.Error(err)
		}
		for _, g := range grants[i] {
			if other, taken := owners[g.Shard]; taken {
				o.Errorf("shard %d belongs to %d and %d", g.Shard, other, i)
			}
			owners[g.Shard] = i
		}
	}
}

func releasedIsFree[TX any](o *outboxRig[TX]) {
	first := o.lease("a", 7)
	o.ok(o.Store.Release(o.ctx(), "a", []outbox.Lease{first}, false))
	second := o.acquire("b", long)
	if len(second) != 1 || second[0].Shard != 7 || second[0].Abrupt || second[0].Epoch <= first.Epoch {
		o.Errorf("after the release of %v, %v were granted", first, second)
	}
}

func expiredIsTaken[TX any](o *outboxRig[TX]) {
	epochs := make(map[int]int64)
	for _, g := range o.acquire("a", soon) {
		epochs[g.Shard] = g.Epoch
	}
	taken := 0
	o.eventually("takeover", func() bool {
		for _, g := range o.acquire("b", long) {
			if !g.Abrupt || g.Epoch <= epochs[g.Shard] {
				o.Errorf("takeover of epoch %d granted %+v", epochs[g.Shard], g)
			}
			taken++
		}
		return taken == idgen.Shards
	})
}

func lastsAsAsked[TX any](o *outboxRig[TX]) {
	all := o.acquire("a", 3*long)
	for _, ttl := range []time.Duration{soon, long, 10 * long} {
		if got := o.acquire("b", ttl); len(got) != 0 {
			o.Errorf("a relay that asks for %v took over %v", ttl, got)
		}
	}
	if _, err := o.Store.Renew(o.ctx(), "a", 30*long, []outbox.Lease{all[0].Lease}); err != nil {
		o.Fatal(err)
	}
	if got := o.acquire("b", soon); len(got) != 0 {
		o.Errorf("of renewed leases, %v were taken over", got)
	}
	if n, err := o.Store.Heartbeat(o.ctx(), "a", 30*long); n != 1 || err != nil {
		o.Errorf("visible are %d, %v", n, err)
	}
	if n, err := o.Store.Heartbeat(o.ctx(), "b", soon); n != 2 || err != nil {
		o.Errorf("with a relay that is visible for longer, visible are %d, %v", n, err)
	}
}

func renewedLives[TX any](o *outboxRig[TX]) {
	all := o.acquire("a", soon)
	kept, left := all[0].Lease, all[1].Lease
	renewals, err := o.Store.Renew(o.ctx(), "a", long, []outbox.Lease{kept})
	o.ok(err)
	if len(renewals) != 1 || renewals[0].Lease != kept || renewals[0].Rewind {
		o.Fatalf("renewal of %v gave %+v", kept, renewals)
	}
	var taken []int
	o.eventually("takeover of the rest", func() bool {
		for _, g := range o.acquire("b", long) {
			taken = append(taken, g.Shard)
		}
		return slices.Contains(taken, left.Shard)
	})
	if slices.Contains(taken, kept.Shard) {
		o.Error("renewed lease was taken over")
	}
}

func lostIsNotRenewed[TX any](o *outboxRig[TX]) {
	grants := o.acquire("a", soon)
	leases := make([]outbox.Lease, len(grants))
	for i, g := range grants {
		leases[i] = g.Lease
	}
	o.takeOver("b")
	renewals, err := o.Store.Renew(o.ctx(), "a", long, leases)
	o.ok(err)
	if len(renewals) != 0 {
		o.Errorf("lost leases were renewed: %v", renewals)
	}
	// A relay may own its former shards again, under another epoch.
	o.ok(o.Store.Release(o.ctx(), "b", []outbox.Lease{{Shard: 3, Epoch: leases[3].Epoch + 1}}, false))
	again := o.lease("a", 3)
	renewals, err = o.Store.Renew(o.ctx(), "a", long, []outbox.Lease{leases[2], leases[3]})
	o.ok(err)
	if len(renewals) != 0 {
		o.Errorf("old epoch was renewed: %v", renewals)
	}
	renewals, err = o.Store.Renew(o.ctx(), "a", long, []outbox.Lease{leases[2], again})
	o.ok(err)
	if len(renewals) != 1 || renewals[0].Lease != again {
		o.Errorf("renewal of %v gave %+v", again, renewals)
	}
}

func lostIsNotReleased[TX any](o *outboxRig[TX]) {
	lost := o.acquire("a", soon)[0].Lease
	o.takeOver("b")
	o.ok(o.Store.Release(o.ctx(), "a", []outbox.Lease{lost}, true))
	if got := o.acquire("c", long); len(got) != 0 {
		o.Errorf("shard of another relay was released: %v", got)
	}
}

func heartbeats[TX any](o *outboxRig[TX]) {
	live := func(relay string, ttl time.Duration) int {
		n, err := o.Store.Heartbeat(o.ctx(), relay, ttl)
		o.ok(err)
		return n
	}
	for i, relay := range []string{"a", "b", "b", "c", "a"} {
		if n, want := live(relay, long), []int{1, 2, 2, 3, 3}[i]; n != want {
			o.Errorf("heartbeat %d sees %d relays, want %d", i, n, want)
		}
	}
	o.ok(o.Store.Release(o.ctx(), "c", nil, true))
	o.ok(o.Store.Release(o.ctx(), "a", nil, false))
	if n := live("a", long); n != 2 {
		o.Errorf("%d relays are visible after one left", n)
	}
	live("b", soon)
	o.eventually("silent relay becomes invisible", func() bool { return live("a", long) == 1 })
}

func signalWakes[TX any](o *outboxRig[TX]) {
	woken := make(chan struct{}, 1)
	listening := o.async(func() error {
		return o.Store.Listen(o.ctx(), func(from string) {
			if from != "me" {
				o.Errorf("was told of %q", from)
			}
			select {
			case woken <- struct{}{}:
			default:
			}
		})
	})
	o.eventually("wake-up", func() bool { // a wake-up before Listen began is lost
		if err := o.Store.Notify(o.ctx(), "me"); err != nil && !errors.Is(err, outbox.ErrNoSignal) {
			o.Fatal(err)
		}
		select {
		case <-woken:
			return true
		case err := <-listening:
			o.expectError(err, outbox.ErrNoSignal)
			return true
		default:
			return false
		}
	})
}

func fenceTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "owner that lost its shards changes nothing in the queue", run: zombieQueue[TX]},
		{fact: "owner that lost its shards changes nothing that is parked", run: zombieParked[TX]},
		{fact: "other relay and other epoch change nothing", run: strangers[TX]},
		{fact: "mark of several shards tells which are lost", run: markPartly[TX]},
	}
}

// zombieQueue stops a relay, lets another relay take its shards over, and wakes the first relay,
// which goes on with its next calls.
func zombieQueue[TX any](o *outboxRig[TX]) {
	events := o.queued(record("key", "1"), record("key", "2"), record("key", "3"))
	old := o.leaseSoon("zombie", events[0].Shard)
	o.takeOver("owner")
	lost, err := o.Store.Mark(o.ctx(), "zombie", []outbox.Mark{markOf(old, events[0])})
	o.ok(err)
	if !slices.Equal(lost, []int{old.Shard}) {
		o.Errorf("lost shards are %v", lost)
	}
	o.expectLost(o.Store.Park(o.ctx(), "zombie", old, []outbox.Failure{failureOf(events[0], 1, 0)}))
	o.expectLost(o.Store.Follow(o.ctx(), "zombie", old, []outbox.Mark{markOf(old, events[1]), markOf(old, events[2])}))
	o.expectQueue(events[0].Record, events[1].Record, events[2].Record)
	o.expectParked()
}

func zombieParked[TX any](o *outboxRig[TX]) {
	events := o.queued(record("key", "1"), record("key", "2"))
	old := o.leaseSoon("zombie", events[0].Shard)
	o.ok(second(o.Store.Park(o.ctx(), "zombie", old, []outbox.Failure{failureOf(events[0], 1, 0)})))
	o.ok(second(o.Store.Follow(o.ctx(), "zombie", old, []outbox.Mark{markOf(old, events[1])})))
	want := []parkedState{{events[0].Seq, outbox.Retrying, 1}, {events[1].Seq, outbox.Following, 0}}
	o.expectParked(want...)
	o.takeOver("owner")
	dead := failureOf(events[0], 2, 0)
	dead.Dead = true
	o.expectLost(o.Store.Retry(o.ctx(), "zombie", old, []outbox.Failure{dead}, false))
	lost, err := o.Store.Sent(o.ctx(), "zombie", []outbox.Mark{markOf(old, events[0])}, false)
	o.expectLost(slices.Equal(lost, []int{old.Shard}), err)
	o.expectParked(want...)
	attempts, err := o.Store.Attempts(o.ctx(), events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 1 {
		o.Errorf("attempts are %v, want the first one only", attempts)
	}
}

func strangers[TX any](o *outboxRig[TX]) {
	q := o.queued(record("key", "1"))[0]
	lease := o.lease("owner", q.Shard)
	for _, as := range []struct {
		relay string
		lease outbox.Lease
	}{
		{"stranger", lease},
		{"owner", outbox.Lease{Shard: lease.Shard, Epoch: lease.Epoch - 1}},
		{"owner", outbox.Lease{Shard: lease.Shard, Epoch: lease.Epoch + 1}},
	} {
		lost, err := o.Store.Mark(o.ctx(), as.relay, []outbox.Mark{markOf(as.lease, q)})
		o.ok(err)
		if !slices.Equal(lost, []int{lease.Shard}) {
			o.Errorf("%v: lost shards are %v", as, lost)
		}
		o.expectLost(o.Store.Park(o.ctx(), as.relay, as.lease, []outbox.Failure{failureOf(q, 1, 0)}))
	}
	o.expectQueue(q.Record)
}

func markPartly[TX any](o *outboxRig[TX]) {
	mine, other := recordIn(11, "mine"), recordIn(22, "other")
	events := o.queued(mine, other)
	leases := make(map[int]outbox.Lease)
	for _, g := range o.acquire("a", long) {
		leases[g.Shard] = g.Lease
	}
	o.ok(o.Store.Release(o.ctx(), "a", []outbox.Lease{leases[22]}, false))
	o.lease("b", 22)
	lost, err := o.Store.Mark(o.ctx(), "a", []outbox.Mark{markOf(leases[11], events[0]), markOf(leases[22], events[1])})
	o.ok(err)
	if !slices.Equal(lost, []int{22}) {
		o.Errorf("lost shards are %v, want 22", lost)
	}
	o.expectQueue(other)
}

// leaseSoon leases all shards to relay for a very short time.
func (o *outboxRig[TX]) leaseSoon(relay string, shard int) outbox.Lease {
	o.Helper()
	for _, g := range o.acquire(relay, soon) {
		if g.Shard == shard {
			return g.Lease
		}
	}
	o.Fatalf("shard %d was not free", shard)
	return outbox.Lease{}
}

func (o *outboxRig[TX]) expectLost(lost bool, err error) {
	o.Helper()
	o.ok(err)
	if !lost {
		o.Error("shard is not reported as lost")
	}
}

func second(_ bool, err error) error { return err }

// mark removes a queue row, as the owner of its shard.
func (o *outboxRig[TX]) mark(relay string, lease outbox.Lease, events ...outbox.Queued) {
	o.Helper()
	marks := make([]outbox.Mark, len(events))
	for i, q := range events {
		marks[i] = markOf(lease, q)
	}
	lost, err := o.Store.Mark(o.ctx(), relay, marks)
	o.ok(err)
	if len(lost) != 0 {
		o.Fatalf("shards %v are lost", lost)
	}
}

func markOf(lease outbox.Lease, q outbox.Queued) outbox.Mark {
	return outbox.Mark{Lease: lease, Seq: q.Seq, Round: q.Round}
}

func failureOf(q outbox.Queued, attempts int, retryIn time.Duration) outbox.Failure {
	return outbox.Failure{Seq: q.Seq, Round: q.Round, Attempts: attempts, RetryIn: retryIn,
		Outcome: transport.Refused, Error: "the broker's words"}
}

// recordIn returns a new event with a key of a shard. Events with one shard and
// payload have one key.
func recordIn(shard int, payload string) outbox.Record {
	for n := 0; ; n++ {
		if r := record(fmt.Sprintf("%s-%d", payload, n), payload); r.Shard == shard {
			return r
		}
	}
}
