package storetest

import (
	"sync"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

func janitorTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "delivered event goes after its retention, with receipt and attempts", run: removesDelivered[TX]},
		{fact: "retention counts from delivery, not from creation", run: retentionFromDelivery[TX]},
		{fact: "event that is not delivered stays, however old", run: keepsUndelivered[TX]},
		{fact: "discarded event goes after its retention", run: removesDiscarded[TX]},
		{fact: "discarded event that was delivered all the same goes as discarded", run: removesDiscardedDelivered[TX]},
		{fact: "batches are as large as they may be, and tell whether there is more", run: removesInBatches[TX]},
		{fact: "janitors at once remove everything once", run: janitorsAtOnce[TX]},
		{fact: "count says what is removed then", run: countsWhatGoes[TX]},
		{fact: "count ends with its limit", run: countsUpToALimit[TX]},
		{fact: "removed event that is written again is a new one", run: writtenAfterRemoval[TX]},
	}
}

// kept is a retention that does not end within a test; over is a retention that has ended already.
const (
	kept = time.Hour
	over = -time.Minute
)

func (o *outboxRig[TX]) removeDelivered(retention time.Duration, limit int) outbox.Removed {
	o.Helper()
	r, err := o.Store.RemoveDelivered(o.ctx(), retention, time.Time{}, limit)
	o.ok(err)
	return r
}

// removeAll removes all rows older than retention, and returns the numbers of removed rows.
func (o *outboxRig[TX]) removeAll(retention time.Duration) outbox.Removed {
	o.Helper()
	sum := o.removeDelivered(retention, 1000)
	r, err := o.Store.RemoveDiscarded(o.ctx(), retention, 1000)
	o.ok(err)
	sum.Events += r.Events
	sum.Attempts += r.Attempts
	return sum
}

// expectRemoved checks the numbers of removed rows.
func (o *outboxRig[TX]) expectRemoved(r outbox.Removed, events, attempts, receipts int) {
	o.Helper()
	if r.Events != events || r.Attempts != attempts || r.Receipts != receipts {
		o.Fatalf("removed are %d events, %d attempts, %d receipts; want %d, %d, %d",
			r.Events, r.Attempts, r.Receipts, events, attempts, receipts)
	}
}

func removesDelivered[TX any](o *outboxRig[TX]) {
	h := o.ownKey(4)
	h.mark("relay", h.lease, h.events[0])
	h.mark("relay", h.lease, h.events[1])
	h.park(2, 0)
	h.retry(2, 2, 0, false, false)
	h.sent(2)
	o.expectRemoved(o.removeAll(kept), 0, 0, 0)
	r := o.removeAll(over)
	o.expectRemoved(r, 3, 2, 3)
	if r.Full || r.Through.IsZero() {
		o.Errorf("removal says %+v", r)
	}
	attempts, err := o.Store.Attempts(o.ctx(), h.events[2].ID, 10)
	o.ok(err)
	if len(attempts) != 0 {
		o.Errorf("attempts of a removed event are %+v", attempts)
	}
	o.expectRemoved(o.removeAll(over), 0, 0, 0)
	o.expectIDs("queue", ids(o.queue()), h.events[3].Record)
}

func retentionFromDelivery[TX any](o *outboxRig[TX]) {
	const retention = 200 * time.Millisecond
	for done := false; !done; {
		h := o.ownKey(1)
		o.eventually("the event is older than the retention", func() bool {
			st, err := o.Store.Stats(o.ctx())
			o.ok(err)
			return st.OldestPending > retention
		})
		begun := time.Now()
		h.mark("relay", h.lease, h.events[0])
		r := o.removeDelivered(retention, 10)
		if done = time.Since(begun) < retention; done { // else the machine was too slow to tell
			o.expectRemoved(r, 0, 0, 0)
		}
		o.ok(o.Store.Release(o.ctx(), "relay", []outbox.Lease{h.lease}, false))
		if r.Events == 0 { // remove the events before the next round counts
			o.eventually("removal", func() bool { return o.removeDelivered(retention, 10).Events > 0 })
		}
	}
}

func keepsUndelivered[TX any](o *outboxRig[TX]) {
	h := o.ownKey(5)
	h.park(0, long)
	h.follow(1)
	h.parkDead(2)
	h.parkDead(3)
	h.redrive(h.events[3])
	o.expectRemoved(o.removeAll(over), 0, 0, 0)
	o.expectParked(h.state(0, outbox.Retrying, 1), h.state(1, outbox.Following, 0), h.state(2, outbox.Dead, 10),
		h.state(3, outbox.Retrying, 0))
	o.expectQueue(h.events[4].Record)
	attempts, err := o.Store.Attempts(o.ctx(), h.events[3].ID, 10)
	o.ok(err)
	if len(attempts) != 2 {
		o.Errorf("attempts are %+v", attempts)
	}
}

func removesDiscarded[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.parkDead(0)
	h.parkDead(1)
	h.discard(h.events[0])
	o.expectRemoved(o.removeAll(kept), 0, 0, 0)
	o.expectRemoved(o.removeAll(over), 1, 2, 0)
	o.expectParked(h.state(1, outbox.Dead, 10))
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 0 {
		o.Errorf("attempts of a removed event are %+v", attempts)
	}
}

