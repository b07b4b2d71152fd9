-- The reason why an event waits behind an earlier one of its key, whose route does not work, is looked for once for all events that
-- are asked for, instead of through the queue of its shard for each of them.

-- What became of every event that is retained, and why it waits if it does: now also for a route that does not work, its
-- own or that of an earlier event of its key. The age of an event that was deferred
-- counts from when it was due, and is below zero until then; next_attempt_at is that time. The log is large and has no
-- index on keys, so ask for what waits with a state:
--   SELECT * FROM outbox_status WHERE state <> 'delivered' AND key = '…'
--   SELECT * FROM outbox_status WHERE dispatch_id = '…'
CREATE OR REPLACE VIEW "boxpair"."outbox_status" AS
SELECT q.id, e.dispatch_id, q.shard, e.topic, e.key,
       'pending'::text AS state,
       CASE
           WHEN e.id IS NULL THEN 'the log has no such event'
           WHEN coalesce(h.id, k.id) IS NOT NULL
               THEN 'waits for event ' || coalesce(h.id, k.id) || ' of its key' || coalesce(', whose ' || r.says, '')
           WHEN s.owner IS NULL THEN 'no relay owns its shard'
           WHEN s.lease_until <= clock_timestamp() THEN 'the lease of relay ' || s.owner || ' has expired'
           WHEN r.says IS NOT NULL THEN 'its ' || r.says
           ELSE 'waits to be sent by relay ' || s.owner
       END AS why,
       e.created_at,
       clock_timestamp() - greatest(e.created_at, e.due_at) AS age,
       0 AS attempts,
       NULL::timestamptz AS next_attempt_at,
       NULL::text AS last_error,
       coalesce(h.id, k.id) AS waits_for,
       NULL::timestamptz AS delivered_at
FROM "boxpair"."outbox_queue" q
LEFT JOIN "boxpair"."outbox_events" e ON e.id = q.id
LEFT JOIN "boxpair"."outbox_shards" s ON s.shard = q.shard
LEFT JOIN LATERAL (
    SELECT p.id, b.topic FROM "boxpair"."outbox_parked" p LEFT JOIN "boxpair"."outbox_events" b ON b.id = p.id
    WHERE p.shard = q.shard AND p.key = e.key AND p.key <> '' AND p.state IN ('retrying', 'following')
    ORDER BY p.id LIMIT 1
) h ON true
LEFT JOIN (
    -- The first event of each key that waits for a route which a relay reports: looked for once, not for each event that waits.
    SELECT DISTINCT ON (f.shard, b.key) f.shard, b.key, f.id, b.topic
    FROM "boxpair"."outbox_routes" n
    JOIN "boxpair"."outbox_shards" o ON o.owner = n.relay
    JOIN "boxpair"."outbox_queue" f ON f.shard = o.shard
    JOIN "boxpair"."outbox_events" b ON b.id = f.id AND b.topic = n.topic
    WHERE b.key <> '' AND b.id >= (SELECT min(m.id) FROM "boxpair"."outbox_queue" m) -- the log is long
    ORDER BY f.shard, b.key, f.id
) k ON k.shard = q.shard AND k.key = e.key AND k.id < q.id AND h.id IS NULL
   AND NOT EXISTS (SELECT FROM "boxpair"."outbox_routes" n WHERE n.relay = s.owner AND n.topic = e.topic)
