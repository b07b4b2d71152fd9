package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// expired is the predicate for an event e beyond its re-send horizon. An event without a log row
// does not count as expired, because its stamp is unknown.
const expired = `coalesce(e.resend_seconds > 0 AND ` + stamp + ` + e.resend_seconds * interval '1 s' <= statement_timestamp(), false)`

// halving searches the log for a time by halving the range of ids: created_at ascends with the id,
// and needs no index.
const halving = `
WITH RECURSIVE s (low, high) AS (
    SELECT coalesce(min(id), 1) - 1, coalesce(max(id), 0) FROM {{outbox_events}}
    UNION ALL
    SELECT CASE WHEN p.created_at < $1 THEN p.id ELSE s.low END,
           CASE WHEN p.created_at < $1 THEN s.high ELSE s.low + (s.high - s.low) / 2 END
    FROM s CROSS JOIN LATERAL (
        SELECT e.id, e.created_at FROM {{outbox_events}} e WHERE e.id > s.low + (s.high - s.low) / 2 ORDER BY e.id LIMIT 1
    ) p
    WHERE s.low < s.high
)`

// findPlace finds a place for all events with a stamp. Deferred events have later stamps than their
// neighbours, and an index. Adding 0 to the id keeps the planner from searching the whole log for
// the lowest id.
var findPlace = statement(halving + `
SELECT least(max(low), (SELECT min(id + 0) - 1 FROM {{outbox_events}} WHERE due_at >= $1)) FROM s`)

// Place implements [outbox.OperatorStore].
func (s *Store) Place(ctx context.Context, at time.Time) (after int64, err error) {
	if at.IsZero() {
		return 0, nil
	}
	if err := s.queryRow(ctx, findPlace, at).Scan(&after); err != nil {
		return 0, failed("find a position in the log", err)
	}
	return after, nil
}

// retainedEvents reads one part of the log, however few events of the part the filter selects, so a
// step takes as long for a rare key as for all keys. Events given by ID are looked up.
const retainedEvents = `, picked AS MATERIALIZED (
    SELECT e.id, e.dispatch_id, ` + stamp + ` AS stamp, e.resend_seconds, ` + expired + ` AS expired
    FROM part e
    WHERE ($3 = '' OR e.topic = $3) AND ($4 = '' OR e.key = $4) AND ` + stamp + ` >= $5 AND ` + stamp + ` < $6
      AND NOT EXISTS (SELECT FROM {{outbox_deferred}} d WHERE d.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = e.shard AND q.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_parked}} p WHERE p.id = e.id OFFSET 0)
    ORDER BY e.id LIMIT $7
)
SELECT n.n, coalesce(n.through, 0), n.stamp, p.id, p.dispatch_id, p.stamp, p.resend_seconds, p.expired
FROM (SELECT count(*) AS n, max(id) AS through, min(created_at) AS stamp FROM part) n LEFT JOIN picked p ON true
ORDER BY p.id`

var (
	retainedPart = statement(`
WITH part AS MATERIALIZED (
    SELECT id, shard, dispatch_id, topic, key, created_at, due_at, resend_seconds FROM {{outbox_events}}
    WHERE id > $1 AND cardinality($8::uuid[]) = 0 ORDER BY id LIMIT $2
)` + retainedEvents)
	retainedIDs = statement(`
WITH part AS MATERIALIZED (
    SELECT id, shard, dispatch_id, topic, key, created_at, due_at, resend_seconds FROM {{outbox_events}}
    WHERE dispatch_id = ANY ($8::uuid[]) AND id > $1 ORDER BY id LIMIT $2
)` + retainedEvents)
)

