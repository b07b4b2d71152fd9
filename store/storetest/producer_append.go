package storetest

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func contains(s, part string) bool { return strings.Contains(s, part) }

func appendTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "event comes back as it was written", run: eventComesBack[TX]},
		{fact: "many events come back as they were written, in their order", run: manyComeBack[TX]},
		{fact: "stamp is the time of writing and the same in every copy", run: stampIsTime[TX]},
		{fact: "event is queued once its transaction is committed", run: queuedOnCommit[TX]},
		{fact: "rolled-back event is not there", run: rolledBackIsGone[TX]},
		{fact: "IDs follow the order of the records", run: idsFollowOrder[TX]},
		{fact: "no records are no error", run: noRecords[TX]},
		{fact: "repeated event is known and changes nothing", run: repeatedIsKnown[TX]},
		{fact: "delivered event is still known", run: deliveredIsKnown[TX]},
		{fact: "other content under a known ID dooms the transaction", run: conflictDooms[TX]},
		{fact: "other content conflicts within one transaction", run: conflictInTransaction[TX]},
		{fact: "conflict names the event, and shows no content", run: conflictNamed[TX]},
		{fact: "second writer is refused and writes nothing", run: secondWriter[TX]},
		{fact: "every transaction may have a writer of its own", run: writerPerTransaction[TX]},
	}
}

func eventComesBack[TX any](o *outboxRig[TX]) {
	full := complete(transport.Event{
		ID: uuid.New(), Topic: `order."placed"`, Key: "Ключ 'x'", Type: "type\n\t", Payload: []byte{0, 1, 0xff, 0xfe, '\'', '\\'},
		Producer: "pröducer", Source: "source/1", Version: -9_007_199_254_740_993, Index: 1<<31 - 1,
		SchemaVersion: 7, ContentType: "application/json; charset=utf-8",
		Headers:       map[string]string{"a": "1", "Ünï \"q\"": "multi\nline, \\u0041", "empty": ""},
		CorrelationID: "correlation", TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", TraceState: "a=b",
	})
	full.ResendFor = 36 * time.Hour
	bare := complete(transport.Event{ID: uuid.New(), Topic: "t"})
	for bare.Shard != full.Shard { // so that bare is read right behind full
		bare = complete(transport.Event{ID: uuid.New(), Topic: "t"})
	}
	o.write(full, bare)
	got := o.queue()
	o.expectIDs("queue", ids(got), full, bare)
	for i, want := range []outbox.Record{full, bare} {
		q := got[i]
		if !q.OccurredAt.Equal(want.OccurredAt) || q.Stamp.IsZero() {
			o.Errorf("OccurredAt is %v, want %v; Stamp is %v", q.OccurredAt, want.OccurredAt, q.Stamp)
		}
		if len(q.Payload) == 0 && len(want.Payload) == 0 {
			q.Payload = want.Payload
		}
		if got := q.ResendUntil; got.IsZero() != (want.ResendFor == 0) || !got.IsZero() && got.Sub(q.Stamp) != want.ResendFor {
			o.Errorf("event may be sent again until %v, %v after its stamp", got, got.Sub(q.Stamp))
		}
		q.OccurredAt, q.Stamp, q.ResendUntil = want.OccurredAt, want.Stamp, want.ResendUntil
		if !reflect.DeepEqual(q.Record, want) {
			o.Errorf("event came back as\n%+v, was written as\n%+v", q.Record, want)
		}
		if q.Seq <= 0 || q.Round > 0 || q.Missing || q.Attempts != 0 || q.State != "" {
			o.Errorf("new queue row is %+v", q)
		}
	}
}

func stampIsTime[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	r.Stamp = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	before := time.Now()
	o.write(r)
	first := o.queue()[0].Stamp
	if d := first.Sub(before); d < -time.Minute || d > time.Minute {
		o.Errorf("stamp is %v away from the time of writing", d)
	}
	o.write(r)
	if again := o.queue()[0].Stamp; !again.Equal(first) {
		o.Errorf("stamp was %v, and is %v after the event was written again", first, again)
	}
}

func queuedOnCommit[TX any](o *outboxRig[TX]) {
	a, b := record("key", "a"), record("key", "b")
	tx := o.begin()
	o.appendIn(tx, uuid.New(), a, b)
	if !o.OneWriter {
		o.expectQueue()
	}
	o.commit(tx)
	o.expectQueue(a, b)
}

