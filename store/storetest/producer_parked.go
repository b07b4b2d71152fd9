package storetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// parkedState has the compared fields of a parked event.
type parkedState struct {
	seq      int64
	state    outbox.State
	attempts int
}

func (o *outboxRig[TX]) parked() []outbox.Parked {
	o.Helper()
	list, err := o.Store.ListParked(o.ctx(), outbox.Filter{Limit: 1000})
	o.ok(err)
	return list
}

// expectParked checks that exactly the events of want are parked.
func (o *outboxRig[TX]) expectParked(want ...parkedState) {
	o.Helper()
	var got []parkedState
	for _, p := range o.parked() {
		got = append(got, parkedState{p.Seq, p.State, p.Attempts})
	}
	if !slices.Equal(got, want) {
		o.Fatalf("parked are %v, want %v", got, want)
	}
}

// dueNow returns the due events, and how long from now the next event is due.
func (o *outboxRig[TX]) dueNow(shards ...int) ([]outbox.Queued, time.Duration) {
	o.Helper()
	return o.dueHeld(false, shards...)
}

// dueHeld is dueNow with the argument hold.
func (o *outboxRig[TX]) dueHeld(hold bool, shards ...int) ([]outbox.Queued, time.Duration) {
	o.Helper()
	due, next, err := o.Store.Due(o.ctx(), shards, hold, outbox.DuePoint{}, longest, 100)
	o.ok(err)
	return due, next
}

// expectDue checks that exactly the wanted events of a shard are due, in any order.
func (o *outboxRig[TX]) expectDue(shard int, want ...outbox.Queued) {
	o.Helper()
	due, _ := o.dueNow(shard)
	got, wanted := seqs(due), seqs(want)
	slices.Sort(got)
	slices.Sort(wanted)
	if !slices.Equal(got, wanted) {
		o.Fatalf("due are %v, want %v", got, wanted)
	}
}

func seqs(events []outbox.Queued) []int64 {
	list := make([]int64, len(events))
	for i, q := range events {
		list[i] = q.Seq
	}
	return list
}

// held is a relay with a lease of the shard of its events.
type held[TX any] struct {
	*outboxRig[TX]
	lease  outbox.Lease
	events []outbox.Queued
}

// ownKey queues n events of one key and leases their shard to "relay".
func (o *outboxRig[TX]) ownKey(n int) *held[TX] {
	o.Helper()
	records := make([]outbox.Record, n)
	for i := range records {
		records[i] = record("key", fmt.Sprint(i))
	}
	h := &held[TX]{outboxRig: o, events: o.queued(records...)}
	h.lease = o.lease("relay", h.events[0].Shard)
	return h
}

// ownEach queues an event of each key in one shard and leases the shard to "relay".
func (o *outboxRig[TX]) ownEach(keys ...string) *held[TX] {
	o.Helper()
	records := make([]outbox.Record, len(keys))
	for i, key := range keys {
		records[i] = recordIn(7, key)
	}
	return &held[TX]{outboxRig: o, events: o.queued(records...), lease: o.lease("relay", 7)}
}

func (h *held[TX]) kept(lost bool, err error) {
	h.Helper()
	h.ok(err)
	if lost {
		h.Fatal("shard is lost")
	}
}

// park parks event i as retrying after retryIn, or dead.
func (h *held[TX]) park(i int, retryIn time.Duration) {
	h.Helper()
	h.kept(h.Store.Park(h.ctx(), "relay", h.lease, []outbox.Failure{failureOf(h.events[i], 1, retryIn)}))
}

func (h *held[TX]) parkDead(i int) {
	h.Helper()
	f := failureOf(h.events[i], 10, 0)
	f.Dead = true
	h.kept(h.Store.Park(h.ctx(), "relay", h.lease, []outbox.Failure{f}))
}

func (h *held[TX]) follow(indexes ...int) {
	h.Helper()
	marks := make([]outbox.Mark, len(indexes))
	for n, i := range indexes {
		marks[n] = markOf(h.lease, h.events[i])
	}
	h.kept(h.Store.Follow(h.ctx(), "relay", h.lease, marks))
}

func (h *held[TX]) sent(indexes ...int) {
	h.Helper()
	h.sentOnHold(false, indexes...)
}

func (h *held[TX]) sentOnHold(hold bool, indexes ...int) {
	h.Helper()
	marks := make([]outbox.Mark, len(indexes))
	for n, i := range indexes {
		marks[n] = markOf(h.lease, h.events[i])
	}
	lost, err := h.Store.Sent(h.ctx(), "relay", marks, hold)
	h.kept(len(lost) > 0, err)
}

