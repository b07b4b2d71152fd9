package storetest

import (
	"bytes"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

func archiveTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "delivered events are listed whole, and then removed", run: archivesDelivered[TX]},
		{fact: "discarded and cancelled events are listed whole, and then removed", run: archivesDiscarded[TX]},
		{fact: "list has what a removal would remove, and nothing else", run: listsWhatGoes[TX]},
		{fact: "event that is replayed after it was listed stays", run: keepsReplayedListed[TX]},
		{fact: "listed event that was discarded or replayed within the retention stays", run: keepsListedWithinRetention[TX]},
		{fact: "event that had to stay when its receipt was listed stays", run: keepsUnlisted[TX]},
		{fact: "list ends with its size, also within a receipt", run: listsBySize[TX]},
		{fact: "lists are as large as they may be, and tell whether there is more", run: listsInBatches[TX]},
	}
}

// archive returns the store's optional part. A store without it fails the tests of this group, which
// the names of other groups leave out.
func (o *outboxRig[TX]) archive() outbox.ArchiveStore {
	o.Helper()
	archive, can := o.Store.(outbox.ArchiveStore)
	if !can {
		o.Fatalf("%T is no outbox.ArchiveStore", o.Store)
	}
	return archive
}

func (o *outboxRig[TX]) listDelivered(retention time.Duration, limit int) outbox.Removable {
	o.Helper()
	list, err := o.archive().ListDelivered(o.ctx(), retention, time.Time{}, limit)
	o.ok(err)
	return list
}

func (o *outboxRig[TX]) listDiscarded(retention time.Duration, limit int) outbox.Removable {
	o.Helper()
	list, err := o.archive().ListDiscarded(o.ctx(), retention, limit)
	o.ok(err)
	return list
}

func (o *outboxRig[TX]) removeListed(list outbox.Removable) outbox.Removed {
	o.Helper()
	r, err := o.archive().RemoveListed(o.ctx(), over, list)
	o.ok(err)
	if r.Full != list.Full || !r.Through.Equal(list.Through) {
		o.Errorf("removal says %+v, and its list Full %v, Through %v", r, list.Full, list.Through)
	}
	return r
}

// expectListed checks that list has the events whole, and no others.
func (o *outboxRig[TX]) expectListed(list outbox.Removable, want ...outbox.Queued) {
	o.Helper()
	if len(list.Events) != len(want) || len(list.Seqs) != len(want) {
		o.Fatalf("%d events and %d numbers are listed, want %d", len(list.Events), len(list.Seqs), len(want))
	}
	for _, w := range want {
		i := slices.IndexFunc(list.Events, func(e outbox.Archived) bool { return e.Seq == w.Seq })
		if i < 0 {
			o.Fatalf("event %d is not listed", w.Seq)
		}
		e := list.Events[i]
		if e.ID != w.ID || e.Digest != w.Digest || e.Topic != w.Topic || e.Key != w.Key || e.Shard != w.Shard || e.Source != w.Source ||
			!bytes.Equal(e.Payload, w.Payload) || len(e.Headers) != len(w.Headers) || !e.Stamp.Equal(w.Stamp) || e.EndedAt.IsZero() || e.Unreadable != "" {
			o.Errorf("listed is %+v, want %+v", e, w)
		}
	}
}

func archivesDelivered[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.mark("relay", h.lease, h.events[0])
	h.park(1, 0)
	h.retry(1, 2, 0, false, false)
	h.sent(1)
	if list := o.listDelivered(kept, 10); len(list.Seqs)+len(list.Receipts) != 0 || list.Full {
		o.Errorf("listed before the end of the retention is %+v", list)
	}
	list := o.listDelivered(over, 10)
	o.expectListed(list, h.events[:2]...)
	if list.Full || list.Discarded || len(list.Receipts) != 2 || list.Events[0].State != outbox.DeliveredState {
		o.Errorf("list is %+v", list)
	}
	o.expectRemoved(o.removeListed(list), 2, 2, 2)
	o.expectRemoved(o.removeListed(list), 0, 0, 0)
	o.expectListed(o.listDelivered(over, 10))
	o.expectIDs("queue", ids(o.queue()), h.events[2].Record)
}

func archivesDiscarded[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.parkDead(0)
	h.parkDead(1)
	h.discard(h.events[0])
	o.expectListed(o.listDiscarded(kept, 10))
	list := o.listDiscarded(over, 10)
	o.expectListed(list, h.events[0])
	e := list.Events[0]
	if !list.Discarded || list.Full || e.State != outbox.Discarded || e.Attempts != 10 || e.LastError == "" || e.Reason == "" {
		o.Errorf("list is %+v", list)
	}
	o.expectRemoved(o.removeListed(list), 1, 2, 0)
	o.expectParked(h.state(1, outbox.Dead, 10))
	o.expectListed(o.listDiscarded(over, 10))
}