func rolledBackIsGone[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	tx := o.begin()
	o.appendIn(tx, uuid.New(), r)
	o.rollback(tx)
	o.expectQueue()
	if known := o.write(r); known[0] {
		o.Error("a rolled-back event is known")
	}
	o.expectQueue(r)
}

func idsFollowOrder[TX any](o *outboxRig[TX]) {
	var all []outbox.Record
	for range 3 {
		records := make([]outbox.Record, 400)
		for i := range records {
			records[i] = record("", "x") // spread over the shards
		}
		o.write(records...)
		all = append(all, records...)
	}
	o.expectQueue(all...)
	seqs := o.queue()
	if !slices.IsSortedFunc(seqs, func(a, b outbox.Queued) int { return int(a.Seq - b.Seq) }) {
		o.Error("Seq does not ascend")
	}
}

func noRecords[TX any](o *outboxRig[TX]) {
	tx := o.begin()
	known, err := o.Store.Append(o.ctx(), tx, uuid.New(), nil)
	if err != nil || len(known) != 0 {
		o.Errorf("append of nothing gives %v, %v", known, err)
	}
	o.commit(tx)
}

func repeatedIsKnown[TX any](o *outboxRig[TX]) {
	a, b, c := record("key", "a"), record("key", "b"), record("key", "c")
	o.write(a, b)
	before := o.queue()
	if known := o.write(b, c, a); !slices.Equal(known, []bool{true, false, true}) {
		o.Errorf("known is %v, want that of b and a", known)
	}
	o.expectQueue(a, b, c)
	if after := o.queue(); !reflect.DeepEqual(before, after[:2]) {
		o.Errorf("queued events changed from %v to %v", before, after[:2])
	}
	tx, writer := o.begin(), uuid.New()
	d := record("key", "d")
	o.appendIn(tx, writer, d)
	if known := o.appendIn(tx, writer, d); !known[0] {
		o.Error("event is not known in the transaction that wrote it")
	}
	o.commit(tx)
	o.expectQueue(a, b, c, d)
}

func deliveredIsKnown[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	q := o.queued(r)[0]
	lease := o.lease("relay", q.Shard)
	o.mark("relay", lease, q)
	if known := o.write(r); !known[0] {
		o.Error("delivered event is not known")
	}
	o.expectQueue()
	tx := o.begin()
	_, err := o.Store.Append(o.ctx(), tx, uuid.New(), []outbox.Record{altered(r)})
	o.expectError(err, outbox.ErrConflict)
	o.ok(o.Rollback(o.ctx(), tx))
}

func conflictDooms[TX any](o *outboxRig[TX]) {
	known, other := record("secret-key", "secret-payload"), record("key", "other")
	o.write(known)
	tx, writer := o.begin(), uuid.New()
	o.appendIn(tx, writer, other)
	_, err := o.Store.Append(o.ctx(), tx, writer, []outbox.Record{altered(known)})
	o.expectError(err, outbox.ErrConflict, "secret-key", "secret-payload")
	if o.Store.Retryable(err) {
		o.Error("a conflict of content is retryable")
	}
	if err := o.Commit(o.ctx(), tx); err == nil {
		o.Error("commit after a conflict succeeded")
		o.expectQueue(known)
	} else {
		_ = o.Rollback(o.ctx(), tx)
	}
	o.expectQueue(known)
}

func conflictInTransaction[TX any](o *outboxRig[TX]) {
	r := record("key", "a")
	tx, writer := o.begin(), uuid.New()
	o.appendIn(tx, writer, r)
	_, err := o.Store.Append(o.ctx(), tx, writer, []outbox.Record{altered(r)})
	o.expectError(err, outbox.ErrConflict)
	_ = o.Rollback(o.ctx(), tx)
	o.expectQueue()
}

