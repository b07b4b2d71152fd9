package postgres

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

// stamp is the stamp of an event e. greatest ignores a NULL, the due_at of an event that was never
// deferred.
const stamp = `greatest(e.created_at, e.due_at)`

// eventColumns are the columns of an event, whose row may be missing.
const eventColumns = `
    e.id IS NULL, coalesce(e.dispatch_id, '00000000-0000-0000-0000-000000000000'), coalesce(e.digest, ''),
    coalesce(e.topic, ''), coalesce(e.key, ''), coalesce(e.type, ''), coalesce(e.producer, ''),
    coalesce(e.source, ''), coalesce(e.version, 0), coalesce(e.index, 0), coalesce(e.schema_version, 0),
    coalesce(e.content_type, ''), coalesce(e.headers, '{}'), coalesce(e.payload, ''),
    coalesce(e.correlation_id, ''), coalesce(e.traceparent, ''), coalesce(e.tracestate, ''),
    coalesce(e.occurred_at, 'epoch'), coalesce(greatest(e.created_at, e.due_at), 'epoch'), coalesce(e.resend_seconds, 0)`

// fetch reads ranges of the queue. The lower bound keeps the scan from stepping over deleted rows,
// however long vacuum is held up. OFFSET 0 makes the planner look each event up by id; otherwise
// the planner, which may not know the size of the queue, may read the whole log. NOT IN (SELECT …)
// builds a hash table in every plan; <> ALL (array) compares with each element unless the plan is
// made for the present array.
var fetch = statement(`
SELECT r.shard, q.id, q.round, 0, '', ` + eventColumns + `
FROM unnest($1::smallint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS r (shard, after, through, most)
CROSS JOIN LATERAL (
    SELECT q.id, q.round FROM {{outbox_queue}} q
    WHERE q.shard = r.shard AND q.id > r.after AND q.id <= r.through AND q.id NOT IN (SELECT * FROM unnest($5::bigint[]))
    ORDER BY q.id LIMIT r.most
) q
LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = q.id OFFSET 0) e ON true`)

// Fetch implements [outbox.RelayStore].
func (s *Store) Fetch(ctx context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	if len(ranges) == 0 {
		return nil, nil
	}
	var events []outbox.Queued
	if err := s.eachEvent(ctx, fetch, func(found []outbox.Queued) { events = bySeq(found) }, rangesOf(ranges)...); err != nil {
		return nil, failed("fetch events", err)
	}
	return events, nil
}

// FetchAndLook implements [outbox.Looker].
func (s *Store) FetchAndLook(ctx context.Context, ranges []outbox.Range, shards []int) (events []outbox.Queued, next time.Duration, err error) {
	var first pgtype.Int8
	if s.keeps {
		err = gathered(func(found []outbox.Queued) { events = bySeq(found) }, func(read func(pgx.Rows) error) error {
			b := s.keptBatch()
			s.queuePoll(b, outbox.Poll{Ranges: ranges, Look: shards}, read, &first)
			return s.pool.SendBatch(ctx, b).Close()
		})
	} else if events, err = s.Fetch(ctx, ranges); err == nil {
		err = s.queryRow(ctx, firstDeferred, numbered(shards)).Scan(&first)
	}
	if err != nil {
		return nil, 0, failed("fetch events and look for deferred ones", err)
	}
	return events, untilNext(first), nil
}

// queuePoll adds the statements of a poll to a batch of [Store.keptBatch].
func (s *Store) queuePoll(b *pgx.Batch, poll outbox.Poll, read func(pgx.Rows) error, first *pgtype.Int8) {
	b.Queue(s.sql[fetch], rangesOf(poll.Ranges)...).Query(read)
	if len(poll.Look) > 0 {
		b.Queue(s.sql[firstDeferred], numbered(poll.Look)).QueryRow(func(row pgx.Row) error { return row.Scan(first) })
	}
}

// untilNext interprets the answer of [firstDeferred] as [outbox.Looker] does.
func untilNext(first pgtype.Int8) time.Duration {
	if !first.Valid {
		return -1
	}
	return max(time.Duration(first.Int64)*time.Microsecond, 0)
}

