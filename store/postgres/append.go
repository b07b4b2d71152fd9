package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// appendEvents writes events and their queue rows.
//
// writer: the first Append of a transaction ties it to a writer by a variable
// that lives as long as the transaction, or as the savepoint it was set in. It is
// joined with what is inserted, so another writer's events come to nothing.
//
// written: the arrays keep their order by WITH ORDINALITY and ORDER BY, and
// identity values are given out above the sort, so ids follow the order of the records.
// A dispatch ID that is known with an equal digest is left alone and not returned. One
// with another digest sets altered to NULL, which dooms the transaction; DO UPDATE
// looks at the row that is there now, also if it was committed after this statement
// began, where a SELECT beside the INSERT would not see it.
var appendEvents = appendStatement(`unnest(
        $3::uuid[], $4::bytea[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
        $11::bigint[], $12::integer[], $13::integer[], $14::text[], $15::text[], $16::bytea[], $17::text[],
        $18::text[], $19::text[], $20::timestamptz[], $21::integer[]
    ) WITH ORDINALITY AS r (
        dispatch_id, digest, shard, topic, key, type, producer, source, version, index,
        schema_version, content_type, headers, payload, correlation_id, traceparent, tracestate, occurred_at,
        resend_seconds, n)`, `
    ORDER BY r.n
`)

// appendEvent is appendEvents for one event: 19 arrays of one element cost more than what is in
// them.
var appendEvent = appendStatement(`(
        SELECT $3::uuid AS dispatch_id, $4::bytea AS digest, $5::smallint AS shard, $6::text AS topic, $7::text AS key,
            $8::text AS type, $9::text AS producer, $10::text AS source, $11::bigint AS version, $12::integer AS index,
            $13::integer AS schema_version, $14::text AS content_type, $15::text AS headers, $16::bytea AS payload,
            $17::text AS correlation_id, $18::text AS traceparent, $19::text AS tracestate,
            $20::timestamptz AS occurred_at, $21::integer AS resend_seconds
    ) AS r`, "\n")

// appendAlike is appendEvents for events that differ in no more than most written together do: what
// is the same in all of them is not sent and taken apart for each.
var appendAlike = appendStatement(`(
        SELECT u.*, $12::text AS type, $13::text AS producer, $14::integer AS schema_version, $15::text AS content_type,
            $16::text AS headers, $17::text AS correlation_id, $18::text AS traceparent, $19::text AS tracestate,
            $20::timestamptz AS occurred_at, $21::integer AS resend_seconds
        FROM unnest(
            $3::uuid[], $4::bytea[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::bigint[], $10::integer[], $11::bytea[]
        ) WITH ORDINALITY AS u (dispatch_id, digest, shard, topic, key, source, version, index, payload, n)
    ) AS r`, `
    ORDER BY r.n
`)

// appendDeferred is appendEvents with times before when events are not sent, and a row elsewhere
// than in the queue for those whose time is not over. It is apart so that others do not pay for it.
// The keys come from the arguments, since producers may not read them in the log, and by an object,
// since a join of arrays may be planned for a few rows and meet ten thousand.
var appendDeferred = appendTemplate(`unnest(
        $3::uuid[], $4::bytea[], $5::smallint[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
        $11::bigint[], $12::integer[], $13::integer[], $14::text[], $15::text[], $16::bytea[], $17::text[],
        $18::text[], $19::text[], $20::timestamptz[], $21::integer[], $22::timestamptz[]
    ) WITH ORDINALITY AS r (
        dispatch_id, digest, shard, topic, key, type, producer, source, version, index,
        schema_version, content_type, headers, payload, correlation_id, traceparent, tracestate, occurred_at,
        resend_seconds, due_at, n)`, `
    ORDER BY (r.n)
`, ", due_at", ", CASE WHEN r.due_at > clock_timestamp() THEN r.due_at END", `SELECT shard, id FROM written WHERE due_at IS NULL
), keys AS MATERIALIZED (
    SELECT jsonb_object($3::uuid[]::text[], $7::text[]) AS of
), waiting AS (
    INSERT INTO {{outbox_deferred}} (id, due_at, shard, key)
    SELECT w.id, w.due_at, w.shard, k.of ->> w.dispatch_id::text FROM written w, keys k WHERE w.due_at IS NOT NULL`)