// retry records another failure of event i.
func (h *held[TX]) retry(i, attempts int, retryIn time.Duration, dead, hold bool) {
	h.Helper()
	f := failureOf(h.events[i], attempts, retryIn)
	f.Dead = dead
	h.kept(h.Store.Retry(h.ctx(), "relay", h.lease, []outbox.Failure{f}, hold))
}

func (h *held[TX]) heal(hold bool) {
	h.Helper()
	h.ok(h.Store.Heal(h.ctx(), "relay", []outbox.Lease{h.lease}, hold))
}

// state returns the expected state of event i.
func (h *held[TX]) state(i int, state outbox.State, attempts int) parkedState {
	return parkedState{h.events[i].Seq, state, attempts}
}

func parkedTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "parked event leaves the queue and is due after its backoff", run: parkedIsDueLater[TX]},
		{fact: "parked event comes back as it was written", run: parkedComesBack[TX]},
		{fact: "follower is not due", run: followerIsNotDue[TX]},
		{fact: "events without a key block nothing", run: keylessBlockNothing[TX]},
		{fact: "dead event is not due and blocks with hold only", run: deadBlocksWithHold[TX]},
		{fact: "blocked keys come in pages", run: blockedPages[TX]},
		{fact: "blocked key is told once, however many events it has", run: blockedOnce[TX]},
		{fact: "due events come earliest first and at most as many as asked for", run: dueOrder[TX]},
		{fact: "event that was to wait for longer than any may is due", run: dueFarAhead[TX]},
		{fact: "due events come in pages, those that are due at once included", run: duePages[TX]},
		{fact: "parked events of a key come in the order of writing", run: parkedOfKey[TX]},
		{fact: "parked events of several keys come by key", run: parkedOfKeys[TX]},
		{fact: "events of several shards are recorded as sent, except in lost shards", run: sentOfShards[TX]},
		{fact: "every failure is kept as an attempt", run: attemptsAreKept[TX]},
		{fact: "failure that is recorded twice counts once and does not bury what was redriven", run: retryTwice[TX]},
		{fact: "error text that the database cannot hold is parked all the same", run: oddErrorText[TX]},
	}
}

func parkedIsDueLater[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.park(0, long)
	o.expectQueue(h.events[1].Record)
	o.expectParked(h.state(0, outbox.Retrying, 1))
	due, next := o.dueNow(h.lease.Shard)
	if len(due) != 0 || next <= long-time.Minute || next > long {
		o.Errorf("due are %v, next in %v", due, next)
	}
	h.retry(0, 2, 0, false, false)
	due, next = o.dueNow(h.lease.Shard)
	if len(due) != 1 || due[0].Seq != h.events[0].Seq || next != 0 {
		o.Errorf("due are %v, next in %v", due, next)
	}
	if other, next := o.dueNow((h.lease.Shard + 1) % 64); len(other) != 0 || next != 0 {
		o.Errorf("of another shard, %v are due, next in %v", other, next)
	}
	h.sent(0)
	o.expectParked()
	o.expectQueue(h.events[1].Record)
}

func parkedComesBack[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.park(0, 0)
	h.follow(1)
	due, _ := o.dueNow(h.lease.Shard)
	all := o.parkedOf(h.lease.Shard, "key", false, 10)
	if len(due) != 1 || len(all) != 2 {
		o.Fatalf("%d are due, %d are parked", len(due), len(all))
	}
	want := [2]outbox.Queued{h.events[0], h.events[1]}
	want[0].Attempts, want[0].State = 1, outbox.Retrying
	want[1].State = outbox.Following
	if age := due[0].Stamp.Sub(due[0].DueAt).Abs(); age > time.Minute {
		o.Errorf("the event was due at %v", due[0].DueAt)
	}
	due[0].DueAt = time.Time{}
	for _, c := range []struct{ got, want outbox.Queued }{{due[0], want[0]}, {all[0], want[0]}, {all[1], want[1]}} {
		c.want.Round = 0 // of rows of the queue only
		if fmt.Sprintf("%+v", c.got) != fmt.Sprintf("%+v", c.want) {
			o.Errorf("parked event is\n%+v, want\n%+v", c.got, c.want)
		}
	}
}

func followerIsNotDue[TX any](o *outboxRig[TX]) {
	h := o.ownKey(3)
	h.park(0, 0)
	h.follow(1, 2)
	o.expectQueue()
	o.expectParked(h.state(0, outbox.Retrying, 1), h.state(1, outbox.Following, 0), h.state(2, outbox.Following, 0))
	o.expectDue(h.lease.Shard, h.events[0])
	h.retry(0, 2, long, false, false)
	o.expectDue(h.lease.Shard)
}

