-- What an operator has paused: topics, downstreams and consumers. Relays and consumers read it while they have work.
CREATE TABLE "boxpair"."pauses" (
    kind         text        NOT NULL CONSTRAINT kind_known CHECK (kind IN ('topic', 'downstream', 'consumer')),
    name         text        NOT NULL,
    paused_since timestamptz NOT NULL,
    paused_until timestamptz, -- NULL: until it is resumed
    reason       text        NOT NULL,
    paused_by    text        NOT NULL,
    PRIMARY KEY (kind, name)
);

-- The buckets of rate limits, shared by all processes. A row is updated in place several times a second at most.
CREATE TABLE "boxpair"."rates" (
    name      text             NOT NULL PRIMARY KEY,
    tokens    double precision NOT NULL, -- at filled_at
    filled_at timestamptz      NOT NULL,
    granted   integer          NOT NULL  -- of the last request
) WITH (fillfactor = 50);

-- A route is paused by an operator; a route that takes nothing is refusing.
ALTER TABLE "boxpair"."outbox_routes" DROP CONSTRAINT state_known,
    ADD CONSTRAINT state_known CHECK (state IN ('refusing', 'unavailable', 'paused')) NOT VALID;
