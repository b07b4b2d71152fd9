package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

func deferredTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "deferred event is not queued and can be listed", run: deferredIsListed[TX]},
		{fact: "event whose time is over is queued at once", run: pastIsQueued[TX]},
		{fact: "due events are moved, the first due first, and so many of each shard", run: dueAreMoved[TX]},
		{fact: "next due time is told", run: nextDueIsTold[TX]},
		{fact: "events of a lost shard are not moved", run: undeferIsFenced[TX]},
		{fact: "stamp of a deferred event is when it was due", run: stampIsDue[TX]},
		{fact: "cancelled event is kept with the reason and never moved", run: cancelKeeps[TX]},
		{fact: "moved event can neither be cancelled nor rescheduled", run: movedIsNotCancelled[TX]},
		{fact: "cancel that is rolled back changes nothing", run: cancelRolledBack[TX]},
		{fact: "event that is being cancelled holds up nobody", run: cancelHoldsUpNobody[TX], twoWriters: true},
		{fact: "event is cancelled or moved, not both", run: cancelAgainstUndefer[TX]},
		{fact: "rescheduled event waits for its new time", run: reschedules[TX]},
		{fact: "event written again keeps its first time", run: rewrittenKeepsTime[TX]},
		{fact: "deferred event is neither replayed nor removed", run: deferredIsNotDelivered[TX]},
		{fact: "event that was deferred is replayed by when it was due", run: replayByDueTime[TX]},
		{fact: "stats count deferred events, and those that are due as late", run: deferredStats[TX]},
	}
}

// deferredRecord is record for an event that is due at a time.
func deferredRecord(key, payload string, at time.Time) outbox.Record {
	r := record(key, payload)
	r.DeliverAt = at
	return r
}

func inAnHour() time.Time { return time.Now().Add(time.Hour) }

// waiting returns the deferred events.
func (o *outboxRig[TX]) waiting() []outbox.Deferred {
	o.Helper()
	list, err := o.Store.ListDeferred(o.ctx(), outbox.DeferredFilter{Limit: 1000})
	o.ok(err)
	return list
}

// writeDueSoon writes a as the only deferred event, and others. It returns when a is due. An event
// that is written too late would be queued at once.
func (o *outboxRig[TX]) writeDueSoon(a outbox.Record, others ...outbox.Record) time.Time {
	o.Helper()
	for written := false; !written; {
		a.DeliverAt = time.Now().Add(300 * time.Millisecond)
		tx := o.begin()
		o.appendIn(tx, uuid.New(), append([]outbox.Record{a}, others...)...)
		if written = time.Now().Before(a.DeliverAt); written {
			o.commit(tx)
		} else {
			o.rollback(tx)
		}
	}
	list := o.waiting()
	if len(list) != 1 || list[0].ID != a.ID {
		o.Fatalf("deferred are %+v", list)
	}
	return list[0].DueAt
}

// expectDeferred checks that exactly records are deferred, in this order.
func (o *outboxRig[TX]) expectDeferred(records ...outbox.Record) {
	o.Helper()
	var got []uuid.UUID
	for _, d := range o.waiting() {
		got = append(got, d.ID)
	}
	o.expectIDs("list of deferred events", got, records...)
}

// undefer moves due events to the queue.
func (o *outboxRig[TX]) undefer(relay string, limit int, leases ...outbox.Lease) outbox.Undeferred {
	o.Helper()
	u, err := o.Store.Undefer(o.ctx(), relay, leases, limit)
	o.ok(err)
	return u
}

// change runs a change of deferred events in a transaction of its own.
func (o *outboxRig[TX]) change(do func(tx TX) ([]uuid.UUID, error), want ...outbox.Record) {
	o.Helper()
	tx := o.begin()
	got, err := do(tx)
	o.ok(err)
	o.expectIDs("list of changed events", got, want...)
	o.commit(tx)
}

func (o *outboxRig[TX]) cancelIn(records ...outbox.Record) func(tx TX) ([]uuid.UUID, error) {
	return func(tx TX) ([]uuid.UUID, error) {
		return o.Store.Cancel(o.ctx(), tx, recordIDs(records), "not wanted any more")
	}
}

