package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// patience bounds the wait of a test for an event that should happen soon.
const patience = 20 * time.Second

// OutboxFixture is an empty outbox for one test.
type OutboxFixture[TX any] struct {
	Store outbox.Store[TX]
	// Begin begins a transaction at the store's default isolation level.
	Begin func(ctx context.Context) (TX, error)
	// Commit and Rollback end a transaction. Rolling back an ended transaction may return an error,
	// but does nothing.
	Commit   func(ctx context.Context, tx TX) error
	Rollback func(ctx context.Context, tx TX) error
	// OneWriter tells that of two writing transactions, the second waits for the end of the first
	// or fails. Tests with two concurrent writers are then left out.
	OneWriter bool
	// ShardWriters tells that of two transactions with events of one shard, the second waits for
	// the end of the first, so that the events of a shard become visible in the order of their IDs.
	// The test of this order then replaces the test of Writers.
	ShardWriters bool
	// KeepsCommits tells that a visible commit is never lost while the process lives, as with a
	// database within the process. If a fail-over may lose visible commits, queue rows must differ
	// by their first rounds.
	KeepsCommits bool
	// User is the database's user, as in [ControlFixture].
	User string
}

// Producer tests that a store keeps the contract of [outbox.Store]. open returns a new, empty
// outbox for each test, and closes it in t.Cleanup. The tests run in parallel. only has the names
// of groups to run, as go test -v shows them, for a store that is tested in many settings. Defaults
// to all groups.
func Producer[TX any](t *testing.T, open func(t *testing.T) OutboxFixture[TX], only ...string) {
	t.Helper()
	runGroups(t, []group[outboxTest[TX]]{
		{"append", appendTests[TX]()},
		{"concurrent writers", concurrentTests[TX]()},
		{"transaction", transactionTests[TX]()},
		{"lease", leaseTests[TX]()},
		{"low-water marks", lowTests[TX]()},
		{"routes", routeTests[TX]()},
		{"reports", reportTests[TX]()},
		{"fence", fenceTests[TX]()},
		{"queue", queueTests[TX]()},
		{"parked", parkedTests[TX]()},
		{"promotion", promotionTests[TX]()},
		{"operator", operatorTests[TX]()},
		{"search", searchTests[TX]()},
		{"topics", topicTests[TX]()},
		{"janitor", janitorTests[TX]()},
		{"archive", archiveTests[TX]()},
		{"replay", replayTests[TX]()},
		{"deferred", deferredTests[TX]()},
		{"control", outboxControlTests[TX]()},
	}, only, func(t *testing.T, test outboxTest[TX]) {
		f := open(t)
		if test.twoWriters && f.OneWriter || test.oneShard && f.ShardWriters || test.shardWriters && !f.ShardWriters {
			return
		}
		test.run(&outboxRig[TX]{rig: rig{t}, OutboxFixture: f})
	})
}

// group is a part of a contract.
type group[T any] struct {
	name  string
	tests []T
}

// runGroups runs the tests of the groups whose names are in only, or all, in parallel.
func runGroups[T interface{ named() string }](t *testing.T, groups []group[T], only []string, run func(t *testing.T, test T)) {
	t.Helper()
	for _, name := range only {
		if !slices.ContainsFunc(groups, func(g group[T]) bool { return g.name == name }) {
			t.Errorf("there is no group %q", name)
		}
	}
	for _, g := range groups {
		if len(only) > 0 && !slices.Contains(only, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, test := range g.tests {
				t.Run(test.named(), func(t *testing.T) {
					t.Parallel()
					run(t, test)
				})
			}
		})
	}
}

type outboxTest[TX any] struct {
	fact       string
	run        func(o *outboxRig[TX])
	twoWriters bool
	// oneShard needs concurrent transactions that write to one shard. shardWriters needs a store in
	// which such transactions take turns.
	oneShard, shardWriters bool
}

func (x outboxTest[TX]) named() string { return x.fact }

// outboxRig is a test with its outbox.
type outboxRig[TX any] struct {
	rig
	OutboxFixture[TX]
}

