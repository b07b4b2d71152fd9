package sqlstoretest

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// Unreadable tests that events that cannot be read keep no other from being read. bad are changes
// of their rows, and what is then said of them.
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

// unreadable is a test of events of one key.
type unreadable struct {
	*testing.T
	Store
	shard int
	want  []string // what is said of them
}

func (u *unreadable) ok(err error) {
	u.Helper()
	if err != nil {
		u.Fatal(err)
	}
}

// check checks events that were read, by what is said of them.
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
		u.Errorf("%s reads events of which is said %q, want %q", by, got, want)
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

// bury parks events as dead, as a relay does with those that cannot be read.
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

// parked looks at the dead events, has them redriven, and looks again.
func (u *unreadable) parked() {
	u.Helper()
	list, err := u.ListParked(u.Context(), outbox.Filter{Limit: 100})
	if err != nil || len(list) != len(u.want) {
		u.Errorf("listed are %+v, %v", list, err)
	}
	_, _, err = u.Redrive(u.Context(), outbox.Filter{Limit: 100, Force: true}, "a test")
	u.ok(err)
	live, err := u.FetchParked(u.Context(), u.shard, "key", false, 100)
	u.ok(err)
	u.check("FetchParked", live, u.want...)
	due, _, err := u.Due(u.Context(), []int{u.shard}, false, outbox.DuePoint{}, time.Hour, 100)
	u.ok(err)
	u.check("Due", due, u.want[0]) // the head
}