func (o *outboxRig[TX]) moveTo(at time.Time, records ...outbox.Record) func(tx TX) ([]uuid.UUID, error) {
	return func(tx TX) ([]uuid.UUID, error) { return o.Store.Reschedule(o.ctx(), tx, recordIDs(records), at) }
}

// recordIDs returns the IDs of records from the last to the first.
func recordIDs(records []outbox.Record) []uuid.UUID {
	var list []uuid.UUID
	for _, r := range slices.Backward(records) {
		list = append(list, r.ID)
	}
	return list
}

// makeDue makes deferred events due now.
func (o *outboxRig[TX]) makeDue(records ...outbox.Record) {
	o.Helper()
	o.change(o.moveTo(time.Now().Add(-time.Minute), records...), records...)
}

func deferredIsListed[TX any](o *outboxRig[TX]) {
	at := inAnHour()
	a, b := deferredRecord("key", "a", at), deferredRecord("other", "b", at.Add(time.Hour))
	b.Topic, b.Headers = "other topic", map[string]string{"name": "value"}
	now := record("key", "now")
	known := o.write(a, now, b)
	if slices.Contains(known, true) {
		o.Fatalf("known are %v", known)
	}
	o.expectQueue(now)
	o.expectDeferred(a, b)
	list := o.waiting()
	if got := list[1]; got.DueAt.Sub(b.DeliverAt).Abs() > time.Millisecond || !got.Stamp.Equal(got.DueAt) || string(got.Payload) != "b" ||
		got.Shard != b.Shard || got.Headers["name"] != "value" || got.Seq <= list[0].Seq {
		o.Errorf("listed is %+v", got)
	}
	for _, c := range []struct {
		name string
		f    outbox.DeferredFilter
		want []outbox.Record
	}{
		{"by ID", outbox.DeferredFilter{IDs: []uuid.UUID{b.ID, now.ID}}, []outbox.Record{b}},
		{"by topic", outbox.DeferredFilter{Topic: "other topic"}, []outbox.Record{b}},
		{"by key", outbox.DeferredFilter{Key: "key"}, []outbox.Record{a}},
		{"from a time", outbox.DeferredFilter{From: at.Add(time.Minute)}, []outbox.Record{b}},
		{"to a time", outbox.DeferredFilter{To: at.Add(time.Minute)}, []outbox.Record{a}},
		{"limit", outbox.DeferredFilter{Limit: 1}, []outbox.Record{a}},
		{"next page", outbox.DeferredFilter{After: list[0].Seq}, []outbox.Record{b}},
	} {
		list, err := o.Store.ListDeferred(o.ctx(), c.f)
		o.ok(err)
		var got []uuid.UUID
		for _, d := range list {
			got = append(got, d.ID)
		}
		o.expectIDs(c.name, got, c.want...)
	}
}

func pastIsQueued[TX any](o *outboxRig[TX]) {
	past := deferredRecord("key", "past", time.Now().Add(-time.Hour))
	events := o.queued(past)
	o.expectDeferred()
	if age := time.Since(events[0].Stamp); age > time.Minute {
		o.Errorf("stamp is %v ago, so not the time of writing", age)
	}
}

func dueAreMoved[TX any](o *outboxRig[TX]) {
	now := time.Now()
	var all []outbox.Record
	for range 5 {
		all = append(all, deferredRecord("key", "x", inAnHour()))
	}
	later := deferredRecord("key", "later", inAnHour())
	o.write(append(slices.Clone(all), later)...)
	lease := o.lease("relay", later.Shard)
	for i, minutes := range []int{1, 5, 3, 5, 2} { // ago
		at := now.Add(-time.Duration(minutes) * time.Minute)
		o.change(o.moveTo(at, all[i]), all[i])
	}
	var order []int64
	bySeq := make(map[int64]int)
	for i, d := range o.waiting() {
		bySeq[d.Seq] = i
	}
	for _, want := range [][]int{{1, 3}, {2, 4}, {0}, {}} {
		u := o.undefer("relay", 2, lease)
		var got []int
		for _, m := range u.Moved {
			got = append(got, bySeq[m.Seq])
			if m.Shard != lease.Shard {
				o.Errorf("moved is %+v", m)
			}
			order = append(order, m.Seq)
		}
		slices.Sort(got)
		if !slices.Equal(got, want) && len(got)+len(want) > 0 {
			o.Fatalf("moved are %v, want %v", got, want)
		}
	}
	o.expectQueue(all...)
	o.expectDeferred(later)
	for _, q := range o.queue() {
		if q.Round > 0 || !slices.Contains(order, q.Seq) {
			o.Errorf("queued is %+v", q)
		}
	}
}

