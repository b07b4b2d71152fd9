package storetest

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

func replayTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "delivered event is queued again under a new round, with a note", run: requeued[TX]},
		{fact: "round of a replay is above the tickets before it and not above its own", run: roundBeginsWithATicket[TX]},
		{fact: "deliveries of an event are told, oldest first", run: deliveriesAreTold[TX]},
		{fact: "event that is queued, parked or discarded is not queued again", run: requeuesDeliveredOnly[TX]},
		{fact: "late mark of the first delivery leaves the replayed row", run: lateMarkLeavesReplay[TX]},
		{fact: "replay asks the owners for a rewind", run: replayRewinds[TX]},
		{fact: "retained events are found by ID, topic, key and time", run: retainedBySelection[TX]},
		{fact: "log is looked through in parts", run: retainedInParts[TX]},
		{fact: "place of a time has no later event before it", run: placeOfATime[TX]},
		{fact: "event beyond its re-send horizon is told", run: retainedExpired[TX]},
		{fact: "dead event beyond its re-send horizon is redriven by force only", run: redriveExpired[TX]},
		{fact: "replays at once queue an event once", run: replaysAtOnce[TX]},
		{fact: "replayed event outlives its first receipt", run: replayedIsRetained[TX]},
		{fact: "event that was replayed within the retention is kept", run: replayCountsForRetention[TX]},
		{fact: "replay and removal at once leave no queue row without its event", run: replayAgainstRemoval[TX]},
	}
}

// deliver marks events of h.
func (h *held[TX]) deliver(indexes ...int) {
	h.Helper()
	for _, i := range indexes {
		h.mark("relay", h.lease, h.events[i])
	}
}

func (o *outboxRig[TX]) requeue(events ...outbox.Queued) []outbox.Requeued {
	o.Helper()
	list, err := o.Store.Requeue(o.ctx(), seqs(events), "a new consumer (by the night shift)")
	o.ok(err)
	return list
}

func (o *outboxRig[TX]) stillQueued(rows []outbox.Requeued, want int) {
	o.Helper()
	n, err := o.Store.StillQueued(o.ctx(), rows)
	o.ok(err)
	if n != want {
		o.Fatalf("%d rows are still queued, want %d", n, want)
	}
}

func requeued[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.deliver(0, 1)
	rows := o.requeue(h.events[1], h.events[0])
	o.expectQueue(h.events[0].Record, h.events[1].Record, h.events[2].Record)
	o.stillQueued(rows, 2)
	queue := o.queue()
	for i, r := range rows {
		q := queue[i]
		if r.Seq != q.Seq || r.ID != q.ID || r.Round != q.Round || r.Shard != q.Shard || r.Round <= 0 {
			o.Errorf("queued again is %+v, in the queue %+v", r, q)
		}
	}
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 1 || attempts[0].Outcome != "replayed" || attempts[0].Error != "a new consumer (by the night shift)" {
		o.Errorf("attempts are %+v", attempts)
	}
	o.mark("relay", h.lease, queue[0])
	o.stillQueued(rows, 1)
	again := o.requeue(h.events[0])
	if len(again) != 1 || again[0].Round <= rows[0].Round {
		o.Errorf("queued for the third time is %+v, for the second %+v", again, rows[0])
	}
	o.stillQueued(rows, 1)
	if none := o.requeue(); len(none) != 0 {
		o.Errorf("nothing was queued as %+v", none)
	}
}

// roundBeginsWithATicket tests the ticket in the round of a replayed event, by which a relay tells
// whether it knows of the replay. The next owner of the shard gets the ticket with its grant,
// whether the rewind was done or not.
func roundBeginsWithATicket[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.deliver(0, 1, 2)
	told := int64(0)
	for i, clear := range []bool{true, false, true} {
		rows := o.requeue(h.events[i:]...)
		ticket := h.renew().Ticket
		for _, r := range rows {
			if n := r.Round >> outbox.RoundChance; n <= told || n > ticket {
				o.Errorf("replay %d: a round has the ticket %d, renewals had %d and %d", i, n, told, ticket)
			}
		}
		told = ticket
		h.deliverRows(rows)
		if clear {
			h.ok(h.Store.ClearRewind(h.ctx(), "relay", h.lease, ticket))
		}
		h.ok(h.Store.Release(h.ctx(), "relay", []outbox.Lease{h.lease}, false))
		grants := h.acquire("relay", long)
		if len(grants) != 1 || grants[0].Ticket != ticket {
			h.Fatalf("granted is %+v, want ticket %d", grants, ticket)
		}
		h.lease = grants[0].Lease
	}
}

