-- Which topics a relay cannot send to at the moment. A relay writes them with its heartbeat when that has changed, a
-- hundred at most, so that an operator's session sees what only the relay knows. Rows of a relay that is not
-- visible say nothing; the next relay that writes removes them.
CREATE TABLE IF NOT EXISTS `boxpair_outbox_routes` (
    `relay`      VARBINARY(255)  NOT NULL,
    `topic`      VARBINARY(255)  NOT NULL,
    `route`      VARBINARY(1024) NOT NULL,
    `state`      VARBINARY(16)   NOT NULL, -- paused or unavailable
    `since`      BIGINT          NOT NULL,
    `last_error` VARBINARY(1024) NOT NULL,
    PRIMARY KEY (`relay`, `topic`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What became of every event that is retained, and why it waits if it does: now also for a route that does not work, its
-- own or that of an earlier event of its key. That one is looked for only where a relay reports a route, and not for the events of that route. The age of an event that was
-- deferred counts from when it was due, and is below zero until then; next_attempt_at is that time.
-- SELECT * FROM boxpair_outbox_status WHERE state <> 'delivered' AND `key` = '…'.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW `boxpair_outbox_status` AS
SELECT r.`id`,
       LOWER(CONCAT_WS('-', SUBSTR(HEX(r.`dispatch_id`), 1, 8), SUBSTR(HEX(r.`dispatch_id`), 9, 4),
             SUBSTR(HEX(r.`dispatch_id`), 13, 4), SUBSTR(HEX(r.`dispatch_id`), 17, 4), SUBSTR(HEX(r.`dispatch_id`), 21))) AS `dispatch_id`,
       r.`shard`, CONVERT(r.`topic` USING utf8mb4) AS `topic`, CONVERT(r.`event_key` USING utf8mb4) AS `key`, r.`state`,
       CASE
           WHEN r.`dispatch_id` IS NULL THEN 'the log has no such event'
           WHEN r.`state` = 'delivered' THEN 'delivered'
           WHEN r.`state` IN ('discarded', 'cancelled') THEN CONCAT(CONVERT(r.`state` USING utf8mb4), ': ', CONVERT(r.`reason` USING utf8mb4))
           WHEN r.`state` = 'dead' THEN 'its attempts are used up'
           WHEN r.`waits_for` IS NOT NULL THEN CONCAT('waits for event ', r.`waits_for`, ' of its key', COALESCE(CONCAT(', whose ', n.`says`), ''))
           WHEN r.`state` = 'deferred' AND r.`next_attempt` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'waits for its time'
           WHEN s.`owner` IS NULL THEN 'no relay owns its shard'
           WHEN s.`lease_until` <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
               THEN CONCAT('the lease of relay ', CONVERT(s.`owner` USING utf8mb4), ' has expired')
           WHEN r.`state` = 'following' THEN 'waits for an operator to settle a dead event of its key'
           WHEN r.`next_attempt` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'waits for its next attempt'
           WHEN n.`says` IS NOT NULL THEN CONCAT('its ', n.`says`)
           ELSE CONCAT('waits to be sent by relay ', CONVERT(s.`owner` USING utf8mb4))
       END AS `why`,
       DATE_ADD('1970-01-01 00:00:00.000000', INTERVAL r.`created` MICROSECOND) AS `created_at`,
       (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - r.`stamp`) / 1000000 AS `age_seconds`,
       r.`attempts`,
       DATE_ADD('1970-01-01 00:00:00.000000', INTERVAL r.`next_attempt` MICROSECOND) AS `next_attempt_at`,
       CONVERT(r.`last_error` USING utf8mb4) AS `last_error`,
       r.`waits_for`,
       CASE WHEN r.`state` = 'delivered' THEN (
           SELECT DATE_ADD('1970-01-01 00:00:00.000000', INTERVAL MAX(d.`delivered_at`) MICROSECOND) FROM `boxpair_outbox_receipts` AS d
           WHERE d.`first_id` <= r.`id` AND d.`last_id` >= r.`id` AND JSON_CONTAINS(d.`event_ids`, CAST(r.`id` AS CHAR))
       ) END AS `delivered_at`
FROM (
    SELECT q.`id`, q.`shard`, 'pending' AS `state`, 0 AS `attempts`, NULL AS `next_attempt`, NULL AS `last_error`, NULL AS `reason`,
           e.`dispatch_id`, e.`topic`, e.`event_key`, e.`created_at` AS `created`, GREATEST(e.`created_at`, COALESCE(e.`due_at`, 0)) AS `stamp`,
           COALESCE((SELECT MIN(h.`id`) FROM `boxpair_outbox_parked` AS h
            WHERE h.`shard` = q.`shard` AND h.`live` = 1 AND e.`event_key` <> '' AND h.`event_key` = e.`event_key` AND h.`id` < q.`id`),
            CASE WHEN e.`event_key` <> '' AND (
                SELECT COUNT(*) > 0 AND COALESCE(SUM(n.`topic` = e.`topic`), 0) = 0 FROM `boxpair_outbox_shards` AS o
                JOIN `boxpair_outbox_routes` AS n ON n.`relay` = o.`owner` WHERE o.`shard` = q.`shard`
            ) THEN (
                SELECT MIN(f.`id`) FROM `boxpair_outbox_queue` AS f JOIN `boxpair_outbox_events` AS b ON b.`id` = f.`id`
                WHERE f.`shard` = q.`shard` AND f.`id` < q.`id` AND b.`event_key` = e.`event_key` AND b.`topic` IN (
                    SELECT n.`topic` FROM `boxpair_outbox_shards` AS o
                    JOIN `boxpair_outbox_routes` AS n ON n.`relay` = o.`owner` WHERE o.`shard` = q.`shard`)
            ) END) AS `waits_for`
    FROM `boxpair_outbox_queue` AS q LEFT JOIN `boxpair_outbox_events` AS e ON e.`id` = q.`id`
    UNION ALL
    SELECT d.`id`, d.`shard`, 'deferred', 0, d.`due_at`, NULL, NULL,
           e.`dispatch_id`, e.`topic`, e.`event_key`, e.`created_at`, GREATEST(e.`created_at`, COALESCE(e.`due_at`, 0)), NULL
    FROM `boxpair_outbox_deferred` AS d LEFT JOIN `boxpair_outbox_events` AS e ON e.`id` = d.`id`
    UNION ALL
    SELECT p.`id`, p.`shard`, p.`state`, p.`attempts`, p.`next_attempt_at`, p.`last_error`, p.`reason`,
           e.`dispatch_id`, e.`topic`, e.`event_key`, e.`created_at`, GREATEST(e.`created_at`, COALESCE(e.`due_at`, 0)),
           (SELECT MIN(h.`id`) FROM `boxpair_outbox_parked` AS h
            WHERE p.`live` = 1 AND h.`shard` = p.`shard` AND h.`live` = 1 AND e.`event_key` <> '' AND h.`event_key` = e.`event_key` AND h.`id` < p.`id`)
    FROM `boxpair_outbox_parked` AS p LEFT JOIN `boxpair_outbox_events` AS e ON e.`id` = p.`id`
    UNION ALL
    SELECT e.`id`, e.`shard`, 'delivered',
           (SELECT COUNT(*) FROM `boxpair_outbox_attempts` AS a
            WHERE a.`event_id` = e.`id` AND a.`outcome` NOT IN ('redriven', 'discarded', 'replayed')),
           NULL, NULL, NULL,
           e.`dispatch_id`, e.`topic`, e.`event_key`, e.`created_at`, GREATEST(e.`created_at`, COALESCE(e.`due_at`, 0)), NULL
    FROM `boxpair_outbox_events` AS e
    WHERE NOT EXISTS (SELECT 1 FROM `boxpair_outbox_queue` AS q WHERE q.`shard` = e.`shard` AND q.`id` = e.`id`)
      AND NOT EXISTS (SELECT 1 FROM `boxpair_outbox_deferred` AS d WHERE d.`id` = e.`id`)
      AND NOT EXISTS (SELECT 1 FROM `boxpair_outbox_parked` AS p WHERE p.`id` = e.`id`)
) AS r
LEFT JOIN `boxpair_outbox_shards` AS s ON s.`shard` = r.`shard`
LEFT JOIN `boxpair_outbox_events` AS b ON b.`id` = r.`waits_for`
LEFT JOIN (
    SELECT t.`relay`, t.`topic`, CONCAT('route ', CONVERT(t.`route` USING utf8mb4), ' is ', CONVERT(t.`state` USING utf8mb4), ' since ',
           DATE_FORMAT(DATE_ADD('1970-01-01 00:00:00', INTERVAL t.`since` MICROSECOND), '%Y-%m-%d %H:%i:%s'), ' UTC: ',
           CONVERT(t.`last_error` USING utf8mb4)) AS `says`
    FROM `boxpair_outbox_routes` AS t JOIN `boxpair_outbox_relays` AS l
      ON l.`id` = t.`relay` AND l.`seen_until` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
) AS n ON n.`relay` = s.`owner` AND n.`topic` = COALESCE(b.`topic`, r.`topic`) AND r.`state` IN ('pending', 'retrying', 'following');