func nextDueIsTold[TX any](o *outboxRig[TX]) {
	a, b := deferredRecord("key", "a", time.Now().Add(2*time.Hour)), deferredRecord("key", "b", inAnHour())
	lease := o.lease("relay", a.Shard)
	if u := o.undefer("relay", 10, lease); u.Next != 0 || len(u.Moved)+len(u.Lost) > 0 {
		o.Fatalf("with nothing deferred: %+v", u)
	}
	o.write(a, b)
	if u := o.undefer("relay", 10, lease); (u.Next-time.Hour).Abs() > time.Minute || len(u.Moved) > 0 {
		o.Fatalf("an hour before: %+v", u)
	}
	o.makeDue(b)
	if u := o.undefer("relay", 10, lease); (u.Next-2*time.Hour).Abs() > time.Minute || len(u.Moved) != 1 {
		o.Fatalf("two hours before the next: %+v", u)
	}
	if u := o.undefer("relay", 10); u.Next != 0 || len(u.Moved)+len(u.Lost) > 0 {
		o.Fatalf("without a lease: %+v", u)
	}
}

func undeferIsFenced[TX any](o *outboxRig[TX]) {
	a := deferredRecord("key", "a", inAnHour())
	o.write(a)
	lease := o.lease("relay", a.Shard)
	o.makeDue(a)
	old := lease
	old.Epoch--
	for _, c := range []struct {
		relay string
		lease outbox.Lease
	}{{"stranger", lease}, {"relay", old}} {
		u := o.undefer(c.relay, 10, c.lease)
		if len(u.Moved) > 0 || !slices.Equal(u.Lost, []int{a.Shard}) {
			o.Errorf("%s at epoch %d: %+v", c.relay, c.lease.Epoch, u)
		}
	}
	o.expectDeferred(a)
	o.expectQueue()
	if u := o.undefer("relay", 10, lease); len(u.Moved) != 1 || len(u.Lost) > 0 {
		o.Errorf("owner: %+v", u)
	}
}

func stampIsDue[TX any](o *outboxRig[TX]) {
	a := record("key", "a")
	a.ResendFor = time.Hour
	due := o.writeDueSoon(a)
	lease := o.lease("relay", a.Shard)
	o.eventually("move of the event", func() bool { return len(o.undefer("relay", 10, lease).Moved) > 0 })
	q := o.queue()[0]
	if !q.Stamp.Equal(due) || !q.ResendUntil.Equal(due.Add(time.Hour)) {
		o.Errorf("stamp is %v, may be sent until %v, was due at %v", q.Stamp, q.ResendUntil, due)
	}
	b := deferredRecord("key", "b", inAnHour())
	o.write(b)
	o.makeDue(b) // due before it was written
	o.undefer("relay", 10, lease)
	if q := o.queue()[1]; time.Since(q.Stamp) > 30*time.Second {
		o.Errorf("stamp is %v, before the event was written", q.Stamp)
	}
}

func cancelKeeps[TX any](o *outboxRig[TX]) {
	a, b, now := deferredRecord("key", "a", inAnHour()), deferredRecord("key", "b", inAnHour()), record("key", "now")
	o.write(a, b, now)
	o.change(o.cancelIn(now), nil...)
	o.change(o.cancelIn(a, record("key", "unknown"), now), a)
	o.change(o.cancelIn(a), nil...)
	o.change(o.moveTo(time.Now(), a), nil...)
	o.expectDeferred(b)
	parked := o.parked()
	if len(parked) != 1 || parked[0].ID != a.ID || parked[0].State != outbox.Cancelled || parked[0].Reason != "not wanted any more" {
		o.Fatalf("parked are %+v", parked)
	}
	attempts, err := o.Store.Attempts(o.ctx(), a.ID, 10)
	o.ok(err)
	if len(attempts) != 1 || attempts[0].Outcome != "cancelled" || attempts[0].Error != "not wanted any more" {
		o.Errorf("attempts are %+v", attempts)
	}
	if known := o.write(a); !known[0] {
		o.Error("a cancelled event is not known when it is written again")
	}
	discarded, err := o.Store.Discard(o.ctx(), outbox.Filter{}, "reason")
	o.ok(err)
	redriven, _, err := o.Store.Redrive(o.ctx(), outbox.Filter{}, "reason")
	o.ok(err)
	if len(discarded)+len(redriven) > 0 {
		o.Errorf("discarded %v and redrove %v after a cancel", discarded, redriven)
	}
	lease := o.lease("relay", a.Shard)
	o.makeDue(b)
	o.undefer("relay", 10, lease)
	o.expectQueue(b, now)
	if r := o.removeDiscarded(); r != 1 {
		o.Errorf("%d discarded events were removed", r)
	}
}