func appendStatement(rows, order string) *template {
	return appendTemplate(rows, order, "", "", `SELECT shard, id FROM written`)
}

// appendTemplate returns the statement with a column more and its value, and with what is queued.
func appendTemplate(rows, order, column, value, queued string) *template {
	return statement(`
WITH writer AS MATERIALIZED (
    SELECT CASE WHEN coalesce(current_setting($1, true), '') = '' THEN set_config($1, $2, true)
                ELSE current_setting($1, true) END = $2 AS mine
), written AS (
    INSERT INTO {{outbox_events}} AS e (
        dispatch_id, digest, shard, topic, key, type, producer, source, version, index,
        schema_version, content_type, headers, payload, correlation_id, traceparent, tracestate, occurred_at,
        resend_seconds` + column + `)
    SELECT r.dispatch_id, r.digest, r.shard, r.topic, r.key, r.type, r.producer, r.source, r.version, r.index,
        r.schema_version, r.content_type, r.headers::json, r.payload, r.correlation_id, r.traceparent, r.tracestate,
        coalesce(r.occurred_at, clock_timestamp()), r.resend_seconds` + value + `
    FROM writer, ` + rows + `
    WHERE writer.mine` + order + `    ON CONFLICT (dispatch_id) DO UPDATE SET altered = NULL WHERE e.digest IS DISTINCT FROM excluded.digest
    RETURNING e.id, e.shard, e.dispatch_id` + column + `
), queued AS (
    INSERT INTO {{outbox_queue}} (shard, id) ` + queued + `
)
` + tellKnown)
}

const tellKnown = "SELECT writer.mine, ARRAY(SELECT dispatch_id FROM written) FROM writer"

// appendAtCommit are the statements that are sent together with the COMMIT. It would be carried out
// whatever a statement before it returned, so another writer's events have to be an error of the
// statement.
var appendAtCommit = map[*template]*template{
	appendEvents: failing(appendEvents), appendEvent: failing(appendEvent), appendAlike: failing(appendAlike),
	appendDeferred: failing(appendDeferred),
}

func failing(t *template) *template {
	return statement(strings.Replace(t.text, tellKnown, "SELECT 1 / CASE WHEN writer.mine THEN 1 ELSE 0 END FROM writer", 1))
}

// Append implements [outbox.EventStore], in one round trip.
func (s *Store) Append(ctx context.Context, tx pgx.Tx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	if len(records) == 0 {
		return nil, nil
	}
	t, args, err := s.appending(tx, writer, records)
	if err != nil {
		return nil, err
	}
	var mine bool
	var written []pgtype.UUID
	if err := exec(ctx, tx, []any{&mine, &written}, s.sql[t], args...); err != nil {
		return nil, failed("append events", appendError(err))
	}
	if !mine {
		return nil, fmt.Errorf("append events: %w", outbox.ErrSecondWriter)
	}
	return known(records, written), nil
}

// appending returns the statement that appends records in tx, and its arguments.
func (s *Store) appending(tx pgx.Tx, writer uuid.UUID, records []outbox.Record) (*template, []any, error) {
	c, err := newColumns(records)
	if err != nil {
		return nil, nil, fmt.Errorf("append events: %w", err)
	}
	args := append(make([]any, 0, 22), s.writerVariable, writer.String())
	t := appendEvents
	switch {
	case len(records) == 1 && c.due == nil:
		t, args = appendEvent, c.single(args)
	case len(records) >= leanFrom && described(tx) && c.due == nil && alike(records):
		t, args = appendAlike, c.alike(args)
	case len(records) >= leanFrom && described(tx):
		args = c.lean(args)
	default:
		args = c.plain(args)
	}
	if c.due != nil {
		t, args = appendDeferred, append(args, c.due)
	}
	return t, args, nil
}

