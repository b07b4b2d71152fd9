package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

const (
	defaultFilterLimit = 100
	// pendingLimit is where [Store.Stats] stops counting.
	pendingLimit = 100_000
)

// selected is the condition of a filter on a parked event p and its event e.
const selected = `(cardinality($1::uuid[]) = 0 OR e.dispatch_id = ANY ($1::uuid[]))
      AND p.state = ANY ($2::text[])
      AND ($3 = '' OR e.topic = $3)
      AND ($4 = '' OR p.key = $4)
      AND p.id > $5
      AND ($7 = '' OR strpos(coalesce(p.last_error, ''), $7) > 0)
      AND p.parked_at >= $8 AND p.parked_at < $9`

var listParked = statement(`
SELECT p.shard, p.id, 0, p.attempts, p.state, ` + eventColumns + `,
    p.parked_at, p.next_attempt_at, coalesce(p.last_error, ''), coalesce(p.reason, '')
FROM {{outbox_parked}} p LEFT JOIN {{outbox_events}} e ON e.id = p.id
WHERE ` + selected + `
ORDER BY p.id LIMIT $6`)

// ListParked implements [outbox.OperatorStore].
func (s *Store) ListParked(ctx context.Context, f outbox.Filter) ([]outbox.Parked, error) {
	states := chosen(f, outbox.Retrying, outbox.Following, outbox.Dead, outbox.Discarded, outbox.Cancelled)
	list, err := readRows(ctx, s, listParked, filterArgs(f, states), func(row pgx.CollectableRow) (p outbox.Parked, err error) {
		var round int64
		var missing bool
		var next pgtype.Timestamptz
		columns := append([]any{&p.Shard, &p.Seq, &round, &p.Attempts, (*string)(&p.State), &missing}, into(&p.Record, new(string))...)
		err = row.Scan(append(columns, &p.ParkedAt, &next, &p.LastError, &p.Reason)...)
		p.NextAttemptAt = next.Time
		return p, err
	})
	if err != nil {
		return nil, failed("list parked events", err)
	}
	return list, nil
}

var attempts = statement(`
SELECT a.at, a.outcome, a.error, a.relay
FROM {{outbox_events}} e JOIN {{outbox_attempts}} a ON a.event_id = e.id
WHERE e.dispatch_id = $1
ORDER BY a.n LIMIT $2`)

// Attempts implements [outbox.OperatorStore].
func (s *Store) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]outbox.Attempt, error) {
	list, err := readRows(ctx, s, attempts, []any{pgtype.UUID{Bytes: id, Valid: true}, limit}, func(row pgx.CollectableRow) (a outbox.Attempt, err error) {
		err = row.Scan(&a.At, &a.Outcome, &a.Error, &a.Relay)
		return a, err
	})
	if err != nil {
		return nil, failed("read attempts", err)
	}
	return list, nil
}

// deliveries finds the receipts of an event by a BRIN index on their ranges of ids.
var deliveries = statement(`
SELECT r.delivered_at, r.relay
FROM {{outbox_events}} e CROSS JOIN LATERAL (
    SELECT r.delivered_at, r.relay FROM {{outbox_receipts}} r
    WHERE r.first_id <= e.id AND r.last_id >= e.id AND e.id = ANY (r.event_ids) OFFSET 0
) r
WHERE e.dispatch_id = $1
ORDER BY r.delivered_at`)

// Deliveries implements [outbox.OperatorStore].
func (s *Store) Deliveries(ctx context.Context, id uuid.UUID) ([]outbox.Delivery, error) {
	list, err := readRows(ctx, s, deliveries, []any{pgtype.UUID{Bytes: id, Valid: true}}, func(row pgx.CollectableRow) (d outbox.Delivery, err error) {
		err = row.Scan(&d.At, &d.Relay)
		return d, err
	})
	if err != nil {
		return nil, failed("read deliveries", err)
	}
	return list, nil
}

