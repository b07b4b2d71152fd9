-- outbox_write() refuses an event that is named by its source alone, whose version was 0: whatever that source wrote was one and the same
-- event, and all but the first were taken for repetitions. Events that are there keep their names. It has the arguments, and so the grants,
-- that it had.

-- Writes one event in the transaction of the caller, and tells its dispatch ID and whether it was known. Call
-- it with names for the arguments:
--   SELECT * FROM boxpair.outbox_write(producer => 'orders', topic => 'order.placed', key => '42',
--       source => 'order/42', version => 1, payload => convert_to('{"total": 7}', 'UTF8'));
-- An event is named by its source and a version of at least 1, or by its source and an idempotency key. Without an index,
-- events of one name are counted within the transaction, from 0. With a time in deliver_at, which is no content, an event is
-- deferred: it is not sent before, and can be cancelled or moved until then. Null, or a time that is over, is at once.
CREATE OR REPLACE FUNCTION "boxpair"."outbox_write"(
    producer text, topic text, payload bytea, source text,
    version bigint DEFAULT 0, idempotency_key text DEFAULT '', index integer DEFAULT NULL,
    key text DEFAULT '', type text DEFAULT '', schema_version integer DEFAULT 0, content_type text DEFAULT '',
    headers jsonb DEFAULT '{}', occurred_at timestamptz DEFAULT NULL, resend_for interval DEFAULT '10 days',
    correlation_id text DEFAULT '', traceparent text DEFAULT '', tracestate text DEFAULT '',
    deliver_at timestamptz DEFAULT NULL,
    OUT dispatch_id uuid, OUT known boolean)
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $boxpair$
#variable_conflict use_column
DECLARE
    event uuid;
    name bytea;
    header record;
    content bytea;
    digested bytea;
    there bytea;
    resend bigint := extract(epoch FROM resend_for);
