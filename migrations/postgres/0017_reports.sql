-- What a relay tells of itself with its heartbeat when it has changed: its state, what it has sent, and the state of its topics.
ALTER TABLE "boxpair"."outbox_relays" ADD COLUMN reported_at timestamptz, ADD COLUMN report json;

-- What a process tells of the handlers that it runs, every few seconds. A row says nothing after listed_until; the next
-- process that reports removes it.
CREATE TABLE "boxpair"."inbox_handlers" (
    process      text        NOT NULL,
    consumer     text        NOT NULL,
    reported_at  timestamptz NOT NULL,
    listed_until timestamptz NOT NULL,
    report       json        NOT NULL,
    CONSTRAINT "inbox_handlers_pk" PRIMARY KEY (process, consumer)
) WITH (fillfactor = 50);
