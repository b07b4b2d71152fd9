package storetest

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

func operatorTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "parked events are listed by filter and in pages", run: listFilters[TX]},
		{fact: "redriven event is due with no attempts counted", run: redriveDue[TX]},
		{fact: "every redriven event keeps the reason in its attempts", run: redriveKeepsReason[TX]},
		{fact: "redrive takes other than dead events only if they are named", run: redriveNamedOnly[TX]},
		{fact: "retrying event that is redriven is due at once, and its failure in flight changes nothing", run: redriveRetrying[TX]},
		{fact: "redriven event that was discarded is due at its place, and keeps its history", run: redriveDiscarded[TX]},
		{fact: "discarded event is removed or redriven, and never half", run: redriveOrRemove[TX]},
		{fact: "discarded event keeps the reason and frees its key", run: discardFrees[TX]},
		{fact: "discarded follower leaves the head alone", run: discardFollower[TX]},
		{fact: "discarded follower of a key on hold frees nothing", run: discardOnHold[TX]},
		{fact: "operator's change asks the owner for a rewind", run: rewinds[TX]},
		{fact: "rewind is cleared by its own ticket only", run: rewindTicket[TX]},
		{fact: "operator needs no owner", run: operatorWithoutOwner[TX]},
		{fact: "operators who act at once act once on each event", run: operatorsRace[TX]},
		{fact: "stats count what there is", run: statsCount[TX]},
	}
}

func (o *outboxRig[TX]) redrive(events ...outbox.Queued) {
	o.Helper()
	got, _, err := o.Store.Redrive(o.ctx(), outbox.Filter{IDs: ids(events)}, "the cause is mended")
	o.ok(err)
	if !sameIDs(got, ids(events)) {
		o.Fatalf("redriven are %v, want %v", got, ids(events))
	}
}

func (o *outboxRig[TX]) discard(events ...outbox.Queued) {
	o.Helper()
	got, err := o.Store.Discard(o.ctx(), outbox.Filter{IDs: ids(events)}, "the operator's reason")
	o.ok(err)
	if !sameIDs(got, ids(events)) {
		o.Fatalf("discarded are %v, want %v", got, ids(events))
	}
}

func sameIDs(a, b []uuid.UUID) bool {
	cmp := func(x, y uuid.UUID) int { return slices.Compare(x[:], y[:]) }
	return slices.Equal(slices.SortedFunc(slices.Values(a), cmp), slices.SortedFunc(slices.Values(b), cmp))
}

// renew renews one lease and returns the renewal.
func (h *held[TX]) renew() outbox.Renewal {
	h.Helper()
	list, err := h.Store.Renew(h.ctx(), "relay", long, []outbox.Lease{h.lease})
	h.ok(err)
	if len(list) != 1 {
		h.Fatal("lease is lost")
	}
	return list[0]
}