func removesDiscardedDelivered[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	h.park(0, 0)
	h.discard(h.events[0])
	h.sent(0) // the event was in flight
	o.expectRemoved(o.removeDelivered(kept, 10), 0, 0, 0)
	o.expectRemoved(o.removeDelivered(over, 10), 0, 0, 1)
	o.expectParked(h.state(0, outbox.Discarded, 1))
	r, err := o.Store.RemoveDiscarded(o.ctx(), over, 10)
	o.ok(err)
	o.expectRemoved(r, 1, 2, 0)
	o.expectParked()
}

func removesInBatches[TX any](o *outboxRig[TX]) {
	h := o.ownKey(15)
	for i := range 6 {
		h.mark("relay", h.lease, h.events[i])
	}
	h.mark("relay", h.lease, h.events[6:12]...)
	var after time.Time
	for _, want := range []struct {
		events, receipts int
		full             bool
	}{{4, 4, true}, {8, 3, true}, {0, 0, false}} {
		r, err := o.Store.RemoveDelivered(o.ctx(), over, after, 4)
		o.ok(err)
		o.expectRemoved(r, want.events, 0, want.receipts)
		if r.Full != want.full || r.Through.Before(after) && want.full {
			o.Fatalf("removal says %+v", r)
		}
		after = r.Through
	}
	for i := 12; i < 15; i++ {
		h.parkDead(i)
	}
	h.discard(h.events[12:]...)
	for _, want := range []int{2, 1, 0} {
		r, err := o.Store.RemoveDiscarded(o.ctx(), over, 2)
		o.ok(err)
		if r.Events != want || r.Full != (want == 2) {
			o.Fatalf("removal says %+v, want %d events", r, want)
		}
	}
}

func janitorsAtOnce[TX any](o *outboxRig[TX]) {
	const n = 60
	h := o.ownKey(n)
	for i := range n {
		h.mark("relay", h.lease, h.events[i])
	}
	var mu sync.Mutex
	var sum outbox.Removed
	var results []<-chan error
	for range 3 {
		results = append(results, o.async(func() error {
			for {
				r, err := o.Store.RemoveDelivered(o.ctx(), over, time.Time{}, 7)
				mu.Lock()
				sum.Events += r.Events
				sum.Receipts += r.Receipts
				mu.Unlock()
				if err != nil || !r.Full {
					return err
				}
			}
		}))
	}
	for _, c := range results {
		o.ok(o.result(c))
	}
	o.expectRemoved(sum, n, 0, n)
}

func writtenAfterRemoval[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	again := h.events[0].Record
	h.mark("relay", h.lease, h.events[0])
	if known := o.write(again); !known[0] {
		o.Error("retained event is not known")
	}
	o.expectRemoved(o.removeAll(over), 1, 0, 1)
	if known := o.write(again); known[0] {
		o.Error("removed event is known")
	}
	o.expectQueue(again)
}

// count returns what the store's optional part counts.
func (o *outboxRig[TX]) count(retention time.Duration, limit int) outbox.RemovableCount {
	o.Helper()
	counter, can := o.Store.(outbox.RemovableCounter)
	if !can {
		o.Fatalf("%T is no outbox.RemovableCounter", o.Store)
	}
	c, err := counter.CountRemovable(o.ctx(), retention, limit)
	o.ok(err)
	return c
}

func countsWhatGoes[TX any](o *outboxRig[TX]) {
	h := o.ownKey(6)
	h.park(0, long)
	h.parkDead(1)
	for i := range 3 {
		h.mark("relay", h.lease, h.events[2+i])
	}
	h.parkDead(5)
	h.discard(h.events[5])
	o.requeue(h.events[3])
	h.mark("relay", h.lease, o.queue()...) // two receipts name the event
	o.requeue(h.events[4])                 // stays, and its receipt goes
	later := deferredRecord("key", "later", inAnHour())
	o.write(later)
	o.change(o.cancelIn(later), later)
	if c := o.count(kept, 10); c != (outbox.RemovableCount{}) {
		o.Errorf("counted before the end of the retention: %+v", c)
	}
	want := outbox.RemovableCount{Delivered: 2, Discarded: 1, Cancelled: 1, Attempts: 4, Receipts: 4}
	for range 2 {
		if c := o.count(over, 10); c != want {
			o.Errorf("counted %+v, want %+v", c, want)
		}
	}
	o.expectRemoved(o.removeAll(over), 4, 4, 4)
	if c := o.count(over, 10); c != (outbox.RemovableCount{}) {
		o.Errorf("counted after the removal: %+v", c)
	}
}

func countsUpToALimit[TX any](o *outboxRig[TX]) {
	h := o.ownKey(6)
	for i := range 3 {
		h.mark("relay", h.lease, h.events[i])
	}
	for i := 3; i < 6; i++ {
		h.parkDead(i)
	}
	h.discard(h.events[3:]...)
	if c := o.count(over, 2); c.Delivered != 2 || c.Receipts != 2 || c.Discarded != 2 || !c.Capped {
		o.Errorf("counted %+v", c)
	}
	if c := o.count(over, 4); c.Delivered != 3 || c.Receipts != 3 || c.Discarded != 3 || c.Capped {
		o.Errorf("counted %+v", c)
	}
}