// numbered returns the numbers of shards as an argument of a statement.
func numbered(shards []int) []int16 {
	numbers := make([]int16, len(shards))
	for i, no := range shards {
		numbers[i] = int16(no)
	}
	return numbers
}

// rangesOf returns the arguments of [fetch].
func rangesOf(ranges []outbox.Range) []any {
	except := []int64{} // of all ranges, since every row is of one shard; not NULL
	n := len(ranges)
	shards, after, through, most := make([]int16, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i, r := range ranges {
		shards[i], after[i], through[i], most[i] = int16(r.Shard), r.After, r.Through, int64(r.Limit)
		if r.Through == 0 {
			through[i] = math.MaxInt64
		}
		except = append(except, r.Except...)
	}
	return []any{shards, after, through, most, except}
}

// bySeq returns a copy of found in the order of Seq. Sorting in place would copy the large events
// several times.
func bySeq(found []outbox.Queued) []outbox.Queued {
	type place struct {
		seq int64
		at  int
	}
	places := make([]place, len(found))
	for i := range found {
		places[i] = place{found[i].Seq, i}
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.seq, b.seq) })
	sorted := make([]outbox.Queued, len(found))
	for i, p := range places {
		sorted[i] = found[p.at]
	}
	return sorted
}

// fetchKey walks along the queue of the shard and reads the event of each row. The key usually has
// many rows in the queue, which are found soon; otherwise a lap of the relay serves the key.
// Several shorter reads could miss an event that is committed between two reads, and return a later
// event.
var fetchKey = statement(`
SELECT q.shard, q.id, q.round, 0, '', ` + eventColumns + `
FROM {{outbox_queue}} q
CROSS JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = q.id AND e.key = $2 OFFSET 0) e
WHERE q.shard = $1 AND q.id >= $3
ORDER BY q.id LIMIT $4`)

// FetchKey implements [outbox.RelayStore].
func (s *Store) FetchKey(ctx context.Context, shard int, key string, from int64, limit int) ([]outbox.Queued, error) {
	events, err := s.events(ctx, fetchKey, shard, key, from, limit)
	if err != nil {
		return nil, failed("fetch events of a key", err)
	}
	return events, nil
}

// events runs a statement that reads queued or parked events.
func (s *Store) events(ctx context.Context, t *template, args ...any) (events []outbox.Queued, err error) {
	err = s.eachEvent(ctx, t, func(found []outbox.Queued) { events = slices.Clone(found) }, args...)
	return events, err
}

// answers holds buffers for events until their number is known.
var answers = sync.Pool{New: func() any { return new([]outbox.Queued) }}

// eachEvent runs a statement that reads queued or parked events, and calls use with the events. use
// must copy the events to keep them.
func (s *Store) eachEvent(ctx context.Context, t *template, use func([]outbox.Queued), args ...any) error {
	return gathered(use, func(read func(pgx.Rows) error) error { return s.kept(ctx, read, t, args...) })
}

// gathered calls use with the events that run gives to read.
func gathered(use func([]outbox.Queued), run func(read func(pgx.Rows) error) error) error {
	answer := answers.Get().(*[]outbox.Queued)
	found := (*answer)[:0]
	defer func() {
		clear(found)
		*answer = found
		answers.Put(answer)
	}()
	err := run(func(rows pgx.Rows) error {
		for scan := newQueuedScan(); rows.Next(); {
			q, err := scan.row(rows)
			if err != nil {
				return err
			}
			found = append(found, q)
		}
		return nil
	})
	if err == nil && len(found) > 0 {
		use(found)
	}
	return err
}

// queuedScan scans rows of queued or parked events. All rows are scanned into one event, which is
// then copied, so that only the values are allocated.
type queuedScan struct {
	queued  outbox.Queued
	columns []any
}

// newQueuedScan scans the columns of first, then shard, id, round, attempts, state and
// eventColumns.
func newQueuedScan(first ...any) *queuedScan {
	s := &queuedScan{}
	q := &s.queued
	s.columns = append(first, &q.Shard, &q.Seq, &q.Round, &q.Attempts, (*string)(&q.State), &q.Missing)
	s.columns = append(s.columns, into(&q.Record, &q.Unreadable)...)
	return s
}

