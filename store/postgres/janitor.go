package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
)

// beginRetention precedes the statement that removes or replays, whose snapshot must be younger
// than the lock. The wait for rows is bounded: a writer that writes a known event again locks its
// row until the end of the transaction, and a replay waits for the lock meanwhile. A commit of the
// janitor does not wait for the disk: rows that come back after a crash are removed once more. All
// reads go by indexes and in their order, whatever the statistics say: a table that the statistics
// call empty may have a million rows by now. If the process is stopped in the middle, the server
// ends the transaction well within a lease; the locked shard rows would otherwise keep all relays
// from renewing.
const beginRetention = `SELECT set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '2s', true), set_config('synchronous_commit', $2, true),
    set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true), pg_advisory_xact_lock($1)`

// retained is the predicate for an event e that must stay. OFFSET 0 makes each lookup use an index:
// without statistics, the planner might read the whole queue instead.
const retained = `(
        EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = e.shard AND q.id = e.id OFFSET 0)
        OR EXISTS (SELECT FROM {{outbox_deferred}} d WHERE d.id = e.id OFFSET 0)
        OR EXISTS (SELECT FROM {{outbox_parked}} p WHERE p.id = e.id OFFSET 0)
        OR EXISTS (SELECT FROM {{outbox_attempts}} a WHERE a.event_id = e.id
                   AND a.outcome = 'replayed' AND a.at >= statement_timestamp() - $1::bigint * interval '1 us' OFFSET 0))`

// oldReceipts goes from receipt to receipt, since a receipt may name a single event or a thousand.
// statement_timestamp is stable, as an index condition needs.
const oldReceipts = `
WITH RECURSIVE old (delivered_at, id, event_ids, n) AS (
    (SELECT r.delivered_at, r.id, r.event_ids, cardinality(r.event_ids) FROM {{outbox_receipts}} r
     WHERE r.delivered_at >= $2 AND r.delivered_at < statement_timestamp() - $1::bigint * interval '1 us'
     ORDER BY r.delivered_at, r.id LIMIT 1)
    UNION ALL
    SELECT r.delivered_at, r.id, r.event_ids, o.n + cardinality(r.event_ids)
    FROM old o CROSS JOIN LATERAL (
        SELECT r.delivered_at, r.id, r.event_ids FROM {{outbox_receipts}} r
        WHERE (r.delivered_at, r.id) > (o.delivered_at, o.id)
          AND r.delivered_at < statement_timestamp() - $1::bigint * interval '1 us'
        ORDER BY r.delivered_at, r.id LIMIT 1
    ) r
    WHERE o.n < $3
)`

// removeNamed removes the events that the subquery "named" names, unless they must stay.
const removeNamed = `, events AS (
    DELETE FROM {{outbox_events}} e USING named n WHERE e.id = n.id AND NOT ` + retained + ` RETURNING e.id
), attempts AS (
    DELETE FROM {{outbox_attempts}} a USING events e WHERE a.event_id = e.id RETURNING 1
)`

var removeDelivered = statement(oldReceipts + `, named AS MATERIALIZED (
    SELECT DISTINCT u.id FROM old CROSS JOIN LATERAL unnest(old.event_ids) AS u (id)
)` + removeNamed + `, receipts AS (
    DELETE FROM {{outbox_receipts}} r USING old o WHERE r.delivered_at = o.delivered_at AND r.id = o.id RETURNING r.delivered_at
)
SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM attempts), (SELECT count(*) FROM receipts),
    (SELECT coalesce(max(n) >= $3, false) FROM old), (SELECT max(delivered_at) FROM receipts)`)

// RemoveDelivered implements [outbox.JanitorStore].
func (s *Store) RemoveDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (outbox.Removed, error) {
	return s.remove(ctx, "remove delivered events", removeDelivered, retention.Microseconds(), sinceOf(after), limit)
}

// unclaimed is the predicate for a discarded event p that may be removed. The row of an event that
// is queued again stays, because a relay may be about to park the event.
const unclaimed = `p.state IN ('discarded', 'cancelled') AND p.discarded_at < statement_timestamp() - $1::bigint * interval '1 us'
      AND NOT EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = p.shard AND q.id = p.id OFFSET 0)`

