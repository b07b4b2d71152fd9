package sqlstoretest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// Unreadable tests that unreadable events do not keep other events from being read. bad maps
// changes of a row to the expected Unreadable.
func (c *Contract) Unreadable(t *testing.T, bad map[string]string) {
	t.Parallel()
	u := &unreadable{T: t}
	db, store := c.Open(t)
	u.Store = store
	changes := append(slices.Sorted(maps.Keys(bad)), "topic = topic")
	for i, change := range changes {
		r := Record("key", int64(i+1), "payload")
		Write(t, store, r)
		Run(t, db, "UPDATE boxpair_outbox_events SET "+change+" WHERE dispatch_id = ?", r.ID[:])
		u.shard, u.want = r.Shard, append(u.want, bad[change])
	}
	u.bury(u.queued())
	u.parked()
}

// unreadable is a test with events of one key.
type unreadable struct {
	*testing.T
	Store
	shard int
	want  []string // the expected Unreadable of each event
}

func (u *unreadable) ok(err error) {
	u.Helper()
	if err != nil {
		u.Fatal(err)
	}
}

// check compares the Unreadable of events that were read.
func (u *unreadable) check(by string, list []outbox.Queued, want ...string) {
	u.Helper()
	var got []string
	for _, q := range list {
		got = append(got, q.Unreadable)
		if q.Missing || q.Key != "key" || q.Topic != "topic" {
			u.Errorf("%s reads %+v", by, q)
		}
	}
	if !slices.Equal(got, want) {
		u.Errorf("%s returns events with Unreadable %q, want %q", by, got, want)
	}
}

func (u *unreadable) queued() []outbox.Queued {
	u.Helper()
	queued, err := u.Fetch(u.Context(), []outbox.Range{{Shard: u.shard, Limit: 100}})
	u.ok(err)
	u.check("Fetch", queued, u.want...)
	key, err := u.FetchKey(u.Context(), u.shard, "key", 0, 100)
	u.ok(err)
	u.check("FetchKey", key, u.want...)
	return queued
}

// bury parks events as dead, as a relay does with unreadable events.
func (u *unreadable) bury(queued []outbox.Queued) {
	u.Helper()
	grants, err := u.Acquire(u.Context(), "relay", time.Hour, idgen.Shards)
	u.ok(err)
	var failures []outbox.Failure
	for _, q := range queued {
		failures = append(failures, outbox.Failure{Seq: q.Seq, Round: q.Round, Attempts: 1, Dead: true})
	}
	_, err = u.Park(u.Context(), "relay", grants[u.shard].Lease, failures)
	u.ok(err)
}

// parked checks the dead events, redrives them, and checks them again.
func (u *unreadable) parked() {
	u.Helper()
	list, err := u.ListParked(u.Context(), outbox.Filter{Limit: 100})
	if err != nil || len(list) != len(u.want) {
		u.Errorf("listed are %+v, %v", list, err)
	}
	_, _, err = u.Redrive(u.Context(), outbox.Filter{Limit: 100, Force: true}, "a test")
	u.ok(err)
	live, err := u.FetchParked(u.Context(), []outbox.BlockedKey{{Shard: u.shard, Key: "key"}}, false, 100)
	u.ok(err)
	u.check("FetchParked", live[0], u.want...)
	due, _, err := u.Due(u.Context(), []int{u.shard}, false, outbox.DuePoint{}, time.Hour, 100)
	u.ok(err)
	u.check("Due", due, u.want[0]) // the head
}