func (s *queuedScan) row(rows pgx.Rows) (outbox.Queued, error) {
	q := &s.queued
	*q = outbox.Queued{} // headers and digest stay zero unless the row has them
	if err := rows.Scan(s.columns...); err != nil {
		return outbox.Queued{}, fmt.Errorf("event %d: %w", q.Seq, err)
	}
	if q.Missing {
		q.Record = outbox.Record{Shard: q.Shard}
	}
	return *q, nil
}

// into returns the destinations of eventColumns except the first. A column that cannot be decoded
// is left out, and named in unreadable.
func into(r *outbox.Record, unreadable *string) []any {
	return []any{
		(*[16]byte)(&r.ID), digestColumn{&r.Digest}, &r.Topic, &r.Key, &r.Type, &r.Producer, &r.Source, &r.Version, &r.Index,
		&r.SchemaVersion, &r.ContentType, headersColumn{&r.Headers, unreadable}, &r.Payload,
		&r.CorrelationID, &r.TraceParent, &r.TraceState, timeColumn{&r.OccurredAt, "occurred_at", unreadable}, timeColumn{&r.Stamp, "the stamp", unreadable}, resendColumn{r},
	}
}

// digestColumn scans a digest.
type digestColumn struct{ digest *transport.Digest }

// ScanBytes implements [pgtype.BytesScanner].
func (c digestColumn) ScanBytes(v []byte) error {
	copy(c.digest[:], v)
	return nil
}

// resendColumn scans the duration for which an event may be sent again. It must follow the stamp.
type resendColumn struct{ record *outbox.Record }

// ScanInt64 implements [pgtype.Int64Scanner].
func (c resendColumn) ScanInt64(v pgtype.Int8) error {
	c.record.ResendFor = time.Duration(v.Int64) * time.Second
	c.record.SetResend()
	return nil
}

// headersColumn scans headers.
type headersColumn struct {
	headers    *map[string]string
	unreadable *string
}

// ScanBytes implements [pgtype.BytesScanner].
func (c headersColumn) ScanBytes(v []byte) error {
	if len(v) <= len("{}") {
		return nil
	}
	if json.Unmarshal(v, c.headers) != nil {
		*c.headers = nil
		*c.unreadable = "headers are not a JSON object of strings"
	}
	return nil
}

// timeColumn scans a time that may be infinite.
type timeColumn struct {
	time       *time.Time
	name       string
	unreadable *string
}

// ScanTimestamptz implements [pgtype.TimestamptzScanner].
func (c timeColumn) ScanTimestamptz(v pgtype.Timestamptz) error {
	*c.time = v.Time
	if v.InfinityModifier != pgtype.Finite {
		*c.unreadable = c.name + " is " + v.InfinityModifier.String()
	}
	return nil
}

// writers names the transactions that hold the lock of an INSERT on the log. An INSERT takes the
// lock before it gets its ids, and keeps the lock until the transaction ends. pg_locks shows the
// locks of this database to any role. A transaction has a virtual ID from its start. A prepared
// transaction loses the virtual ID and keeps a transaction ID that perhaps no sample has seen; it
// is therefore named as prepared as well. A virtual ID is named together with the start of the
// server, since virtual IDs begin anew.
//
// A committing backend gives up its virtual transaction (pg_locks then shows N/0) at the moment
// when its rows become visible, and releases its locks later. So a writer may count as ended while
// its locks are still held. This is correct: a read that begins after the sample sees the rows.
var writers = statement(`
WITH w AS MATERIALIZED (
    SELECT DISTINCT virtualtransaction FROM pg_locks
    WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation = $1::text::regclass
)
SELECT 'v ' || virtualtransaction || ' ' || extract(epoch FROM pg_postmaster_start_time()) FROM w
UNION ALL
SELECT kind || l.transactionid FROM w JOIN pg_locks l USING (virtualtransaction)
CROSS JOIN LATERAL (SELECT 'x ' UNION ALL SELECT 'p ' WHERE virtualtransaction LIKE '-1/%') AS k (kind)
WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted`)

// Writers implements [outbox.RelayStore].
func (s *Store) Writers(ctx context.Context) ([]string, error) {
	var names []string
	err := s.kept(ctx, func(rows pgx.Rows) (err error) {
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	}, writers, s.names.Table("outbox_events"))
	if err != nil {
		return nil, failed("read open transactions", err)
	}
	return names, nil
}

