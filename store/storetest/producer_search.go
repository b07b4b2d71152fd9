package storetest

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func searchTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "search finds an event in any state and says why it waits", run: searchStates[TX]},
		{fact: "search selects by every field of the query", run: searchSelects[TX]},
		{fact: "search continues where the one before has ended", run: searchContinues[TX]},
		{fact: "search by key continues in each state where it has ended", run: searchContinuesByState[TX]},
		{fact: "search looks at no more events than it may", run: searchBounded[TX]},
		{fact: "search says of an event all that was written", run: searchTells[TX]},
		{fact: "search says why events wait for a route", run: searchRoutes[TX]},
		{fact: "search says who does not send", run: searchOwners[TX]},
		{fact: "causes count parked events by what they have in common", run: searchCauses[TX]},
	}
}

// search searches, and fails the test if the store is no [outbox.Searcher].
func (o *outboxRig[TX]) search(q outbox.Query) outbox.Results {
	o.Helper()
	r, err := o.searcher().Search(o.ctx(), q)
	o.ok(err)
	return r
}

func (o *outboxRig[TX]) searcher() outbox.Searcher {
	o.Helper()
	s, ok := o.Store.(outbox.Searcher)
	if !ok {
		o.Fatalf("%T is no outbox.Searcher", o.Store)
	}
	return s
}

// found searches for one event.
func (o *outboxRig[TX]) found(id uuid.UUID) outbox.Found {
	o.Helper()
	r := o.search(outbox.Query{IDs: []uuid.UUID{id}})
	if len(r.Events) != 1 || r.Before != 0 {
		o.Fatalf("found %d events, more before %d, want 1", len(r.Events), r.Before)
	}
	return r.Events[0]
}

// expectFound checks the results of a search, newest first.
func (o *outboxRig[TX]) expectFound(name string, q outbox.Query, want ...uuid.UUID) outbox.Results {
	o.Helper()
	r := o.search(q)
	var got []uuid.UUID
	for _, e := range r.Events {
		got = append(got, e.ID)
	}
	if !slices.Equal(got, want) {
		o.Errorf("%s: found %v, want %v", name, got, want)
	}
	return r
}

// expectWhy checks the state and the reason of an event.
func (o *outboxRig[TX]) expectWhy(id uuid.UUID, state outbox.State, why string) outbox.Found {
	o.Helper()
	e := o.found(id)
	if e.State != state || e.Why != why {
		o.Errorf("event is %s (%s), want %s (%s)", e.State, e.Why, state, why)
	}
	return e
}

