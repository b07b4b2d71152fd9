-- What an operator has paused: topics, downstreams and consumers. Relays and consumers read it while they have work.
CREATE TABLE IF NOT EXISTS `boxpair_pauses` (
    `kind`         VARBINARY(16)   NOT NULL, -- topic, downstream or consumer
    `name`         VARBINARY(255)  NOT NULL,
    `paused_since` BIGINT          NOT NULL,
    `paused_until` BIGINT          NULL, -- NULL: until it is resumed
    `reason`       VARBINARY(1024) NOT NULL,
    `paused_by`    VARBINARY(255)  NOT NULL,
    PRIMARY KEY (`kind`, `name`)
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;

-- The buckets of rate limits, shared by all processes.
CREATE TABLE IF NOT EXISTS `boxpair_rates` (
    `name`      VARBINARY(255) NOT NULL PRIMARY KEY,
    `tokens`    DOUBLE         NOT NULL, -- at filled_at
    `filled_at` BIGINT         NOT NULL
) ENGINE = InnoDB DEFAULT CHARSET = utf8mb4;
