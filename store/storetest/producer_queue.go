package storetest

import (
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

func queueTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "fetch keeps to its ranges", run: fetchRanges[TX]},
		{fact: "fetch of several shards comes in the order of writing", run: fetchOrder[TX]},
		{fact: "fetch of a key reads past other keys", run: fetchOneKey[TX]},
		{fact: "marked event leaves the queue", run: markedLeaves[TX]},
		{fact: "mark of another round keeps the row", run: markOfRound[TX]},
		{fact: "row of another event that has the same ID, after a fail-over, stays", run: markOfLost[TX]},
		{fact: "mark of what is not queued is no error", run: markTwice[TX]},
		{fact: "nobody is named while nobody writes", run: noWriters[TX]},
	}
}

func fetchRanges[TX any](o *outboxRig[TX]) {
	records := make([]outbox.Record, 6)
	for i := range records {
		records[i] = record("key", string(rune('a'+i)))
	}
	events := o.queued(records...)
	shard := events[0].Shard
	for _, c := range []struct {
		name      string
		r         outbox.Range
		from, end int
	}{
		{"all", outbox.Range{Limit: 100}, 0, 6},
		{"after", outbox.Range{After: events[1].Seq, Limit: 100}, 2, 6},
		{"through", outbox.Range{Through: events[3].Seq, Limit: 100}, 0, 4},
		{"between", outbox.Range{After: events[0].Seq, Through: events[4].Seq, Limit: 100}, 1, 5},
		{"limit", outbox.Range{After: events[0].Seq, Limit: 2}, 1, 3},
		{"behind the last", outbox.Range{After: events[5].Seq, Limit: 100}, 0, 0},
		{"empty", outbox.Range{After: events[3].Seq, Through: events[3].Seq, Limit: 100}, 0, 0},
		{"except", outbox.Range{Limit: 2, Except: []int64{events[0].Seq, events[1].Seq}}, 2, 4},
		{"except all but the last", outbox.Range{Through: events[4].Seq, Limit: 1, Except: []int64{
			events[0].Seq, events[1].Seq, events[2].Seq, events[3].Seq, events[5].Seq,
		}}, 4, 5},
	} {
		c.r.Shard = shard
		got, err := o.Store.Fetch(o.ctx(), []outbox.Range{c.r})
		o.ok(err)
		if !slices.Equal(ids(got), ids(events[c.from:c.end])) {
			o.Errorf("%s: fetched %v, want %v", c.name, ids(got), ids(events[c.from:c.end]))
		}
	}
	got, err := o.Store.Fetch(o.ctx(), []outbox.Range{{Shard: (shard + 1) % idgen.Shards, Limit: 100}})
	o.ok(err)
	none, err := o.Store.Fetch(o.ctx(), nil)
	o.ok(err)
	if len(got) != 0 || len(none) != 0 {
		o.Errorf("fetched %v and %v where nothing is", got, none)
	}
}

func fetchOrder[TX any](o *outboxRig[TX]) {
	var all []outbox.Record
	for i := range 60 {
		all = append(all, recordIn((i*37)%idgen.Shards, "x"))
	}
	o.write(all...)
	o.expectQueue(all...)
	var ranges []outbox.Range
	var want []uuid.UUID
	for _, shard := range []int{30, 10, 20} {
		ranges = append(ranges, outbox.Range{Shard: shard, Limit: 5})
	}
	for _, r := range all {
		if r.Shard == 10 || r.Shard == 20 || r.Shard == 30 {
			want = append(want, r.ID)
		}
	}
	got, err := o.Store.Fetch(o.ctx(), ranges)
	o.ok(err)
	if !slices.Equal(ids(got), want) {
		o.Errorf("fetched %v, want %v", ids(got), want)
	}
}

func fetchOneKey[TX any](o *outboxRig[TX]) {
	hot := recordIn(5, "hot")
	records := []outbox.Record{hot}
	for range 10 {
		records = append(records, recordOf(hot.Key), recordIn(5, "other"))
	}
	events := o.queued(records...)
	var ofKey []outbox.Queued
	for _, q := range events {
		if q.Key == hot.Key {
			ofKey = append(ofKey, q)
		}
	}
	got, err := o.Store.FetchKey(o.ctx(), 5, hot.Key, ofKey[3].Seq, 4)
	o.ok(err)
	if !slices.Equal(ids(got), ids(ofKey[3:7])) {
		o.Errorf("fetched %v, want %v", ids(got), ids(ofKey[3:7]))
	}
	rest, err := o.Store.FetchKey(o.ctx(), 5, hot.Key, ofKey[7].Seq, 1000)
	o.ok(err)
	if !slices.Equal(ids(rest), ids(ofKey[7:])) {
		o.Errorf("fetched %v, want %v", ids(rest), ids(ofKey[7:]))
	}
}

func recordOf(key string) outbox.Record { return record(key, "x") }

func markedLeaves[TX any](o *outboxRig[TX]) {
	events := o.queued(record("key", "1"), record("key", "2"), record("key", "3"))
	lease := o.lease("relay", events[0].Shard)
	o.mark("relay", lease, events[0], events[2])
	o.expectQueue(events[1].Record)
	o.expectParked()
	lost, err := o.Store.Mark(o.ctx(), "relay", nil)
	o.ok(err)
	if len(lost) != 0 {
		o.Errorf("mark of nothing lost %v", lost)
	}
}

func markOfRound[TX any](o *outboxRig[TX]) {
	q := o.queued(record("key", "1"))[0]
	lease := o.lease("relay", q.Shard)
	late := q
	late.Round = q.Round + 1
	o.mark("relay", lease, late)
	o.ok(second(o.Store.Park(o.ctx(), "relay", lease, []outbox.Failure{failureOf(late, 1, 0)})))
	o.ok(second(o.Store.Follow(o.ctx(), "relay", lease, []outbox.Mark{markOf(lease, late)})))
	o.expectQueue(q.Record)
	o.expectParked()
}

// markOfLost tests that new queue rows differ by their rounds: a late mark of a row that a
// fail-over has lost must not remove a new row with the same Seq. A database within the process,
// such as SQLite, needs no different rounds.
func markOfLost[TX any](o *outboxRig[TX]) {
	rounds := make(map[int64]bool)
	events := o.queued(record("key", "1"), record("key", "2"), record("other", "3"), record("", "4"))
	for _, q := range events {
		if q.Round > 0 {
			o.Errorf("the first round of an event is %d", q.Round)
		}
		rounds[q.Round] = true
	}
	if o.KeepsCommits {
		return
	}
	if len(rounds) < len(events) {
		o.Errorf("of %d rows some have the same round", len(events))
	}
	lease := o.lease("relay", events[0].Shard)
	late := events[0]
	late.Round = events[1].Round // as if of an event that had its ID before
	o.mark("relay", lease, late)
	o.expectQueue(events[0].Record, events[1].Record, events[2].Record, events[3].Record)
}

func markTwice[TX any](o *outboxRig[TX]) {
	q := o.queued(record("key", "1"))[0]
	lease := o.lease("relay", q.Shard)
	o.mark("relay", lease, q)
	o.mark("relay", lease, q)
	o.expectQueue()
}

func noWriters[TX any](o *outboxRig[TX]) {
	o.write(record("key", "1"))
	names, err := o.Store.Writers(o.ctx())
	o.ok(err)
	if len(names) != 0 {
		o.Errorf("writers are %v", names)
	}
}
