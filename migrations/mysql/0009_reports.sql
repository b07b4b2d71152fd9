-- What a relay tells of itself with its heartbeat when it has changed: its state, what it has sent, and the state of its topics.
ALTER TABLE `boxpair_outbox_relays` ADD COLUMN `reported_at` BIGINT NULL;
ALTER TABLE `boxpair_outbox_relays` ADD COLUMN `report` MEDIUMBLOB NULL; -- JSON

-- What a process tells of the handlers that it runs, every few seconds. A row says nothing after listed_until; the next
-- process that reports removes it.
CREATE TABLE IF NOT EXISTS `boxpair_inbox_handlers` (
    `process`      VARBINARY(255) NOT NULL,
    `consumer`     VARBINARY(255) NOT NULL,
    `reported_at`  BIGINT         NOT NULL,
    `listed_until` BIGINT         NOT NULL,
    `report`       MEDIUMBLOB     NOT NULL, -- JSON
    PRIMARY KEY (`process`, `consumer`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
