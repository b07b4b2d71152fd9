-- The outbox: an immutable log of events, and beside it a small queue of those
-- that are to be sent. Times are microseconds since 1970, UTC. Texts are bytes of UTF-8, so that
-- equal means equal whatever the collation of the database is.
--
-- Every statement may be run again: MySQL and MariaDB commit each of them by itself.

CREATE TABLE IF NOT EXISTS `boxpair_outbox_events` (
    `id`             BIGINT         NOT NULL AUTO_INCREMENT,
    `dispatch_id`    BINARY(16)     NOT NULL,
    `digest`         BINARY(16)     NOT NULL,
    `shard`          SMALLINT       NOT NULL,
    `topic`          VARBINARY(255) NOT NULL,
    `event_key`      VARBINARY(255) NOT NULL,
    `type`           VARBINARY(255) NOT NULL,
    `producer`       VARBINARY(255) NOT NULL,
    `source`         VARBINARY(255) NOT NULL,
    `version`        BIGINT         NOT NULL,
    `event_index`    BIGINT         NOT NULL,
    `schema_version` BIGINT         NOT NULL,
    `resend_seconds` BIGINT         NOT NULL, -- for so long it may be sent again; 0: nobody says
    `content_type`   VARBINARY(255) NOT NULL,
    `correlation_id` VARBINARY(255) NOT NULL,
    `traceparent`    VARBINARY(255) NOT NULL,
    `tracestate`     VARBINARY(512) NOT NULL,
    `occurred_at`    BIGINT         NOT NULL,
    -- When the event was written. It is the stamp that every copy of it carries, or due_at if that is later.
    `created_at`     BIGINT         NOT NULL,
    -- Before when a deferred event is not sent: set if that was in the future when the event was written.
    `due_at`         BIGINT         NULL,
    -- How often the event was written again: what tells a known event from a new one.
    `rewrites`       INT UNSIGNED   NOT NULL DEFAULT 0,
    `headers`        MEDIUMBLOB     NOT NULL, -- JSON
    `payload`        LONGBLOB       NOT NULL,
    PRIMARY KEY (`id`),
    UNIQUE KEY `dispatch_id` (`dispatch_id`),
    KEY `due_at` (`due_at`, `id`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What is to be sent. A row goes when the transport has confirmed its event, or
-- when the event is parked.
CREATE TABLE IF NOT EXISTS `boxpair_outbox_queue` (
    `shard` SMALLINT NOT NULL,
    `id`    BIGINT   NOT NULL,
    `round` BIGINT   NOT NULL DEFAULT 0,
    PRIMARY KEY (`shard`, `id`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What waits for its time. A row goes when its event is due and queued, or is cancelled.
CREATE TABLE IF NOT EXISTS `boxpair_outbox_deferred` (
    `id`        BIGINT         NOT NULL,
    `shard`     SMALLINT       NOT NULL,
    `due_at`    BIGINT         NOT NULL,
    `event_key` VARBINARY(255) NOT NULL,
    PRIMARY KEY (`id`),
    KEY `due` (`shard`, `due_at`, `id`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS `boxpair_outbox_parked` (
    `id`              BIGINT          NOT NULL,
    `shard`           SMALLINT        NOT NULL,
    `event_key`       VARBINARY(255)  NOT NULL,
    `state`           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `attempts`        INT             NOT NULL DEFAULT 0,
    `next_attempt_at` BIGINT          NULL, -- set while retrying
    `parked_at`       BIGINT          NOT NULL,
    `last_error`      VARBINARY(4096) NOT NULL DEFAULT '',
    `reason`          VARBINARY(4096) NOT NULL DEFAULT '', -- why it was discarded or cancelled …
    `discarded_at`    BIGINT          NULL,                -- … and when
    `live`            TINYINT AS (CASE WHEN `state` IN ('retrying', 'following') THEN 1 ELSE 0 END) STORED,
    PRIMARY KEY (`id`),
    KEY `live` (`shard`, `live`, `event_key`, `id`),
    KEY `state` (`shard`, `state`, `event_key`, `id`),
    KEY `due` (`state`, `next_attempt_at`, `id`),
    KEY `oldest` (`live`, `id`),
    KEY `discarded` (`discarded_at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS `boxpair_outbox_attempts` (
    `id`       BIGINT          NOT NULL AUTO_INCREMENT,
    `event_id` BIGINT          NOT NULL,
    `at`       BIGINT          NOT NULL,
    `outcome`  VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `error`    VARBINARY(4096) NOT NULL DEFAULT '',
    `relay`    VARBINARY(255)  NOT NULL DEFAULT '',
    PRIMARY KEY (`id`),
    KEY `event` (`event_id`, `id`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What was delivered when: one row for many events, their IDs as a JSON array, ascending.
CREATE TABLE IF NOT EXISTS `boxpair_outbox_receipts` (
    `id`           BIGINT         NOT NULL AUTO_INCREMENT,
    `delivered_at` BIGINT         NOT NULL,
    `relay`        VARBINARY(255) NOT NULL,
    `first_id`     BIGINT         NOT NULL,
    `last_id`      BIGINT         NOT NULL,
    `events`       INT            NOT NULL,
    `event_ids`    MEDIUMTEXT CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    PRIMARY KEY (`id`),
    KEY `age` (`delivered_at`, `id`),
    KEY `span` (`last_id`, `first_id`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS `boxpair_outbox_shards` (
    `shard`         SMALLINT       NOT NULL,
    `owner`         VARBINARY(255) NULL, -- NULL: given back, or never owned
    `epoch`         BIGINT         NOT NULL DEFAULT 0,
    `lease_until`   BIGINT         NOT NULL DEFAULT 0,
    -- The place from which an operator wants the queue to be read again, and the
    -- number of that request.
    `rewind_to`     BIGINT         NULL,
    `rewind_ticket` BIGINT         NOT NULL DEFAULT 0,
    PRIMARY KEY (`shard`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Whoever writes events of a shard locks its row here to the end of the transaction, so
-- that the events of a shard become visible in the order of their IDs.
CREATE TABLE IF NOT EXISTS `boxpair_outbox_writers` (
    `shard` SMALLINT NOT NULL,
    PRIMARY KEY (`shard`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Locks of keys: a key locks the row that its hash says.
CREATE TABLE IF NOT EXISTS `boxpair_outbox_keys` (
    `slot` SMALLINT NOT NULL,
    PRIMARY KEY (`slot`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS `boxpair_outbox_relays` (
    `id`         VARBINARY(255) NOT NULL,
    `seen_until` BIGINT         NOT NULL,
    PRIMARY KEY (`id`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

INSERT INTO `boxpair_outbox_keys` (`slot`)
SELECT a.n + 8 * b.n + 64 * c.n + 512 * d.n
FROM (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS a
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS b
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS c
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS d
WHERE NOT EXISTS (SELECT 1 FROM `boxpair_outbox_keys` AS k);

INSERT INTO `boxpair_outbox_shards` (`shard`)
SELECT k.`slot` FROM `boxpair_outbox_keys` AS k
WHERE k.`slot` < 64 AND NOT EXISTS (SELECT 1 FROM `boxpair_outbox_shards` AS s);

INSERT INTO `boxpair_outbox_writers` (`shard`)
SELECT k.`slot` FROM `boxpair_outbox_keys` AS k
WHERE k.`slot` < 64 AND NOT EXISTS (SELECT 1 FROM `boxpair_outbox_writers` AS w);

-- What became of every event that is retained, and why it waits if it does. The age of an event that was
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
           WHEN r.`state` IN ('discarded', 'cancelled') THEN CONCAT(r.`state`, ': ', CONVERT(r.`reason` USING utf8mb4))
           WHEN r.`state` = 'dead' THEN 'its attempts are used up'
           WHEN r.`waits_for` IS NOT NULL THEN CONCAT('waits for event ', r.`waits_for`, ' of its key')
           WHEN r.`state` = 'deferred' AND r.`next_attempt` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'waits for its time'
           WHEN s.`owner` IS NULL THEN 'no relay owns its shard'
           WHEN s.`lease_until` <= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
               THEN CONCAT('the lease of relay ', CONVERT(s.`owner` USING utf8mb4), ' has expired')
           WHEN r.`state` = 'following' THEN 'waits for an operator to settle a dead event of its key'
           WHEN r.`next_attempt` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'waits for its next attempt'
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
           (SELECT MIN(h.`id`) FROM `boxpair_outbox_parked` AS h
            WHERE h.`shard` = q.`shard` AND h.`live` = 1 AND e.`event_key` <> '' AND h.`event_key` = e.`event_key` AND h.`id` < q.`id`) AS `waits_for`
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
LEFT JOIN `boxpair_outbox_shards` AS s ON s.`shard` = r.`shard`;