// AppendAtCommit implements [outbox.CommitStore] for transactions of [Store.Transact] and of an
// inbox's handlers.
func (s *Store) AppendAtCommit(tx pgx.Tx, writer uuid.UUID, records []outbox.Record) (bool, error) {
	t, err := queueing(tx)
	if err != nil {
		return false, nil //nolint:nilerr // it is written at once then, which tells
	}
	if len(records) == 0 {
		return true, nil
	}
	sql, args, err := s.appending(tx, writer, records)
	if err != nil {
		return false, err
	}
	t.queue(s.sql[appendAtCommit[sql]], args...).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		switch {
		case err == nil:
			return nil
		case sqlState(err) == "22012": // division_by_zero, of which there is one
			err = outbox.ErrSecondWriter
		}
		return failed("append events", appendError(err))
	}
	return true, nil
}

// known tells for each record whether it is not among those that were written.
// Written ones come in the order of the records, but nothing hangs on that here.
func known(records []outbox.Record, written []pgtype.UUID) []bool {
	all := make([]bool, len(records))
	if len(written) == len(records) {
		return all
	}
	isNew := make(map[uuid.UUID]struct{}, len(written))
	for _, id := range written {
		isNew[id.Bytes] = struct{}{}
	}
	for i := range records {
		_, ok := isNew[records[i].ID]
		all[i] = !ok
	}
	return all
}

// appendError tells a conflict. The error of the database is left out: its
// detail would show the row.
func appendError(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if ok && pgErr.Code == "23502" && pgErr.ColumnName == "altered" { // not_null_violation
		return &outbox.ConflictError{ID: conflicting(pgErr.Detail)}
	}
	return err
}

var uuidText = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// conflicting finds the dispatch ID in the detail of an error, which shows the row, if it shows it
// at all. No column of text stands before it.
func conflicting(detail string) uuid.UUID {
	id, err := uuid.Parse(uuidText.FindString(detail))
	if err != nil {
		return uuid.Nil
	}
	return id
}

// columns are records as the arrays that one statement takes.
type columns struct {
	id                                          []pgtype.UUID
	digest, payload                             [][]byte
	shard                                       []int16
	version                                     []int64
	index, schemaVersion, resend                []int32
	topic, key, kind, producer, source, headers []string
	contentType, correlation                    []string
	traceParent, traceState                     []string
	occurred                                    []pgtype.Timestamptz
	due                                         []pgtype.Timestamptz // nil if none is deferred
}

func newColumns(records []outbox.Record) (*columns, error) {
	n := len(records)
	c := &columns{
		id: make([]pgtype.UUID, n), digest: make([][]byte, n), payload: make([][]byte, n),
		shard: make([]int16, n), version: make([]int64, n), index: make([]int32, n), schemaVersion: make([]int32, n),
		resend:   make([]int32, n),
		occurred: make([]pgtype.Timestamptz, n),
	}
	texts := make([]string, 10*n) // one allocation for all columns of text
	for _, column := range []*[]string{&c.topic, &c.key, &c.kind, &c.producer, &c.source, &c.headers,
		&c.contentType, &c.correlation, &c.traceParent, &c.traceState} {
		*column, texts = slices.Clip(texts[:n]), texts[n:]
	}
	for i := range records {
		if err := c.set(i, &records[i]); err != nil {
			return nil, fmt.Errorf("record %d: %w", i, err)
		}
	}
	return c, nil
}

// single appends the values of the first record, which is the only one.
func (c *columns) single(args []any) []any {
	return append(args, c.id[0], c.digest[0], c.shard[0], c.topic[0], c.key[0], c.kind[0], c.producer[0], c.source[0], c.version[0],
		c.index[0], c.schemaVersion[0], c.contentType[0], c.headers[0], c.payload[0], c.correlation[0], c.traceParent[0],
		c.traceState[0], c.occurred[0], c.resend[0])
}

// plain appends the columns as slices, which pgx knows how to encode in any mode.
func (c *columns) plain(args []any) []any {
	return append(args, c.id, c.digest, c.shard, c.topic, c.key, c.kind, c.producer, c.source, c.version, c.index,
		c.schemaVersion, c.contentType, c.headers, c.payload, c.correlation, c.traceParent, c.traceState, c.occurred, c.resend)
}

