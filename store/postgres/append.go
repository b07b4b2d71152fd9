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
// AtCommit: the result of a statement with a COMMIT is not read. The writer of a transaction of the
// store is checked by its guard instead, which saves a part of the work.
const (
	insertEvents = `INSERT INTO {{outbox_events}} AS e (
        dispatch_id, digest, shard, topic, key, source, version, index, payload,
        type, producer, schema_version, content_type, headers,
        correlation_id, traceparent, tracestate, occurred_at, resend_seconds`
	refuseOtherContent = `
    ON CONFLICT (dispatch_id) DO UPDATE SET altered = NULL WHERE e.digest IS DISTINCT FROM excluded.digest
    RETURNING e.id, e.shard, e.dispatch_id`
	tellWritten = `
SELECT writer.mine, ARRAY(SELECT dispatch_id FROM written) FROM writer`

	oneEvent = `
    SELECT $1::uuid, $2::bytea, $3::smallint, $4::text, $5::text, $6::text, $7::bigint, $8::integer, $9::bytea,
        $10::text, $11::text, $12::integer, $13::text, $14::text::json,
        $15::text, $16::text, $17::text, coalesce(nullif($18::timestamptz, '-infinity'), clock_timestamp()), $19::integer`
	arrays = `unnest(
        $1::uuid[], $2::bytea[], $3::smallint[], $4::text[], $5::text[], $6::text[], $7::bigint[], $8::integer[],
        $9::bytea[], $10::text[], $11::text[], $12::integer[], $13::text[], $14::text[],
        $15::text[], $16::text[], $17::text[], $18::timestamptz[], $19::integer[]`
	arrayNames = `
        dispatch_id, digest, shard, topic, key, source, version, index,
        payload, type, producer, schema_version, content_type, headers,
        correlation_id, traceparent, tracestate, occurred_at, resend_seconds`
	// manyEvents: a column with one value for all events is sent as an array of one element, and
	// unnest fills the other rows with NULL. No sent value is NULL.
	manyEvents = `
    SELECT r.dispatch_id, r.digest, r.shard, r.topic, r.key, r.source, r.version, r.index, r.payload,
        coalesce(r.type, common.type), coalesce(r.producer, common.producer),
        coalesce(r.schema_version, common.schema_version), coalesce(r.content_type, common.content_type),
        coalesce(r.headers, common.headers)::json, coalesce(r.correlation_id, common.correlation_id),
        coalesce(r.traceparent, common.traceparent), coalesce(r.tracestate, common.tracestate),
        coalesce(nullif(coalesce(r.occurred_at, common.occurred_at), '-infinity'), clock_timestamp()),
        coalesce(r.resend_seconds, common.resend_seconds)
    FROM (
        SELECT ($10::text[])[1] AS type, ($11::text[])[1] AS producer, ($12::integer[])[1] AS schema_version,
            ($13::text[])[1] AS content_type, ($14::text[])[1] AS headers, ($15::text[])[1] AS correlation_id,
            ($16::text[])[1] AS traceparent, ($17::text[])[1] AS tracestate, ($18::timestamptz[])[1] AS occurred_at,
            ($19::integer[])[1] AS resend_seconds
    ) AS common, ` + arrays + `) WITH ORDINALITY AS r (` + arrayNames + `, n)`
	someDeferred = `
    SELECT r.dispatch_id, r.digest, r.shard, r.topic, r.key, r.source, r.version, r.index, r.payload,
        r.type, r.producer, r.schema_version, r.content_type, r.headers::json,
        r.correlation_id, r.traceparent, r.tracestate, coalesce(nullif(r.occurred_at, '-infinity'), clock_timestamp()),
        r.resend_seconds, CASE WHEN r.due_at > clock_timestamp() THEN r.due_at END
    FROM ` + arrays + `, $20::timestamptz[]) WITH ORDINALITY AS r (` + arrayNames + `, due_at, n)`

	queueEvents = `INSERT INTO {{outbox_queue}} (shard, id) SELECT shard, id FROM written`
	// deferEvents takes the keys from the arguments, since producers may not read keys in the log.
	// The keys come as an object, since a join of arrays may be planned for a few rows and meet ten
	// thousand.
	deferEvents = `
, keys AS MATERIALIZED (
    SELECT jsonb_object($1::uuid[]::text[], $5::text[]) AS of
), waiting AS (
    INSERT INTO {{outbox_deferred}} (id, due_at, shard, key)
    SELECT w.id, w.due_at, w.shard, k.of ->> w.dispatch_id::text FROM written w, keys k WHERE w.due_at IS NOT NULL
)
`
)