func listFilters[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.park(0, long)
	h.follow(1)
	h.parkDead(2)
	h.parkDead(3)
	h.discard(h.events[3])
	for _, c := range []struct {
		name string
		f    outbox.Filter
		want []int
	}{
		{"all", outbox.Filter{}, []int{0, 1, 2, 3}},
		{"by state", outbox.Filter{States: []outbox.State{outbox.Dead, outbox.Following}}, []int{1, 2}},
		{"by ID", outbox.Filter{IDs: []uuid.UUID{h.events[2].ID, h.events[0].ID, uuid.New()}}, []int{0, 2}},
		{"by topic", outbox.Filter{Topic: "topic"}, []int{0, 1, 2, 3}},
		{"by other topic", outbox.Filter{Topic: "other"}, nil},
		{"by key", outbox.Filter{Key: "key", States: []outbox.State{outbox.Discarded}}, []int{3}},
		{"by other key", outbox.Filter{Key: "other"}, nil},
		{"limit", outbox.Filter{Limit: 2}, []int{0, 1}},
		{"by error", outbox.Filter{Error: failureOf(h.events[0], 1, 0).Error[1:]}, []int{0, 2, 3}},
		{"by other error", outbox.Filter{Error: "%"}, nil},
		{"since a time", outbox.Filter{Since: o.parked()[2].ParkedAt}, []int{2, 3}},
		{"until a time", outbox.Filter{Until: o.parked()[2].ParkedAt}, []int{0, 1}},
		{"next page", outbox.Filter{After: h.events[1].Seq, Limit: 2}, []int{2, 3}},
	} {
		list, err := o.Store.ListParked(o.ctx(), c.f)
		o.ok(err)
		var got, want []uuid.UUID
		for _, p := range list {
			got = append(got, p.ID)
		}
		for _, i := range c.want {
			want = append(want, h.events[i].ID)
		}
		if !slices.Equal(got, want) {
			o.Errorf("%s: listed %v, want %v", c.name, got, want)
		}
	}
	head := o.parked()[0]
	if string(head.Payload) != "0" || head.Shard != h.lease.Shard || head.ParkedAt.IsZero() || head.Reason != "" ||
		head.NextAttemptAt.Sub(head.ParkedAt) < long-time.Minute || !head.Stamp.Equal(h.events[0].Stamp) {
		o.Errorf("listed event is %+v", head)
	}
}

func redriveDue[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.parkDead(0)
	h.redrive(h.events[0])
	o.expectParked(h.state(0, outbox.Retrying, 0))
	o.expectDue(h.lease.Shard, h.events[0])
	h.expectBlocked(false, "key")
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 2 || attempts[1].Outcome != "redriven" || attempts[1].Error != "the cause is mended" || attempts[1].Relay != "" {
		o.Errorf("attempts are %+v", attempts)
	}
}

func redriveKeepsReason[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, long)
	h.parkDead(1)
	h.parkDead(2)
	redrive := func(f outbox.Filter, reason string, want ...outbox.Queued) {
		o.Helper()
		got, _, err := o.Store.Redrive(o.ctx(), f, reason)
		o.ok(err)
		if !sameIDs(got, ids(want)) {
			o.Fatalf("redriven are %v, want %v", got, ids(want))
		}
	}
	redrive(outbox.Filter{Topic: "topic"}, "queue exists, für alle", h.events[1], h.events[2])
	h.retry(1, 1, 0, true, true)
	redrive(outbox.Filter{IDs: ids(h.events[1:2])}, "and once more", h.events[1])
	for i, want := range [][]string{nil, {"queue exists, für alle", "and once more"}, {"queue exists, für alle"}} {
		attempts, err := o.Store.Attempts(o.ctx(), h.events[i].ID, 10)
		o.ok(err)
		var got []string
		for _, a := range attempts {
			if a.Outcome == "redriven" {
				got = append(got, a.Error)
			}
		}
		if !slices.Equal(got, want) {
			o.Errorf("event %d was redriven for %q, want %q", i, got, want)
		}
	}
	if p := o.parked()[1]; p.Reason != "" {
		o.Errorf("redriven event is %+v", p)
	}
}