// deliverRows marks rows that were queued again.
func (h *held[TX]) deliverRows(rows []outbox.Requeued) {
	h.Helper()
	for _, r := range rows {
		h.mark("relay", h.lease, outbox.Queued{Record: outbox.Record{Shard: r.Shard}, Seq: r.Seq, Round: r.Round})
	}
}

func deliveriesAreTold[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	expect := func(i int, relays ...string) {
		o.Helper()
		list, err := o.Store.Deliveries(o.ctx(), h.events[i].ID)
		o.ok(err)
		var got []string
		for n, d := range list {
			got = append(got, d.Relay)
			if n > 0 && d.At.Before(list[n-1].At) || time.Since(d.At) > time.Minute {
				o.Errorf("deliveries are %+v", list)
			}
		}
		if !slices.Equal(got, relays) {
			o.Fatalf("event %d was delivered by %q, want %q", i, got, relays)
		}
	}
	o.mark("relay", h.lease, h.events[0], h.events[2])
	h.park(3, 0)
	h.sent(3)
	expect(0, "relay")
	expect(1)
	expect(2, "relay")
	expect(3, "relay")
	o.requeue(h.events[0])
	o.mark("relay", h.lease, o.queue()...)
	expect(0, "relay", "relay")
	expect(1, "relay")
	list, err := o.Store.Deliveries(o.ctx(), uuid.New())
	o.ok(err)
	if len(list) != 0 {
		o.Errorf("deliveries of an unknown event are %+v", list)
	}
}

func requeuesDeliveredOnly[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.park(0, long)
	h.follow(1)
	h.parkDead(2)
	h.parkDead(3)
	h.discard(h.events[3])
	if rows := o.requeue(h.events...); len(rows) != 0 {
		o.Errorf("queued again: %+v", rows)
	}
	o.expectQueue(h.events[4].Record)
	page, err := o.Store.Retained(o.ctx(), outbox.Selection{}, 0, 100, 100)
	o.ok(err)
	if len(page.Events) != 0 || !page.End || page.Through != h.events[4].Seq {
		o.Errorf("retained are %+v", page)
	}
}

func lateMarkLeavesReplay[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	h.deliver(0)
	rows := o.requeue(h.events[0])
	h.deliver(0) // under the first round
	o.stillQueued(rows, 1)
	o.expectQueue(h.events[0].Record)
	st, err := o.Store.Stats(o.ctx())
	o.ok(err)
	if st.Pending != 1 || st.OldestPending != 0 {
		o.Errorf("stats are %+v: a replayed event has been waiting since its replay only", st)
	}
}

func replayRewinds[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.deliver(0, 1, 2, 3)
	o.requeue(h.events[2])
	first := h.renew()
	if !first.Rewind || first.RewindTo != h.events[2].Seq {
		o.Fatalf("renewal is %+v after a replay of %d", first, h.events[2].Seq)
	}
	o.requeue(h.events[1], h.events[3])
	next := h.renew()
	if !next.Rewind || next.RewindTo != h.events[1].Seq || next.Ticket == first.Ticket {
		o.Fatalf("renewal is %+v after a replay of %d", next, h.events[1].Seq)
	}
	o.requeue(h.events[1])
	if r := h.renew(); r != next {
		o.Errorf("renewal is %+v after nothing was replayed, was %+v", r, next)
	}
}