func keylessBlockNothing[TX any](o *outboxRig[TX]) {
	var same []outbox.Record // events without a key that share a shard
	for len(same) < 3 {
		if r := record("", "x"); len(same) == 0 || r.Shard == same[0].Shard {
			same = append(same, r)
		}
	}
	h := &held[TX]{outboxRig: o, events: o.queued(same...)}
	h.lease = o.lease("relay", same[0].Shard)
	h.park(0, 0)
	h.park(1, long)
	h.park(2, 0)
	o.expectDue(h.lease.Shard, h.events[0], h.events[2])
	h.retry(0, 2, 0, true, false)
	h.sent(2)
	o.expectParked(h.state(0, outbox.Dead, 2), h.state(1, outbox.Retrying, 1))
	o.expectDue(h.lease.Shard)
	for _, hold := range []bool{false, true} {
		keys, err := o.Store.Blocked(o.ctx(), []int{h.lease.Shard}, hold, outbox.BlockedKey{}, 10)
		o.ok(err)
		if len(keys) != 0 {
			o.Errorf("blocked keys are %v", keys)
		}
	}
}

func deadBlocksWithHold[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.parkDead(0)
	o.expectParked(h.state(0, outbox.Dead, 10))
	o.expectDue(h.lease.Shard)
	h.expectBlocked(false)
	h.expectBlocked(true, "key")
	h.follow(1)
	h.expectBlocked(false, "key")
	o.expectDue(h.lease.Shard)
}

func (h *held[TX]) expectBlocked(hold bool, want ...string) {
	h.Helper()
	keys, err := h.Store.Blocked(h.ctx(), []int{h.lease.Shard}, hold, outbox.BlockedKey{}, 100)
	h.ok(err)
	var got []string
	for _, k := range keys {
		if k.Shard != h.lease.Shard {
			h.Errorf("blocked key %v is of another shard", k)
		}
		got = append(got, k.Key)
	}
	if !slices.Equal(got, want) {
		h.Errorf("with hold %t, blocked keys are %q, want %q", hold, got, want)
	}
}

func blockedPages[TX any](o *outboxRig[TX]) {
	shards := []int{9, 3, 40}
	var records []outbox.Record
	want := make(map[outbox.BlockedKey]bool)
	for i := range 30 {
		for _, shard := range append([]int{50}, shards...) {
			r := recordIn(shard, fmt.Sprintf("Ключ %d", i))
			records = append(records, r)
			if shard != 50 {
				want[outbox.BlockedKey{Shard: shard, Key: r.Key}] = true
			}
		}
	}
	events := o.queued(records...)
	leases := make(map[int]outbox.Lease)
	for _, g := range o.acquire("relay", long) {
		leases[g.Shard] = g.Lease
	}
	for _, q := range events {
		o.ok(second(o.Store.Park(o.ctx(), "relay", leases[q.Shard], []outbox.Failure{failureOf(q, 1, 0)})))
	}
	var after outbox.BlockedKey
	for pages := 0; ; pages++ {
		page, err := o.Store.Blocked(o.ctx(), shards, false, after, 7)
		o.ok(err)
		if len(page) == 0 {
			break
		}
		if len(page) > 7 || pages > 100 {
			o.Fatalf("page %d has %d keys", pages, len(page))
		}
		for _, k := range page {
			if !want[k] {
				o.Fatalf("key %v is repeated or unexpected", k)
			}
			delete(want, k)
		}
		after = page[len(page)-1]
	}
	if len(want) != 0 {
		o.Errorf("missing keys: %v", want)
	}
}

func blockedOnce[TX any](o *outboxRig[TX]) {
	h := o.ownKey(20)
	h.park(0, long)
	for i := 1; i < len(h.events); i++ {
		h.follow(i)
	}
	h.expectBlocked(false, "key")
	h.expectBlocked(true, "key")
	none, err := o.Store.Blocked(o.ctx(), nil, true, outbox.BlockedKey{}, 10)
	o.ok(err)
	if len(none) != 0 {
		o.Errorf("blocked keys of no shard are %v", none)
	}
}

func dueOrder[TX any](o *outboxRig[TX]) {
	a, b, c := recordIn(7, "a"), recordIn(7, "b"), recordIn(8, "c")
	events := o.queued(a, b, c)
	leases := make(map[int]outbox.Lease)
	for _, g := range o.acquire("relay", long) {
		leases[g.Shard] = g.Lease
	}
	for _, i := range []int{2, 0, 1} { // due in this order
		q := events[i]
		o.ok(second(o.Store.Park(o.ctx(), "relay", leases[q.Shard], []outbox.Failure{failureOf(q, 1, 0)})))
	}
	for limit, want := range map[int][]int64{
		1: {events[2].Seq}, 2: {events[2].Seq, events[0].Seq}, 9: {events[2].Seq, events[0].Seq, events[1].Seq},
	} {
		due, _, err := o.Store.Due(o.ctx(), []int{7, 8}, false, outbox.DuePoint{}, longest, limit)
		o.ok(err)
		if !slices.Equal(seqs(due), want) {
			o.Errorf("at most %d due: %v, want %v", limit, seqs(due), want)
		}
	}
}

