package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// An append writes events and their queue rows.
//
// oneWriter: the first append of a transaction ties the transaction to its writer, by a variable
// that lives as long as the transaction or the savepoint of the append. The variable is joined with
// the events, so the events of a second writer are not inserted.
//
// refuseOtherContent: a known dispatch ID with an equal digest is left alone and not returned. A
// different digest sets altered to NULL, which dooms the transaction. DO UPDATE compares with the
// present row, even if the row was committed after this statement began; a SELECT beside the INSERT
// would miss such a row.
//
// tellWritten: at a COMMIT ($3), the result is not read and cannot stop the COMMIT, so a second
// writer must be an error of the statement.
const (
	oneWriter = `
WITH writer AS MATERIALIZED (
    SELECT CASE WHEN coalesce(current_setting($1, true), '') = '' THEN set_config($1, $2, true)
                ELSE current_setting($1, true) END = $2 AS mine
)`
	insertEvents = `INSERT INTO {{outbox_events}} AS e (
        dispatch_id, digest, shard, topic, key, source, version, index, payload,
        type, producer, schema_version, content_type, headers,
        correlation_id, traceparent, tracestate, occurred_at, resend_seconds`
	refuseOtherContent = `
    ON CONFLICT (dispatch_id) DO UPDATE SET altered = NULL WHERE e.digest IS DISTINCT FROM excluded.digest
    RETURNING e.id, e.shard, e.dispatch_id`
	tellWritten = `
SELECT CASE WHEN $3::boolean THEN 1 / writer.mine::integer = 1 ELSE writer.mine END,
    CASE WHEN NOT $3::boolean THEN ARRAY(SELECT dispatch_id FROM written) END
FROM writer`
)

var (
	// appendEvent is for one event: 19 arrays of one element cost more than their elements.
	appendEvent = statement(oneWriter + `, written AS (
    ` + insertEvents + `)
    SELECT $4::uuid, $5::bytea, $6::smallint, $7::text, $8::text, $9::text, $10::bigint, $11::integer, $12::bytea,
        $13::text, $14::text, $15::integer, $16::text, $17::text::json,
        $18::text, $19::text, $20::text, coalesce(nullif($21::timestamptz, '-infinity'), clock_timestamp()), $22::integer
    FROM writer WHERE writer.mine` + refuseOtherContent + `
), queued AS (
    INSERT INTO {{outbox_queue}} (shard, id) SELECT shard, id FROM written
)` + tellWritten)

	// appendEvents is for many events. WITH ORDINALITY and ORDER BY keep the order of the arrays.
	// Identity values are assigned after the sort, so ids follow the order of the records.
	//
	// common: a column with one value for all events is sent as an array of one element, and unnest
	// fills the other rows with NULL. No sent value is NULL.
	appendEvents = statement(oneWriter + `, written AS (
    ` + insertEvents + `)
    SELECT r.dispatch_id, r.digest, r.shard, r.topic, r.key, r.source, r.version, r.index, r.payload,
        coalesce(r.type, common.type), coalesce(r.producer, common.producer),
        coalesce(r.schema_version, common.schema_version), coalesce(r.content_type, common.content_type),
        coalesce(r.headers, common.headers)::json, coalesce(r.correlation_id, common.correlation_id),
        coalesce(r.traceparent, common.traceparent), coalesce(r.tracestate, common.tracestate),
        coalesce(nullif(coalesce(r.occurred_at, common.occurred_at), '-infinity'), clock_timestamp()),
        coalesce(r.resend_seconds, common.resend_seconds)
    FROM writer, (
        SELECT ($13::text[])[1] AS type, ($14::text[])[1] AS producer, ($15::integer[])[1] AS schema_version,
            ($16::text[])[1] AS content_type, ($17::text[])[1] AS headers, ($18::text[])[1] AS correlation_id,
            ($19::text[])[1] AS traceparent, ($20::text[])[1] AS tracestate, ($21::timestamptz[])[1] AS occurred_at,
            ($22::integer[])[1] AS resend_seconds
    ) AS common, unnest(
        $4::uuid[], $5::bytea[], $6::smallint[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::integer[],
        $12::bytea[], $13::text[], $14::text[], $15::integer[], $16::text[], $17::text[],
        $18::text[], $19::text[], $20::text[], $21::timestamptz[], $22::integer[]
    ) WITH ORDINALITY AS r (
        dispatch_id, digest, shard, topic, key, source, version, index,
        payload, type, producer, schema_version, content_type, headers,
        correlation_id, traceparent, tracestate, occurred_at, resend_seconds, n)
    WHERE writer.mine
    ORDER BY r.n` + refuseOtherContent + `
), queued AS (
    INSERT INTO {{outbox_queue}} (shard, id) SELECT shard, id FROM written
)` + tellWritten)

	// appendDeferred is for events of which some are deferred. A deferred event has a row in
	// outbox_deferred instead of the queue. The statement is separate so that other events do not
	// pay for deferral. The keys come from the arguments, since producers may not read keys in the
	// log. The keys come as an object, since a join of arrays may be planned for a few rows and
	// meet ten thousand.
	appendDeferred = statement(oneWriter + `, written AS (
    ` + insertEvents + `, due_at)
    SELECT r.dispatch_id, r.digest, r.shard, r.topic, r.key, r.source, r.version, r.index, r.payload,
        r.type, r.producer, r.schema_version, r.content_type, r.headers::json,
        r.correlation_id, r.traceparent, r.tracestate, coalesce(nullif(r.occurred_at, '-infinity'), clock_timestamp()),
        r.resend_seconds, CASE WHEN r.due_at > clock_timestamp() THEN r.due_at END
    FROM writer, unnest(
        $4::uuid[], $5::bytea[], $6::smallint[], $7::text[], $8::text[], $9::text[], $10::bigint[], $11::integer[],
        $12::bytea[], $13::text[], $14::text[], $15::integer[], $16::text[], $17::text[],
        $18::text[], $19::text[], $20::text[], $21::timestamptz[], $22::integer[], $23::timestamptz[]
    ) WITH ORDINALITY AS r (
        dispatch_id, digest, shard, topic, key, source, version, index,
        payload, type, producer, schema_version, content_type, headers,
        correlation_id, traceparent, tracestate, occurred_at, resend_seconds, due_at, n)
    WHERE writer.mine
    ORDER BY r.n` + refuseOtherContent + `, e.due_at
), queued AS (
    INSERT INTO {{outbox_queue}} (shard, id) SELECT shard, id FROM written WHERE due_at IS NULL
), keys AS MATERIALIZED (
    SELECT jsonb_object($4::uuid[]::text[], $8::text[]) AS of
), waiting AS (
    INSERT INTO {{outbox_deferred}} (id, due_at, shard, key)
    SELECT w.id, w.due_at, w.shard, k.of ->> w.dispatch_id::text FROM written w, keys k WHERE w.due_at IS NOT NULL
)` + tellWritten)
)

