-- Attempts of the inboxes one by one, the ledger of effects outside the database, and a view
-- that says what became of every message.

-- Failed attempts to handle a message, and what operators did to it. Kept for as long as the consumer's
-- configuration says, whatever became of the message.
CREATE TABLE "boxpair"."inbox_history" (
    n           bigint GENERATED ALWAYS AS IDENTITY,
    at          timestamptz NOT NULL DEFAULT clock_timestamp(),
    dispatch_id uuid        NOT NULL,
    consumer    smallint    NOT NULL,
    outcome     text        NOT NULL,
    error       text        NOT NULL DEFAULT '',
    CONSTRAINT "inbox_history_pk" PRIMARY KEY (dispatch_id, consumer, n)
);
CREATE INDEX "inbox_history_age" ON "boxpair"."inbox_history" (consumer, at);

-- Effects outside the database: what a handler intends, recorded with the claim of its message; who is about to
-- carry it out; and what came of it. run is the number of the latest take-up: what belongs to
-- an earlier one changes nothing.
CREATE TABLE "boxpair"."inbox_effects" (
    id          bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    run         bigint      NOT NULL DEFAULT 0,
    prepared_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    due_at      timestamptz, -- when it may be taken up, while pending or answered
    lease_until timestamptz, -- until when whoever took it up has it, while doing
    ended_at    timestamptz, -- when it was done or discarded
    dispatch_id uuid     NOT NULL, -- of the message
    effect_key  uuid     NOT NULL, -- the idempotency key for the other side
    attempts    integer  NOT NULL DEFAULT 0, -- of the step that it is in
    consumer    smallint NOT NULL,
    ordered     boolean  NOT NULL, -- later effects of the key wait
    uncertain   boolean  NOT NULL DEFAULT false, -- an attempt may have been carried out
    state       text     NOT NULL DEFAULT 'pending' CONSTRAINT state_known
        CHECK (state IN ('pending', 'doing', 'answered', 'uncertain', 'dead', 'done', 'discarded')),
    topic       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    metadata    jsonb NOT NULL, -- of the message
    intent      bytea NOT NULL,
    result      bytea, -- NULL: not known
    has_result  boolean NOT NULL GENERATED ALWAYS AS (result IS NOT NULL) STORED,
    last_error  text,
    reason      text,  -- why it was discarded
    CONSTRAINT "inbox_effects_pk" PRIMARY KEY (id),
    CONSTRAINT "inbox_effects_once" UNIQUE (consumer, dispatch_id),
    CONSTRAINT due_while_waiting CHECK ((state IN ('pending', 'answered')) = (due_at IS NOT NULL)),
    CONSTRAINT leased_while_doing CHECK ((state = 'doing') = (lease_until IS NOT NULL)),
    CONSTRAINT ended_for_good CHECK ((state IN ('done', 'discarded')) = (ended_at IS NOT NULL)),
    CONSTRAINT answered_has_result CHECK (state <> 'answered' OR result IS NOT NULL)
) WITH (fillfactor = 80);
CREATE INDEX "inbox_effects_due" ON "boxpair"."inbox_effects" (consumer, due_at)
    WHERE state IN ('pending', 'answered');
CREATE INDEX "inbox_effects_doing" ON "boxpair"."inbox_effects" (consumer, lease_until)
    WHERE state = 'doing';
CREATE INDEX "inbox_effects_live" ON "boxpair"."inbox_effects" (consumer, key, id)
    WHERE ordered AND state IN ('pending', 'doing', 'answered', 'uncertain');
CREATE INDEX "inbox_effects_open" ON "boxpair"."inbox_effects" (consumer, state, id)
    WHERE state NOT IN ('done', 'discarded');
CREATE INDEX "inbox_effects_key" ON "boxpair"."inbox_effects" (effect_key);
CREATE INDEX "inbox_effects_ended" ON "boxpair"."inbox_effects" (consumer, ended_at)
    WHERE state IN ('done', 'discarded');

