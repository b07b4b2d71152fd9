package producer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/observe"
	"github.com/boxpair/boxpair/internal/within"
	"github.com/boxpair/boxpair/producer/internal/wakeup"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// Writer writes the events of one transaction. All code that writes events in the transaction
// shares one Writer, which counts the events for the index in their dispatch IDs: no dispatch ID
// comes up twice. A Writer is not safe for concurrent use.
type Writer[TX any] struct {
	outbox   *Outbox[TX]
	tx       TX
	token    uuid.UUID // names the writer to the store
	consumer string    // the consumer that handles cause
	cause    *transport.Event
	flushes  bool // Flush is called before the commit
	used     bool // events were given to the writer
	within   within.Transaction

	next    map[sequence]int
	counted []sequence           // the sequences of the events in order, for uncount
	queued  *queue               // shared by the writers of one transaction
	late    []outbox.Record      // records written by the commit
	wakes   wakeup.Wakeup        // the wake-up for the written events
	err     error                // error after which the transaction must be rolled back
	seen    *observe.Transaction // nil unless a test watches
}

// sequence is an identity whose events are counted. The count gives each event its index.
type sequence struct {
	kind    byte // 'v'ersion, 'k'ey, 'c'hild
	source  string
	version int64
	key     string
}

// DB returns the transaction: within [Writer.Savepoint], the transaction of the savepoint.
func (w *Writer[TX]) DB() TX { return w.tx }

// Used tells whether the writer was given events to write or to change.
func (w *Writer[TX]) Used() bool { return w.used }

