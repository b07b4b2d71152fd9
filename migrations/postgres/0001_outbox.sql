-- The outbox: an immutable log of events and a small queue beside it.
-- Needs the schema: CREATE SCHEMA boxpair;

-- What was written, for as long as it is retained. A row never changes, but for due_at, before when a
-- deferred event is not sent: it is set if that was in the future when the event was written, and can be moved
-- until then. altered is false:
-- an event that is written again with other content sets it to NULL, which fails the transaction.
-- To say so with a column of its own lets writers do without the privilege to change any other.
-- id is the order of writing. A cache above 1 would give every session a
-- block of numbers of its own, and the order would be lost.
CREATE TABLE "boxpair"."outbox_events" (
    id             bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    version        bigint      NOT NULL DEFAULT 0,
    occurred_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at         timestamptz,
    dispatch_id    uuid        NOT NULL,
    index          integer     NOT NULL DEFAULT 0,
    schema_version integer     NOT NULL DEFAULT 0,
    resend_seconds integer     NOT NULL DEFAULT 864000, -- for so long it may be sent again; 0: nobody says
    shard          smallint    NOT NULL CONSTRAINT shard_known CHECK (shard BETWEEN 0 AND 63),
    altered        boolean     NOT NULL DEFAULT false CONSTRAINT never_altered CHECK (NOT altered),
    digest         bytea       NOT NULL CONSTRAINT digest_size CHECK (octet_length(digest) = 16),
    topic          text COLLATE "C" NOT NULL,
    key            text COLLATE "C" NOT NULL DEFAULT '', -- '' has no order
    type           text        NOT NULL DEFAULT '',
    producer       text        NOT NULL DEFAULT '',
    source         text        NOT NULL DEFAULT '',
    content_type   text        NOT NULL DEFAULT '',
    correlation_id text        NOT NULL DEFAULT '',
    traceparent    text        NOT NULL DEFAULT '',
    tracestate     text        NOT NULL DEFAULT '',
    headers        json        NOT NULL DEFAULT '{}',
    payload        bytea       NOT NULL,
    CONSTRAINT "outbox_events_pk" PRIMARY KEY (id),
    CONSTRAINT "outbox_events_dispatch" UNIQUE (dispatch_id)
) WITH (toast_tuple_target = 8160); -- payloads up to 8 KB stay in their row
CREATE INDEX "outbox_events_due" ON "boxpair"."outbox_events" (due_at, id) WHERE due_at IS NOT NULL;

-- What is still to be sent. A row is deleted when its event is confirmed or
-- parked. round tells a row from an earlier one of the same event: 0 at first, a
-- number that was never used before when an event is queued again.
-- Statistics of a queue are wrong a second later, and a plan made for an empty
-- one reads all of a full one: none are gathered. Vacuum must not wait for a share of a table
-- that is mostly empty.
CREATE TABLE "boxpair"."outbox_queue" (
    shard smallint NOT NULL,
    id    bigint   NOT NULL,
    round bigint   NOT NULL DEFAULT 0,
    CONSTRAINT "outbox_queue_pk" PRIMARY KEY (shard, id)
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
);

-- What waits for its time. A row is deleted when its event is due and queued, or is cancelled: whoever
-- deletes it decides. It stands apart from all that relays look through otherwise, so
-- that any number of rows costs them nothing.
CREATE TABLE "boxpair"."outbox_deferred" (
    id     bigint      NOT NULL,
    due_at timestamptz NOT NULL,
    shard  smallint    NOT NULL,
    key    text COLLATE "C" NOT NULL,
    CONSTRAINT "outbox_deferred_pk" PRIMARY KEY (id)
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
);
CREATE INDEX "outbox_deferred_due" ON "boxpair"."outbox_deferred" (shard, due_at, id);

-- Failed events and the later events of their keys. The live ones (retrying or
-- following) of a key are its FIFO; the lowest is its head. Dead and discarded
-- ones are history that an operator may look at.
CREATE TABLE "boxpair"."outbox_parked" (
    id              bigint      NOT NULL,
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz,
    attempts        integer     NOT NULL DEFAULT 0,
    shard           smallint    NOT NULL,
    state           text        NOT NULL
        CONSTRAINT state_known CHECK (state IN ('retrying', 'following', 'dead', 'discarded', 'cancelled')),
    key             text COLLATE "C" NOT NULL,
    last_error      text,
    reason          text, -- why it was discarded or cancelled …
    discarded_at    timestamptz, -- … and when
    CONSTRAINT "outbox_parked_pk" PRIMARY KEY (id),
    CONSTRAINT retrying_has_time CHECK ((state = 'retrying') = (next_attempt_at IS NOT NULL))
) WITH (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000,
    autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000000000
);
CREATE INDEX "outbox_parked_due" ON "boxpair"."outbox_parked" (shard, next_attempt_at, id)
    WHERE state = 'retrying';
CREATE INDEX "outbox_parked_live" ON "boxpair"."outbox_parked" (shard, key, id)
    WHERE state IN ('retrying', 'following');
CREATE INDEX "outbox_parked_dead" ON "boxpair"."outbox_parked" (shard, key, id)
    WHERE state = 'dead';
CREATE INDEX "outbox_parked_oldest" ON "boxpair"."outbox_parked" (id)
    WHERE state IN ('retrying', 'following');