func searchStates[TX any](o *outboxRig[TX]) {
	h := o.ownKey(7)
	later := record("other", "later")
	later.DeliverAt = time.Now().Add(long)
	gone := record("other", "gone")
	gone.DeliverAt = later.DeliverAt
	o.write(later, gone)
	tx := o.begin()
	_, err := o.Store.Cancel(o.ctx(), tx, []uuid.UUID{gone.ID}, "not wanted")
	o.ok(err)
	o.commit(tx)
	h.mark("relay", h.lease, h.events[0])
	h.park(1, long)
	h.follow(2)
	h.parkDead(3)
	h.parkDead(4)
	h.discard(h.events[4])

	is := o.expectWhy(h.events[0].ID, outbox.DeliveredState, "delivered")
	if is.DeliveredAt.IsZero() || is.WaitsFor != 0 || !is.ParkedAt.IsZero() {
		o.Errorf("delivered event is %+v", is)
	}
	is = o.expectWhy(h.events[1].ID, outbox.Retrying, "waits for its next attempt")
	if is.Attempts != 1 || is.NextAttemptAt.Sub(is.ParkedAt) < long-time.Minute || is.LastError != failureOf(h.events[1], 1, 0).Error || !is.DeliveredAt.IsZero() {
		o.Errorf("retrying event is %+v", is)
	}
	waits := fmt.Sprintf("waits for event %d of its key", h.events[1].Seq)
	for i, state := range map[int]outbox.State{2: outbox.Following, 5: outbox.PendingState} {
		if is = o.expectWhy(h.events[i].ID, state, waits); is.WaitsFor != h.events[1].Seq {
			o.Errorf("event waits for %d, want %d", is.WaitsFor, h.events[1].Seq)
		}
	}
	o.expectWhy(h.events[3].ID, outbox.Dead, "its attempts are used up")
	is = o.expectWhy(h.events[4].ID, outbox.Discarded, "discarded: the operator's reason")
	if is.Reason != "the operator's reason" {
		o.Errorf("discarded event is %+v", is)
	}
	is = o.expectWhy(later.ID, outbox.DeferredState, "waits for its time")
	if is.NextAttemptAt.Sub(later.DeliverAt).Abs() > time.Millisecond {
		o.Errorf("deferred event is due at %v, want %v", is.NextAttemptAt, later.DeliverAt)
	}
	o.expectWhy(gone.ID, outbox.Cancelled, "cancelled: not wanted")

	for state, want := range map[outbox.State][]uuid.UUID{
		outbox.DeliveredState: {h.events[0].ID}, outbox.Retrying: {h.events[1].ID}, outbox.Following: {h.events[2].ID},
		outbox.Dead: {h.events[3].ID}, outbox.Discarded: {h.events[4].ID}, outbox.Cancelled: {gone.ID}, outbox.DeferredState: {later.ID},
		outbox.PendingState: {h.events[6].ID, h.events[5].ID},
	} {
		o.expectFound(string(state), outbox.Query{States: []outbox.State{state}}, want...)
		key := o.found(want[0]).Key
		o.expectFound(string(state)+", by key", outbox.Query{States: []outbox.State{state}, Key: key}, want...)
		o.expectFound(string(state)+", by another key", outbox.Query{States: []outbox.State{state}, Key: key + "x"})
		o.expectFound(string(state)+", by key, before it", outbox.Query{States: []outbox.State{state}, Key: key, Before: o.found(want[len(want)-1]).Seq})
	}
	var want []uuid.UUID
	for i := len(h.events) - 1; i > 0; i-- {
		want = append(want, h.events[i].ID)
	}
	o.expectPages("a key's events, one at a time", outbox.Query{Key: o.found(h.events[1].ID).Key, States: []outbox.State{
		outbox.PendingState, outbox.Retrying, outbox.Following, outbox.Dead, outbox.Discarded, outbox.DeferredState,
	}, Scan: 1}, want...)
	o.expectFound("several states", outbox.Query{States: []outbox.State{outbox.PendingState, outbox.Dead, outbox.DeferredState}},
		later.ID, h.events[6].ID, h.events[5].ID, h.events[3].ID)
	o.expectFound("several states, one delivered", outbox.Query{States: []outbox.State{outbox.DeliveredState, outbox.Dead}}, h.events[3].ID, h.events[0].ID)
	o.expectFound("all states", outbox.Query{}, gone.ID, later.ID, h.events[6].ID, h.events[5].ID, h.events[4].ID, h.events[3].ID,
		h.events[2].ID, h.events[1].ID, h.events[0].ID)
}