// oneWriter returns the check of the writer, by the variable and the token in the given arguments.
func oneWriter(variable, token string) string {
	return `WITH writer AS MATERIALIZED (
    SELECT CASE WHEN coalesce(current_setting(` + variable + `::text, true), '') = '' THEN set_config(` + variable + `::text, ` + token + `::text, true)
                ELSE current_setting(` + variable + `::text, true) END = ` + token + ` AS mine
), `
}

var (
	// appendEvent is for one event: 19 arrays of one element cost more than their elements.
	appendEvent = statement(oneWriter("$20", "$21") + `written AS (
    ` + insertEvents + `)` + oneEvent + `
    FROM writer WHERE writer.mine` + refuseOtherContent + `
), queued AS (` + queueEvents + `)` + tellWritten)
	appendEventAtCommit = statement(`WITH written AS (
    ` + insertEvents + `)` + oneEvent + refuseOtherContent + `
) ` + queueEvents)

	// appendEvents is for many events. WITH ORDINALITY and ORDER BY keep the order of the arrays.
	// Identity values are assigned after the sort, so ids follow the order of the records.
	appendEvents = statement(oneWriter("$20", "$21") + `written AS (
    ` + insertEvents + `)` + manyEvents + `, writer WHERE writer.mine ORDER BY r.n` + refuseOtherContent + `
), queued AS (` + queueEvents + `)` + tellWritten)
	appendEventsAtCommit = statement(`WITH written AS (
    ` + insertEvents + `)` + manyEvents + ` ORDER BY r.n` + refuseOtherContent + `
) ` + queueEvents)

	// appendDeferred is for events of which some are deferred. A deferred event has a row in
	// outbox_deferred instead of the queue. The statement is separate so that other events do not
	// pay for deferral.
	appendDeferred = statement(oneWriter("$21", "$22") + `written AS (
    ` + insertEvents + `, due_at)` + someDeferred + `, writer WHERE writer.mine ORDER BY r.n` + refuseOtherContent + `, e.due_at
), queued AS (` + queueEvents + ` WHERE due_at IS NULL)` + deferEvents + tellWritten)
	appendDeferredAtCommit = statement(`WITH written AS (
    ` + insertEvents + `, due_at)` + someDeferred + ` ORDER BY r.n` + refuseOtherContent + `, e.due_at
)` + deferEvents + queueEvents + ` WHERE due_at IS NULL`)
)

// Append implements [outbox.EventStore], in one round trip.
func (s *Store) Append(ctx context.Context, tx pgx.Tx, writer uuid.UUID, records []outbox.Record) ([]bool, error) {
	if len(records) == 0 {
		return nil, nil
	}
	if g, ok := tx.(*guardedTx); ok && !g.guard.isWriter(s.writerVariable, writer) {
		return nil, fmt.Errorf("append events: %w", outbox.ErrSecondWriter)
	}
	c, err := newColumns(records)
	if err != nil {
		return nil, fmt.Errorf("append events: %w", err)
	}
	t, args := c.arguments(tx, appendEvent, appendEvents, appendDeferred)
	var mine bool
	var written []pgtype.UUID
	if err := exec(ctx, tx, []any{&mine, &written}, s.sql[t], append(args, s.writerVariable, writer.String())...); err != nil {
		return nil, failed("append events", appendError(err))
	}
	if !mine {
		return nil, fmt.Errorf("append events: %w", outbox.ErrSecondWriter)
	}
	return known(records, written), nil
}

// arguments returns the statement that appends the records of c, of three, and its arguments.
func (c *columns) arguments(tx pgx.Tx, single, many, deferred *template) (*template, []any) {
	args := make([]any, 0, 22)
	switch lean := len(c.id) >= leanFrom && described(tx); {
	case c.due != nil:
		return deferred, append(c.arrays(args, lean), c.due)
	case len(c.id) == 1:
		return single, c.single(args)
	default:
		c.share()
		return many, c.arrays(args, lean)
	}
}

// WaitForCommit implements [outbox.CommitStore]. Records do not wait in a transaction whose
// connection the caller has taken (Conn), or in which the caller has set a savepoint by a statement:
// such a transaction may be rolled back in part at any time.
func (s *Store) WaitForCommit(tx pgx.Tx, flush func(ctx context.Context) error) bool {
	_, err := queueing(tx)
	return err == nil && tx.(*guardedTx).guard.await(s.writerVariable, flush)
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
	if !tx.(*guardedTx).guard.isWriter(s.writerVariable, writer) {
		return false, fmt.Errorf("append events: %w", outbox.ErrSecondWriter)
	}
	c, err := newColumns(records)
	if err != nil {
		return false, fmt.Errorf("append events: %w", err)
	}
	sql, args := c.arguments(tx, appendEventAtCommit, appendEventsAtCommit, appendDeferredAtCommit)
	t.queue(s.sql[sql], args...).Fn = func(results pgx.BatchResults) error {
		if _, err := results.Exec(); err != nil {
			return failed("append events", appendError(err))
		}
		return nil
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