CREATE INDEX "outbox_parked_discarded" ON "boxpair"."outbox_parked" (discarded_at)
    WHERE state IN ('discarded', 'cancelled');

-- Failed attempts to send an event, and what operators did to it.
CREATE TABLE "boxpair"."outbox_attempts" (
    event_id bigint      NOT NULL,
    n        bigint GENERATED ALWAYS AS IDENTITY,
    at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    outcome  text        NOT NULL,
    error    text        NOT NULL DEFAULT '',
    relay    text        NOT NULL DEFAULT '',
    CONSTRAINT "outbox_attempts_pk" PRIMARY KEY (event_id, n)
);

-- What was delivered when: one row for all events that one statement marked, by
-- ascending ID. The janitor takes the oldest rows first. Which of them names an event is found
-- by a summary of block ranges: events are delivered in about the order of their IDs.
CREATE TABLE "boxpair"."outbox_receipts" (
    id           bigint GENERATED ALWAYS AS IDENTITY,
    delivered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    first_id     bigint GENERATED ALWAYS AS (event_ids[1]) STORED,
    last_id      bigint GENERATED ALWAYS AS (event_ids[cardinality(event_ids)]) STORED,
    relay        text        NOT NULL,
    event_ids    bigint[]    NOT NULL,
    CONSTRAINT "outbox_receipts_pk" PRIMARY KEY (delivered_at, id)
) WITH (toast_tuple_target = 8160);
CREATE INDEX "outbox_receipts_span" ON "boxpair"."outbox_receipts" USING brin (first_id, last_id)
    WITH (pages_per_range = 32, autosummarize = on);

-- Who owns which shard. The rows are updated all the time, so a page keeps room
-- for the next versions of its rows. rewind_to and rewind_ticket are an operator's request
-- to read the shard's queue again from an event on.
CREATE TABLE "boxpair"."outbox_shards" (
    shard         smallint    NOT NULL,
    epoch         bigint      NOT NULL DEFAULT 0,
    lease_until   timestamptz NOT NULL DEFAULT '-infinity',
    rewind_to     bigint,
    rewind_ticket bigint,
    owner         text,
    CONSTRAINT "outbox_shards_pk" PRIMARY KEY (shard)
) WITH (fillfactor = 10, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
INSERT INTO "boxpair"."outbox_shards" (shard) SELECT generate_series(0, 63);

-- Numbers that are never used twice, for rewind_ticket.
CREATE SEQUENCE "boxpair"."outbox_tickets" CACHE 1;

-- Which relays there are, those that own nothing yet included.
CREATE TABLE "boxpair"."outbox_relays" (
    id         text        NOT NULL,
    seen_until timestamptz NOT NULL,
    CONSTRAINT "outbox_relays_pk" PRIMARY KEY (id)
) WITH (fillfactor = 50);

-- What became of every event that is retained, and why it waits if it does. The age of an event that was deferred
-- counts from when it was due, and is below zero until then; next_attempt_at is that time. The log is large and has no
-- index on keys, so ask for what waits with a state:
--   SELECT * FROM outbox_status WHERE state <> 'delivered' AND key = '…'
--   SELECT * FROM outbox_status WHERE dispatch_id = '…'
CREATE VIEW "boxpair"."outbox_status" AS
SELECT q.id, e.dispatch_id, q.shard, e.topic, e.key,
       'pending'::text AS state,
       CASE
           WHEN e.id IS NULL THEN 'the log has no such event'
           WHEN h.id IS NOT NULL THEN 'waits for event ' || h.id || ' of its key'
           WHEN s.owner IS NULL THEN 'no relay owns its shard'
           WHEN s.lease_until <= clock_timestamp() THEN 'the lease of relay ' || s.owner || ' has expired'
           ELSE 'waits to be sent by relay ' || s.owner
       END AS why,
       e.created_at,
       clock_timestamp() - greatest(e.created_at, e.due_at) AS age,
       0 AS attempts,
       NULL::timestamptz AS next_attempt_at,
       NULL::text AS last_error,
       h.id AS waits_for,
       NULL::timestamptz AS delivered_at
FROM "boxpair"."outbox_queue" q
LEFT JOIN "boxpair"."outbox_events" e ON e.id = q.id
LEFT JOIN "boxpair"."outbox_shards" s ON s.shard = q.shard
LEFT JOIN LATERAL (
    SELECT p.id FROM "boxpair"."outbox_parked" p
    WHERE p.shard = q.shard AND p.key = e.key AND p.key <> '' AND p.state IN ('retrying', 'following')
    ORDER BY p.id LIMIT 1
) h ON true
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
           WHEN h.id IS NOT NULL THEN 'waits for event ' || h.id || ' of its key'
           WHEN s.owner IS NULL THEN 'no relay owns its shard'
           WHEN s.lease_until <= clock_timestamp() THEN 'the lease of relay ' || s.owner || ' has expired'
           WHEN p.state = 'following' THEN 'waits for an operator to settle a dead event of its key'
           WHEN p.next_attempt_at > clock_timestamp() THEN 'waits for its next attempt'
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
    SELECT b.id FROM "boxpair"."outbox_parked" b
    WHERE b.shard = p.shard AND b.key = p.key AND b.key <> '' AND b.id < p.id
      AND p.state IN ('retrying', 'following') AND b.state IN ('retrying', 'following')
    ORDER BY b.id LIMIT 1
) h ON true
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