// mark deletes queue rows.
//
// fence: the statement locks the shard rows, in the order of shards, until it ends. After a wait
// for a takeover, it checks the row again and finds no match. The commit does not wait for the
// disk: if a crash undoes a mark, the event is sent once more.
//
// round: a late mark of an event's earlier row must not delete the row that an operator has added
// since.
//
// found: the rows are looked up one by one, and deleted by ctid. In a join, the planner would scan
// whole shards while the statistics are of an empty queue, which is most of the time, and would
// keep the plan for millions of rows. Rows of the queue are never updated, so a ctid holds the
// found row or no row.
var mark, markNoted = markStatement(""), markStatement(confirmations("marked"))

// confirmations records events as confirmed attempts, for Config.AllAttempts.
func confirmations(of string) string {
	return ` noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, relay) SELECT id, 'confirmed', $1 FROM ` + of + ` ORDER BY id
),`
}

func markStatement(noted string) *template {
	return statement(`
WITH fence AS MATERIALIZED (
    SELECT s.shard, s.epoch, set_config('synchronous_commit', 'off', true)
    FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch
    ORDER BY s.shard
    FOR KEY SHARE OF s
), found AS MATERIALIZED (
    SELECT q.place
    FROM fence f JOIN unnest($4::smallint[], $5::bigint[], $6::bigint[], $7::bigint[]) AS m (shard, epoch, id, round)
        ON f.shard = m.shard AND f.epoch = m.epoch
    CROSS JOIN LATERAL (
        SELECT q.ctid AS place FROM {{outbox_queue}} q WHERE q.shard = m.shard AND q.id = m.id AND q.round = m.round LIMIT 1
    ) q
), marked AS (
    DELETE FROM {{outbox_queue}} q USING found d WHERE q.ctid = d.place
    RETURNING q.id
),` + noted + ` receipt AS (
    INSERT INTO {{outbox_receipts}} (relay, event_ids)
    SELECT $1, array_agg(id ORDER BY id) FROM marked HAVING count(*) > 0
)` + lostLeases)
}

// noting returns noted, which records confirmed attempts, if Config.AllAttempts is set, and plain
// otherwise.
func (s *Store) noting(plain, noted *template) *template {
	if s.allAttempts {
		return noted
	}
	return plain
}

// marks are the arrays of marks that a statement takes, and their different leases.
type marks struct {
	leaseShards          []int16
	leaseEpochs          []int64
	shards               []int16
	epochs, seqs, rounds []int64
}

func newMarks(list []outbox.Mark) marks {
	n := len(list)
	m := marks{shards: make([]int16, n), epochs: make([]int64, n), seqs: make([]int64, n), rounds: make([]int64, n)}
	seen := make(map[outbox.Lease]struct{}, n)
	var leases []outbox.Lease
	for i, one := range list {
		m.shards[i], m.epochs[i], m.seqs[i], m.rounds[i] = int16(one.Shard), one.Epoch, one.Seq, one.Round
		if _, ok := seen[one.Lease]; !ok {
			seen[one.Lease] = struct{}{}
			leases = append(leases, one.Lease)
		}
	}
	m.leaseShards, m.leaseEpochs = split(leases)
	return m
}

// Mark implements [outbox.RelayStore]. The whole call writes one receipt.
func (s *Store) Mark(ctx context.Context, relay string, marks []outbox.Mark) ([]int, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	m := newMarks(marks)
	var lost []int
	err := s.kept(ctx, func(rows pgx.Rows) (err error) {
		if err := fault.Hit(ctx, fault.MarkSent); err != nil {
			return err
		}
		lost, err = pgx.CollectRows(rows, pgx.RowTo[int])
		return err
	}, s.noting(mark, markNoted), relay, m.leaseShards, m.leaseEpochs, m.shards, s.ints(m.epochs), s.ints(m.seqs), s.ints(m.rounds))
	if err != nil {
		return nil, failed("mark events", err)
	}
	return lost, nil
}

var (
	_ outbox.Store[pgx.Tx]       = (*Store)(nil)
	_ outbox.CommitStore[pgx.Tx] = (*Store)(nil)
	_ outbox.ArchiveStore        = (*Store)(nil)
)
