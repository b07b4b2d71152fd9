-- What a relay tells of itself with its heartbeat when it has changed: its state, what it has sent, and the state of its topics.
ALTER TABLE "boxpair_outbox_relays" ADD COLUMN reported_at INTEGER;
ALTER TABLE "boxpair_outbox_relays" ADD COLUMN report TEXT; -- JSON

-- What a process tells of the handlers that it runs, every few seconds. A row says nothing after listed_until; the next
-- process that reports removes it.
CREATE TABLE "boxpair_inbox_handlers" (
    process      TEXT NOT NULL,
    consumer     TEXT NOT NULL,
    reported_at  INTEGER NOT NULL,
    listed_until INTEGER NOT NULL,
    report       TEXT NOT NULL, -- JSON
    PRIMARY KEY (process, consumer)
) WITHOUT ROWID;