// removeDiscarded removes discarded events, and returns the number of removed events.
func (o *outboxRig[TX]) removeDiscarded() int {
	o.Helper()
	r, err := o.Store.RemoveDiscarded(o.ctx(), 0, 100)
	o.ok(err)
	return r.Events
}

func movedIsNotCancelled[TX any](o *outboxRig[TX]) {
	a := deferredRecord("key", "a", inAnHour())
	o.write(a)
	lease := o.lease("relay", a.Shard)
	o.makeDue(a)
	o.undefer("relay", 10, lease)
	o.change(o.cancelIn(a), nil...)
	o.change(o.moveTo(inAnHour(), a), nil...)
	o.expectQueue(a)
	o.mark("relay", lease, o.queue()...)
	o.change(o.cancelIn(a), nil...)
	if parked := o.parked(); len(parked) > 0 {
		o.Errorf("parked are %+v", parked)
	}
}

func cancelRolledBack[TX any](o *outboxRig[TX]) {
	a, b := deferredRecord("key", "a", inAnHour()), deferredRecord("key", "b", inAnHour())
	o.write(a, b)
	due := o.waiting()[1].DueAt
	tx := o.begin()
	_, err := o.cancelIn(a)(tx)
	o.ok(err)
	_, err = o.moveTo(time.Now().Add(-time.Hour), b)(tx)
	o.ok(err)
	o.rollback(tx)
	o.expectDeferred(a, b)
	if got := o.waiting()[1]; !got.DueAt.Equal(due) || !got.Stamp.Equal(due) {
		o.Errorf("after a rollback, deferred is %+v, was due at %v", got, due)
	}
	if parked := o.parked(); len(parked) > 0 {
		o.Errorf("parked are %+v", parked)
	}
}

func cancelHoldsUpNobody[TX any](o *outboxRig[TX]) {
	a, b := deferredRecord("key", "a", inAnHour()), deferredRecord("key", "b", inAnHour())
	o.write(a, b)
	lease := o.lease("relay", a.Shard)
	o.makeDue(a, b)
	tx := o.begin()
	_, err := o.cancelIn(a)(tx)
	o.ok(err)
	if u := o.undefer("relay", 1, lease); len(u.Moved) != 1 {
		o.Fatalf("beside an event that is being cancelled: %+v", u)
	}
	o.expectQueue(b)
	o.rollback(tx)
	if u := o.undefer("relay", 1, lease); len(u.Moved) != 1 {
		o.Fatalf("after the cancel was rolled back: %+v", u)
	}
	o.expectQueue(a, b)
}

func cancelAgainstUndefer[TX any](o *outboxRig[TX]) {
	const n = 30
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = deferredRecord("key", "x", inAnHour())
	}
	o.write(records...)
	lease := o.lease("relay", records[0].Shard)
	o.makeDue(records...)
	var cancelled []uuid.UUID
	done := o.async(func() error {
		for _, r := range records {
			tx, err := o.Begin(o.ctx())
			if err != nil {
				return err
			}
			ids, err := o.Store.Cancel(o.ctx(), tx, []uuid.UUID{r.ID}, "reason")
			if err == nil {
				err = o.Commit(o.ctx(), tx)
			}
			if err != nil {
				return errors.Join(err, o.Rollback(o.ctx(), tx))
			}
			cancelled = append(cancelled, ids...)
		}
		return nil
	})
	moved := 0
	for range 2 * n {
		moved += len(o.undefer("relay", 1, lease).Moved)
	}
	o.ok(o.result(done))
	moved += len(o.undefer("relay", n, lease).Moved)
	if moved+len(cancelled) != n || len(o.waiting()) > 0 {
		o.Fatalf("%d moved and %d cancelled of %d; %d still wait", moved, len(cancelled), n, len(o.waiting()))
	}
	for _, q := range o.queue() {
		if slices.Contains(cancelled, q.ID) {
			o.Errorf("event %d is cancelled and queued", q.Seq)
		}
	}
}