// deliverAll writes records, marks them as delivered, and releases all shards.
func (o *outboxRig[TX]) deliverAll(records ...outbox.Record) []outbox.Queued {
	o.Helper()
	events := o.queued(records...)
	leases := make(map[int]outbox.Lease)
	for _, g := range o.acquire("relay", long) {
		leases[g.Shard] = g.Lease
	}
	for _, q := range events {
		o.mark("relay", leases[q.Shard], q)
	}
	for _, l := range leases {
		o.ok(o.Store.Release(o.ctx(), "relay", []outbox.Lease{l}, false))
	}
	return events
}

func retainedBySelection[TX any](o *outboxRig[TX]) {
	other := record("other", "2")
	other.Topic = "other topic"
	events := o.deliverAll(record("key", "0"), record("key", "1"), other, record("", "3"))
	stamp := func(i int) time.Time { return events[i].Stamp }
	for _, c := range []struct {
		name string
		s    outbox.Selection
		want []int
	}{
		{"all", outbox.Selection{}, []int{0, 1, 2, 3}},
		{"by ID", outbox.Selection{IDs: []uuid.UUID{events[3].ID, uuid.New(), events[1].ID}}, []int{1, 3}},
		{"by topic", outbox.Selection{Topic: "other topic"}, []int{2}},
		{"by key", outbox.Selection{Key: "key"}, []int{0, 1}},
		{"by key and topic", outbox.Selection{Key: "key", Topic: "other topic"}, nil},
		{"by ID and key", outbox.Selection{IDs: []uuid.UUID{events[3].ID, events[1].ID}, Key: "key"}, []int{1}},
		{"from a time", outbox.Selection{From: stamp(2)}, after(events, stamp(2))},
		{"to a time", outbox.Selection{To: stamp(2).Add(-time.Hour)}, nil},
		{"to a later time", outbox.Selection{From: stamp(0), To: stamp(3).Add(time.Hour)}, []int{0, 1, 2, 3}},
	} {
		page, err := o.Store.Retained(o.ctx(), c.s, 0, 100, 100)
		o.ok(err)
		var got []int
		for _, e := range page.Events {
			i := slices.IndexFunc(events, func(q outbox.Queued) bool { return q.Seq == e.Seq })
			if i < 0 || events[i].ID != e.ID || !events[i].Stamp.Equal(e.Stamp) || e.Expired {
				o.Fatalf("%s: found %+v", c.name, e)
			}
			got = append(got, i)
		}
		if !slices.Equal(got, c.want) || !page.End {
			o.Errorf("%s: found %v, want %v; end %t", c.name, got, c.want, page.End)
		}
	}
}