// removeOld removes the parked events that the subquery "old" names.
const removeOld = `, parked AS (
    DELETE FROM {{outbox_parked}} p USING old o WHERE p.id = o.id AND p.state IN ('discarded', 'cancelled') RETURNING p.id
), events AS (
    DELETE FROM {{outbox_events}} e USING parked p WHERE e.id = p.id RETURNING e.id
), attempts AS (
    DELETE FROM {{outbox_attempts}} a USING parked p WHERE a.event_id = p.id RETURNING 1
)
SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM attempts), 0, `

var removeDiscarded = statement(`
WITH old AS MATERIALIZED (
    SELECT p.id FROM {{outbox_parked}} p
    WHERE ` + unclaimed + `
    ORDER BY p.discarded_at LIMIT $2
)` + removeOld + `
    (SELECT count(*) >= $2 FROM old), NULL::timestamptz`)

// RemoveDiscarded implements [outbox.JanitorStore].
func (s *Store) RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (outbox.Removed, error) {
	return s.remove(ctx, "remove discarded events", removeDiscarded, retention.Microseconds(), limit)
}

// countRemovable counts an event once, though several receipts may name the event.
var countRemovable = statement(oldReceipts + `, named AS MATERIALIZED (
    SELECT DISTINCT u.id FROM old CROSS JOIN LATERAL unnest(old.event_ids) AS u (id)
), events AS MATERIALIZED (
    SELECT e.id FROM named n CROSS JOIN LATERAL (SELECT e.id, e.shard FROM {{outbox_events}} e WHERE e.id = n.id OFFSET 0) e
    WHERE NOT ` + retained + `
), parked AS MATERIALIZED (
    SELECT p.id, p.state FROM {{outbox_parked}} p WHERE ` + unclaimed + ` ORDER BY p.discarded_at LIMIT $3
)
SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM parked WHERE state = 'discarded'), (SELECT count(*) FROM parked WHERE state = 'cancelled'),
    (SELECT count(*) FROM (SELECT id FROM events UNION ALL SELECT id FROM parked) g
     CROSS JOIN LATERAL (SELECT FROM {{outbox_attempts}} a WHERE a.event_id = g.id OFFSET 0) a),
    (SELECT count(*) FROM old), (SELECT coalesce(max(n) >= $3, false) FROM old) OR (SELECT count(*) >= $3 FROM parked)`)

var _ outbox.RemovableCounter = (*Store)(nil)

// CountRemovable implements [outbox.RemovableCounter].
func (s *Store) CountRemovable(ctx context.Context, retention time.Duration, limit int) (c outbox.RemovableCount, err error) {
	err = s.reading(ctx, func(tx pgx.Tx) error {
		row := tx.QueryRow(ctx, s.sql[countRemovable], s.mode, retention.Microseconds(), sinceOf(time.Time{}), limit)
		return row.Scan(&c.Delivered, &c.Discarded, &c.Cancelled, &c.Attempts, &c.Receipts, &c.Capped)
	})
	if err != nil {
		return outbox.RemovableCount{}, failed("count removable rows", err)
	}
	return c, nil
}

func (s *Store) remove(ctx context.Context, doing string, t *template, args ...any) (r outbox.Removed, err error) {
	err = s.exclusively(ctx, "off", func(tx pgx.Tx) error {
		var through pgtype.Timestamptz
		row := tx.QueryRow(ctx, s.sql[t], append([]any{s.mode}, args...)...)
		if err := row.Scan(&r.Events, &r.Attempts, &r.Receipts, &r.Full, &through); err != nil {
			return err
		}
		r.Through = timeOf(through)
		return fault.Hit(ctx, fault.WithinDelete)
	})
	if err != nil {
		return outbox.Removed{}, failed(doing, err)
	}
	return r, nil
}

// exclusively runs fn in a transaction that overlaps with no janitor or replay of this outbox, in
// any process.
func (s *Store) exclusively(ctx context.Context, synchronous string, fn func(tx pgx.Tx) error) error {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return err
	}
	defer rollback(ctx, tx) // does nothing after a commit
	if _, err := tx.Exec(ctx, beginRetention, lockID(s.names, "retention"), synchronous); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	return tx.Commit(ctx)
}
