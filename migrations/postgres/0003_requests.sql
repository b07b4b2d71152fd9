-- HTTP requests that were answered, by idempotency key, with their answers.
CREATE TABLE "boxpair"."inbox_requests" (
    claimed_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    status      integer, -- NULL: being answered, so never seen by another transaction
    fingerprint bytea NOT NULL CONSTRAINT fingerprint_size CHECK (octet_length(fingerprint) = 32),
    scope       text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL,
    header      text,
    body        bytea,
    CONSTRAINT "inbox_requests_pk" PRIMARY KEY (scope, key)
) WITH (fillfactor = 70);
CREATE INDEX "inbox_requests_claimed" ON "boxpair"."inbox_requests" (claimed_at);