BEGIN
    PERFORM "boxpair"."outbox_check_text"(c.field, c.value, c.minimum, c.maximum) FROM (VALUES
        ('producer', producer, 1, 255), ('topic', topic, 1, 255), ('source', source, 1, 255), ('key', key, 0, 255),
        ('idempotency_key', idempotency_key, 0, 255), ('type', type, 0, 255), ('content_type', content_type, 0, 255),
        ('correlation_id', correlation_id, 0, 255), ('traceparent', traceparent, 0, 255), ('tracestate', tracestate, 0, 512)
    ) AS c (field, value, minimum, maximum);
    IF payload IS NULL OR version IS NULL OR schema_version IS NULL OR resend IS NULL THEN
        RAISE EXCEPTION 'outbox_write: %: is null', CASE WHEN payload IS NULL THEN 'payload' WHEN version IS NULL THEN 'version'
            WHEN schema_version IS NULL THEN 'schema_version' ELSE 'resend_for' END USING ERRCODE = 'null_value_not_allowed';
    ELSIF octet_length(payload) > 4194304 THEN
        RAISE EXCEPTION 'outbox_write: payload: has % bytes, more than 4194304', octet_length(payload) USING ERRCODE = 'invalid_parameter_value';
    ELSIF schema_version < 0 THEN
        RAISE EXCEPTION 'outbox_write: schema_version: % is less than 0', schema_version USING ERRCODE = 'invalid_parameter_value';
    ELSIF index < 0 THEN
        RAISE EXCEPTION 'outbox_write: index: % is less than 0', index USING ERRCODE = 'invalid_parameter_value';
    ELSIF resend NOT BETWEEN 1 AND 315360000 THEN
        RAISE EXCEPTION 'outbox_write: resend_for: % is not between 1 second and 3650 days', resend_for USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT coalesce(occurred_at >= '0001-01-01 00:00:00+00' AND occurred_at < '10000-01-01 00:00:00+00', true) THEN
        RAISE EXCEPTION 'outbox_write: occurred_at: % is not between the years 1 and 9999', occurred_at USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT coalesce(deliver_at >= '0001-01-01 00:00:00+00' AND deliver_at < '10000-01-01 00:00:00+00', true) THEN
        RAISE EXCEPTION 'outbox_write: deliver_at: % is not between the years 1 and 9999', deliver_at USING ERRCODE = 'invalid_parameter_value';
    ELSIF idempotency_key <> '' AND version <> 0 THEN
        RAISE EXCEPTION 'outbox_write: idempotency_key: the event has a version besides' USING ERRCODE = 'invalid_parameter_value';
    ELSIF idempotency_key = '' AND version < 1 THEN
        RAISE EXCEPTION 'outbox_write: version: % is less than 1: give the source a version, counted from 1, or an idempotency_key', version
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    SELECT h.kept, h.encoded INTO header FROM "boxpair"."outbox_headers"(headers) h;

    IF index IS NULL THEN
        name := "boxpair"."outbox_netstring"(producer) || "boxpair"."outbox_netstring"(source);
        IF idempotency_key = '' THEN
            index := "boxpair"."outbox_count"(name || "boxpair"."outbox_netstring"(version::text));
        ELSE
            index := "boxpair"."outbox_count"(name || 'k' || "boxpair"."outbox_netstring"(idempotency_key));
        END IF;
    END IF;
    IF idempotency_key = '' THEN
        event := "boxpair"."outbox_dispatch_id"('of', producer, source, version::text, index::text);
    ELSE
        event := "boxpair"."outbox_dispatch_id"('key', producer, source, idempotency_key, index::text);
    END IF;

    content := "boxpair"."outbox_netstring"(topic) || "boxpair"."outbox_netstring"(key) || "boxpair"."outbox_netstring"(type)
        || "boxpair"."outbox_netstring"(schema_version::text) || "boxpair"."outbox_netstring"(content_type)
        || convert_to(octet_length(payload)::text || ':', 'UTF8') || payload || convert_to(',', 'UTF8') || header.encoded;
    digested := substr(sha256(content), 1, 16);

    LOOP
        WITH written AS (
            INSERT INTO "boxpair"."outbox_events" AS e (
                dispatch_id, digest, shard, topic, key, type, producer, source, version, index, schema_version, content_type,
                headers, payload, correlation_id, traceparent, tracestate, occurred_at, resend_seconds, due_at)
            VALUES (
                event, digested,
                CASE WHEN key = '' THEN get_byte(uuid_send(event), 15) ELSE get_byte(sha256(convert_to(key, 'UTF8')), 0) END % 64,
                topic, key, type, producer, source, version, index, schema_version, content_type,
                header.kept::json, payload, correlation_id, traceparent, tracestate, coalesce(occurred_at, clock_timestamp()), resend,
                CASE WHEN deliver_at > clock_timestamp() THEN deliver_at END)
            ON CONFLICT (dispatch_id) DO NOTHING
            RETURNING e.id, e.shard, e.due_at
        ), queued AS (
            INSERT INTO "boxpair"."outbox_queue" (shard, id) SELECT w.shard, w.id FROM written w WHERE w.due_at IS NULL
        ), waiting AS (
            INSERT INTO "boxpair"."outbox_deferred" (id, due_at, shard, key)
            SELECT w.id, w.due_at, w.shard, key FROM written w WHERE w.due_at IS NOT NULL
        )
        SELECT count(*) = 0 INTO known FROM written;
        EXIT WHEN NOT known;
        -- A statement of its own sees what the insert has waited for. Nothing there: removed meanwhile.
        SELECT e.digest INTO there FROM "boxpair"."outbox_events" e WHERE e.dispatch_id = event;
        EXIT WHEN there = digested;
        IF there IS NOT NULL THEN
            RAISE EXCEPTION 'outbox_write: event % is there with other content', event USING ERRCODE = 'unique_violation';
        END IF;
    END LOOP;
    dispatch_id := event;
END
$boxpair$;
