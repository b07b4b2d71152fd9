package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// undefer moves due events into the queue. An index on the time finds their rows. If no event is
// due, no row is locked or written.
//
// due: a row that is being cancelled or rescheduled is locked, and skipped. No row is awaited, so
// the predicate sees the present row: a rescheduled event is not due any more.
//
// moved: an array, since in a join the planner would read the whole table instead of looking up
// some thousand rows.
//
// The time until the next event is due is in whole microseconds, since a session may cut the digits
// of other numbers. The time is bounded, since a Go duration is.
//
// lowered: see [outbox.RelayStore.KeepLow]. The fence locks as an update does, in the order of
// shards, and the update compares with the present row, whatever the snapshot held.
//
// fence: see [mark]. Unlike a mark, the commit waits for the disk: if a crash undid the move, an
// event could be cancelled after it was sent.
var undefer = statement(`
WITH lease AS MATERIALIZED (
    SELECT * FROM unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch)
), due AS MATERIALIZED (
    SELECT d.id, d.shard FROM lease l CROSS JOIN LATERAL (
        SELECT d.id, d.shard FROM {{outbox_deferred}} d
        WHERE d.shard = l.shard AND d.due_at <= statement_timestamp()
        ORDER BY d.due_at, d.id LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) d
), fence AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s JOIN lease l ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch AND s.shard IN (SELECT shard FROM due)
    ORDER BY s.shard
    FOR NO KEY UPDATE OF s
), moved AS (
    DELETE FROM {{outbox_deferred}} d
    WHERE d.id = ANY (ARRAY(SELECT due.id FROM due JOIN fence f ON f.shard = due.shard))
    RETURNING d.shard, d.id
), queued AS (
    INSERT INTO {{outbox_queue}} (shard, id) SELECT shard, id FROM moved
), lowered AS (
    UPDATE {{outbox_shards}} s SET low_water = least(s.low_water, m.first - 1), tail = least(s.tail, m.first - 1)
    FROM (SELECT shard, min(id) AS first FROM moved GROUP BY shard) m WHERE s.shard = m.shard
)
SELECT ARRAY(SELECT shard FROM moved ORDER BY id), ARRAY(SELECT id FROM moved ORDER BY id),
    ARRAY(SELECT DISTINCT shard FROM due WHERE shard NOT IN (SELECT shard FROM fence)),
    coalesce((
        SELECT (extract(epoch FROM min(least(n.due_at, statement_timestamp() + interval '10 years')) - statement_timestamp()) * 1000000)::bigint
        FROM lease l CROSS JOIN LATERAL (
            SELECT d.due_at FROM {{outbox_deferred}} d
            WHERE d.shard = l.shard AND d.due_at > statement_timestamp() ORDER BY d.due_at, d.id LIMIT 1
        ) n
    ), 0)`)

// firstDeferred returns the time in microseconds until the first deferred event is due: 0 or less
// for a due event, NULL without a deferred event. While events are written, a relay asks many times
// a second, and an event is rarely due. Planning [undefer] takes many times as long as
// firstDeferred.
var firstDeferred = statement(`
SELECT (extract(epoch FROM min(least(n.due_at, statement_timestamp() + interval '10 years')) - statement_timestamp()) * 1000000)::bigint
FROM unnest($1::smallint[]) AS l (shard) CROSS JOIN LATERAL (
    SELECT d.due_at FROM {{outbox_deferred}} d WHERE d.shard = l.shard ORDER BY d.due_at, d.id LIMIT 1
) n`)

// untilDeferred runs firstDeferred. some tells whether a deferred event exists.
func (s *Store) untilDeferred(ctx context.Context, shards []int16) (until time.Duration, some bool, err error) {
	var first pgtype.Int8
	err = s.kept(ctx, func(rows pgx.Rows) error {
		for rows.Next() {
			if err := rows.Scan(&first); err != nil {
				return err
			}
		}
		return nil
	}, firstDeferred, shards)
	return time.Duration(first.Int64) * time.Microsecond, first.Valid, err
}

// Undefer implements [outbox.RelayStore].
func (s *Store) Undefer(ctx context.Context, relay string, leases []outbox.Lease, limit int) (outbox.Undeferred, error) {
	if len(leases) == 0 {
		return outbox.Undeferred{}, nil
	}
	shards, epochs := split(leases)
	switch until, some, err := s.untilDeferred(ctx, shards); {
	case err != nil:
		return outbox.Undeferred{}, failed("read the next deferred event", err)
	case !some:
		return outbox.Undeferred{}, nil
	case until > 0:
		return outbox.Undeferred{Next: until}, nil
	}
	var movedShards, lost []int16
	var moved []int64
	var next int64
	err := s.queryRow(ctx, undefer, relay, shards, epochs, limit).Scan(&movedShards, &moved, &lost, &next)
	if err != nil {
		return outbox.Undeferred{}, failed("queue deferred events", err)
	}
	u := outbox.Undeferred{Next: time.Duration(next) * time.Microsecond}
	for i, seq := range moved {
		u.Moved = append(u.Moved, outbox.Moved{Shard: int(movedShards[i]), Seq: seq})
	}
	for _, shard := range lost {
		u.Lost = append(u.Lost, int(shard))
	}
	return u, nil
}

