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
    resend_seconds INTEGER NOT NULL DEFAULT 864000, -- for so long it may be sent again; 0: nobody says
    content_type   TEXT    NOT NULL DEFAULT '',
    correlation_id TEXT    NOT NULL DEFAULT '',
    traceparent    TEXT    NOT NULL DEFAULT '',
    tracestate     TEXT    NOT NULL DEFAULT '',
    occurred_at    INTEGER NOT NULL,
    -- When the event was written. It is the stamp that every copy of it carries, or due_at if that is later.
    created_at     INTEGER NOT NULL,
    -- Before when a deferred event is not sent: set if that was in the future when the event was written. It can be moved until then.
    due_at         INTEGER,
    headers        TEXT    NOT NULL DEFAULT '{}', -- JSON
    payload        BLOB    NOT NULL
);

CREATE INDEX "boxpair_outbox_events_due" ON "boxpair_outbox_events" (due_at, id) WHERE due_at IS NOT NULL;

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
CREATE TRIGGER "boxpair_outbox_enqueue" AFTER INSERT ON "boxpair_outbox_events" WHEN new.due_at IS NULL BEGIN
    INSERT INTO "boxpair_outbox_queue" (shard, id) VALUES (new.shard, new.id);
END;

-- What waits for its time. A row goes when its event is due and queued, or is cancelled.
CREATE TABLE "boxpair_outbox_deferred" (
    id     INTEGER PRIMARY KEY,
    shard  INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    key    TEXT    NOT NULL
);
CREATE INDEX "boxpair_outbox_deferred_due" ON "boxpair_outbox_deferred" (shard, due_at, id);
CREATE TRIGGER "boxpair_outbox_defer" AFTER INSERT ON "boxpair_outbox_events" WHEN new.due_at IS NOT NULL BEGIN
    INSERT INTO "boxpair_outbox_deferred" (id, shard, due_at, key) VALUES (new.id, new.shard, new.due_at, new.key);
END;

CREATE TABLE "boxpair_outbox_parked" (
    id              INTEGER PRIMARY KEY,
    shard           INTEGER NOT NULL,
    key             TEXT    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('retrying', 'following', 'dead', 'discarded', 'cancelled')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER, -- set while retrying
    parked_at       INTEGER NOT NULL,
    last_error      TEXT    NOT NULL DEFAULT '',
    reason          TEXT    NOT NULL DEFAULT '', -- why it was discarded or cancelled …
    discarded_at    INTEGER                      -- … and when
);
CREATE INDEX "boxpair_outbox_parked_live" ON "boxpair_outbox_parked" (shard, key, id) WHERE state IN ('retrying', 'following');
CREATE INDEX "boxpair_outbox_parked_due" ON "boxpair_outbox_parked" (next_attempt_at) WHERE state = 'retrying';
CREATE INDEX "boxpair_outbox_parked_dead" ON "boxpair_outbox_parked" (shard, key, id) WHERE state = 'dead';
CREATE INDEX "boxpair_outbox_parked_oldest" ON "boxpair_outbox_parked" (id) WHERE state IN ('retrying', 'following');
CREATE INDEX "boxpair_outbox_parked_discarded" ON "boxpair_outbox_parked" (discarded_at) WHERE state IN ('discarded', 'cancelled');

CREATE TABLE "boxpair_outbox_attempts" (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id INTEGER NOT NULL,
    at       INTEGER NOT NULL,
    outcome  TEXT    NOT NULL,
    error    TEXT    NOT NULL DEFAULT '',
    relay    TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX "boxpair_outbox_attempts_event" ON "boxpair_outbox_attempts" (event_id, id);

-- What was delivered when: one row for many events, their IDs as a JSON array, ascending.
CREATE TABLE "boxpair_outbox_receipts" (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    delivered_at INTEGER NOT NULL,
    relay        TEXT    NOT NULL,
    event_ids    TEXT    NOT NULL,
    first_id     INTEGER GENERATED ALWAYS AS (event_ids ->> 0) VIRTUAL,
    last_id      INTEGER GENERATED ALWAYS AS (event_ids ->> '$[#-1]') VIRTUAL
);
CREATE INDEX "boxpair_outbox_receipts_age" ON "boxpair_outbox_receipts" (delivered_at);
CREATE INDEX "boxpair_outbox_receipts_span" ON "boxpair_outbox_receipts" (last_id, first_id);

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
    id         TEXT PRIMARY KEY,
    seen_until INTEGER NOT NULL
) WITHOUT ROWID;

-- What became of every event that is retained, and why it waits if it does. The age of an event that was deferred
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
           CASE WHEN e.key <> '' AND w.state IN ('pending', 'following', 'retrying') THEN (
               SELECT min(h.id) FROM "boxpair_outbox_parked" h
               WHERE h.shard = w.shard AND h.key = e.key AND h.id < w.id AND h.state IN ('retrying', 'following')
           ) END AS waits_for
    FROM waiting w LEFT JOIN "boxpair_outbox_events" e ON e.id = w.id
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
           WHEN r.waits_for IS NOT NULL THEN 'waits for event ' || r.waits_for || ' of its key'
           WHEN r.state = 'deferred' AND r.next_attempt_at > clock.now THEN 'waits for its time'
           WHEN s.owner IS NULL THEN 'no relay owns its shard'
           WHEN s.lease_until <= clock.now THEN 'the lease of relay ' || s.owner || ' has expired'
           WHEN r.state = 'following' THEN 'waits for an operator to settle a dead event of its key'
           WHEN r.next_attempt_at > clock.now THEN 'waits for its next attempt'
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
LEFT JOIN "boxpair_outbox_shards" s ON s.shard = r.shard;