func searchSelects[TX any](o *outboxRig[TX]) {
	var events []outbox.Record
	var queued []outbox.Queued // each written at a time of its own
	for i, key := range []string{"a", "b", "a", "", "c"} {
		r := record(key, fmt.Sprint(i))
		r.Topic = fmt.Sprint("topic ", i%2)
		r.CorrelationID = "request " + key
		r.Source = fmt.Sprint("order/", i)
		events = append(events, complete(r.Event))
		queued = append(queued, o.queued(events[i])...)
	}
	failure := failureOf(queued[1], 1, long)
	failure.Error = "50% of stock"
	_, err := o.Store.Park(o.ctx(), "relay", o.lease("relay", queued[1].Shard), []outbox.Failure{failure})
	o.ok(err)
	id := func(i int) uuid.UUID { return events[i].ID }
	short := func(i, digits int) (from, to uuid.UUID) {
		from, to = id(i), id(i)
		for at := digits / 2; at < len(from); at++ {
			from[at], to[at] = 0, 0xff
		}
		return from, to
	}
	from, to := short(2, 12)
	written := o.found(id(2)).WrittenAt
	for _, c := range []struct {
		name string
		q    outbox.Query
		want []int
	}{
		{"IDs", outbox.Query{IDs: []uuid.UUID{id(1), uuid.New(), id(4)}}, []int{4, 1}},
		{"IDs and key", outbox.Query{IDs: []uuid.UUID{id(1), id(4)}, Key: "c"}, []int{4}},
		{"first digits", outbox.Query{From: from, To: to}, []int{2}},
		{"first digits and other topic", outbox.Query{From: from, To: to, Topic: "topic 1"}, nil},
		{"all IDs", outbox.Query{To: uuid.Max, Scan: 3, Limit: 2}, []int{4, 3}},
		{"places", outbox.Query{Seqs: []int64{queued[3].Seq, queued[0].Seq, queued[4].Seq + 1}}, []int{3, 0}},
		{"topic", outbox.Query{Topic: "topic 1"}, []int{3, 1}},
		{"key", outbox.Query{Key: "a"}, []int{2, 0}},
		{"key and state", outbox.Query{Key: "a", States: []outbox.State{outbox.PendingState}}, []int{2, 0}},
		{"key of a parked event", outbox.Query{Key: "b", States: []outbox.State{outbox.PendingState, outbox.Retrying}}, []int{1}},
		{"other key", outbox.Query{Key: "A"}, nil},
		{"source", outbox.Query{Source: events[3].Source}, []int{3}},
		{"source and key", outbox.Query{Source: events[3].Source, Key: "a"}, nil},
		{"name that is a key", outbox.Query{Named: "b"}, []int{1}},
		{"name that is a source", outbox.Query{Named: events[3].Source}, []int{3}},
		{"name that is a correlation ID", outbox.Query{Named: "request c"}, []int{4}},
		{"name of no event", outbox.Query{Named: "request"}, nil},
		{"part of a key, in other letters", outbox.Query{Part: "B"}, []int{1}},
		{"part of a source", outbox.Query{Part: events[3].Source[1:]}, []int{3}},
		{"part of a correlation ID", outbox.Query{Part: "Quest c"}, []int{4}},
		{"part of no name", outbox.Query{Part: "quest_c"}, nil},
		{"correlation ID", outbox.Query{CorrelationID: "request c"}, []int{4}},
		{"part of the error", outbox.Query{Error: "0% of"}, []int{1}},
		{"error and state", outbox.Query{Error: "0% of", States: []outbox.State{outbox.PendingState}}, nil},
		{"other error", outbox.Query{Error: "0_ of"}, nil},
		{"since", outbox.Query{Since: written}, []int{4, 3, 2}},
		{"until", outbox.Query{Until: written}, []int{1, 0}},
		{"since and until", outbox.Query{Since: written, Until: written.Add(time.Microsecond)}, []int{2}},
		{"long ago", outbox.Query{Until: written.Add(-time.Hour)}, nil},
		{"long after", outbox.Query{Since: written.Add(time.Hour)}, nil},
		{"long ago in a state", outbox.Query{Until: written.Add(-time.Hour), States: []outbox.State{outbox.PendingState, outbox.Retrying}}, nil},
		{"before", outbox.Query{Before: queued[2].Seq}, []int{1, 0}},
		{"limit", outbox.Query{Limit: 2}, []int{4, 3}},
		{"state delivered", outbox.Query{States: []outbox.State{outbox.DeliveredState}}, nil},
	} {
		var want []uuid.UUID
		for _, i := range c.want {
			want = append(want, id(i))
		}
		o.expectFound(c.name, c.q, want...)
	}
}

func searchContinues[TX any](o *outboxRig[TX]) {
	const n = 25
	var want []uuid.UUID
	for i := range n {
		r := record(fmt.Sprint("key ", i%3), fmt.Sprint(i))
		o.write(r)
		want = append(want, r.ID)
	}
	slices.Reverse(want)
	for name, q := range map[string]outbox.Query{
		"in the log": {Limit: 4}, "in the log, few at a time": {Scan: 3}, "in the queue": {Limit: 4, States: []outbox.State{outbox.PendingState}},
		"in the queue, few at a time": {Scan: 3, States: []outbox.State{outbox.PendingState}}, "by topic": {Topic: "topic", Scan: 4, Limit: 3},
		"by IDs": {IDs: want, Limit: 7}, "of a range of IDs": {To: uuid.Max, Limit: 7}, "by topic in the queue": {Topic: "topic", Scan: 70, Limit: 3, States: []outbox.State{outbox.PendingState}},
	} {
		o.expectPages(name, q, want...)
	}
}