LEFT JOIN LATERAL (
    SELECT 'route ' || n.route || ' is ' || n.state || ' since ' ||
           to_char(n.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC: ' || n.last_error AS says
    FROM "boxpair"."outbox_routes" n JOIN "boxpair"."outbox_relays" l ON l.id = n.relay AND l.seen_until > clock_timestamp()
    WHERE n.relay = s.owner AND n.topic = coalesce(h.topic, k.topic, e.topic)
) r ON true
UNION ALL
SELECT d.id, e.dispatch_id, d.shard, e.topic, d.key,
       'deferred',
       CASE
           WHEN d.due_at > clock_timestamp() THEN 'waits for its time'
           WHEN s.owner IS NULL THEN 'is due, and no relay owns its shard'
           WHEN s.lease_until <= clock_timestamp() THEN 'is due, and the lease of relay ' || s.owner || ' has expired'
           ELSE 'is due, and waits to be queued by relay ' || s.owner
       END,
       e.created_at,
       clock_timestamp() - greatest(e.created_at, d.due_at),
       0,
       d.due_at,
       NULL, NULL, NULL
FROM "boxpair"."outbox_deferred" d
LEFT JOIN "boxpair"."outbox_events" e ON e.id = d.id
LEFT JOIN "boxpair"."outbox_shards" s ON s.shard = d.shard
UNION ALL
SELECT p.id, e.dispatch_id, p.shard, e.topic, p.key,
       p.state,
       CASE
           WHEN p.state IN ('discarded', 'cancelled') THEN p.state || ': ' || p.reason
           WHEN p.state = 'dead' THEN 'its attempts are used up'
           WHEN h.id IS NOT NULL THEN 'waits for event ' || h.id || ' of its key' || coalesce(', whose ' || r.says, '')
           WHEN s.owner IS NULL THEN 'no relay owns its shard'
           WHEN s.lease_until <= clock_timestamp() THEN 'the lease of relay ' || s.owner || ' has expired'
           WHEN p.state = 'following' THEN 'waits for an operator to settle a dead event of its key'
           WHEN p.next_attempt_at > clock_timestamp() THEN 'waits for its next attempt'
           WHEN r.says IS NOT NULL THEN 'its ' || r.says
           ELSE 'waits to be sent by relay ' || s.owner
       END AS why,
       e.created_at,
       clock_timestamp() - greatest(e.created_at, e.due_at) AS age,
       p.attempts,
       p.next_attempt_at,
       p.last_error,
       h.id AS waits_for,
       NULL::timestamptz AS delivered_at
FROM "boxpair"."outbox_parked" p
LEFT JOIN "boxpair"."outbox_events" e ON e.id = p.id
LEFT JOIN "boxpair"."outbox_shards" s ON s.shard = p.shard
LEFT JOIN LATERAL (
    SELECT b.id, f.topic FROM "boxpair"."outbox_parked" b LEFT JOIN "boxpair"."outbox_events" f ON f.id = b.id
    WHERE b.shard = p.shard AND b.key = p.key AND b.key <> '' AND b.id < p.id
      AND p.state IN ('retrying', 'following') AND b.state IN ('retrying', 'following')
    ORDER BY b.id LIMIT 1
) h ON true
LEFT JOIN LATERAL (
    SELECT 'route ' || n.route || ' is ' || n.state || ' since ' ||
           to_char(n.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC: ' || n.last_error AS says
    FROM "boxpair"."outbox_routes" n JOIN "boxpair"."outbox_relays" l ON l.id = n.relay AND l.seen_until > clock_timestamp()
    WHERE n.relay = s.owner AND n.topic = coalesce(h.topic, e.topic) AND p.state IN ('retrying', 'following')
) r ON true
UNION ALL
SELECT e.id, e.dispatch_id, e.shard, e.topic, e.key,
       'delivered',
       'delivered',
       e.created_at,
       clock_timestamp() - greatest(e.created_at, e.due_at),
       (SELECT count(*)::integer FROM "boxpair"."outbox_attempts" a
        WHERE a.event_id = e.id AND a.outcome NOT IN ('redriven', 'discarded', 'replayed')),
       NULL, NULL, NULL,
       (SELECT max(r.delivered_at) FROM "boxpair"."outbox_receipts" r
        WHERE r.first_id <= e.id AND r.last_id >= e.id AND e.id = ANY (r.event_ids))
FROM "boxpair"."outbox_events" e
WHERE NOT EXISTS (SELECT FROM "boxpair"."outbox_queue" q WHERE q.shard = e.shard AND q.id = e.id)
  AND NOT EXISTS (SELECT FROM "boxpair"."outbox_deferred" d WHERE d.id = e.id)
  AND NOT EXISTS (SELECT FROM "boxpair"."outbox_parked" p WHERE p.id = e.id);