// begin begins a transaction, and rolls back an open transaction at the end of the test: a failed
// test must not hang.
func (o *outboxRig[TX]) begin() TX {
	o.Helper()
	tx, err := o.Begin(o.ctx())
	o.ok(err)
	o.Cleanup(func() { _ = o.Rollback(context.WithoutCancel(o.ctx()), tx) })
	return tx
}

func (o *outboxRig[TX]) commit(tx TX) {
	o.Helper()
	o.ok(o.Commit(o.ctx(), tx))
}

func (o *outboxRig[TX]) rollback(tx TX) {
	o.Helper()
	o.ok(o.Rollback(o.ctx(), tx))
}

// appendIn appends records in tx for a writer, and tells for each record whether it was known.
func (o *outboxRig[TX]) appendIn(tx TX, writer uuid.UUID, records ...outbox.Record) []bool {
	o.Helper()
	known, err := o.Store.Append(o.ctx(), tx, writer, records)
	o.ok(err)
	if len(known) != len(records) {
		o.Fatalf("%d answers for %d records", len(known), len(records))
	}
	return known
}

// write appends records in a transaction of their own, and tells for each record whether it was
// known.
func (o *outboxRig[TX]) write(records ...outbox.Record) []bool {
	o.Helper()
	tx := o.begin()
	known := o.appendIn(tx, uuid.New(), records...)
	o.commit(tx)
	return known
}

// record returns a new event of key, with a new ID.
func record(key, payload string) outbox.Record {
	e := transport.Event{
		ID: uuid.New(), Topic: "topic", Key: key, Type: "type", Payload: []byte(payload),
		Producer: "producer", Source: "source", Version: 3, Index: 2,
	}
	return complete(e)
}

// complete returns the record that a writer makes of e.
func complete(e transport.Event) outbox.Record {
	e.Digest = transport.ContentDigest(&e)
	return outbox.Record{
		Event: e, Shard: idgen.Shard(e.Key, e.ID),
		OccurredAt: time.Date(2026, 11, 20, 10, 30, 0, 123456000, time.UTC),
	}
}

// altered returns r with other content.
func altered(r outbox.Record) outbox.Record {
	r.Payload = append(slices.Clone(r.Payload), '!')
	r.Digest = transport.ContentDigest(&r.Event)
	return r
}

// queue returns all queued events.
func (o *outboxRig[TX]) queue() []outbox.Queued {
	o.Helper()
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, Limit: 10_000}
	}
	events, err := o.Store.Fetch(o.ctx(), ranges)
	o.ok(err)
	return events
}

// queued writes records and returns their queue rows.
func (o *outboxRig[TX]) queued(records ...outbox.Record) []outbox.Queued {
	o.Helper()
	o.write(records...)
	byID := make(map[uuid.UUID]outbox.Queued)
	for _, q := range o.queue() {
		byID[q.ID] = q
	}
	list := make([]outbox.Queued, len(records))
	for i, r := range records {
		q, found := byID[r.ID]
		if !found {
			o.Fatalf("event %d is not in the queue", i)
		}
		list[i] = q
	}
	return list
}

// expectQueue checks that the queue has exactly records, in this order.
func (o *outboxRig[TX]) expectQueue(records ...outbox.Record) {
	o.Helper()
	o.expectIDs("queue", ids(o.queue()), records...)
}

func (o *outboxRig[TX]) expectIDs(what string, got []uuid.UUID, records ...outbox.Record) {
	o.Helper()
	want := make([]uuid.UUID, len(records))
	for i, r := range records {
		want[i] = r.ID
	}
	if !slices.Equal(got, want) {
		o.Fatalf("%s holds %v, want %v", what, got, want)
	}
}

func ids(events []outbox.Queued) []uuid.UUID {
	list := make([]uuid.UUID, len(events))
	for i, q := range events {
		list[i] = q.ID
	}
	return list
}

// expectError checks that err wraps target and shows none of secrets.
func (o *outboxRig[TX]) expectError(err, target error, secrets ...string) {
	o.Helper()
	if !errors.Is(err, target) {
		o.Fatalf("error is %v, want %v", err, target)
	}
	for _, secret := range secrets {
		if contains(fmt.Sprintf("%v %+v", err, err), secret) {
			o.Fatalf("error shows %q: %v", secret, err)
		}
	}
}