func listsWhatGoes[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.park(0, long)
	h.parkDead(1)
	h.mark("relay", h.lease, h.events[2])
	h.mark("relay", h.lease, h.events[3])
	o.requeue(h.events[3])
	list := o.listDelivered(over, 10)
	o.expectListed(list, h.events[2])
	o.expectListed(o.listDiscarded(over, 10))
	if len(list.Receipts) != 2 {
		o.Errorf("receipts are %+v, want also that of the event that is queued again", list.Receipts)
	}
}

func keepsReplayedListed[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.mark("relay", h.lease, h.events...)
	list := o.listDelivered(over, 10)
	o.expectListed(list, h.events...)
	o.requeue(h.events[0])
	o.expectRemoved(o.removeListed(list), 1, 0, 1)
	queue := o.queue()
	if len(queue) != 1 || queue[0].Missing || queue[0].ID != h.events[0].ID {
		o.Fatalf("queue is %+v", queue)
	}
	h.mark("relay", h.lease, queue[0])
	o.expectListed(o.listDelivered(over, 10), queue[0]) // a later receipt names the event again
}

func keepsListedWithinRetention[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.parkDead(0)
	h.discard(h.events[0])
	h.mark("relay", h.lease, h.events[1])
	o.requeue(h.events[1])
	h.mark("relay", h.lease, o.queue()[0])
	for _, list := range []outbox.Removable{o.listDiscarded(over, 10), {Discarded: true, Seqs: []int64{h.events[1].Seq}}, {Seqs: []int64{h.events[1].Seq}}} {
		r, err := o.archive().RemoveListed(o.ctx(), kept, list)
		o.ok(err)
		o.expectRemoved(r, 0, 0, 0)
	}
	o.expectParked(h.state(0, outbox.Discarded, 10))
}

func keepsUnlisted[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	h.mark("relay", h.lease, h.events[0])
	o.requeue(h.events[0])
	list := o.listDelivered(over, 10)
	o.expectListed(list)
	h.mark("relay", h.lease, o.queue()[0])
	o.expectRemoved(o.removeListed(list), 0, 0, 1)
	o.expectListed(o.listDelivered(over, 10), h.events[0])
}

func listsBySize[TX any](o *outboxRig[TX]) {
	large := make([]byte, outbox.ArchiveBytes/2)
	records := []outbox.Record{record("key", "small"), record("key", "2"), record("key", "3")}
	for i := 1; i < len(records); i++ {
		records[i].Payload = large
	}
	h := &held[TX]{outboxRig: o, events: o.queued(records...)}
	h.lease = o.lease("relay", h.events[0].Shard)
	h.mark("relay", h.lease, h.events...)
	list := o.listDelivered(over, 10)
	o.expectListed(list, h.events[:2]...)
	if !list.Full || len(list.Receipts) != 0 || list.Through.IsZero() {
		o.Errorf("list says Full %v, receipts %v, Through %v", list.Full, list.Receipts, list.Through)
	}
	o.expectRemoved(o.removeListed(list), 2, 0, 0)
	list = o.listDelivered(over, 10)
	o.expectListed(list, h.events[2])
	o.expectRemoved(o.removeListed(list), 1, 0, 1)
}

func listsInBatches[TX any](o *outboxRig[TX]) {
	h := o.ownKey(9)
	for i := range 6 {
		h.mark("relay", h.lease, h.events[i])
	}
	var after time.Time
	for _, want := range []int{4, 2} {
		list, err := o.archive().ListDelivered(o.ctx(), over, after, 4)
		o.ok(err)
		if len(list.Events) != want || list.Full != (want == 4) {
			o.Fatalf("%d events are listed, Full %v; want %d", len(list.Events), list.Full, want)
		}
		o.expectRemoved(o.removeListed(list), want, 0, want)
		after = list.Through
	}
	for i := 6; i < 9; i++ {
		h.parkDead(i)
	}
	h.discard(h.events[6:]...)
	for _, want := range []int{2, 1} {
		list := o.listDiscarded(over, 2)
		if len(list.Events) != want || list.Full != (want == 2) {
			o.Fatalf("%d discarded events are listed, Full %v; want %d", len(list.Events), list.Full, want)
		}
		o.removeListed(list)
	}
}