// Retained implements [outbox.OperatorStore].
func (s *Store) Retained(ctx context.Context, f outbox.Selection, after int64, scan, limit int) (outbox.Page, error) {
	t := retainedPart
	if len(f.IDs) > 0 {
		t = retainedIDs
	}
	rows, err := s.query(ctx, t, after, scan, f.Topic, f.Key, sinceOf(f.From), untilOf(f.To), limit, idValues(f.IDs))
	if err != nil {
		return outbox.Page{}, failed("read the log", err)
	}
	var page outbox.Page
	var n int
	var seq, resend pgtype.Int8
	var stamp, created pgtype.Timestamptz
	var id pgtype.UUID
	var over pgtype.Bool
	_, err = pgx.ForEachRow(rows, []any{&n, &page.Through, &stamp, &seq, &id, &created, &resend, &over}, func() error {
		page.Stamp = timeOf(stamp)
		if seq.Valid {
			e := outbox.Retained{Seq: seq.Int64, ID: id.Bytes, Stamp: timeOf(created), Expired: over.Bool}
			if resend.Int64 > 0 {
				e.ResendUntil = e.Stamp.Add(time.Duration(resend.Int64) * time.Second)
			}
			page.Events = append(page.Events, e)
		}
		return nil
	})
	if err != nil {
		return outbox.Page{}, failed("read the log", err)
	}
	if picked := len(page.Events); picked > 0 && picked == limit {
		page.Through = page.Events[picked-1].Seq
	} else {
		page.Through, page.End = max(page.Through, after), n < scan
	}
	return page, nil
}

func idValues(ids []uuid.UUID) []pgtype.UUID {
	values := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		values[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	return values
}

// requeue locks the shards before it reads further, as operators do. The snapshot is younger than
// the lock that excludes janitors and other replays. So an event that is neither deferred, queued
// nor parked in the snapshot stays so until requeue queues the event. Rounds begin with tickets,
// see [outbox.RoundChance].
var requeue = statement(`
WITH chosen AS MATERIALIZED (
    SELECT e.id, e.shard, e.dispatch_id
    FROM unnest($1::bigint[]) AS u (id)
    CROSS JOIN LATERAL (SELECT e.id, e.shard, e.dispatch_id FROM {{outbox_events}} e WHERE e.id = u.id OFFSET 0) e
    WHERE NOT EXISTS (SELECT FROM {{outbox_deferred}} d WHERE d.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = e.shard AND q.id = e.id OFFSET 0)
      AND NOT EXISTS (SELECT FROM {{outbox_parked}} p WHERE p.id = e.id OFFSET 0)
), locked AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s
    WHERE s.shard IN (SELECT shard FROM chosen)
    ORDER BY s.shard
    FOR UPDATE
), changed AS (
    INSERT INTO {{outbox_queue}} (shard, id, round)
    SELECT c.shard, c.id, (nextval($2::text::regclass) << 20) + floor(random() * (1 << 20))::bigint FROM chosen c JOIN locked l ON l.shard = c.shard
    RETURNING shard, id, round
), noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, error) SELECT id, 'replayed', $3::text FROM changed ORDER BY id
), rewound AS (
    UPDATE {{outbox_shards}} s
    SET rewind_to = least(s.rewind_to, c.first), rewind_ticket = nextval($2::text::regclass)
    FROM (SELECT shard, min(id) AS first FROM changed GROUP BY shard) c
    WHERE s.shard = c.shard
)
SELECT c.shard, c.id, c.round, e.dispatch_id FROM changed c JOIN chosen e ON e.id = c.id ORDER BY c.id`)

// Requeue implements [outbox.OperatorStore].
func (s *Store) Requeue(ctx context.Context, seqs []int64, reason string) (queued []outbox.Requeued, err error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	err = s.exclusively(ctx, "on", func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql[requeue], s.mode, seqs, s.names.Table("outbox_tickets"), storable(reason))
		if err != nil {
			return err
		}
		queued, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r outbox.Requeued, err error) {
			err = row.Scan(&r.Shard, &r.Seq, &r.Round, (*[16]byte)(&r.ID))
			return r, err
		})
		return err
	})
	if err != nil {
		return nil, failed("queue events again", err)
	}
	return queued, nil
}

var stillQueued = statement(`
SELECT count(*) FROM unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS r (shard, id, round)
CROSS JOIN LATERAL (
    SELECT FROM {{outbox_queue}} q WHERE q.shard = r.shard AND q.id = r.id AND q.round = r.round OFFSET 0
) q`)

// StillQueued implements [outbox.OperatorStore].
func (s *Store) StillQueued(ctx context.Context, rows []outbox.Requeued) (n int, err error) {
	shards, seqs, rounds := make([]int16, len(rows)), make([]int64, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		shards[i], seqs[i], rounds[i] = int16(r.Shard), r.Seq, r.Round
	}
	if err := s.queryRow(ctx, stillQueued, shards, seqs, rounds).Scan(&n); err != nil {
		return 0, failed("count replayed events in the queue", err)
	}
	return n, nil
}
