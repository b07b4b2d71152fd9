-- The outbox: an immutable log of events, and beside it a small queue of those
-- that are to be sent. Times are microseconds since 1970, UTC.

-- AUTOINCREMENT: without it the ID of a removed newest event would be given away
-- again, below the place up to which a relay has read.
CREATE TABLE "boxpair_outbox_events" (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    dispatch_id    BLOB    NOT NULL UNIQUE CHECK (length(dispatch_id) = 16),
    digest         BLOB    NOT NULL CHECK (length(digest) = 16),
    shard          INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 63),
    topic          TEXT    NOT NULL,
    key            TEXT    NOT NULL DEFAULT '',
    type           TEXT    NOT NULL DEFAULT '',
    producer       TEXT    NOT NULL DEFAULT '',
    source         TEXT    NOT NULL DEFAULT '',
    version        INTEGER NOT NULL DEFAULT 0,
    event_index    INTEGER NOT NULL DEFAULT 0,
    schema_version INTEGER NOT NULL DEFAULT 0,
    content_type   TEXT    NOT NULL DEFAULT '',
    correlation_id TEXT    NOT NULL DEFAULT '',
    trace_parent   TEXT    NOT NULL DEFAULT '',
    trace_state    TEXT    NOT NULL DEFAULT '',
    occurred_at    INTEGER NOT NULL,
    -- When the event was written. It is the stamp that every copy of it carries.
    created_at     INTEGER NOT NULL,
    -- Pairs of name and value, each behind its length: they may hold any bytes.
    headers        BLOB,
    payload        BLOB    NOT NULL
);

-- What is to be sent. A row goes when the transport has confirmed its event, or
-- when the event is parked.
CREATE TABLE "boxpair_outbox_queue" (
    shard INTEGER NOT NULL,
    id    INTEGER NOT NULL,
    round INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (shard, id)
) WITHOUT ROWID;

-- An event in the log that nobody queued would pass for delivered, so
-- writers cannot forget it.
CREATE TRIGGER "boxpair_outbox_enqueue" AFTER INSERT ON "boxpair_outbox_events" BEGIN
    INSERT INTO "boxpair_outbox_queue" (shard, id) VALUES (new.shard, new.id);
END;

CREATE TABLE "boxpair_outbox_parked" (
    id              INTEGER PRIMARY KEY,
    shard           INTEGER NOT NULL,
    key             TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('retrying', 'following', 'dead', 'discarded')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER, -- set while retrying
    parked_at       INTEGER NOT NULL,
    last_error      TEXT    NOT NULL DEFAULT '',
    reason          TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX "boxpair_outbox_parked_live" ON "boxpair_outbox_parked" (shard, key, id) WHERE state IN ('retrying', 'following');
CREATE INDEX "boxpair_outbox_parked_due" ON "boxpair_outbox_parked" (next_attempt_at) WHERE state = 'retrying';
CREATE INDEX "boxpair_outbox_parked_dead" ON "boxpair_outbox_parked" (shard, key, id) WHERE state = 'dead';

CREATE TABLE "boxpair_outbox_attempts" (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    outcome  TEXT    NOT NULL,
    error    TEXT    NOT NULL DEFAULT '',
    relay    TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX "boxpair_outbox_attempts_e" ON "boxpair_outbox_attempts" (event_id, id);

-- What was delivered when: one row for many events, their IDs as a JSON array.
CREATE TABLE "boxpair_outbox_receipts" (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    delivered_at INTEGER NOT NULL,
    relay        TEXT    NOT NULL,
    events       TEXT    NOT NULL
);

CREATE TABLE "boxpair_outbox_shards" (
    shard         INTEGER PRIMARY KEY,
    owner         TEXT, -- NULL: given back, or never owned
    epoch         INTEGER NOT NULL DEFAULT 0,
    lease_until   INTEGER NOT NULL DEFAULT 0,
    -- The place from which an operator wants the queue to be read again, and the
    -- number of that request.
    rewind_to     INTEGER,
    rewind_ticket INTEGER NOT NULL DEFAULT 0
);
WITH RECURSIVE numbers (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers WHERE n < 63)
INSERT INTO "boxpair_outbox_shards" (shard) SELECT n FROM numbers;

CREATE TABLE "boxpair_outbox_relays" (
    relay      TEXT PRIMARY KEY,
    seen_until INTEGER NOT NULL
) WITHOUT ROWID;

-- Every event with its state, for people. Not for statements that must be cheap.
CREATE VIEW "boxpair_outbox_status" AS
SELECT e.id,
       lower(substr(hex(e.dispatch_id), 1, 8) || '-' || substr(hex(e.dispatch_id), 9, 4) || '-' ||
             substr(hex(e.dispatch_id), 13, 4) || '-' || substr(hex(e.dispatch_id), 17, 4) || '-' ||
             substr(hex(e.dispatch_id), 21)) AS dispatch_id,
       e.shard, e.topic, e.key, e.type, e.source, e.version, e.event_index,
       coalesce(p.state, CASE WHEN q.id IS NULL THEN 'delivered' ELSE 'pending' END) AS state,
       coalesce(p.attempts, 0) AS attempts,
       p.last_error, p.reason,
       datetime(p.next_attempt_at / 1000000, 'unixepoch') AS next_attempt_at,
       datetime(e.created_at / 1000000, 'unixepoch') AS created_at,
       s.owner AS relay
FROM "boxpair_outbox_events" e
LEFT JOIN "boxpair_outbox_queue" q ON q.shard = e.shard AND q.id = e.id
LEFT JOIN "boxpair_outbox_parked" p ON p.id = e.id
LEFT JOIN "boxpair_outbox_shards" s ON s.shard = e.shard;