// lockChosen selects events and locks the rows of their shards, whoever owns the shards, before any
// row of an event. FOR UPDATE keeps the fenced statements of relays out, so operator and relay
// cannot wait for each other's rows. Selection and change are one statement, so that an operator
// who is stopped holds no lock.
const (
	lockChosen = `
WITH chosen AS MATERIALIZED (
    SELECT p.id, p.shard, p.key, p.state
    FROM {{outbox_parked}} p ` + ofLog + `
    WHERE ` + selected + ` AND ` + ofIDs + `
    ORDER BY p.id LIMIT $6
)` + lockThem

	// lockTimely selects only events that may still be sent again, unless forced. A retrying event is
	// sent again anyway.
	lockTimely = `
WITH chosen AS MATERIALIZED (
    SELECT p.id, p.shard, p.key, p.state
    FROM {{outbox_parked}} p ` + ofLog + `
    WHERE ` + selected + ` AND ` + ofIDs + ` AND ($11 OR p.state = 'retrying' OR NOT ` + expired + `)
    ORDER BY p.id LIMIT $6
)` + lockThem

	// ofLog looks the events up one by one. In a join, the planner would merge all of a long log with
	// the parked events, once the statistics are of fewer rows than there were.
	ofLog = `LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = p.id OFFSET 0) e ON true`

	// ofIDs finds the parked events of dispatch IDs without a look at all others.
	ofIDs = `(cardinality($1::uuid[]) = 0 OR p.id = ANY (ARRAY(SELECT i.id FROM {{outbox_events}} i WHERE i.dispatch_id = ANY ($1::uuid[]))))`

	lockThem = `, locked AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s
    WHERE s.shard IN (SELECT shard FROM chosen)
    ORDER BY s.shard
    FOR UPDATE
)`
)

// rewind asks the owners of the changed shards for a rewind to the first changed event, or to the
// lower place of an earlier request.
const rewind = ` rewound AS (
    UPDATE {{outbox_shards}} s
    SET rewind_to = least(s.rewind_to, c.first), rewind_ticket = nextval($10::text::regclass)
    FROM (SELECT shard, min(id) AS first FROM changed GROUP BY shard) c
    WHERE s.shard = c.shard
)
SELECT e.dispatch_id FROM changed c JOIN {{outbox_events}} e ON e.id = c.id ORDER BY c.id`

// redrive checks the state again: a second operator, or the janitor, may have been faster.
var redrive = statement(lockTimely + `, changed AS (
    UPDATE {{outbox_parked}} p SET state = 'retrying', attempts = 0, next_attempt_at = clock_timestamp(),
        reason = NULL, discarded_at = NULL
    FROM chosen c JOIN locked l ON l.shard = c.shard
    WHERE p.id = c.id AND p.state = ANY ($2::text[])
    RETURNING p.shard, p.id
), noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, error) SELECT id, 'redriven', $12::text FROM changed ORDER BY id
),` + rewind)

// refusedLate counts the events that were skipped, up to a limit.
var refusedLate = statement(`
SELECT count(*) FROM (
    SELECT FROM {{outbox_parked}} p JOIN {{outbox_events}} e ON e.id = p.id
    WHERE ` + selected + ` AND p.state <> 'retrying' AND ` + expired + ` LIMIT $6
) p`)

// Redrive implements [outbox.OperatorStore]. Refused events are counted up to 100,000.
func (s *Store) Redrive(ctx context.Context, f outbox.Filter, reason string) (ids []uuid.UUID, refused int, err error) {
	states := chosen(f, redriven(f)...)
	if len(states) == 0 {
		return nil, 0, nil
	}
	ids, err = s.operate(ctx, "redrive events", redrive, f, states, f.Force, storable(reason))
	if err != nil || f.Force || len(ids) == orDefault(f.Limit, defaultFilterLimit) {
		return ids, 0, err
	}
	f.Limit = pendingLimit
	if err := s.queryRow(ctx, refusedLate, filterArgs(f, states)...).Scan(&refused); err != nil {
		return ids, 0, failed("count refused events", err)
	}
	return ids, refused, nil
}

// redriven returns the states of events that f redrives.
func redriven(f outbox.Filter) []outbox.State {
	switch {
	case len(f.States) > 0:
		return []outbox.State{outbox.Dead, outbox.Retrying, outbox.Discarded}
	case len(f.IDs) > 0:
		return []outbox.State{outbox.Dead, outbox.Retrying}
	}
	return []outbox.State{outbox.Dead}
}

// discard frees a key if the discarded event is the head, or the only dead event, for which the key
// may be on hold. Discarding a follower frees no key.
var discard = statement(lockChosen + `, changed AS (
    UPDATE {{outbox_parked}} p SET state = 'discarded', next_attempt_at = NULL, reason = $11, discarded_at = clock_timestamp()
    FROM chosen c JOIN locked l ON l.shard = c.shard
    WHERE p.id = c.id AND p.state = ANY ($2::text[])
    RETURNING p.shard, p.id, p.key, c.state AS was
), noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, error) SELECT id, 'discarded', $11 FROM changed ORDER BY id
), gone AS (
    SELECT id FROM changed
), kept AS (
    SELECT id FROM changed
), freed AS (
    SELECT DISTINCT c.shard, c.key, false AS hold FROM changed c
    WHERE c.key <> '' AND (c.was = 'retrying' OR c.was = 'dead' AND NOT EXISTS (
        SELECT FROM {{outbox_parked}} d
        WHERE d.shard = c.shard AND d.key = c.key AND d.state = 'dead' AND d.id NOT IN (SELECT id FROM gone)))
),` + promote + `,` + rewind)