-- What became of every message that a consumer knows, and why it waits if it does:
--   SELECT * FROM inbox_status WHERE state <> 'applied'
--   SELECT * FROM inbox_status WHERE dispatch_id = '…'
-- A message whose effect outside the database is not done has a state that begins with effect_.
CREATE VIEW "boxpair"."inbox_status" AS
SELECT c.name AS consumer, p.dispatch_id, p.topic, p.key,
       p.state,
       CASE
           WHEN p.state = 'discarded' THEN 'discarded: ' || p.reason
           WHEN p.state = 'dead' THEN 'its attempts are used up, or none would help'
           WHEN p.state = 'too_old' THEN 'the consumer has forgotten the time that it is from'
           WHEN p.state = 'altered' THEN 'its dispatch ID was claimed with other content'
           WHEN h.dispatch_id IS NOT NULL THEN 'waits for message ' || h.dispatch_id || ' of its key'
           WHEN p.next_attempt_at > clock_timestamp() THEN 'waits for its next attempt'
           ELSE 'waits to be taken up by a process of the consumer'
       END AS why,
       p.parked_at AS since,
       p.attempts,
       p.next_attempt_at,
       p.last_error,
       NULL::timestamptz AS applied_at
FROM "boxpair"."inbox_parked" p
JOIN "boxpair"."inbox_consumers" c ON c.id = p.consumer
LEFT JOIN LATERAL (
    SELECT b.dispatch_id FROM "boxpair"."inbox_parked" b
    WHERE b.consumer = p.consumer AND b.key = p.key AND b.ordered AND b.id < p.id
      AND p.ordered AND p.state IN ('retrying', 'following') AND b.state IN ('retrying', 'following')
    ORDER BY b.id LIMIT 1
) h ON true
UNION ALL
SELECT c.name, e.dispatch_id, e.topic, e.key,
       'effect_' || CASE
           WHEN e.state = 'doing' AND e.lease_until < clock_timestamp() AND e.result IS NULL THEN 'uncertain'
           ELSE e.state
       END,
       CASE
           WHEN e.state = 'discarded' THEN 'discarded: ' || e.reason
           WHEN e.state = 'uncertain' THEN 'it may have been carried out, and nobody asks again: to be resolved'
           WHEN e.state = 'dead' AND e.result IS NOT NULL THEN 'it was carried out; what was to follow fails'
           WHEN e.state = 'dead' THEN 'its attempts are used up, or none would help; it was not carried out'
           WHEN e.state = 'doing' AND e.lease_until >= clock_timestamp() THEN 'is being carried out'
           WHEN e.state = 'doing' AND e.result IS NOT NULL THEN 'whoever carried it out never came back; what follows is to be done'
           WHEN e.state = 'doing' THEN 'whoever carried it out never came back: it may have been carried out'
           WHEN h.dispatch_id IS NOT NULL THEN 'waits for the effect of message ' || h.dispatch_id || ' of its key'
           WHEN e.due_at > clock_timestamp() THEN 'waits for its next attempt'
           ELSE 'waits to be taken up by a process of the consumer'
       END,
       e.prepared_at,
       e.attempts,
       e.due_at,
       e.last_error,
       NULL::timestamptz
FROM "boxpair"."inbox_effects" e
JOIN "boxpair"."inbox_consumers" c ON c.id = e.consumer
LEFT JOIN LATERAL (
    SELECT b.dispatch_id FROM "boxpair"."inbox_effects" b
    WHERE b.consumer = e.consumer AND b.key = e.key AND b.ordered AND b.id < e.id
      AND e.ordered AND e.state IN ('pending', 'answered') AND b.state IN ('pending', 'doing', 'answered', 'uncertain')
    ORDER BY b.id LIMIT 1
) h ON true
WHERE e.state <> 'done'
UNION ALL
SELECT c.name, i.dispatch_id, NULL, NULL,
       'applied',
       'applied',
       i.stamp,
       (SELECT count(*)::integer FROM "boxpair"."inbox_history" a
        WHERE a.dispatch_id = i.dispatch_id AND a.consumer = i.consumer AND a.outcome IN ('failed', 'applied')),
       NULL, NULL,
       i.applied_at
FROM "boxpair"."inbox" i
JOIN "boxpair"."inbox_consumers" c ON c.id = i.consumer
WHERE i.applied_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM "boxpair"."inbox_effects" e
                  WHERE e.consumer = i.consumer AND e.dispatch_id = i.dispatch_id AND e.state <> 'done');