// Write writes events in order and returns their dispatch IDs. An event whose dispatch ID the outbox
// knows is written no second time; the same dispatch ID with other content is an error
// ([outbox.ErrConflict]).
//
// In [Outbox.Transact] and in a consumer's handler, the events go to the database together with the
// COMMIT if the store is an [outbox.CommitStore] (PostgreSQL on pgx): Write does no I/O, and errors
// of the database are errors of the commit. Written so late, the events take their places in the log
// when the transaction has all of its locks, which keeps the order of keys. Write does not wait in a
// transaction of the caller, within a savepoint, on other stores, and when more than 1,000 events or
// 1 MiB wait for the commit: it then writes all events in one round trip (two with
// Config.LockKeys). [Writer.WriteNow] never waits, and tells which events were known.
//
// If an event is not valid, nothing is written; the error names the event and the field. After any
// other error the transaction must be rolled back, and the writer returns the error from then on.
// The caller may change payloads and headers after Write.
func (w *Writer[TX]) Write(ctx context.Context, events ...Event) ([]uuid.UUID, error) {
	if !w.waits() {
		written, err := w.WriteNow(ctx, events...)
		if err != nil {
			return nil, err
		}
		ids := make([]uuid.UUID, len(written))
		for i := range written {
			ids[i] = written[i].ID
		}
		return ids, nil
	}
	if err := w.failed(); err != nil {
		return nil, err
	}
	records, err := w.records(events)
	if err != nil {
		return nil, err
	}
	ids := make([]uuid.UUID, len(records))
	for i := range records {
		r := &records[i]
		ids[i] = r.ID
		r.Payload, r.Headers = bytes.Clone(r.Payload), maps.Clone(r.Headers)
	}
	observed(w.seen, records, nil)
	if !w.queued.add(records) {
		if err := w.Flush(ctx); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// waits tells whether events may wait for the commit.
func (w *Writer[TX]) waits() bool {
	return w.flushes && w.outbox.commits != nil && w.outbox.commits.WaitForCommit(w.tx, w.Flush)
}

// queue holds events that wait for the commit.
type queue struct {
	records []outbox.Record
	bytes   int
}

const (
	maxQueued      = 1000
	maxQueuedBytes = 1 << 20
)

// add queues records, and tells whether they may wait.
func (q *queue) add(records []outbox.Record) bool {
	q.records = append(q.records, records...)
	for i := range records {
		q.bytes += len(records[i].Payload)
	}
	return len(q.records) <= maxQueued && q.bytes <= maxQueuedBytes
}

// take empties the queue.
func (q *queue) take() []outbox.Record {
	records := q.records
	*q = queue{}
	return records
}

// WriteNow is [Writer.Write] without waiting for the commit: it writes events in order, in one round
// trip (two with Config.LockKeys), and returns for each event the dispatch ID and whether the event
// was known. Events that wait are written first.
func (w *Writer[TX]) WriteNow(ctx context.Context, events ...Event) ([]Written, error) {
	if err := w.Flush(ctx); err != nil {
		return nil, err
	}
	records, err := w.records(events)
	if err != nil {
		return nil, err
	}
	known, err := w.append(ctx, records)
	if err != nil {
		return nil, err
	}
	written := make([]Written, len(records))
	for i := range records {
		written[i] = Written{ID: records[i].ID, Known: known[i]}
	}
	return written, w.observe(ctx, records, known)
}

// Flush writes the events that wait for the commit. If an earlier write has made the transaction
// unusable, Flush returns the error of that write, even if its caller ignored the error.
func (w *Writer[TX]) Flush(ctx context.Context) error {
	if err := w.failed(); err != nil || len(w.queued.records) == 0 {
		return err
	}
	_, err := w.append(ctx, w.queued.take())
	return err
}

// FlushAtCommit is like [Writer.Flush], but the commit writes the events, after all other
// statements of the transaction, if the store is an [outbox.CommitStore]; errors of the events are
// then errors of the commit. With Config.LockKeys, FlushAtCommit locks the keys: a commit does not
// end with its context, and must not wait for locks. No event may be written after FlushAtCommit.
// FlushAtCommit is for code that runs handlers and then commits.
func (w *Writer[TX]) FlushAtCommit(ctx context.Context) error {
	records := w.queued.records
	if w.outbox.commits == nil || w.failed() != nil || len(records) == 0 {
		return w.Flush(ctx)
	}
	if err := w.lockAll(ctx, records); err != nil {
		return err
	}
	switch queued, err := w.outbox.commits.AppendAtCommit(w.tx, w.token, records); {
	case err != nil:
		return w.fail(fmt.Errorf("write events: %w", err))
	case !queued:
		return w.Flush(ctx)
	}
	w.late = w.queued.take()
	w.noteWakes(records)
	return nil
}

// FlushTogether is [Writer.FlushAtCommit] for all writers of one [Outbox.HandlingTogether]. The
// events are written in the order of their Write. If a writer's error made the transaction unusable,
// FlushTogether returns the error.
func FlushTogether[TX any](ctx context.Context, writers []*Writer[TX]) error {
	for _, w := range writers {
		if err := w.failed(); err != nil {
			return err
		}
	}
	if len(writers) == 0 || len(writers[0].queued.records) == 0 {
		return nil
	}
	return writers[0].FlushAtCommit(ctx)
}

// Savepoint runs fn within a savepoint, with w itself as the writer. If fn returns an error, the
// changes and events of fn are rolled back, the events are not counted, the error is returned, and
// the transaction goes on. A savepoint cannot undo [outbox.ErrConflict] and
// [outbox.ErrSecondWriter]: the writer returns the error from then on, so [Outbox.Transact] and
// handlers do not commit.
func (w *Writer[TX]) Savepoint(ctx context.Context, fn func(ctx context.Context, w *Writer[TX]) error) error {
	if err := w.Flush(ctx); err != nil {
		return err
	}
	counted, outer, before, seen := len(w.counted), w.tx, w.wakes, w.seen.Mark()
	done := false
	defer func() {
		w.tx = outer
		if !done { // fn failed, panicked or called Goexit
			w.uncount(counted)
			w.seen.UndoTo(seen)
			w.wakes = before
			w.queued.take()
			if !errors.Is(w.err, outbox.ErrConflict) && !errors.Is(w.err, outbox.ErrSecondWriter) {
				w.err = nil
			}
		}
	}()
	err := w.outbox.store.Savepoint(ctx, w.tx, func(ctx context.Context, tx TX) error {
		w.tx = tx
		if err := fn(ctx, w); err != nil {
			return err
		}
		return w.Flush(ctx)
	})
	done = err == nil
	return err
}

// records makes events ready to be stored, all or none.
func (w *Writer[TX]) records(events []Event) ([]outbox.Record, error) {
	if w.within.Ended() {
		return nil, errEnded
	}
	w.used = w.used || len(events) > 0
	counted, now := len(w.counted), time.Now()
	records := make([]outbox.Record, len(events))
	for i := range events {
		record, err := w.record(&events[i], now)
		if err != nil {
			w.uncount(counted)
			return nil, fmt.Errorf("event %d: %w", i, err)
		}
		records[i] = record
	}
	return records, nil
}

// observe tells a test of the records that were written, except for those that were known. Nobody
// sees the end of a transaction of the caller: it counts as ended.
func (w *Writer[TX]) observe(ctx context.Context, records []outbox.Record, known []bool) error {
	seen := w.seen
	if seen != nil || w.flushes {
		observed(seen, records, known)
		return nil
	}
	if seen = observe.From(ctx); seen != nil { // in a handler, whose transaction it may be
		observed(seen, records, known)
		return nil
	}
	_, seen, err := observe.Begin(ctx)
	if err != nil {
		return err
	}
	observed(seen, records, known)
	return seen.Ended(nil)
}

// observed notes copies of records: the caller may use the payloads again.
func observed(seen *observe.Transaction, records []outbox.Record, known []bool) {
	if seen == nil {
		return
	}
	for i, r := range records {
		if known == nil || !known[i] {
			r.Payload, r.Headers = bytes.Clone(r.Payload), maps.Clone(r.Headers)
			seen.Wrote(r)
		}
	}
}

func (w *Writer[TX]) record(e *Event, now time.Time) (outbox.Record, error) {
	if err := w.outbox.cfg.validate(e); err != nil {
		return outbox.Record{}, err
	}
	id, index, err := w.identify(e)
	if err != nil {
		return outbox.Record{}, err
	}
	r := outbox.Record{OccurredAt: e.OccurredAt, DeliverAt: e.DeliverAt, ResendFor: w.outbox.cfg.ResendFor.Round(time.Second), Event: transport.Event{
		ID: id, Topic: e.Topic, Key: e.Key, Type: e.Type, Payload: e.Payload,
		Producer: w.outbox.cfg.Name, Source: e.Source, Version: e.Version, Index: index,
		SchemaVersion: e.SchemaVersion, ContentType: e.ContentType, Headers: e.Headers,
		CorrelationID: e.CorrelationID, TraceParent: e.TraceParent, TraceState: e.TraceState,
	}}
	if w.cause != nil {
		w.inherit(&r.Event)
	}
	if r.OccurredAt.IsZero() {
		r.OccurredAt = now
	}
	r.Digest = transport.ContentDigest(&r.Event)
	r.Shard = idgen.Shard(e.Key, id)
	return r, nil
}

// identify computes the dispatch ID of e and its index among its siblings.
func (w *Writer[TX]) identify(e *Event) (uuid.UUID, int, error) {
	producer := w.outbox.cfg.Name
	switch {
	case e.Random:
		if e.Source != "" || e.IdempotencyKey != "" || e.Version != 0 {
			return uuid.Nil, 0, errors.New("Random: the event has an identity besides")
		}
		id, err := uuid.NewRandom()
		return id, 0, err
	case e.Source != "" && e.IdempotencyKey != "":
		if e.Version != 0 {
			return uuid.Nil, 0, errors.New("IdempotencyKey: the event has a Version besides")
		}
		n := 0
		if !e.single {
			n = w.count(sequence{kind: 'k', source: e.Source, key: e.IdempotencyKey})
		}
		return idgen.OfKey(producer, e.Source, e.IdempotencyKey, n), n, nil
	case e.Source != "":
		if err := checkVersion(e.Version); err != nil {
			return uuid.Nil, 0, err
		}
		n := w.count(sequence{kind: 'v', source: e.Source, version: e.Version})
		return idgen.Of(producer, e.Source, e.Version, n), n, nil
	case w.cause != nil && e.IdempotencyKey == "" && e.Version == 0:
		n := w.count(sequence{kind: 'c'})
		return idgen.Child(w.consumer, w.cause.ID, n), n, nil
	}
	return uuid.Nil, 0, ErrNoIdentity
}

// checkVersion also refuses 0, the value of a forgotten Version: all transactions of a source would
// share one identity, and all but the first would count as repetitions.
func checkVersion(version int64) error {
	if version < 1 {
		return fmt.Errorf("Version: %d is less than 1: %w", version, ErrNoIdentity)
	}
	return nil
}

func (w *Writer[TX]) count(s sequence) int {
	if w.next == nil {
		w.next = make(map[sequence]int)
	}
	n := w.next[s]
	w.next[s] = n + 1
	w.counted = append(w.counted, s)
	return n
}

// uncount takes back all counts but the first counted.
func (w *Writer[TX]) uncount(counted int) {
	for _, s := range w.counted[counted:] {
		w.next[s]--
	}
	w.counted = w.counted[:counted]
}

// inherit gives e the correlation ID and the trace context of cause, unless e has its own.
func (w *Writer[TX]) inherit(e *transport.Event) {
	if e.CorrelationID == "" {
		e.CorrelationID = w.cause.CorrelationID
	}
	if e.CorrelationID == "" {
		e.CorrelationID = w.cause.ID.String()
	}
	if e.TraceParent == "" {
		e.TraceParent, e.TraceState = w.cause.TraceParent, w.cause.TraceState
	}
}

func (w *Writer[TX]) append(ctx context.Context, records []outbox.Record) ([]bool, error) {
	if len(records) == 0 {
		return nil, w.err
	}
	if err := w.lockAll(ctx, records); err != nil {
		return nil, err
	}
	known, err := w.outbox.store.Append(ctx, w.tx, w.token, records)
	if err != nil {
		return nil, w.fail(fmt.Errorf("write events: %w", named(err, records)))
	}
	w.noteWakes(records)
	w.changed()
	return known, nil
}

// noteWakes adds records to the wake-up that relays get after the commit.
func (w *Writer[TX]) noteWakes(records []outbox.Record) {
	for i := range records {
		w.wakes = w.wakes.With(&records[i])
	}
}

// changed wakes relays in this process if the commit is the caller's: the commit may follow at
// once, and the relays begin to poll fast.
func (w *Writer[TX]) changed() {
	if !w.flushes {
		w.outbox.local.Send(wakeup.All)
	}
}

// lockAll locks the keys of records if Config.LockKeys is set.
func (w *Writer[TX]) lockAll(ctx context.Context, records []outbox.Record) error {
	if !w.outbox.cfg.LockKeys {
		return nil
	}
	if err := w.lock(ctx, records); err != nil {
		return w.fail(err)
	}
	return nil
}

// lock locks the keys of records in sorted order: two transactions do not wait for each other
// within one write.
func (w *Writer[TX]) lock(ctx context.Context, records []outbox.Record) error {
	keys := make([]string, 0, len(records))
	for i := range records {
		if key := records[i].Key; key != "" {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if keys = slices.Compact(keys); len(keys) == 0 {
		return nil
	}
	if err := w.outbox.store.LockKeys(ctx, w.tx, keys); err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	return nil
}

// failed returns the error that forbids the commit, or nil.
func (w *Writer[TX]) failed() error {
	if w.err != nil {
		return w.err
	}
	return w.within.Err()
}

func (w *Writer[TX]) fail(err error) error {
	w.err = err
	return err
}
