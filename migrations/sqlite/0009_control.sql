-- What an operator has paused: topics, downstreams and consumers. Relays and consumers read it while they have work.
CREATE TABLE "boxpair_pauses" (
    kind         TEXT NOT NULL CHECK (kind IN ('topic', 'downstream', 'consumer')),
    name         TEXT NOT NULL,
    paused_since INTEGER NOT NULL,
    paused_until INTEGER, -- NULL: until it is resumed
    reason       TEXT NOT NULL,
    paused_by    TEXT NOT NULL,
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- The buckets of rate limits, shared by all processes.
CREATE TABLE "boxpair_rates" (
    name      TEXT NOT NULL PRIMARY KEY,
    tokens    REAL NOT NULL, -- at filled_at
    filled_at INTEGER NOT NULL
) WITHOUT ROWID;
