-- The inboxes: which dispatch IDs each consumer has applied or keeps parked, the
-- messages that wait, effects outside the database, and the answers to HTTP requests. Times are microseconds since 1970, UTC.

CREATE TABLE IF NOT EXISTS `boxpair_inbox_consumers` (
    `id`              INT            NOT NULL AUTO_INCREMENT,
    `name`            VARBINARY(511) NOT NULL,
    `window_us`       BIGINT         NOT NULL,
    `registered_at`   BIGINT         NOT NULL,
    `passed_at`       BIGINT         NOT NULL, -- when forgetting was last considered
    `forgotten_until` BIGINT         NULL, -- NULL: nothing is forgotten
    `horizon_us`      BIGINT         NULL, -- for how long after its stamp an event may be sent again, at most …
    `horizon_until`   BIGINT         NULL, -- … and until when such a one may come
    PRIMARY KEY (`id`),
    UNIQUE KEY `name` (`name`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- The times up to which a consumer forgot, and when each of them was set: rows are removed
-- only by a time that has held for a while.
CREATE TABLE IF NOT EXISTS `boxpair_inbox_forgotten` (
    `consumer` INT    NOT NULL,
    `set_at`   BIGINT NOT NULL,
    `until`    BIGINT NOT NULL,
    PRIMARY KEY (`consumer`, `set_at`, `until`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Locks of keys: a key of a consumer locks the row that its hash says.
CREATE TABLE IF NOT EXISTS `boxpair_inbox_keys` (
    `slot` SMALLINT NOT NULL,
    PRIMARY KEY (`slot`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

INSERT INTO `boxpair_inbox_keys` (`slot`)
SELECT a.n + 8 * b.n + 64 * c.n + 512 * d.n
FROM (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS a
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS b
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS c
CROSS JOIN (SELECT 0 AS n UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
      UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7) AS d
WHERE NOT EXISTS (SELECT 1 FROM `boxpair_inbox_keys` AS k);

-- Claimed dispatch IDs. A claim is an insert; the unique index decides.
CREATE TABLE IF NOT EXISTS `boxpair_inbox` (
    `consumer`    INT          NOT NULL,
    `dispatch_id` BINARY(16)   NOT NULL,
    `digest`      BINARY(16)   NOT NULL, -- all zero: the message had none
    `stamp`       BIGINT       NOT NULL,
    `applied_at`  BIGINT       NULL, -- NULL: the message is parked
    -- Copies that met the claim in a transaction that was committed: what tells a claim from a second one.
    `copies`      INT UNSIGNED NOT NULL DEFAULT 0,
    PRIMARY KEY (`consumer`, `dispatch_id`),
    KEY `stamp` (`consumer`, `stamp`),
    KEY `applied` (`consumer`, `applied_at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS `boxpair_inbox_attempts` (
    `consumer`    INT             NOT NULL,
    `dispatch_id` BINARY(16)      NOT NULL,
    `attempts`    INT             NOT NULL DEFAULT 0,
    `starts`      INT             NOT NULL DEFAULT 0,
    `last_error`  VARBINARY(4096) NOT NULL DEFAULT '',
    `updated_at`  BIGINT          NOT NULL,
    PRIMARY KEY (`consumer`, `dispatch_id`),
    KEY `age` (`consumer`, `updated_at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

CREATE TABLE IF NOT EXISTS `boxpair_inbox_parked` (
    `seq`             BIGINT          NOT NULL AUTO_INCREMENT,
    `consumer`        INT             NOT NULL,
    `dispatch_id`     BINARY(16)      NOT NULL,
    `digest`          BINARY(16)      NOT NULL,
    `topic`           VARBINARY(255)  NOT NULL,
    `message_key`     VARBINARY(255)  NOT NULL,
    `ordered`         TINYINT         NOT NULL, -- whether later messages of the key follow
    `claimed`         TINYINT         NOT NULL, -- whether the message has a row in the inbox
    `forced`          TINYINT         NOT NULL DEFAULT 0, -- whether it is to run although it is altered
    `stamp`           BIGINT          NULL, -- NULL: the message has none
    `metadata`        LONGBLOB        NULL, -- pairs of name and value, each behind its length
    `payload`         LONGBLOB        NOT NULL,
    `state`           VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `attempts`        INT             NOT NULL DEFAULT 0,
    `next_attempt_at` BIGINT          NULL, -- set while retrying
    `parked_at`       BIGINT          NOT NULL,
    `last_error`      VARBINARY(4096) NOT NULL DEFAULT '',
    `reason`          VARBINARY(4096) NOT NULL DEFAULT '', -- why it was discarded …
    `discarded_at`    BIGINT          NULL,                -- … and when
    `copies`          INT UNSIGNED    NOT NULL DEFAULT 0,
    -- Whether later messages of the key wait for it.
    `live`            TINYINT AS (CASE WHEN `ordered` = 1 AND `state` IN ('retrying', 'following') THEN 1 ELSE 0 END) STORED,
    PRIMARY KEY (`seq`),
    UNIQUE KEY `message` (`consumer`, `dispatch_id`, `digest`),
    KEY `live` (`consumer`, `live`, `message_key`, `seq`),
    KEY `due` (`consumer`, `state`, `next_attempt_at`, `seq`),
    KEY `state` (`consumer`, `state`, `parked_at`),
    KEY `discarded` (`consumer`, `discarded_at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Failed attempts to handle a message, and what operators did to it. Kept for as long as the consumer's
-- configuration says, whatever became of the message.
CREATE TABLE IF NOT EXISTS `boxpair_inbox_history` (
    `id`          BIGINT          NOT NULL AUTO_INCREMENT,
    `consumer`    INT             NOT NULL,
    `dispatch_id` BINARY(16)      NOT NULL,
    `at`          BIGINT          NOT NULL,
    `outcome`     VARCHAR(32) CHARACTER SET ascii COLLATE ascii_bin NOT NULL,
    `error`       VARBINARY(4096) NOT NULL DEFAULT '',
    PRIMARY KEY (`id`),
    KEY `message` (`dispatch_id`, `id`),
    KEY `age` (`consumer`, `at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- HTTP requests that were answered, by idempotency key, with their answers.
CREATE TABLE IF NOT EXISTS `boxpair_inbox_requests` (
    `scope`       VARBINARY(255) NOT NULL,
    `request_key` VARBINARY(255) NOT NULL,
    `fingerprint` BINARY(32)     NOT NULL,
    `claimed_at`  BIGINT         NOT NULL,
    `status`      INT            NULL, -- NULL: being answered, so never seen by another transaction
    `header`      LONGBLOB       NULL,
    `body`        LONGBLOB       NULL,
    `copies`      INT UNSIGNED   NOT NULL DEFAULT 0,
    PRIMARY KEY (`scope`, `request_key`),
    KEY `claimed` (`claimed_at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- Effects outside the database: what a handler intends, recorded with the claim of its message; who is about to
-- carry it out; and what came of it. run is the number of the latest take-up: what belongs to
-- an earlier one changes nothing.
CREATE TABLE IF NOT EXISTS `boxpair_inbox_effects` (
    `id`          BIGINT          NOT NULL AUTO_INCREMENT,
    `consumer`    INT             NOT NULL,
    `dispatch_id` BINARY(16)      NOT NULL, -- of the message
    `effect_key`  BINARY(16)      NOT NULL, -- the idempotency key for the other side
    `topic`       VARBINARY(255)  NOT NULL,
    `message_key` VARBINARY(255)  NOT NULL,
    `ordered`     TINYINT         NOT NULL, -- whether later effects of the key wait
    `metadata`    LONGBLOB        NULL,     -- of the message: pairs of name and value, each behind its length
    `intent`      LONGBLOB        NOT NULL,
    `result`      LONGBLOB        NULL,     -- NULL: not known
    `state`       VARCHAR(16) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT 'pending',
    `uncertain`   TINYINT         NOT NULL DEFAULT 0, -- whether an attempt may have been carried out
    `run`         BIGINT          NOT NULL DEFAULT 0,
    `attempts`    INT             NOT NULL DEFAULT 0, -- of the step that it is in
    `prepared_at` BIGINT          NOT NULL,
    `due_at`      BIGINT          NULL, -- when it may be taken up, while pending or answered
    `lease_until` BIGINT          NULL, -- until when whoever took it up has it, while doing
    `ended_at`    BIGINT          NULL, -- when it was done or discarded
    `last_error`  VARBINARY(4096) NOT NULL DEFAULT '',
    `reason`      VARBINARY(4096) NOT NULL DEFAULT '', -- why it was discarded
    `copies`      INT UNSIGNED    NOT NULL DEFAULT 0,
    -- Whether later effects of the key wait for it.
    `live`        TINYINT AS (CASE WHEN `ordered` = 1 AND `state` IN ('pending', 'doing', 'answered', 'uncertain') THEN 1 ELSE 0 END) STORED,
    PRIMARY KEY (`id`),
    UNIQUE KEY `message` (`consumer`, `dispatch_id`),
    KEY `due` (`consumer`, `due_at`),
    KEY `doing` (`consumer`, `lease_until`),
    KEY `live` (`consumer`, `live`, `message_key`, `id`),
    KEY `state` (`consumer`, `state`, `id`),
    KEY `effect_key` (`effect_key`),
    KEY `ended` (`consumer`, `ended_at`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- What became of every message that a consumer knows, and why it waits if it does. A message
-- whose effect outside the database is not done has a state that begins with effect_.
CREATE OR REPLACE SQL SECURITY INVOKER VIEW `boxpair_inbox_status` AS
SELECT CONVERT(c.`name` USING utf8mb4) AS `consumer`,
       LOWER(CONCAT_WS('-', SUBSTR(HEX(r.`dispatch_id`), 1, 8), SUBSTR(HEX(r.`dispatch_id`), 9, 4),
             SUBSTR(HEX(r.`dispatch_id`), 13, 4), SUBSTR(HEX(r.`dispatch_id`), 17, 4), SUBSTR(HEX(r.`dispatch_id`), 21))) AS `dispatch_id`,
       CONVERT(r.`topic` USING utf8mb4) AS `topic`, CONVERT(r.`message_key` USING utf8mb4) AS `key`, r.`state`,
       CASE
           WHEN r.`state` IN ('discarded', 'effect_discarded') THEN CONCAT('discarded: ', CONVERT(r.`why` USING utf8mb4))
           ELSE CONVERT(r.`why` USING utf8mb4)
       END AS `why`,
       DATE_ADD('1970-01-01 00:00:00.000000', INTERVAL r.`since` MICROSECOND) AS `since`,
       r.`attempts`,
       DATE_ADD('1970-01-01 00:00:00.000000', INTERVAL r.`next_attempt` MICROSECOND) AS `next_attempt_at`,
       CONVERT(r.`last_error` USING utf8mb4) AS `last_error`,
       DATE_ADD('1970-01-01 00:00:00.000000', INTERVAL r.`applied` MICROSECOND) AS `applied_at`
FROM (
    SELECT p.`consumer`, p.`dispatch_id`, p.`topic`, p.`message_key`, p.`state`,
           CASE
               WHEN p.`state` = 'discarded' THEN p.`reason`
               WHEN p.`state` = 'dead' THEN 'its attempts are used up, or none would help'
               WHEN p.`state` = 'too_old' THEN 'the consumer has forgotten the time that it is from'
               WHEN p.`state` = 'altered' THEN 'its dispatch ID was claimed with other content'
               WHEN p.`ordered` = 1 AND EXISTS (
                   SELECT 1 FROM `boxpair_inbox_parked` AS b
                   WHERE b.`consumer` = p.`consumer` AND b.`live` = 1 AND b.`message_key` = p.`message_key` AND b.`seq` < p.`seq`
               ) THEN 'waits for an earlier message of its key'
               WHEN p.`next_attempt_at` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'waits for its next attempt'
               ELSE 'waits to be taken up by a process of the consumer'
           END AS `why`,
           p.`parked_at` AS `since`, p.`attempts`, p.`next_attempt_at` AS `next_attempt`, p.`last_error`, NULL AS `applied`
    FROM `boxpair_inbox_parked` AS p
    UNION ALL
    SELECT e.`consumer`, e.`dispatch_id`, e.`topic`, e.`message_key`,
           CONCAT('effect_', CASE
               WHEN e.`lease_until` < TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) AND e.`result` IS NULL THEN 'uncertain'
               ELSE e.`state`
           END),
           CASE
               WHEN e.`state` = 'discarded' THEN e.`reason`
               WHEN e.`state` = 'uncertain' THEN 'it may have been carried out, and nobody asks again: to be resolved'
               WHEN e.`state` = 'dead' AND e.`result` IS NOT NULL THEN 'it was carried out; what was to follow fails'
               WHEN e.`state` = 'dead' THEN 'its attempts are used up, or none would help; it was not carried out'
               WHEN e.`lease_until` >= TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'is being carried out'
               WHEN e.`state` = 'doing' AND e.`result` IS NOT NULL THEN 'whoever carried it out never came back; what follows is to be done'
               WHEN e.`state` = 'doing' THEN 'whoever carried it out never came back: it may have been carried out'
               WHEN e.`ordered` = 1 AND EXISTS (
                   SELECT 1 FROM `boxpair_inbox_effects` AS b
                   WHERE b.`consumer` = e.`consumer` AND b.`live` = 1 AND b.`message_key` = e.`message_key` AND b.`id` < e.`id`
               ) THEN 'waits for the effect of an earlier message of its key'
               WHEN e.`due_at` > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) THEN 'waits for its next attempt'
               ELSE 'waits to be taken up by a process of the consumer'
           END,
           e.`prepared_at`, e.`attempts`, e.`due_at`, e.`last_error`, NULL
    FROM `boxpair_inbox_effects` AS e
    WHERE e.`state` <> 'done'
    UNION ALL
    SELECT i.`consumer`, i.`dispatch_id`, NULL, NULL, 'applied', 'applied', i.`stamp`,
           (SELECT COUNT(*) FROM `boxpair_inbox_history` AS a
            WHERE a.`dispatch_id` = i.`dispatch_id` AND a.`consumer` = i.`consumer` AND a.`outcome` IN ('failed', 'applied')),
           NULL, NULL, i.`applied_at`
    FROM `boxpair_inbox` AS i
    WHERE i.`applied_at` IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM `boxpair_inbox_effects` AS e
                      WHERE e.`consumer` = i.`consumer` AND e.`dispatch_id` = i.`dispatch_id` AND e.`state` <> 'done')
) AS r
JOIN `boxpair_inbox_consumers` AS c ON c.`id` = r.`consumer`;