// Append implements [outbox.EventStore], in one round trip.
func (s *Store) Append(ctx context.Context, tx pgx.Tx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	if len(records) == 0 {
		return nil, nil
	}
	t, args, err := s.appending(tx, writer, records, false)
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

// appending returns the statement that appends records, in tx or with its COMMIT, and the
// arguments.
func (s *Store) appending(tx pgx.Tx, writer uuid.UUID, records []outbox.Record, atCommit bool) (*template, []any, error) {
	c, err := newColumns(records)
	if err != nil {
		return nil, nil, fmt.Errorf("append events: %w", err)
	}
	args := append(make([]any, 0, 23), s.writerVariable, writer.String(), atCommit)
	switch lean := len(records) >= leanFrom && described(tx); {
	case c.due != nil:
		return appendDeferred, append(c.arrays(args, lean), c.due), nil
	case len(records) == 1:
		return appendEvent, c.single(args), nil
	default:
		c.share()
		return appendEvents, c.arrays(args, lean), nil
	}
}

// AppendAtCommit implements [outbox.CommitStore] for transactions of [Store.Transact] and of an
// inbox's handlers.
func (s *Store) AppendAtCommit(tx pgx.Tx, writer uuid.UUID, records []outbox.Record) (bool, error) {
	t, err := queueing(tx)
	if err != nil {
		return false, nil //nolint:nilerr // the caller writes at once then, and gets the error
	}
	if len(records) == 0 {
		return true, nil
	}
	sql, args, err := s.appending(tx, writer, records, true)
	if err != nil {
		return false, err
	}
	t.queue(s.sql[sql], args...).Fn = func(results pgx.BatchResults) error {
		_, err := results.Exec()
		switch {
		case err == nil:
			return nil
		case sqlState(err) == "22012": // division_by_zero, from tellWritten
			err = outbox.ErrSecondWriter
		}
		return failed("append events", appendError(err))
	}
	return true, nil
}

// known tells for each record whether its dispatch ID was known: written holds the new IDs only.
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

// appendError recognizes a conflict. The error of the database is dropped, because its detail would
// show the row.
func appendError(err error) error {
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	if ok && pgErr.Code == "23502" && pgErr.ColumnName == "altered" { // not_null_violation
		return &outbox.ConflictError{ID: conflicting(pgErr.Detail)}
	}
	return err
}

var uuidText = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// conflicting finds the dispatch ID in the detail of an error, if the detail shows the row. No
// column of text precedes the ID.
func conflicting(detail string) uuid.UUID {
	id, err := uuid.Parse(uuidText.FindString(detail))
	if err != nil {
		return uuid.Nil
	}
	return id
}

// LockKeys implements [outbox.EventStore] with advisory locks of the transaction. A lock is a hash
// of its key: two keys may share a lock and wait for each other without need.
func (s *Store) LockKeys(ctx context.Context, tx pgx.Tx, keys []string) error {
	if len(keys) == 0 {
		return nil
	}
	locks := make([]int64, len(keys))
	for i, key := range keys {
		locks[i] = lockID(s.names, "key "+key)
	}
	// Sorted by lock, not by key: two transactions that lock in opposite orders would wait for each
	// other. A function in FROM returns its rows in order.
	slices.Sort(locks)
	err := exec(ctx, tx, nil, "SELECT pg_advisory_xact_lock(k) FROM unnest($1::bigint[]) AS k", locks)
	if err != nil {
		return fmt.Errorf("lock keys: %w", err)
	}
	return nil
}