// expectPages checks the results of a search that is continued until it has reached the beginning.
func (o *outboxRig[TX]) expectPages(name string, q outbox.Query, want ...uuid.UUID) {
	o.Helper()
	var got []uuid.UUID
	for searches := 0; ; searches++ {
		r := o.search(q)
		for _, e := range r.Events {
			got = append(got, e.ID)
		}
		if r.Before == 0 {
			break
		}
		if searches > len(want) || q.Before != 0 && r.Before >= q.Before {
			o.Fatalf("%s: search %d before %d continues before %d", name, searches, q.Before, r.Before)
		}
		q.Before = r.Before
	}
	if !slices.Equal(got, want) {
		o.Errorf("%s: found %d events %v, want %v", name, len(got), got, want)
	}
}

// searchContinuesByState has the search for one state end before the search for another has reached its events.
func searchContinuesByState[TX any](o *outboxRig[TX]) {
	lease := o.lease("relay", 7)
	for oldest := range 2 {
		records := []outbox.Record{recordIn(7, fmt.Sprint("key ", oldest))}
		for len(records) < 8 {
			records = append(records, record(records[0].Key, "payload"))
		}
		var failures []outbox.Failure
		var want []uuid.UUID
		queued := o.queued(records...)
		for i, q := range queued {
			f := failureOf(q, 1, long)
			f.Dead = (i < 2) == (oldest == 0)
			failures = append(failures, f)
			want = append(want, records[i].ID)
		}
		_, err := o.Store.Park(o.ctx(), "relay", lease, failures)
		o.ok(err)
		slices.Reverse(want)
		for scan := 1; scan < 5; scan++ {
			q := outbox.Query{Key: records[0].Key, States: []outbox.State{outbox.Retrying, outbox.Dead}, Scan: scan}
			o.expectPages(fmt.Sprint("oldest ", oldest, ", scan ", scan), q, want...)
		}
	}
}

func searchBounded[TX any](o *outboxRig[TX]) {
	rare := record("rare", "rare")
	o.write(rare)
	for range 10 {
		o.write(record("often", "often"))
	}
	r := o.expectFound("within the bound", outbox.Query{Key: "rare", Scan: 5})
	if r.Before == 0 {
		o.Error("search that has not reached the beginning does not continue")
	}
	r = o.expectFound("beyond the bound", outbox.Query{Key: "rare", Scan: 20}, rare.ID)
	if r.Before != 0 {
		o.Errorf("search that has reached the beginning continues before %d", r.Before)
	}
}

func searchTells[TX any](o *outboxRig[TX]) {
	e := transport.Event{
		ID: uuid.New(), Topic: "topic", Key: "key", Type: "type", Payload: []byte("secret payload"), Producer: "producer", Source: "source",
		Version: 3, Index: 2, SchemaVersion: 4, ContentType: "text/plain", Headers: map[string]string{"name": "value"},
		CorrelationID: "correlation", TraceParent: "parent", TraceState: "state",
	}
	r := complete(e)
	r.ResendFor = time.Hour
	queued := o.queued(r)[0]
	for _, content := range []bool{false, true} {
		got := o.search(outbox.Query{Seqs: []int64{queued.Seq}, Content: content}).Events
		if len(got) != 1 {
			o.Fatalf("found %d events, want 1", len(got))
		}
		f := got[0]
		if content != (string(f.Payload) == "secret payload") || content != (f.Headers["name"] == "value") || !content && (f.Payload != nil || f.Headers != nil) {
			o.Errorf("with Content %t, payload is %q and headers are %v", content, f.Payload, f.Headers)
		}
		f.Payload, f.Headers = e.Payload, e.Headers
		want := queued.Record
		if fmt.Sprintf("%+v", f.Record) != fmt.Sprintf("%+v", want) {
			o.Errorf("found %+v, want %+v", f.Record, want)
		}
		if f.Seq != queued.Seq || f.State != outbox.PendingState || !f.WrittenAt.Equal(want.Stamp) {
			o.Errorf("found %+v", f)
		}
	}
}

