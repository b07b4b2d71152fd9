-- Attempts of the inboxes one by one, the ledger of effects outside the database, and a view
-- that says what became of every message. Times are microseconds since 1970, UTC.

-- Failed attempts to handle a message, and what operators did to it. Kept for as long as the consumer's
-- configuration says, whatever became of the message.
CREATE TABLE "boxpair_inbox_history" (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer    INTEGER NOT NULL,
    dispatch_id BLOB    NOT NULL,
    at          INTEGER NOT NULL,
    outcome     TEXT    NOT NULL,
    error       TEXT    NOT NULL DEFAULT ''
);
CREATE INDEX "boxpair_inbox_history_message" ON "boxpair_inbox_history" (dispatch_id, id);
CREATE INDEX "boxpair_inbox_history_age" ON "boxpair_inbox_history" (consumer, at);

-- Effects outside the database: what a handler intends, recorded with the claim of its message; who is about to
-- carry it out; and what came of it. run is the number of the latest take-up: what belongs to
-- an earlier one changes nothing.
CREATE TABLE "boxpair_inbox_effects" (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer    INTEGER NOT NULL,
    dispatch_id BLOB    NOT NULL CHECK (length(dispatch_id) = 16), -- of the message
    effect_key  BLOB    NOT NULL CHECK (length(effect_key) = 16), -- the idempotency key for the other side
    topic       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    ordered     INTEGER NOT NULL, -- whether later effects of the key wait
    metadata    BLOB,    -- of the message: pairs of name and value, each behind its length
    intent      BLOB    NOT NULL,
    result      BLOB,    -- NULL: not known
    state       TEXT    NOT NULL DEFAULT 'pending'
        CHECK (state IN ('pending', 'doing', 'answered', 'uncertain', 'dead', 'done', 'discarded')),
    uncertain   INTEGER NOT NULL DEFAULT 0, -- whether an attempt may have been carried out
    run         INTEGER NOT NULL DEFAULT 0,
    attempts    INTEGER NOT NULL DEFAULT 0, -- of the step that it is in
    prepared_at INTEGER NOT NULL,
    due_at      INTEGER, -- when it may be taken up, while pending or answered
    lease_until INTEGER, -- until when whoever took it up has it, while doing
    ended_at    INTEGER, -- when it was done or discarded
    last_error  TEXT    NOT NULL DEFAULT '',
    reason      TEXT    NOT NULL DEFAULT '', -- why it was discarded
    UNIQUE (consumer, dispatch_id),
    CHECK ((state IN ('pending', 'answered')) = (due_at IS NOT NULL)),
    CHECK ((state = 'doing') = (lease_until IS NOT NULL)),
    CHECK ((state IN ('done', 'discarded')) = (ended_at IS NOT NULL)),
    CHECK (state <> 'answered' OR result IS NOT NULL)
);
CREATE INDEX "boxpair_inbox_effects_due" ON "boxpair_inbox_effects" (consumer, due_at) WHERE state IN ('pending', 'answered');
CREATE INDEX "boxpair_inbox_effects_doing" ON "boxpair_inbox_effects" (consumer, lease_until) WHERE state = 'doing';
CREATE INDEX "boxpair_inbox_effects_live" ON "boxpair_inbox_effects" (consumer, key, id)
    WHERE ordered AND state IN ('pending', 'doing', 'answered', 'uncertain');
CREATE INDEX "boxpair_inbox_effects_open" ON "boxpair_inbox_effects" (consumer, state, id) WHERE state NOT IN ('done', 'discarded');
CREATE INDEX "boxpair_inbox_effects_key" ON "boxpair_inbox_effects" (effect_key);
CREATE INDEX "boxpair_inbox_effects_ended" ON "boxpair_inbox_effects" (consumer, ended_at) WHERE state IN ('done', 'discarded');

-- What became of every message that a consumer knows, and why it waits if it does. A message
-- whose effect outside the database is not done has a state that begins with effect_.
CREATE VIEW "boxpair_inbox_status" AS
SELECT c.name AS consumer, p.dispatch_id, p.topic, p.key,
       p.state,
       CASE
           WHEN p.state = 'discarded' THEN 'discarded: ' || p.reason
           WHEN p.state = 'dead' THEN 'its attempts are used up, or none would help'
           WHEN p.state = 'too_old' THEN 'the consumer has forgotten the time that it is from'
           WHEN p.state = 'altered' THEN 'its dispatch ID was claimed with other content'
           WHEN p.ordered AND EXISTS (
               SELECT 1 FROM "boxpair_inbox_parked" b
               WHERE b.consumer = p.consumer AND b.key = p.key AND b.ordered AND b.seq < p.seq
                 AND b.state IN ('retrying', 'following')) THEN 'waits for an earlier message of its key'
           WHEN p.next_attempt_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) THEN 'waits for its next attempt'
           ELSE 'waits to be taken up by a process of the consumer'
       END AS why,
       p.parked_at AS since,
       p.attempts,
       p.next_attempt_at,
       p.last_error,
       NULL AS applied_at
FROM "boxpair_inbox_parked" p
JOIN "boxpair_inbox_consumers" c ON c.id = p.consumer
UNION ALL
SELECT c.name, e.dispatch_id, e.topic, e.key,
       'effect_' || CASE
           WHEN e.lease_until < CAST(unixepoch('subsec') * 1000000 AS INTEGER) AND e.result IS NULL THEN 'uncertain'
           ELSE e.state
       END,
       CASE
           WHEN e.state = 'discarded' THEN 'discarded: ' || e.reason
           WHEN e.state = 'uncertain' THEN 'it may have been carried out, and nobody asks again: to be resolved'
           WHEN e.state = 'dead' AND e.result IS NOT NULL THEN 'it was carried out; what was to follow fails'
           WHEN e.state = 'dead' THEN 'its attempts are used up, or none would help; it was not carried out'
           WHEN e.lease_until >= CAST(unixepoch('subsec') * 1000000 AS INTEGER) THEN 'is being carried out'
           WHEN e.state = 'doing' AND e.result IS NOT NULL THEN 'whoever carried it out never came back; what follows is to be done'
           WHEN e.state = 'doing' THEN 'whoever carried it out never came back: it may have been carried out'
           WHEN e.ordered AND EXISTS (
               SELECT 1 FROM "boxpair_inbox_effects" b
               WHERE b.consumer = e.consumer AND b.key = e.key AND b.ordered AND b.id < e.id
                 AND b.state IN ('pending', 'doing', 'answered', 'uncertain')) THEN 'waits for the effect of an earlier message of its key'
           WHEN e.due_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) THEN 'waits for its next attempt'
           ELSE 'waits to be taken up by a process of the consumer'
       END,
       e.prepared_at,
       e.attempts,
       e.due_at,
       e.last_error,
       NULL
FROM "boxpair_inbox_effects" e
JOIN "boxpair_inbox_consumers" c ON c.id = e.consumer
WHERE e.state <> 'done'
UNION ALL
SELECT c.name, i.dispatch_id, NULL, NULL,
       'applied',
       'applied',
       i.stamp,
       (SELECT count(*) FROM "boxpair_inbox_history" a
        WHERE a.dispatch_id = i.dispatch_id AND a.consumer = i.consumer AND a.outcome IN ('failed', 'applied')),
       NULL, NULL,
       i.applied_at
FROM "boxpair_inbox" i
JOIN "boxpair_inbox_consumers" c ON c.id = i.consumer
WHERE i.applied_at IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM "boxpair_inbox_effects" e
                  WHERE e.consumer = i.consumer AND e.dispatch_id = i.dispatch_id AND e.state <> 'done');
