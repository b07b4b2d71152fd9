package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/audit"
)

// auditSpan reads the time since which the outbox is complete. Delivered events are removed
// together with their receipts, in the order of the receipts, so all events created since the
// oldest receipt are retained. The very first receipt has number 1: while it exists, no event was
// removed. Without receipts, no event was removed from a log that begins with event 1 or never had
// an event. Otherwise, or if the role may not read the sequence, any event may have been removed.
var auditSpan = statement(`
SELECT clock_timestamp(), coalesce((SELECT max(id) FROM {{outbox_events}}), 0),
    CASE
        WHEN r.id = 1 THEN NULL
        WHEN r.id IS NOT NULL THEN r.delivered_at
        WHEN EXISTS (SELECT FROM {{outbox_events}} WHERE id = 1) THEN NULL
        WHEN (SELECT has_sequence_privilege(s.name, 'SELECT')
                  AND NOT EXISTS (SELECT FROM pg_sequences q
                      WHERE format('%I.%I', q.schemaname, q.sequencename)::regclass = s.name::regclass AND q.last_value IS NOT NULL)
              FROM (SELECT pg_get_serial_sequence($1, 'id') AS name) s) THEN NULL
        ELSE clock_timestamp()
    END
FROM (VALUES (1)) one (n)
LEFT JOIN (SELECT id, delivered_at FROM {{outbox_receipts}} ORDER BY delivered_at, id LIMIT 1) r ON true`)

// Span implements [audit.Outbox].
func (a *Auditor) Span(ctx context.Context) (audit.Span, error) {
	spans, err := collect(ctx, a, "read the span of the outbox", auditSpan, func(rows pgx.Rows, s *audit.Span) error {
		return rows.Scan(instantColumn{&s.Now}, &s.Last, instantColumn{&s.RetainedSince})
	}, a.names.Table("outbox_events"))
	if err != nil {
		return audit.Span{}, err
	}
	return spans[0], nil
}

var auditEvents = statement(`
SELECT id, dispatch_id, digest, topic, created_at FROM {{outbox_events}} WHERE id > $1 ORDER BY id LIMIT $2`)

// Events implements [audit.Outbox].
func (a *Auditor) Events(ctx context.Context, after int64, limit int) ([]audit.Event, error) {
	return collect(ctx, a, "read events", auditEvents, func(rows pgx.Rows, e *audit.Event) error {
		return rows.Scan(&e.Seq, (*[16]byte)(&e.ID), digestColumn{&e.Digest}, &e.Topic, instantColumn{&e.CreatedAt})
	}, after, limit)
}

// Unsent events are read from the queue, then from the parked events, then from the deferred
// events, in the order of primary keys. A replayed event waits since its replay.
var (
	auditQueue = statement(`
SELECT q.shard, q.id, e.id IS NULL, coalesce(e.dispatch_id, '00000000-0000-0000-0000-000000000000'), coalesce(e.topic, ''), ` + stamp + `,
    CASE WHEN q.round > 0 THEN (
        SELECT max(x.at) FROM {{outbox_attempts}} x WHERE x.event_id = q.id AND x.outcome = 'replayed') ELSE ` + stamp + ` END,
    'pending', 0, ''
FROM {{outbox_queue}} q
LEFT JOIN LATERAL (SELECT e.id, e.dispatch_id, e.topic, e.created_at, e.due_at FROM {{outbox_events}} e WHERE e.id = q.id OFFSET 0) e ON true
WHERE (q.shard, q.id) > ($1, $2::bigint) ORDER BY q.shard, q.id LIMIT $3`)
	auditParked = statement(`
SELECT p.shard, p.id, e.id IS NULL, coalesce(e.dispatch_id, '00000000-0000-0000-0000-000000000000'), coalesce(e.topic, ''), ` + stamp + `,
    p.parked_at, p.state, p.attempts, coalesce(CASE WHEN p.state IN ('discarded', 'cancelled') THEN p.reason END, p.last_error, '')
FROM {{outbox_parked}} p
LEFT JOIN LATERAL (SELECT e.id, e.dispatch_id, e.topic, e.created_at, e.due_at FROM {{outbox_events}} e WHERE e.id = p.id OFFSET 0) e ON true
WHERE p.id > $1 ORDER BY p.id LIMIT $2`)
	auditDeferred = statement(`
SELECT d.shard, d.id, e.id IS NULL, coalesce(e.dispatch_id, '00000000-0000-0000-0000-000000000000'), coalesce(e.topic, ''), e.created_at,
    d.due_at, ` + deferredState + `, 0, ''
FROM {{outbox_deferred}} d
LEFT JOIN LATERAL (SELECT e.id, e.dispatch_id, e.topic, e.created_at FROM {{outbox_events}} e WHERE e.id = d.id OFFSET 0) e ON true
WHERE d.id > $1 ORDER BY d.id LIMIT $2`)
)