func conflictNamed[TX any](o *outboxRig[TX]) {
	shop, err := producer.New[TX](o.Store, producer.Config{Name: "shop"})
	o.ok(err)
	placed := func(version int64, content string) producer.Event {
		return producer.Event{Topic: "orders", Key: "secret-key", Source: "order/7", Version: version, Payload: []byte(content)}
	}
	var id uuid.UUID
	o.ok(shop.Transact(o.ctx(), func(ctx context.Context, w *producer.Writer[TX]) error {
		written, err := w.Write(ctx, placed(3, "secret-payload"))
		o.ok(err)
		id = written[0]
		return nil
	}))
	again := []producer.Event{placed(2, "other"), placed(3, "secret-other"), placed(4, "other")}
	for how, write := range map[string]func(ctx context.Context, w *producer.Writer[TX]) error{
		"now": func(ctx context.Context, w *producer.Writer[TX]) error {
			_, err := w.WriteNow(ctx, again...)
			return err
		},
		"commit": func(ctx context.Context, w *producer.Writer[TX]) error { _, err := w.Write(ctx, again...); return err },
	} {
		err := shop.Transact(o.ctx(), write)
		o.expectError(err, outbox.ErrConflict, "secret-key", "secret-payload", "secret-other")
		for _, part := range []string{id.String(), `topic "orders"`, `source "order/7"`, "version 3", "index 0", "Version"} {
			if err != nil && !strings.Contains(err.Error(), part) {
				o.Errorf("%s: error %q does not say %s", how, err, part)
			}
		}
	}
}

func secondWriter[TX any](o *outboxRig[TX]) {
	a, b, c := record("key", "a"), record("key", "b"), record("key", "c")
	first, second := uuid.New(), uuid.New()
	tx := o.begin()
	o.appendIn(tx, first, a)
	for range 2 { // the second writer stays refused
		_, err := o.Store.Append(o.ctx(), tx, second, []outbox.Record{b})
		o.expectError(err, outbox.ErrSecondWriter)
	}
	o.appendIn(tx, first, c)
	o.commit(tx)
	o.expectQueue(a, c)
}

func writerPerTransaction[TX any](o *outboxRig[TX]) {
	var all []outbox.Record
	for range 5 { // on one connection or several
		r := record("key", "x")
		all = append(all, r)
		o.write(r)
	}
	tx, writer := o.begin(), uuid.New()
	r := record("key", "y")
	o.appendIn(tx, writer, r)
	o.rollback(tx)
	tx = o.begin()
	o.appendIn(tx, uuid.New(), r)
	o.commit(tx)
	o.expectQueue(append(all, r)...)
}

// manyComeBack writes events together that differ only in their content, or in one more field.
func manyComeBack[TX any](o *outboxRig[TX]) {
	differ := []func(r *outbox.Record){
		func(*outbox.Record) {},
		func(r *outbox.Record) { r.Topic = "other" },
		func(r *outbox.Record) { r.Type = "other" },
		func(r *outbox.Record) { r.Producer = "other" },
		func(r *outbox.Record) { r.Source = "other" },
		func(r *outbox.Record) { r.Version, r.Index = 8, 9 },
		func(r *outbox.Record) { r.SchemaVersion = 10 },
		func(r *outbox.Record) { r.ContentType = "text/plain" },
		func(r *outbox.Record) { r.Headers = map[string]string{"name": "value"} },
		func(r *outbox.Record) { r.CorrelationID = "other" },
		func(r *outbox.Record) { r.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" },
		func(r *outbox.Record) { r.TraceState = "a=b" },
		func(r *outbox.Record) { r.OccurredAt = r.OccurredAt.Add(time.Hour) },
		func(r *outbox.Record) { r.ResendFor = time.Hour },
	}
	for _, change := range differ {
		var all []outbox.Record
		for i := range 40 {
			r := record(fmt.Sprint("key-", i), fmt.Sprint(i))
			if i == 30 {
				change(&r)
				r.Digest = transport.ContentDigest(&r.Event)
			}
			all = append(all, r)
		}
		want := len(o.queue()) + len(all)
		o.write(all[:35]...)
		for i, known := range o.write(all...) {
			if known != (i < 35) {
				o.Errorf("event %d: known is %v", i, known)
			}
		}
		got := o.queue()
		if len(got) != want {
			o.Fatalf("%d events are queued, want %d", len(got), want)
		}
		for i, q := range got[want-len(all):] {
			r := &all[i]
			if !q.OccurredAt.Equal(r.OccurredAt) || r.ResendFor > 0 && q.ResendUntil.Sub(q.Stamp) != r.ResendFor {
				o.Errorf("event %d: times are %v, %v, %v", i, q.OccurredAt, q.Stamp, q.ResendUntil)
			}
			q.OccurredAt, q.Stamp, q.ResendUntil, q.ResendFor = r.OccurredAt, r.Stamp, r.ResendUntil, r.ResendFor
			if !reflect.DeepEqual(q.Record, *r) {
				o.Errorf("event came back as\n%+v, was written as\n%+v", q.Record, *r)
			}
		}
	}
}