func redriveNamedOnly[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.park(0, long)
	h.follow(1)
	h.parkDead(2)
	h.parkDead(3)
	h.discard(h.events[3])
	later := record("key", "cancelled")
	later.DeliverAt = time.Now().Add(long)
	o.write(later)
	tx := o.begin()
	_, err := o.Store.Cancel(o.ctx(), tx, []uuid.UUID{later.ID}, "not wanted any more")
	o.ok(err)
	o.commit(tx)
	all := append(ids(h.events), later.ID)
	for _, c := range []struct {
		f    outbox.Filter
		want []int
	}{
		{outbox.Filter{States: []outbox.State{outbox.Following, outbox.Cancelled}, IDs: all, Force: true}, nil},
		{outbox.Filter{Topic: "other", States: []outbox.State{outbox.Discarded}}, nil},
		{outbox.Filter{IDs: ids(h.events[3:4])}, nil},
		{outbox.Filter{After: h.events[2].Seq}, nil},
		{outbox.Filter{}, []int{2}},
		{outbox.Filter{}, nil},
		{outbox.Filter{IDs: ids(h.events[:2])}, []int{0}},
		{outbox.Filter{States: []outbox.State{outbox.Retrying}}, []int{0, 2}},
		{outbox.Filter{States: []outbox.State{outbox.Discarded}}, []int{3}},
		{outbox.Filter{States: []outbox.State{outbox.Discarded}}, nil},
	} {
		got, refused, err := o.Store.Redrive(o.ctx(), c.f, "reason")
		o.ok(err)
		var want []uuid.UUID
		for _, i := range c.want {
			want = append(want, h.events[i].ID)
		}
		if !slices.Equal(got, want) || refused != 0 {
			o.Errorf("filter %+v redrove %v and refused %d, want %v", c.f, got, refused, want)
		}
	}
	list, err := o.Store.ListParked(o.ctx(), outbox.Filter{States: []outbox.State{outbox.Cancelled, outbox.Following}})
	o.ok(err)
	if len(list) != 2 {
		o.Errorf("%d events are following or cancelled still, want 2", len(list))
	}
}

func discardFrees[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, long)
	h.follow(1, 2)
	h.discard(h.events[0])
	o.expectParked(h.state(0, outbox.Discarded, 1), h.state(1, outbox.Retrying, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[1])
	if p := o.parked()[0]; p.Reason != "the operator's reason" || !p.NextAttemptAt.IsZero() {
		o.Errorf("discarded event is %+v", p)
	}
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 2 || attempts[1].Outcome != "discarded" || attempts[1].Error != "the operator's reason" {
		o.Errorf("attempts are %+v", attempts)
	}
	again, err := o.Store.Discard(o.ctx(), outbox.Filter{IDs: ids(h.events[:1])}, "another reason")
	o.ok(err)
	if len(again) != 0 {
		o.Errorf("discarded twice: %v", again)
	}
	h.discard(h.events[1], h.events[2])
	h.expectBlocked(true)
	o.expectQueue()
}

func discardFollower[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, long)
	h.follow(1, 2)
	h.discard(h.events[1])
	o.expectParked(h.state(0, outbox.Retrying, 1), h.state(1, outbox.Discarded, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard)
	h.sent(0)
	o.expectDue(h.lease.Shard, h.events[2])
}

