-- HTTP requests that were answered, by idempotency key, with their answers. Times are
-- microseconds since 1970, UTC.
CREATE TABLE "boxpair_inbox_requests" (
    scope       TEXT    NOT NULL,
    key         TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL CHECK (length(fingerprint) = 32),
    claimed_at  INTEGER NOT NULL,
    status      INTEGER, -- NULL: being answered, so never seen by another transaction
    header      TEXT,
    body        BLOB,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID;
CREATE INDEX "boxpair_inbox_requests_claimed" ON "boxpair_inbox_requests" (claimed_at);