func dueFarAhead[TX any](o *outboxRig[TX]) {
	h := o.ownEach("a", "b", "c", "d")
	h.park(0, 2*longest) // as if the clock had been ahead
	h.park(1, long)
	h.park(2, 3*longest)
	h.park(3, 0)
	want := []int64{h.events[3].Seq, h.events[0].Seq, h.events[2].Seq}
	var after outbox.DuePoint
	var got []int64
	for range len(h.events) {
		page, next, err := o.Store.Due(o.ctx(), []int{h.lease.Shard}, false, after, longest, 2)
		o.ok(err)
		if next <= long-time.Minute || next > long {
			o.Errorf("the next event is due in %v", next)
		}
		if got = append(got, seqs(page)...); len(page) == 0 {
			break
		}
		after = outbox.DuePoint{At: page[len(page)-1].DueAt, Seq: page[len(page)-1].Seq}
	}
	if !slices.Equal(got, want) {
		o.Errorf("due are %v, want %v", got, want)
	}
}

func duePages[TX any](o *outboxRig[TX]) {
	var records []outbox.Record
	for i := range 20 {
		records = append(records, recordIn(7+i%2, fmt.Sprint("k", i)))
	}
	events := o.queued(records...)
	leases := make(map[int]outbox.Lease)
	for _, g := range o.acquire("relay", long) {
		leases[g.Shard] = g.Lease
	}
	for _, shard := range []int{7, 8} { // the events of one shard in one statement
		var failures []outbox.Failure
		for _, q := range events {
			if q.Shard == shard {
				failures = append(failures, failureOf(q, 1, 0))
			}
		}
		o.ok(second(o.Store.Park(o.ctx(), "relay", leases[shard], failures)))
	}
	var after outbox.DuePoint
	var got []int64
	for {
		page, _, err := o.Store.Due(o.ctx(), []int{7, 8}, false, after, longest, 3)
		o.ok(err)
		if len(page) == 0 {
			break
		}
		for _, q := range page {
			if q.DueAt.Before(after.At) {
				o.Errorf("%d was due at %v, behind %v", q.Seq, q.DueAt, after.At)
			}
			after = outbox.DuePoint{At: q.DueAt, Seq: q.Seq}
		}
		got = append(got, seqs(page)...)
		if len(page) > 3 || len(got) > len(events) {
			o.Fatalf("due are %v", got)
		}
	}
	slices.Sort(got)
	if want := seqs(events); !slices.Equal(got, want) {
		o.Errorf("due are %v, want %v", got, want)
	}
}

func retryTwice[TX any](o *outboxRig[TX]) {
	h := o.ownKey(2)
	h.park(0, 0)
	h.follow(1)
	h.retry(0, 2, long, false, false)
	h.retry(0, 2, 0, false, false)
	o.expectDue(h.lease.Shard)
	h.retry(0, 3, 0, true, true)
	o.redrive(h.events[0])
	h.retry(0, 3, 0, true, true)
	o.expectParked(h.state(0, outbox.Retrying, 0), h.state(1, outbox.Following, 0))
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 4 { // three failures and the redrive
		o.Errorf("attempts are %+v", attempts)
	}
}

func attemptsAreKept[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	h.park(0, 0)
	h.retry(0, 2, 0, false, false)
	h.retry(0, 3, 0, true, false)
	attempts, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 10)
	o.ok(err)
	if len(attempts) != 3 {
		o.Fatalf("attempts are %v", attempts)
	}
	for i, a := range attempts {
		if a.Outcome != transport.Refused.String() || a.Error != "the broker's words" || a.Relay != "relay" ||
			a.At.IsZero() || i > 0 && a.At.Before(attempts[i-1].At) {
			o.Errorf("attempt %d is %+v", i, a)
		}
	}
	first, err := o.Store.Attempts(o.ctx(), h.events[0].ID, 1)
	o.ok(err)
	if len(first) != 1 || !first[0].At.Equal(attempts[0].At) {
		o.Errorf("first attempt is %v", first)
	}
	if p := o.parked()[0]; p.LastError != "the broker's words" || p.State != outbox.Dead || !p.NextAttemptAt.IsZero() {
		o.Errorf("parked event is %+v", p)
	}
}

func oddErrorText[TX any](o *outboxRig[TX]) {
	h := o.ownKey(1)
	f := failureOf(h.events[0], 1, 0)
	f.Error = "a\x00b\n'\"\\"
	h.kept(h.Store.Park(h.ctx(), "relay", h.lease, []outbox.Failure{f}))
	o.expectParked(h.state(0, outbox.Retrying, 1))
}
