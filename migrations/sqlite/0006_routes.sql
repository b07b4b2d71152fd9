-- Which topics a relay cannot send to at the moment. A relay writes them with its heartbeat when that has changed, a
-- hundred at most, so that an operator's session sees what only the relay knows. Rows of a relay that is not
-- visible say nothing; the next relay that writes removes them.
CREATE TABLE "boxpair_outbox_routes" (
    relay      TEXT NOT NULL,
    topic      TEXT NOT NULL,
    route      TEXT NOT NULL,
    state      TEXT NOT NULL, -- paused or unavailable
    since      INTEGER NOT NULL,
    last_error TEXT NOT NULL,
    PRIMARY KEY (relay, topic)
) WITHOUT ROWID;

DROP VIEW "boxpair_outbox_status";

-- What became of every event that is retained, and why it waits if it does: now also for a route that does not work, its
-- own or that of an earlier event of its key. That one is looked for only where a relay reports a route, and not for the events of that route. The age of an event that was deferred
-- counts from when it was due, and is below zero until then; next_attempt_at is that time.
-- SELECT * FROM boxpair_outbox_status WHERE state <> 'delivered' AND key = '…'.
CREATE VIEW "boxpair_outbox_status" AS
WITH clock (now) AS (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
waiting (id, shard, round, state, attempts, next_attempt_at, last_error, reason) AS (
    SELECT id, shard, round, 'pending', 0, NULL, NULL, NULL FROM "boxpair_outbox_queue"
    UNION ALL
    SELECT id, shard, 0, 'deferred', 0, due_at, NULL, NULL FROM "boxpair_outbox_deferred"
    UNION ALL
    SELECT id, shard, 0, state, attempts, next_attempt_at, last_error, reason FROM "boxpair_outbox_parked"
    UNION ALL
    SELECT e.id, e.shard, 0, 'delivered',
           (SELECT count(*) FROM "boxpair_outbox_attempts" a
            WHERE a.event_id = e.id AND a.outcome NOT IN ('redriven', 'discarded', 'replayed')), NULL, NULL, NULL
    FROM "boxpair_outbox_events" e
    WHERE NOT EXISTS (SELECT 1 FROM "boxpair_outbox_queue" q WHERE q.shard = e.shard AND q.id = e.id)
      AND NOT EXISTS (SELECT 1 FROM "boxpair_outbox_deferred" d WHERE d.id = e.id)
      AND NOT EXISTS (SELECT 1 FROM "boxpair_outbox_parked" p WHERE p.id = e.id)
),
rows AS (
    SELECT w.*, e.id AS event, e.dispatch_id, e.topic, e.key, e.created_at,
           max(e.created_at, coalesce(e.due_at, 0)) AS stamp,
           CASE WHEN e.key <> '' AND w.state IN ('pending', 'following', 'retrying') THEN coalesce((
               SELECT min(h.id) FROM "boxpair_outbox_parked" h
               WHERE h.shard = w.shard AND h.key = e.key AND h.id < w.id AND h.state IN ('retrying', 'following')
           ), CASE WHEN w.state = 'pending' AND (
               SELECT count(*) > 0 AND coalesce(sum(n.topic = e.topic), 0) = 0 FROM "boxpair_outbox_shards" s
               JOIN "boxpair_outbox_routes" n ON n.relay = s.owner WHERE s.shard = w.shard
           ) THEN (
               SELECT f.id FROM "boxpair_outbox_queue" f JOIN "boxpair_outbox_events" b ON b.id = f.id
               WHERE f.shard = w.shard AND f.id < w.id AND b.key = e.key AND b.topic IN (
                   SELECT n.topic FROM "boxpair_outbox_shards" s
                   JOIN "boxpair_outbox_routes" n ON n.relay = s.owner WHERE s.shard = w.shard)
               ORDER BY f.id LIMIT 1
           ) END) END AS waits_for
    FROM waiting w LEFT JOIN "boxpair_outbox_events" e ON e.id = w.id
),
routes AS (
    SELECT n.relay, n.topic, 'route ' || n.route || ' is ' || n.state || ' since ' ||
           strftime('%Y-%m-%d %H:%M:%S', n.since / 1e6, 'unixepoch') || ' UTC: ' || n.last_error AS says
    FROM "boxpair_outbox_routes" n CROSS JOIN clock
    JOIN "boxpair_outbox_relays" l ON l.id = n.relay AND l.seen_until > clock.now
)
SELECT r.id,
       lower(substr(hex(r.dispatch_id), 1, 8) || '-' || substr(hex(r.dispatch_id), 9, 4) || '-' ||
             substr(hex(r.dispatch_id), 13, 4) || '-' || substr(hex(r.dispatch_id), 17, 4) || '-' ||
             substr(hex(r.dispatch_id), 21)) AS dispatch_id,
       r.shard, r.topic, r.key, r.state,
       CASE
           WHEN r.event IS NULL THEN 'the log has no such event'
           WHEN r.state = 'delivered' THEN 'delivered'
           WHEN r.state IN ('discarded', 'cancelled') THEN r.state || ': ' || r.reason
           WHEN r.state = 'dead' THEN 'its attempts are used up'
           WHEN r.waits_for IS NOT NULL THEN 'waits for event ' || r.waits_for || ' of its key' || coalesce(', whose ' || n.says, '')
           WHEN r.state = 'deferred' AND r.next_attempt_at > clock.now THEN 'waits for its time'
           WHEN s.owner IS NULL THEN 'no relay owns its shard'
           WHEN s.lease_until <= clock.now THEN 'the lease of relay ' || s.owner || ' has expired'
           WHEN r.state = 'following' THEN 'waits for an operator to settle a dead event of its key'
           WHEN r.next_attempt_at > clock.now THEN 'waits for its next attempt'
           WHEN n.says IS NOT NULL THEN 'its ' || n.says
           ELSE 'waits to be sent by relay ' || s.owner
       END AS why,
       strftime('%Y-%m-%d %H:%M:%f', r.created_at / 1e6, 'unixepoch') AS created_at,
       (clock.now - r.stamp) / 1e6 AS age_seconds,
       r.attempts,
       strftime('%Y-%m-%d %H:%M:%f', r.next_attempt_at / 1e6, 'unixepoch') AS next_attempt_at,
       r.last_error, r.waits_for,
       CASE WHEN r.state = 'delivered' THEN (
           SELECT strftime('%Y-%m-%d %H:%M:%f', max(d.delivered_at) / 1e6, 'unixepoch') FROM "boxpair_outbox_receipts" d
           WHERE d.first_id <= r.id AND d.last_id >= r.id AND r.id IN (SELECT value FROM json_each(d.event_ids))
       ) END AS delivered_at
FROM rows r CROSS JOIN clock
LEFT JOIN "boxpair_outbox_shards" s ON s.shard = r.shard
LEFT JOIN "boxpair_outbox_events" b ON b.id = r.waits_for
LEFT JOIN routes n ON n.relay = s.owner AND n.topic = coalesce(b.topic, r.topic)
                  AND r.state IN ('pending', 'retrying', 'following');
