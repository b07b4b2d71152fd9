-- The inboxes: which dispatch IDs each consumer has applied or keeps parked, and
-- the messages that wait.

-- The consumers: one row for each handler, updated by every pass of the janitor.
CREATE TABLE "boxpair"."inbox_consumers" (
    id              smallint GENERATED ALWAYS AS IDENTITY,
    name            text COLLATE "C" NOT NULL,
    window_size     interval    NOT NULL,
    registered_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    passed_at       timestamptz NOT NULL DEFAULT clock_timestamp(), -- when forgetting was last considered
    forgotten_until timestamptz, -- NULL: nothing is forgotten
    horizon         interval,    -- for how long after its stamp an event may be sent again, at most …
    horizon_until   timestamptz, -- … and until when such a one may come
    CONSTRAINT "inbox_consumers_pk" PRIMARY KEY (id),
    CONSTRAINT "inbox_consumers_name" UNIQUE (name)
) WITH (fillfactor = 50);

-- The times up to which a consumer forgot, and when each of them was set: dispatch IDs are
-- removed only by a time that has held for a while.
CREATE TABLE "boxpair"."inbox_forgotten" (
    consumer smallint    NOT NULL,
    until    timestamptz NOT NULL,
    set_at   timestamptz NOT NULL,
    CONSTRAINT "inbox_forgotten_pk" PRIMARY KEY (consumer, until)
);

-- Claimed dispatch IDs. A claim is an insert, and the primary key decides.
-- Forgetting goes by stamp, which is nearly ascending, as is applied_at: the index on
-- stamp is cheap, and for the newest rows a summary of block ranges is enough.
CREATE TABLE "boxpair"."inbox" (
    stamp       timestamptz NOT NULL,
    applied_at  timestamptz, -- NULL: the message is parked
    dispatch_id uuid        NOT NULL,
    consumer    smallint    NOT NULL,
    digest      bytea CONSTRAINT digest_size CHECK (octet_length(digest) = 16), -- NULL: the message has none
    CONSTRAINT "inbox_pk" PRIMARY KEY (consumer, dispatch_id)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX "inbox_stamp" ON "boxpair"."inbox" (consumer, stamp);
CREATE INDEX "inbox_newest" ON "boxpair"."inbox" USING brin (applied_at)
    WITH (pages_per_range = 32, autosummarize = on);

-- Failed attempts and starts of messages that are not parked.
CREATE TABLE "boxpair"."inbox_attempts" (
    changed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    dispatch_id uuid        NOT NULL,
    attempts    integer     NOT NULL DEFAULT 0,
    starts      integer     NOT NULL DEFAULT 0,
    consumer    smallint    NOT NULL,
    last_error  text,
    CONSTRAINT "inbox_attempts_pk" PRIMARY KEY (consumer, dispatch_id)
) WITH (fillfactor = 70);

-- Whole messages that wait, died, were set aside or given up. The live ones
-- (retrying or following) of an ordered key are its FIFO; the lowest is its head.
-- A message without a digest has one of zeros here, so that it is kept once.
-- metadata is an object of names and values; those that are not text are under the empty name.
CREATE TABLE "boxpair"."inbox_parked" (
    id              bigint GENERATED ALWAYS AS IDENTITY (CACHE 1),
    parked_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at timestamptz,
    stamp           timestamptz, -- NULL: the message has none
    dispatch_id     uuid     NOT NULL,
    attempts        integer  NOT NULL DEFAULT 0,
    consumer        smallint NOT NULL,
    ordered         boolean  NOT NULL, -- later messages of the key follow
    claimed         boolean  NOT NULL, -- the message has a row in the inbox
    forced          boolean  NOT NULL DEFAULT false, -- an altered message may run
    state           text     NOT NULL CONSTRAINT state_known
        CHECK (state IN ('retrying', 'following', 'dead', 'too_old', 'altered', 'discarded')),
    digest          bytea    NOT NULL CONSTRAINT digest_size CHECK (octet_length(digest) = 16),
    topic           text COLLATE "C" NOT NULL,
    key             text COLLATE "C" NOT NULL,
    metadata        jsonb    NOT NULL,
    payload         bytea    NOT NULL,
    last_error      text,
    reason          text, -- why it was discarded …
    discarded_at    timestamptz, -- … and when
    CONSTRAINT "inbox_parked_pk" PRIMARY KEY (id),
    CONSTRAINT "inbox_parked_once" UNIQUE (consumer, dispatch_id, digest),
    CONSTRAINT order_needs_key CHECK (NOT ordered OR key <> ''),
    CONSTRAINT retrying_has_time CHECK ((state = 'retrying') = (next_attempt_at IS NOT NULL))
);
CREATE INDEX "inbox_parked_due" ON "boxpair"."inbox_parked" (consumer, next_attempt_at)
    WHERE state = 'retrying';
CREATE INDEX "inbox_parked_live" ON "boxpair"."inbox_parked" (consumer, key, id)
    WHERE ordered AND state IN ('retrying', 'following');
CREATE INDEX "inbox_parked_state" ON "boxpair"."inbox_parked" (consumer, state, parked_at);
CREATE INDEX "inbox_parked_discarded" ON "boxpair"."inbox_parked" (consumer, discarded_at)
    WHERE state = 'discarded';