func searchRoutes[TX any](o *outboxRig[TX]) {
	on := func(topic, key string) outbox.Record {
		r := record(key, topic+" of "+key)
		r.Topic = topic
		return complete(r.Event)
	}
	sick, well, free := on("sick", "key"), on("well", "key"), on("well", "other")
	queued := o.queued(sick, well, free)
	o.beat("relay", long)
	o.lease("relay", sick.Shard)
	o.report("relay", "sick")
	expect := func(r outbox.Record, says ...string) {
		o.Helper()
		f := o.found(r.ID)
		for _, part := range says {
			if f.State != outbox.PendingState || !strings.Contains(f.Why, part) {
				o.Errorf("event is %s (%s), want %q", f.State, f.Why, part)
			}
		}
	}
	expect(sick, "its route "+stalledRoute("").Route+" is refusing since ", " UTC: 312 NO_ROUTE")
	expect(well, fmt.Sprintf("waits for event %d of its key, whose route ", queued[0].Seq), " is refusing since ")
	expect(free, "waits to be sent by relay relay")
	if f := o.found(well.ID); f.WaitsFor != queued[0].Seq {
		o.Errorf("event waits for %d, want %d", f.WaitsFor, queued[0].Seq)
	}
	paused := stalledRoute("sick")
	paused.State, paused.LastError = outbox.RoutePaused, "stock is counted"
	o.ok(o.Store.ReportRelay(o.ctx(), "relay", outbox.Report{Stalled: []outbox.StalledRoute{paused}, StalledChanged: true}))
	expect(sick, " is paused since ", ": stock is counted")
}

func searchOwners[TX any](o *outboxRig[TX]) {
	r := record("key", "payload")
	o.write(r)
	o.expectWhy(r.ID, outbox.PendingState, "no relay owns its shard")
	lease := o.lease("relay", r.Shard)
	o.expectWhy(r.ID, outbox.PendingState, "waits to be sent by relay relay")
	o.ok(o.Store.Release(o.ctx(), "relay", []outbox.Lease{lease}, false))
	_, err := o.Store.Acquire(o.ctx(), "killed", time.Millisecond, 64)
	o.ok(err)
	o.eventually("the lease has expired", func() bool { return o.found(r.ID).Why == "the lease of relay killed has expired" })
}

func searchCauses[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.parkDead(0)
	h.parkDead(1)
	h.parkDead(2)
	h.park(3, long)
	causes := func(f outbox.Filter) []outbox.Cause {
		o.Helper()
		list, err := o.searcher().Causes(o.ctx(), f)
		o.ok(err)
		return list
	}
	list := causes(outbox.Filter{After: 1 << 40})
	if len(list) != 2 {
		o.Fatalf("causes are %+v, want 2", list)
	}
	parked := o.parked()
	dead := list[0]
	if dead.Count != 3 || dead.State != outbox.Dead || dead.Topic != "topic" || dead.Error != parked[0].LastError ||
		!dead.First.Equal(parked[0].ParkedAt) || !dead.Last.Equal(parked[2].ParkedAt) || !slices.Contains(ids(h.events[:3]), dead.Example) {
		o.Errorf("first cause is %+v of %+v", dead, parked)
	}
	if list[1].Count != 1 || list[1].State != outbox.Retrying || list[1].Example != h.events[3].ID {
		o.Errorf("second cause is %+v", list[1])
	}
	if list := causes(outbox.Filter{Limit: 1}); len(list) != 1 || list[0] != dead {
		o.Errorf("the most frequent cause is %+v", list)
	}
	if list := causes(outbox.Filter{States: []outbox.State{outbox.Following}}); len(list) != 0 {
		o.Errorf("causes of followers are %+v", list)
	}
}
