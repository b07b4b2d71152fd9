-- outbox_write(): a writer in SQL, for triggers, psql and other languages. What it writes is what a writer
-- in Go writes: the same dispatch ID, digest, shard and checks. The functions run with the rights of
-- who calls them, who needs those of a producer, and read no name from his search path.

-- SHA-1, which UUIDv5 is defined over and PostgreSQL has in extensions only.
CREATE FUNCTION "boxpair"."outbox_hash"(message bytea) RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $boxpair$
DECLARE
    all_ones CONSTANT bigint := 4294967295;
    padded bytea := message || '\x80'::bytea
        || decode(repeat('00', (119 - octet_length(message) % 64) % 64), 'hex')
        || int8send(octet_length(message)::bigint * 8);
    h0 bigint := 1732584193; -- 67452301
    h1 bigint := 4023233417; -- efcdab89
    h2 bigint := 2562383102; -- 98badcfe
    h3 bigint := 271733878;  -- 10325476
    h4 bigint := 3285377520; -- c3d2e1f0
    w bigint[];
    a bigint; b bigint; c bigint; d bigint; e bigint; t bigint;
    p integer;
BEGIN
    FOR block IN 0 .. octet_length(padded) / 64 - 1 LOOP
        w := array_fill(0::bigint, ARRAY[80]);
        FOR i IN 1 .. 16 LOOP
            p := block * 64 + (i - 1) * 4;
            w[i] := (get_byte(padded, p)::bigint << 24) | (get_byte(padded, p + 1) << 16)
                | (get_byte(padded, p + 2) << 8) | get_byte(padded, p + 3);
        END LOOP;
        FOR i IN 17 .. 80 LOOP
            t := w[i - 3] # w[i - 8] # w[i - 14] # w[i - 16];
            w[i] := ((t << 1) | (t >> 31)) & all_ones;
        END LOOP;
        a := h0; b := h1; c := h2; d := h3; e := h4;
        FOR i IN 1 .. 80 LOOP
            t := ((a << 5) | (a >> 27)) + e + w[i] + CASE
                WHEN i <= 20 THEN ((b & c) | ((b # all_ones) & d)) + 1518500249
                WHEN i <= 40 THEN (b # c # d) + 1859775393
                WHEN i <= 60 THEN ((b & c) | (b & d) | (c & d)) + 2400959708
                ELSE (b # c # d) + 3395469782
            END;
            e := d; d := c; c := ((b << 30) | (b >> 2)) & all_ones; b := a; a := t & all_ones;
        END LOOP;
        h0 := (h0 + a) & all_ones; h1 := (h1 + b) & all_ones; h2 := (h2 + c) & all_ones;
        h3 := (h3 + d) & all_ones; h4 := (h4 + e) & all_ones;
    END LOOP;
    RETURN decode(lpad(to_hex(h0), 8, '0') || lpad(to_hex(h1), 8, '0') || lpad(to_hex(h2), 8, '0')
        || lpad(to_hex(h3), 8, '0') || lpad(to_hex(h4), 8, '0'), 'hex');
END
$boxpair$;

-- A netstring: its length in bytes, a colon, the text in UTF-8, a comma.
CREATE FUNCTION "boxpair"."outbox_netstring"(part text) RETURNS bytea
LANGUAGE sql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $boxpair$
    SELECT convert_to(octet_length(convert_to($1, 'UTF8'))::text || ':' || $1 || ',', 'UTF8')
$boxpair$;

-- A dispatch ID of the public format, version 1, from its kind and its parts:
--   outbox_dispatch_id('of', producer, source, version, index)
--   outbox_dispatch_id('key', producer, source, idempotency key, index)
--   outbox_dispatch_id('child', consumer, cause, index)
-- Numbers are decimal, and UUIDs are in lower case.
CREATE FUNCTION "boxpair"."outbox_dispatch_id"(VARIADIC parts text[]) RETURNS uuid
LANGUAGE plpgsql STABLE STRICT PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $boxpair$
DECLARE
    name bytea := decode('05950bf3f1605df39801c223cd9631d3', 'hex'); -- the namespace
    part text;
    hash bytea;
BEGIN
    FOREACH part IN ARRAY parts LOOP
        IF part IS NULL THEN
            RAISE EXCEPTION 'outbox_dispatch_id: a part is null' USING ERRCODE = 'null_value_not_allowed';
        END IF;
        name := name || "boxpair"."outbox_netstring"(part);
    END LOOP;
    hash := substr("boxpair"."outbox_hash"(name), 1, 16);
    hash := set_byte(hash, 6, get_byte(hash, 6) & 15 | 80);
    hash := set_byte(hash, 8, get_byte(hash, 8) & 63 | 128);
    RETURN encode(hash, 'hex')::uuid;
END
$boxpair$;

-- Refuses a text that is too short or has too many bytes.
CREATE FUNCTION "boxpair"."outbox_check_text"(field text, value text, minimum integer, maximum integer) RETURNS void
LANGUAGE plpgsql STABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $boxpair$
DECLARE
    size integer := octet_length(convert_to(value, 'UTF8'));
BEGIN
    IF size IS NULL THEN
        RAISE EXCEPTION 'outbox_write: %: is null', field USING ERRCODE = 'null_value_not_allowed';
    ELSIF size < minimum THEN
        RAISE EXCEPTION 'outbox_write: %: is required', field USING ERRCODE = 'invalid_parameter_value';
    ELSIF size > maximum THEN
        RAISE EXCEPTION 'outbox_write: %: has % bytes, more than %', field, size, maximum USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$boxpair$;

-- The events of one source at one version, or of one request, are counted within a transaction; a savepoint
-- that is rolled back takes its counts along. The counts stand in 256 variables, since
-- a session keeps the names of all that it has ever set.
CREATE FUNCTION "boxpair"."outbox_count"(what bytea) RETURNS integer
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $boxpair$
DECLARE
    outbox "boxpair"."outbox_events";
    hash text := encode(sha256(convert_to(pg_typeof(outbox)::oid::text || ' ', 'UTF8') || what), 'hex');
    variable text := 'boxpair.n_' || substr(hash, 1, 2);
    counts jsonb := coalesce(nullif(current_setting(variable, true), ''), '{}')::jsonb;
    n integer := coalesce((counts ->> hash)::integer, 0);
BEGIN
    PERFORM set_config(variable, (counts || jsonb_build_object(hash, n + 1))::text, true);
    RETURN n;
END
$boxpair$;

-- Headers as the writer in Go keeps them, their netstrings in the order of their names, and how many bytes
-- they have.
CREATE FUNCTION "boxpair"."outbox_headers"(headers jsonb, OUT kept text, OUT encoded bytea)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $boxpair$
DECLARE
    header record;
    size integer := 0;
    n integer := 0;
BEGIN
    IF jsonb_typeof(headers) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'outbox_write: headers: is not an object' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    kept := '';
    encoded := '';
    FOR header IN
        SELECT h.key, h.value, h.value #>> '{}' AS value_text FROM jsonb_each(headers) h ORDER BY h.key COLLATE "C"
    LOOP
        PERFORM "boxpair"."outbox_check_text"('headers: a name', header.key, 1, 255);
        IF jsonb_typeof(header.value) <> 'string' THEN
            RAISE EXCEPTION 'outbox_write: headers: the value of "%" is not a string', header.key USING ERRCODE = 'invalid_parameter_value';
        ELSIF header.key IN ('correlation_id', 'traceparent', 'tracestate')
            OR starts_with(header.key, 'boxpair-') OR starts_with(header.key, '_watermill_') THEN
            RAISE EXCEPTION 'outbox_write: headers: the name "%" is reserved', header.key USING ERRCODE = 'invalid_parameter_value';
        END IF;
        n := n + 1;
        size := size + octet_length(convert_to(header.key || header.value_text, 'UTF8'));
        kept := kept || CASE WHEN n > 1 THEN ',' ELSE '' END || to_json(header.key)::text || ':' || header.value::text;
        encoded := encoded || "boxpair"."outbox_netstring"(header.key) || "boxpair"."outbox_netstring"(header.value_text);
    END LOOP;
    IF n > 1024 THEN
        RAISE EXCEPTION 'outbox_write: headers: there are %, more than 1024', n USING ERRCODE = 'invalid_parameter_value';
    ELSIF size > 32768 THEN
        RAISE EXCEPTION 'outbox_write: headers: have % bytes, more than 32768', size USING ERRCODE = 'invalid_parameter_value';
    END IF;
    kept := '{' || replace(replace(replace(replace(replace(kept, '<', '\u003c'), '>', '\u003e'), '&', '\u0026'),
        chr(8232), '\u2028'), chr(8233), '\u2029') || '}';
END
$boxpair$;

-- Writes one event in the transaction of the caller, and tells its dispatch ID and whether it was known. Call
-- it with names for the arguments:
--   SELECT * FROM boxpair.outbox_write(producer => 'orders', topic => 'order.placed', key => '42',
--       source => 'order/42', version => 1, payload => convert_to('{"total": 7}', 'UTF8'));
-- An event is named by its source and a version, or by its source and an idempotency key. Without an index,
-- events of one name are counted within the transaction, from 0.
CREATE FUNCTION "boxpair"."outbox_write"(
    producer text, topic text, payload bytea, source text,
    version bigint DEFAULT 0, idempotency_key text DEFAULT '', index integer DEFAULT NULL,
    key text DEFAULT '', type text DEFAULT '', schema_version integer DEFAULT 0, content_type text DEFAULT '',
    headers jsonb DEFAULT '{}', occurred_at timestamptz DEFAULT NULL, resend_for interval DEFAULT '10 days',
    correlation_id text DEFAULT '', traceparent text DEFAULT '', tracestate text DEFAULT '',
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
    ELSIF idempotency_key <> '' AND version <> 0 THEN
        RAISE EXCEPTION 'outbox_write: idempotency_key: the event has a version besides' USING ERRCODE = 'invalid_parameter_value';
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
                headers, payload, correlation_id, traceparent, tracestate, occurred_at, resend_seconds)
            VALUES (
                event, digested,
                CASE WHEN key = '' THEN get_byte(uuid_send(event), 15) ELSE get_byte(sha256(convert_to(key, 'UTF8')), 0) END % 64,
                topic, key, type, producer, source, version, index, schema_version, content_type,
                header.kept::json, payload, correlation_id, traceparent, tracestate, coalesce(occurred_at, clock_timestamp()), resend)
            ON CONFLICT (dispatch_id) DO NOTHING
            RETURNING e.id, e.shard
        ), queued AS (
            INSERT INTO "boxpair"."outbox_queue" (shard, id) SELECT w.shard, w.id FROM written w
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

-- Only who was granted it writes.
REVOKE ALL ON FUNCTION "boxpair"."outbox_hash", "boxpair"."outbox_netstring", "boxpair"."outbox_dispatch_id",
    "boxpair"."outbox_check_text", "boxpair"."outbox_count", "boxpair"."outbox_headers", "boxpair"."outbox_write" FROM PUBLIC;