// deferredState is the state of a deferred event d for an audit: a due event is pending, even
// before it is queued.
const deferredState = `CASE WHEN d.due_at > clock_timestamp() THEN 'deferred' ELSE 'pending' END`

// Unsent implements [audit.Outbox].
func (a *Auditor) Unsent(ctx context.Context, after audit.Place, limit int) ([]audit.Unsent, error) {
	scan := func(rows pgx.Rows, u *audit.Unsent) error {
		return rows.Scan(&u.Shard, &u.Seq, &u.Missing, (*[16]byte)(&u.ID), &u.Topic, instantColumn{&u.CreatedAt},
			instantColumn{&u.Since}, &u.State, &u.Attempts, &u.Why)
	}
	if !after.Deferred && !after.Parked {
		list, err := collect(ctx, a, "read the queue", auditQueue, scan, after.Shard, after.Seq, limit)
		if err != nil || len(list) > 0 {
			return list, err
		}
		after = audit.Place{}
	}
	if !after.Deferred {
		list, err := collect(ctx, a, "read parked events", auditParked, scan, after.Seq, limit)
		for i := range list {
			list[i].Parked = true
		}
		if err != nil || len(list) > 0 {
			return list, err
		}
		after = audit.Place{}
	}
	list, err := collect(ctx, a, "read deferred events", auditDeferred, scan, after.Seq, limit)
	for i := range list {
		list[i].Deferred = true
	}
	return list, err
}

var (
	auditFindEvents = statement(`
SELECT e.id, e.dispatch_id, e.digest, e.topic, ` + stamp + `,
    CASE WHEN EXISTS (SELECT FROM {{outbox_queue}} q WHERE q.shard = e.shard AND q.id = e.id OFFSET 0) THEN 'pending'
         ELSE coalesce((SELECT p.state FROM {{outbox_parked}} p WHERE p.id = e.id),
             (SELECT ` + deferredState + ` FROM {{outbox_deferred}} d WHERE d.id = e.id), 'delivered') END
FROM {{outbox_events}} e WHERE e.dispatch_id = ANY ($1::uuid[])`)

	auditRecent = statement(`
SELECT DISTINCT u.id FROM {{outbox_receipts}} r CROSS JOIN LATERAL unnest(r.event_ids) AS u (id)
JOIN unnest($2::bigint[]) AS w (id) ON w.id = u.id
WHERE r.delivered_at >= $1`)
)

// FindEvents implements [audit.Outbox].
func (a *Auditor) FindEvents(ctx context.Context, ids []uuid.UUID, since time.Time) ([]audit.FoundEvent, error) {
	list, err := collect(ctx, a, "find events", auditFindEvents, func(rows pgx.Rows, e *audit.FoundEvent) error {
		return rows.Scan(&e.Seq, (*[16]byte)(&e.ID), digestColumn{&e.Digest}, &e.Topic, instantColumn{&e.CreatedAt}, &e.State)
	}, idValues(ids))
	if err != nil || since.IsZero() {
		return list, err
	}
	var delivered []int64
	for _, e := range list {
		if e.State == audit.Delivered {
			delivered = append(delivered, e.Seq)
		}
	}
	if len(delivered) == 0 {
		return list, nil
	}
	recent := make(map[int64]bool)
	err = a.read(ctx, "read receipts", auditRecent, func(rows pgx.Rows) error {
		var seq int64
		for rows.Next() {
			if err := rows.Scan(&seq); err != nil {
				return err
			}
			recent[seq] = true
		}
		return nil
	}, since, delivered)
	for i := range list {
		list[i].Recent = recent[list[i].Seq]
	}
	return list, err
}