// chosenDeferred locks deferred events in the order of their ids, so that two callers who cancel
// the same events do not wait for each other.
const chosenDeferred = `
WITH chosen AS MATERIALIZED (
    SELECT d.id, d.shard, d.key, e.dispatch_id
    FROM (SELECT id, dispatch_id FROM {{outbox_events}} WHERE dispatch_id = ANY ($1::uuid[]) OFFSET 0) e
    JOIN {{outbox_deferred}} d ON d.id = e.id
    ORDER BY d.id
    FOR UPDATE OF d
)`

// cancel deletes the rows of deferred events. A relay that moves an event deletes the row too: only
// one statement of the two finds the row.
var cancel = statement(chosenDeferred + `, gone AS (
    DELETE FROM {{outbox_deferred}} d USING chosen c WHERE d.id = c.id
    RETURNING c.id, c.shard, c.key, c.dispatch_id
), kept AS (
    INSERT INTO {{outbox_parked}} (id, shard, key, state, reason, discarded_at)
    SELECT id, shard, key, 'cancelled', $2, clock_timestamp() FROM gone
), noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, error) SELECT id, 'cancelled', $2 FROM gone ORDER BY id
)
SELECT dispatch_id FROM gone ORDER BY id`)

// Cancel implements [outbox.EventStore].
func (s *Store) Cancel(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, reason string) ([]uuid.UUID, error) {
	return s.changeDeferred(ctx, tx, "cancel events", cancel, ids, reason)
}

// reschedule also changes the time in the log, since the stamp depends on the time.
var reschedule = statement(chosenDeferred + `, changed AS (
    UPDATE {{outbox_deferred}} d SET due_at = $2 FROM chosen c WHERE d.id = c.id
    RETURNING c.id, c.dispatch_id
), logged AS (
    UPDATE {{outbox_events}} e SET due_at = $2 FROM changed c WHERE e.id = c.id
)
SELECT dispatch_id FROM changed ORDER BY id`)

// Reschedule implements [outbox.EventStore].
func (s *Store) Reschedule(ctx context.Context, tx pgx.Tx, ids []uuid.UUID, at time.Time) ([]uuid.UUID, error) {
	return s.changeDeferred(ctx, tx, "reschedule events", reschedule, ids, at)
}

func (s *Store) changeDeferred(ctx context.Context, tx pgx.Tx, doing string, t *template, ids []uuid.UUID, arg any) ([]uuid.UUID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	rows, err := tx.Query(ctx, s.sql[t], idValues(ids), arg)
	if err != nil {
		return nil, failed(doing, err)
	}
	changed, err := pgx.CollectRows(rows, scanID)
	if err != nil {
		return nil, failed(doing, err)
	}
	return changed, nil
}

var listDeferred = statement(`
SELECT d.shard, d.id, 0, 0, '', ` + eventColumns + `, d.due_at
FROM {{outbox_deferred}} d
LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = d.id OFFSET 0) e ON true
WHERE (cardinality($1::uuid[]) = 0 OR d.id IN (SELECT id FROM {{outbox_events}} WHERE dispatch_id = ANY ($1::uuid[])))
  AND ($2 = '' OR e.topic = $2) AND ($3 = '' OR d.key = $3)
  AND d.id > $4 AND d.due_at >= $6 AND d.due_at < $7
ORDER BY d.id LIMIT $5`)

// ListDeferred implements [outbox.OperatorStore].
func (s *Store) ListDeferred(ctx context.Context, f outbox.DeferredFilter) ([]outbox.Deferred, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultFilterLimit
	}
	args := []any{idValues(f.IDs), f.Topic, f.Key, f.After, limit, sinceOf(f.From), untilOf(f.To)}
	list, err := readRows(ctx, s, listDeferred, args, func(row pgx.CollectableRow) (d outbox.Deferred, err error) {
		var round int64
		var attempts int
		var state string
		var missing bool
		var due pgtype.Timestamptz
		columns := append([]any{&d.Shard, &d.Seq, &round, &attempts, &state, &missing}, into(&d.Record, new(string))...)
		err = row.Scan(append(columns, &due)...)
		d.DueAt = timeOf(due)
		return d, err
	})
	if err != nil {
		return nil, failed("list deferred events", err)
	}
	return list, nil
}