func reschedules[TX any](o *outboxRig[TX]) {
	a, b := deferredRecord("key", "a", inAnHour()), deferredRecord("key", "b", inAnHour())
	o.write(a, b)
	lease := o.lease("relay", a.Shard)
	o.makeDue(a, b)
	at := time.Now().Add(3 * time.Hour).Truncate(time.Millisecond)
	o.change(o.moveTo(at, a, record("key", "unknown")), a)
	if u := o.undefer("relay", 10, lease); len(u.Moved) != 1 || (u.Next-3*time.Hour).Abs() > time.Minute {
		o.Fatalf("after a move to three hours later: %+v", u)
	}
	o.expectQueue(b)
	if d := o.waiting()[0]; d.ID != a.ID || !d.DueAt.Equal(at) || !d.Stamp.Equal(at) {
		o.Errorf("deferred is %+v", d)
	}
}

func rewrittenKeepsTime[TX any](o *outboxRig[TX]) {
	a := deferredRecord("key", "a", inAnHour())
	o.write(a)
	due := o.waiting()[0].DueAt
	for _, at := range []time.Time{{}, time.Now().Add(-time.Hour), inAnHour().Add(time.Hour)} {
		again := a
		again.DeliverAt = at
		if known := o.write(again, record("key", "new")); !known[0] || known[1] {
			o.Fatalf("known are %v", known)
		}
	}
	if list := o.waiting(); len(list) != 1 || !list[0].DueAt.Equal(due) {
		o.Errorf("deferred are %+v, was due at %v", list, due)
	}
	now := record("key", "now")
	o.write(now)
	now.DeliverAt = inAnHour()
	if known := o.write(now); !known[0] {
		o.Error("a known event is not known when it is written again with a due time")
	}
	o.expectDeferred(a)
}

func deferredIsNotDelivered[TX any](o *outboxRig[TX]) {
	a := deferredRecord("key", "a", inAnHour())
	o.write(a)
	page, err := o.Store.Retained(o.ctx(), outbox.Selection{}, 0, 100, 100)
	o.ok(err)
	if len(page.Events) > 0 {
		o.Errorf("retained are %+v", page.Events)
	}
	queued, err := o.Store.Requeue(o.ctx(), []int64{o.waiting()[0].Seq}, "")
	o.ok(err)
	if len(queued) > 0 {
		o.Errorf("queued again are %+v", queued)
	}
	o.removeAll(0)
	o.removeDiscarded()
	o.expectDeferred(a)
	if got := o.waiting()[0]; string(got.Payload) != "a" {
		o.Errorf("deferred is %+v", got)
	}
}

func deferredStats[TX any](o *outboxRig[TX]) {
	a, b := deferredRecord("key", "a", inAnHour()), deferredRecord("other", "b", inAnHour())
	o.write(a, b)
	st, err := o.Store.Stats(o.ctx())
	o.ok(err)
	if st.Deferred != 2 || st.Pending != 0 || st.OldestPending != 0 {
		o.Fatalf("stats are %+v", st)
	}
	o.makeDue(a) // due a minute ago
	st, err = o.Store.Stats(o.ctx())
	o.ok(err)
	if st.Deferred != 2 || (st.OldestPending-time.Minute).Abs() > 30*time.Second {
		o.Fatalf("with an event that no relay moves, stats are %+v", st)
	}
	lease := o.lease("relay", a.Shard)
	o.undefer("relay", 10, lease)
	st, err = o.Store.Stats(o.ctx())
	o.ok(err)
	if st.Deferred != 1 || st.Pending != 1 || st.OldestPending > 30*time.Second {
		o.Errorf("with a moved event, which counts from its writing at least, stats are %+v", st)
	}
}
