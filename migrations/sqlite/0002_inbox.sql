-- The inboxes: which dispatch IDs each consumer has applied or keeps parked, and the
-- messages that wait. Times are microseconds since 1970, UTC.

CREATE TABLE "boxpair_inbox_consumers" (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    name            TEXT    NOT NULL UNIQUE,
    window_us       INTEGER NOT NULL,
    registered_at   INTEGER NOT NULL,
    passed_at       INTEGER NOT NULL, -- when forgetting was last considered
    forgotten_until INTEGER, -- NULL: nothing is forgotten
    horizon_us      INTEGER, -- for how long after its stamp an event may be sent again, at most …
    horizon_until   INTEGER  -- … and until when such a one may come
);

-- The times up to which a consumer forgot, and when each of them was set: rows are removed
-- only by a time that has held for a while.
CREATE TABLE "boxpair_inbox_forgotten" (
    consumer INTEGER NOT NULL,
    set_at   INTEGER NOT NULL,
    until    INTEGER NOT NULL,
    PRIMARY KEY (consumer, set_at, until)
) WITHOUT ROWID;

-- Claimed dispatch IDs. A claim is an insert; the unique index decides.
CREATE TABLE "boxpair_inbox" (
    seq         INTEGER PRIMARY KEY, -- in the order of applying
    consumer    INTEGER NOT NULL,
    dispatch_id BLOB    NOT NULL CHECK (length(dispatch_id) = 16),
    digest      BLOB    NOT NULL CHECK (length(digest) = 16), -- all zero: the message had none
    stamp       INTEGER NOT NULL,
    applied_at  INTEGER, -- NULL: the message is parked
    UNIQUE (consumer, dispatch_id)
);
CREATE INDEX "boxpair_inbox_stamp" ON "boxpair_inbox" (consumer, stamp);

CREATE TABLE "boxpair_inbox_attempts" (
    consumer    INTEGER NOT NULL,
    dispatch_id BLOB    NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    starts      INTEGER NOT NULL DEFAULT 0,
    last_error  TEXT    NOT NULL DEFAULT '',
    updated_at  INTEGER NOT NULL,
    PRIMARY KEY (consumer, dispatch_id)
) WITHOUT ROWID;
CREATE INDEX "boxpair_inbox_attempts_age" ON "boxpair_inbox_attempts" (consumer, updated_at);

CREATE TABLE "boxpair_inbox_parked" (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer        INTEGER NOT NULL,
    dispatch_id     BLOB    NOT NULL CHECK (length(dispatch_id) = 16),
    digest          BLOB    NOT NULL CHECK (length(digest) = 16),
    topic           TEXT    NOT NULL,
    key             TEXT    NOT NULL,
    ordered         INTEGER NOT NULL, -- whether later messages of the key follow
    claimed         INTEGER NOT NULL, -- whether the message has a row in the inbox
    forced          INTEGER NOT NULL DEFAULT 0, -- whether it is to run although it is altered
    stamp           INTEGER, -- NULL: the message has none
    metadata        BLOB,    -- pairs of name and value, each behind its length
    payload         BLOB    NOT NULL,
    state           TEXT    NOT NULL CHECK (state IN ('retrying', 'following', 'dead', 'too_old', 'altered', 'discarded')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER, -- set while retrying
    parked_at       INTEGER NOT NULL,
    last_error      TEXT    NOT NULL DEFAULT '',
    reason          TEXT    NOT NULL DEFAULT '', -- why it was discarded …
    discarded_at    INTEGER,                     -- … and when
    UNIQUE (consumer, dispatch_id, digest)
);
CREATE INDEX "boxpair_inbox_parked_live" ON "boxpair_inbox_parked" (consumer, key, seq) WHERE ordered AND state IN ('retrying', 'following');
CREATE INDEX "boxpair_inbox_parked_due" ON "boxpair_inbox_parked" (consumer, next_attempt_at) WHERE state = 'retrying';
CREATE INDEX "boxpair_inbox_parked_state" ON "boxpair_inbox_parked" (consumer, state, parked_at);
CREATE INDEX "boxpair_inbox_parked_discarded" ON "boxpair_inbox_parked" (consumer, discarded_at) WHERE state = 'discarded';