// Discard implements [outbox.OperatorStore].
func (s *Store) Discard(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error) {
	states := chosen(f, outbox.Retrying, outbox.Following, outbox.Dead)
	return s.operate(ctx, "discard events", discard, f, states, storable(reason))
}

func (s *Store) operate(ctx context.Context, doing string, t *template, f outbox.Filter, states []string, args ...any) ([]uuid.UUID, error) {
	if len(states) == 0 {
		return nil, nil
	}
	args = slices.Concat(filterArgs(f, states), []any{s.names.Table("outbox_tickets")}, args)
	ids, err := readRows(ctx, s, t, args, scanID)
	if err != nil {
		return nil, failed(doing, err)
	}
	return ids, nil
}

// chosen returns the states that f selects.
func chosen(f outbox.Filter, states ...outbox.State) []string {
	var list []string
	for _, state := range states {
		if len(f.States) == 0 || slices.Contains(f.States, state) {
			list = append(list, string(state))
		}
	}
	return list
}

// filterArgs are the arguments of selected, and the limit.
func filterArgs(f outbox.Filter, states []string) []any {
	ids := make([]pgtype.UUID, len(f.IDs))
	for i, id := range f.IDs {
		ids[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	limit := f.Limit
	if limit == 0 {
		limit = defaultFilterLimit
	}
	return []any{ids, states, f.Topic, f.Key, f.After, limit, f.Error, sinceOf(f.Since), untilOf(f.Until)}
}

// stats counts up to a limit. The oldest pending event is the oldest of the first events of the
// shards: ids follow the order of writing. Replayed events do not count, as they were delivered in
// their time. Deferred events count from their due time, even before a relay moves them.
var stats = statement(`
SELECT
    (SELECT count(*) FROM (SELECT FROM {{outbox_queue}} LIMIT $1 + 1) q),
    (SELECT count(*) FROM (SELECT FROM {{outbox_parked}} WHERE state = 'retrying' LIMIT $1) p),
    (SELECT count(*) FROM (SELECT FROM {{outbox_parked}} WHERE state = 'following' AND ` + live + ` LIMIT $1) p),
    (SELECT count(*) FROM (SELECT FROM {{outbox_parked}} WHERE state = 'dead' LIMIT $1) p),
    (SELECT count(*) FROM {{outbox_shards}} WHERE owner IS NOT NULL AND lease_until > clock_timestamp()),
    (SELECT count(*) FROM {{outbox_relays}} WHERE seen_until > clock_timestamp()),
    (SELECT count(*) FROM (SELECT FROM {{outbox_deferred}} LIMIT $1) d),
    coalesce((extract(epoch FROM clock_timestamp() - least((
        SELECT min(d.due_at) FROM {{outbox_shards}} s CROSS JOIN LATERAL (
            SELECT d.due_at FROM {{outbox_deferred}} d
            WHERE d.shard = s.shard AND d.due_at <= statement_timestamp() ORDER BY d.due_at, d.id LIMIT 1
        ) d
    ), (
        SELECT min(` + stamp + `)
        FROM (
            SELECT q.id FROM {{outbox_shards}} s
            CROSS JOIN LATERAL (SELECT id FROM {{outbox_queue}} q WHERE q.shard = s.shard AND q.round <= 0 ORDER BY q.id LIMIT 1) q
            UNION ALL
            (SELECT id FROM {{outbox_parked}} WHERE ` + live + ` AND shard >= 0 ORDER BY id LIMIT 1)
        ) first
        CROSS JOIN LATERAL (SELECT e.created_at, e.due_at FROM {{outbox_events}} e WHERE e.id = first.id OFFSET 0) e
    ))) * 1000000)::bigint, 0)`)

// Stats implements [outbox.OperatorStore]. Counting stops at 100,000 pending events, and at as many
// of each state.
func (s *Store) Stats(ctx context.Context) (outbox.Stats, error) {
	var st outbox.Stats
	var oldest int64
	err := s.queryRow(ctx, stats, pendingLimit).Scan(&st.Pending, &st.Retrying, &st.Following, &st.Dead,
		&st.Owned, &st.Relays, &st.Deferred, &oldest)
	if err != nil {
		return outbox.Stats{}, failed("read stats", err)
	}
	if st.Pending > pendingLimit {
		st.Pending, st.PendingCapped = pendingLimit, true
	}
	// A negative age means that the clock was set back.
	st.OldestPending = max(0, time.Duration(oldest)*time.Microsecond)
	return st, nil
}