// lean appends the columns so that they cost no allocation for each value.
func (c *columns) lean(args []any) []any {
	return append(args, leanValues(c.id), leanByteas(c.digest), c.shard, leanTexts(c.topic), leanTexts(c.key),
		leanTexts(c.kind), leanTexts(c.producer), leanTexts(c.source), leanInts(c.version), c.index,
		c.schemaVersion, leanTexts(c.contentType), leanTexts(c.headers), leanByteas(c.payload), leanTexts(c.correlation),
		leanTexts(c.traceParent), leanTexts(c.traceState), leanValues(c.occurred), c.resend)
}

// alike tells whether [columns.alike] is enough for records.
func alike(records []outbox.Record) bool {
	first := &records[0]
	for i := range records {
		if r := &records[i]; r.Type != first.Type || r.Producer != first.Producer || r.SchemaVersion != first.SchemaVersion ||
			r.ContentType != first.ContentType || len(r.Headers) > 0 || r.CorrelationID != first.CorrelationID ||
			r.TraceParent != first.TraceParent || r.TraceState != first.TraceState ||
			!r.OccurredAt.Equal(first.OccurredAt) || r.ResendFor != first.ResendFor {
			return false
		}
	}
	return true
}

// alike appends the columns that differ, and of the others the value that is everywhere the same.
func (c *columns) alike(args []any) []any {
	return append(args, leanValues(c.id), leanByteas(c.digest), c.shard, leanTexts(c.topic), leanTexts(c.key),
		leanTexts(c.source), leanInts(c.version), c.index, leanByteas(c.payload),
		c.kind[0], c.producer[0], c.schemaVersion[0], c.contentType[0], c.headers[0], c.correlation[0], c.traceParent[0],
		c.traceState[0], c.occurred[0], c.resend[0])
}

func (c *columns) set(i int, r *outbox.Record) error {
	c.id[i] = pgtype.UUID{Bytes: r.ID, Valid: true}
	c.digest[i], c.payload[i] = r.Digest[:], r.Payload
	if r.Payload == nil {
		c.payload[i] = []byte{} // nil would be NULL
	}
	c.shard[i], c.version[i] = int16(r.Shard), r.Version
	c.index[i], c.schemaVersion[i] = int32(r.Index), int32(r.SchemaVersion)
	c.topic[i], c.key[i], c.kind[i] = r.Topic, r.Key, r.Type
	c.producer[i], c.source[i], c.contentType[i] = r.Producer, r.Source, r.ContentType
	c.correlation[i], c.traceParent[i], c.traceState[i] = r.CorrelationID, r.TraceParent, r.TraceState
	c.occurred[i] = pgtype.Timestamptz{Time: r.OccurredAt, Valid: !r.OccurredAt.IsZero()}
	c.resend[i] = int32(r.ResendFor / time.Second)
	if !r.DeliverAt.IsZero() {
		if c.due == nil {
			c.due = make([]pgtype.Timestamptz, len(c.id))
		}
		c.due[i] = pgtype.Timestamptz{Time: r.DeliverAt, Valid: true}
	}
	c.headers[i] = "{}"
	if len(r.Headers) > 0 {
		text, err := json.Marshal(r.Headers)
		if err != nil {
			return fmt.Errorf("headers: %w", err)
		}
		c.headers[i] = string(text)
	}
	return nil
}

// LockKeys implements [outbox.EventStore] with advisory locks of the
// transaction. A lock is a hash of its key: two keys may share one and wait for
// each other without need.
func (s *Store) LockKeys(ctx context.Context, tx pgx.Tx, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	locks := make([]int64, len(keys))
	for i, key := range keys {
		locks[i] = lockID(s.names, "key "+key)
	}
	// Sorted as what is locked, not as the keys are: two transactions that lock in
	// opposite orders wait for each other. A function in FROM gives its rows in order.
	slices.Sort(locks)
	err := exec(ctx, tx, nil, "SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k", locks)
	if err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	return nil
}