func discardOnHold[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.parkDead(0)
	h.follow(1, 2)
	h.discard(h.events[1])
	o.expectParked(h.state(0, outbox.Dead, 10), h.state(1, outbox.Discarded, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard)
	h.discard(h.events[0])
	o.expectDue(h.lease.Shard, h.events[2])
}

func rewinds[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	if r := h.renew(); r.Rewind {
		o.Fatalf("renewal is %+v before an operator did anything", r)
	}
	h.parkDead(1)
	h.parkDead(2)
	h.parkDead(3)
	h.redrive(h.events[2])
	first := h.renew()
	if !first.Rewind || first.RewindTo > h.events[2].Seq {
		o.Errorf("renewal is %+v after a redrive of %d", first, h.events[2].Seq)
	}
	h.discard(h.events[1])
	next := h.renew()
	if !next.Rewind || next.RewindTo > h.events[1].Seq || next.Ticket == first.Ticket {
		o.Errorf("renewal is %+v after a discard of %d", next, h.events[1].Seq)
	}
	h.redrive(h.events[3])
	last := h.renew()
	if !last.Rewind || last.RewindTo > h.events[1].Seq || last.Ticket == next.Ticket {
		o.Errorf("renewal is %+v after a redrive of %d too", last, h.events[3].Seq)
	}
	h.redriveNothing()
	if r := h.renew(); r != last {
		o.Errorf("renewal is %+v after nothing was redriven, was %+v", r, last)
	}
}

func (h *held[TX]) redriveNothing() {
	h.Helper()
	got, _, err := h.Store.Redrive(h.ctx(), outbox.Filter{Key: "no such key"}, "reason")
	h.ok(err)
	if len(got) != 0 {
		h.Errorf("redriven are %v", got)
	}
}

func rewindTicket[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.parkDead(0)
	h.parkDead(1)
	h.redrive(h.events[1])
	old := h.renew()
	h.redrive(h.events[0])
	clearWith := func(relay string, lease outbox.Lease, ticket int64) {
		o.ok(o.Store.ClearRewind(o.ctx(), relay, lease, ticket))
	}
	now := h.renew()
	clearWith("relay", h.lease, old.Ticket)
	clearWith("stranger", h.lease, now.Ticket)
	clearWith("relay", outbox.Lease{Shard: h.lease.Shard, Epoch: h.lease.Epoch - 1}, now.Ticket)
	clearWith("relay", outbox.Lease{Shard: (h.lease.Shard + 1) % 64, Epoch: h.lease.Epoch}, now.Ticket)
	if r := h.renew(); !r.Rewind || r != now {
		o.Errorf("renewal is %+v, was %+v before ClearRewind by other owners and tickets", r, now)
	}
	clearWith("relay", h.lease, now.Ticket)
	if r := h.renew(); r.Rewind {
		o.Errorf("renewal is %+v after its rewind was cleared", r)
	}
}

func operatorWithoutOwner[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.parkDead(0)
	o.ok(o.Store.Release(o.ctx(), "relay", []outbox.Lease{h.lease}, true))
	h.redrive(h.events[0])
	h.lease = o.lease("relay", h.lease.Shard)
	o.expectDue(h.lease.Shard, h.events[0])
}

func operatorsRace[TX any](o *outboxRig[TX]) {
	const n = 20
	h := o.ownKey(n)
	for i := range n {
		h.parkDead(i)
	}
	results := make([]<-chan error, 4)
	changed := make(chan []uuid.UUID, len(results))
	for i := range results {
		results[i] = o.async(func() error {
			for {
				var got []uuid.UUID
				var err error
				if i%2 == 0 {
					got, _, err = o.Store.Redrive(o.ctx(), outbox.Filter{}, "reason")
				} else {
					got, err = o.Store.Discard(o.ctx(), outbox.Filter{States: []outbox.State{outbox.Dead}}, "reason")
				}
				if err == nil || !o.Store.Retryable(err) {
					changed <- got
					return err
				}
			}
		})
	}
	for _, result := range results {
		o.ok(o.result(result))
	}
	close(changed)
	var all []uuid.UUID
	for got := range changed {
		all = append(all, got...)
	}
	if !sameIDs(all, ids(h.events)) {
		o.Errorf("%d changes of %d events", len(all), n)
	}
}

func statsCount[TX any](o *outboxRig[TX]) {
	empty, err := o.Store.Stats(o.ctx())
	o.ok(err)
	if empty != (outbox.Stats{}) {
		o.Errorf("stats of an empty outbox are %+v", empty)
	}
	h := o.ownKey(6)
	_, err = o.Store.Heartbeat(o.ctx(), "relay", long)
	o.ok(err)
	h.park(0, long)
	h.follow(1, 2)
	h.parkDead(3)
	o.eventually("the oldest event has an age", func() bool {
		st, err := o.Store.Stats(o.ctx())
		o.ok(err)
		age := st.OldestPending
		st.OldestPending = 0
		want := outbox.Stats{Pending: 2, Retrying: 1, Following: 2, Dead: 1, Owned: 64, Relays: 1}
		if st != want {
			o.Fatalf("stats are %+v, want %+v", st, want)
		}
		return age > 0 && age < long
	})
	h.mark("relay", h.lease, h.events[4], h.events[5])
	st, err := o.Store.Stats(o.ctx())
	o.ok(err)
	if st.Pending != 0 || st.OldestPending == 0 {
		o.Errorf("stats are %+v while parked events wait", st)
	}
	h.sent(0, 1, 2)
	st, err = o.Store.Stats(o.ctx())
	o.ok(err)
	if st.OldestPending != 0 || st.Dead != 1 {
		o.Errorf("stats are %+v with a dead event only", st)
	}
}