// after returns the events with a stamp of at or later.
func after(events []outbox.Queued, at time.Time) (indexes []int) {
	for i, q := range events {
		if !q.Stamp.Before(at) {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

func retainedInParts[TX any](o *outboxRig[TX]) {
	records := make([]outbox.Record, 10)
	for i := range records {
		records[i] = record("key", "payload")
		if i%5 == 0 {
			records[i].Topic = "rare"
		}
	}
	events := o.deliverAll(records...)
	look := func(s outbox.Selection, from int64, scan, limit int, through int, end bool, want ...int) {
		o.Helper()
		page, err := o.Store.Retained(o.ctx(), s, from, scan, limit)
		o.ok(err)
		var got, wanted []int64
		for _, e := range page.Events {
			got = append(got, e.Seq)
		}
		for _, i := range want {
			wanted = append(wanted, events[i].Seq)
		}
		if !slices.Equal(got, wanted) || page.Through != events[through].Seq || page.End != end {
			o.Errorf("found %v through %d, end %t; want %v through %d, end %t",
				got, page.Through, page.End, wanted, events[through].Seq, end)
		}
	}
	rare := outbox.Selection{Topic: "rare"}
	look(rare, 0, 4, 10, 3, false, 0)
	look(rare, events[3].Seq, 4, 10, 7, false, 5)
	look(rare, events[7].Seq, 4, 10, 9, true)
	look(rare, events[9].Seq, 4, 10, 9, true)
	look(outbox.Selection{}, 0, 8, 3, 2, false, 0, 1, 2)
	look(outbox.Selection{}, events[2].Seq, 100, 7, 9, false, 3, 4, 5, 6, 7, 8, 9)
}

func placeOfATime[TX any](o *outboxRig[TX]) {
	expect := func(at time.Time, want int64) {
		o.Helper()
		got, err := o.Store.Place(o.ctx(), at)
		o.ok(err)
		if got != want {
			o.Fatalf("place of %v is %d, want %d", at, got, want)
		}
	}
	expect(time.Now(), 0)
	var events []outbox.Queued
	for range 9 { // one by one, so that stamps ascend
		events = append(events, o.deliverAll(record("key", "payload"))...)
	}
	expect(time.Time{}, 0)
	expect(events[0].Stamp.Add(-time.Hour), events[0].Seq-1)
	expect(events[8].Stamp.Add(time.Hour), events[8].Seq)
	for i := 1; i < len(events); i++ {
		if events[i-1].Stamp.Before(events[i].Stamp) {
			expect(events[i].Stamp, events[i-1].Seq)
		}
	}
}

func retainedExpired[TX any](o *outboxRig[TX]) {
	short, lasting, silent := record("key", "0"), record("key", "1"), record("key", "2")
	short.ResendFor, lasting.ResendFor = time.Second, time.Hour
	events := o.deliverAll(short, lasting, silent)
	o.eventually("horizon is over", func() bool {
		page, err := o.Store.Retained(o.ctx(), outbox.Selection{}, 0, 100, 100)
		o.ok(err)
		if len(page.Events) != 3 || page.Events[1].Expired || page.Events[2].Expired || !page.Events[2].ResendUntil.IsZero() {
			o.Fatalf("retained are %+v", page.Events)
		}
		if until := page.Events[0].ResendUntil; until.Sub(events[0].Stamp) != time.Second {
			o.Fatalf("event may be sent again until %v, its stamp is %v", until, events[0].Stamp)
		}
		return page.Events[0].Expired
	})
}

func redriveExpired[TX any](o *outboxRig[TX]) {
	records := []outbox.Record{record("key", "0"), record("key", "1"), record("key", "2")}
	records[0].ResendFor, records[1].ResendFor = time.Second, time.Hour
	h := &held[TX]{outboxRig: o, events: o.queued(records...)}
	h.lease = o.lease("relay", h.events[0].Shard)
	for i := range records {
		h.parkDead(i)
	}
	o.eventually("horizon is over", func() bool {
		page, err := o.Store.ListParked(o.ctx(), outbox.Filter{Limit: 1})
		o.ok(err)
		return time.Since(page[0].ResendUntil) > 100*time.Millisecond
	})
	got, refused, err := o.Store.Redrive(o.ctx(), outbox.Filter{Limit: 1}, "reason")
	o.ok(err)
	if !slices.Equal(got, ids(h.events[1:2])) || refused != 0 {
		o.Errorf("redriven up to the limit are %v, refused %d: the last call counts", got, refused)
	}
	got, refused, err = o.Store.Redrive(o.ctx(), outbox.Filter{Limit: 2}, "reason")
	o.ok(err)
	if !slices.Equal(got, ids(h.events[2:])) || refused != 1 {
		o.Errorf("redriven are %v, refused %d", got, refused)
	}
	o.expectParked(h.state(0, outbox.Dead, 10), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Retrying, 0))
	got, refused, err = o.Store.Redrive(o.ctx(), outbox.Filter{Force: true}, "reason")
	o.ok(err)
	if !slices.Equal(got, ids(h.events[:1])) || refused != 0 {
		o.Errorf("redriven by force are %v, refused %d", got, refused)
	}
}

func replaysAtOnce[TX any](o *outboxRig[TX]) {
	const n = 40
	h := o.ownKey(n)
	o.mark("relay", h.lease, h.events...)
	var mu sync.Mutex
	var all []outbox.Requeued
	var results []<-chan error
	for range 3 {
		results = append(results, o.async(func() error {
			rows, err := o.Store.Requeue(o.ctx(), seqs(h.events), "")
			mu.Lock()
			all = append(all, rows...)
			mu.Unlock()
			return err
		}))
	}
	for _, c := range results {
		o.ok(o.result(c))
	}
	slices.SortFunc(all, func(a, b outbox.Requeued) int { return cmp.Compare(a.Seq, b.Seq) })
	o.stillQueued(all, n)
	if len(all) != n {
		o.Errorf("%d rows of %d events", len(all), n)
	}
}

func replayedIsRetained[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.deliver(0, 1)
	rows := o.requeue(h.events[0])
	o.expectRemoved(o.removeDelivered(over, 10), 1, 0, 2) // the event waits in the queue
	queued := o.queue()
	o.mark("relay", h.lease, queued...)
	o.stillQueued(rows, 0)
	rows = o.requeue(h.events[0])
	if len(rows) != 1 {
		o.Fatal("replayed event is not retained")
	}
	o.mark("relay", h.lease, o.queue()...)
	o.expectRemoved(o.removeDelivered(over, 10), 1, 2, 2)
	if rows := o.requeue(h.events[0]); len(rows) != 0 {
		o.Errorf("removed event was queued: %+v", rows)
	}
}

func replayCountsForRetention[TX any](o *outboxRig[TX]) {
	const retention = 200 * time.Millisecond
	for done := false; !done; {
		h := o.ownKey(1)
		h.deliver(0)
		delivered := time.Now()
		o.eventually("the receipt is older than the retention", func() bool { return time.Since(delivered) > 2*retention })
		begun := time.Now()
		o.requeue(h.events[0])
		o.mark("relay", h.lease, o.queue()...)
		r := o.removeDelivered(retention, 10)
		if done = time.Since(begun) < retention; done { // else the machine was too slow to tell
			o.expectRemoved(r, 0, 0, 1)
		}
		o.ok(o.Store.Release(o.ctx(), "relay", []outbox.Lease{h.lease}, false))
		o.removeDelivered(over, 10) // what is left of the event: a further round would count it
	}
}

func replayAgainstRemoval[TX any](o *outboxRig[TX]) {
	const n = 200
	h := o.ownKey(n)
	for i := range n {
		h.mark("relay", h.lease, h.events[i])
	}
	remove := o.async(func() error {
		for {
			r, err := o.Store.RemoveDelivered(o.ctx(), over, time.Time{}, 5)
			if err != nil || !r.Full {
				return err
			}
		}
	})
	rows := 0
	for i := n - 1; i >= 0; i-- {
		rows += len(o.requeue(h.events[i]))
	}
	o.ok(o.result(remove))
	queue := o.queue()
	if len(queue) != rows {
		o.Errorf("%d rows are queued, %d were queued again", len(queue), rows)
	}
	for _, q := range queue {
		if q.Missing {
			o.Errorf("queue row %d has no event", q.Seq)
		}
	}
}

func replayByDueTime[TX any](o *outboxRig[TX]) {
	a := record("key", "a")
	due := o.writeDueSoon(a, record("key", "b"))
	lease := o.lease("relay", a.Shard)
	o.eventually("move of the event", func() bool { return len(o.undefer("relay", 10, lease).Moved) > 0 })
	events := o.queue()
	o.mark("relay", lease, events...)
	place, err := o.Store.Place(o.ctx(), due)
	o.ok(err)
	if place >= events[0].Seq {
		o.Errorf("place of %v is %d, behind event %d, which was due then", due, place, events[0].Seq)
	}
	page, err := o.Store.Retained(o.ctx(), outbox.Selection{From: due}, place, 100, 100)
	o.ok(err)
	if len(page.Events) != 1 || page.Events[0].ID != a.ID || !page.Events[0].Stamp.Equal(due) {
		o.Errorf("retained since %v are %+v", due, page.Events)
	}
	page, err = o.Store.Retained(o.ctx(), outbox.Selection{To: due}, 0, 100, 100)
	o.ok(err)
	if len(page.Events) != 1 || page.Events[0].ID == a.ID {
		o.Errorf("retained until %v are %+v", due, page.Events)
	}
}
