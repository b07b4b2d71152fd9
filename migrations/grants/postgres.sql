-- Least privileges on PostgreSQL, one role for each part of the library.
--
-- Run it as the owner of the tables, after the migrations and again after each of
-- them: it grants, and revokes nothing that it granted before. The roles must exist: an administrator makes them, with CREATE ROLE,
-- and says how they log in. Put your own names in place of "boxpair_…", or let migrations.PostgresGrants do it; leave out the
-- sections of roles that you do not have. One role may be given several sections, as a
-- service's that both writes events and handles messages.
--
-- Nobody needs CREATE, and only the owner migrates. A new schema gives PUBLIC nothing; see that
-- nobody has changed that. What a role can and cannot do is said above its section.

-- role: producer
-- Writes events, in the transactions of a service. It reads of them what it needs to know
-- an event again: no payload, no header, and the keys of deferred events only. It can cancel and move
-- deferred events, and otherwise neither change nor delete an event; the column altered can only be
-- false. It sees no queue, no inbox and no lease.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_producer";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT INSERT (dispatch_id, digest, shard, topic, key, type, producer, source, version, index, schema_version,
              content_type, headers, payload, correlation_id, traceparent, tracestate, occurred_at, resend_seconds, due_at),
      SELECT (id, shard, dispatch_id, digest, due_at),
      UPDATE (altered, due_at)
    ON "boxpair"."outbox_events" TO "boxpair_producer";
GRANT SELECT, INSERT, UPDATE (due_at), DELETE ON "boxpair"."outbox_deferred" TO "boxpair_producer";
GRANT INSERT (id, shard, key, state, reason, discarded_at) ON "boxpair"."outbox_parked" TO "boxpair_producer";
GRANT INSERT (event_id, outcome, error) ON "boxpair"."outbox_attempts" TO "boxpair_producer";
GRANT INSERT (shard, id) ON "boxpair"."outbox_queue" TO "boxpair_producer";
GRANT EXECUTE ON FUNCTION "boxpair"."outbox_write", "boxpair"."outbox_dispatch_id", "boxpair"."outbox_hash",
      "boxpair"."outbox_netstring", "boxpair"."outbox_check_text", "boxpair"."outbox_count", "boxpair"."outbox_headers"
    TO "boxpair_producer";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_producer";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: relay
-- Publishes events. It reads all of them and changes none: it can hide an event from being
-- sent or have one sent again, not forge one. It sees no inbox.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_relay";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT ON "boxpair"."outbox_events" TO "boxpair_relay";
GRANT SELECT ON SEQUENCE "boxpair"."outbox_events_id_seq" TO "boxpair_relay";
GRANT SELECT, INSERT (shard, id), DELETE ON "boxpair"."outbox_queue" TO "boxpair_relay";
-- UPDATE is what it takes to lock a row.
GRANT SELECT, UPDATE (due_at), DELETE ON "boxpair"."outbox_deferred" TO "boxpair_relay";
GRANT SELECT, DELETE, INSERT (shard, id, topic, key, state, attempts, next_attempt_at, last_error),
      UPDATE (state, attempts, parked_at, next_attempt_at, last_error, reason)
    ON "boxpair"."outbox_parked" TO "boxpair_relay";
GRANT INSERT (event_id, outcome, error, relay) ON "boxpair"."outbox_attempts" TO "boxpair_relay";
GRANT INSERT (relay, event_ids) ON "boxpair"."outbox_receipts" TO "boxpair_relay";
GRANT SELECT, UPDATE (owner, epoch, leased_at, lease_until, rewind_to, rewind_ticket,
      low_water, low_epoch, low_history, tail, tail_round, tail_passed, witness, witness_epoch) ON "boxpair"."outbox_shards" TO "boxpair_relay";
GRANT SELECT, INSERT, UPDATE (seen_at, seen_until, reported_at, report), DELETE ON "boxpair"."outbox_relays" TO "boxpair_relay";
GRANT SELECT, INSERT, UPDATE (route, state, since, last_error), DELETE ON "boxpair"."outbox_routes" TO "boxpair_relay";
GRANT SELECT ON "boxpair"."pauses" TO "boxpair_relay";
GRANT SELECT, INSERT, UPDATE (tokens, filled_at, granted) ON "boxpair"."rates" TO "boxpair_relay";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_relay";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: consumer
-- Handles messages, and forgets old dispatch IDs. It keeps whole messages that wait and changes
-- their state, not their content. It can make the service handle a message again, by deleting
-- its claim. It sees no outbox: a service whose handlers write events has the producer's section
-- besides. The service's own tables are granted by their owner.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_consumer";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT, INSERT (name, window_size), UPDATE (window_size, passed_at, forgotten_until, horizon, horizon_until)
    ON "boxpair"."inbox_consumers" TO "boxpair_consumer";
GRANT SELECT, INSERT, DELETE ON "boxpair"."inbox_forgotten" TO "boxpair_consumer";
GRANT SELECT, INSERT, UPDATE (applied_at), DELETE ON "boxpair"."inbox" TO "boxpair_consumer";
GRANT SELECT, INSERT (consumer, dispatch_id, attempts, starts, last_error),
      UPDATE (attempts, starts, last_error, changed_at), DELETE
    ON "boxpair"."inbox_attempts" TO "boxpair_consumer";
GRANT SELECT, DELETE,
      INSERT (consumer, dispatch_id, digest, stamp, topic, key, ordered, claimed, state, metadata, payload,
              attempts, next_attempt_at, last_error),
      UPDATE (state, attempts, next_attempt_at, last_error)
    ON "boxpair"."inbox_parked" TO "boxpair_consumer";
GRANT SELECT, INSERT (consumer, dispatch_id, outcome, error), DELETE ON "boxpair"."inbox_history" TO "boxpair_consumer";
GRANT SELECT, DELETE, INSERT (dispatch_id, effect_key, consumer, ordered, topic, key, metadata, intent, due_at),
      UPDATE (run, due_at, lease_until, ended_at, attempts, uncertain, state, result, last_error)
    ON "boxpair"."inbox_effects" TO "boxpair_consumer";
GRANT SELECT, INSERT, UPDATE (reported_at, listed_until, report), DELETE ON "boxpair"."inbox_handlers" TO "boxpair_consumer";
GRANT SELECT ON "boxpair"."pauses" TO "boxpair_consumer";
GRANT SELECT, INSERT, UPDATE (tokens, filled_at, granted) ON "boxpair"."rates" TO "boxpair_consumer";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_consumer";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: requests
-- Answers HTTP requests once, in the transactions of a service, and forgets old answers. Usually the
-- role of a producer.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_requests";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT, INSERT (scope, key, fingerprint), UPDATE (status, header, body), DELETE
    ON "boxpair"."inbox_requests" TO "boxpair_requests";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_requests";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: janitor
-- Removes events that were delivered or discarded long ago. It reads no content. With what it has it
-- could remove an event that was not delivered, which a relay reports.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_janitor";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT (id, shard), DELETE ON "boxpair"."outbox_events" TO "boxpair_janitor";
GRANT SELECT ON "boxpair"."outbox_queue" TO "boxpair_janitor";
GRANT SELECT (id) ON "boxpair"."outbox_deferred" TO "boxpair_janitor";
GRANT SELECT (id, shard, state, discarded_at), DELETE ON "boxpair"."outbox_parked" TO "boxpair_janitor";
GRANT SELECT (event_id, outcome, at), DELETE ON "boxpair"."outbox_attempts" TO "boxpair_janitor";
GRANT SELECT, DELETE ON "boxpair"."outbox_receipts" TO "boxpair_janitor";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_janitor";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: archiver
-- A janitor that archives events before it removes them: it also reads their content.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_archiver";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT, DELETE ON "boxpair"."outbox_events" TO "boxpair_archiver";
GRANT SELECT ON "boxpair"."outbox_queue" TO "boxpair_archiver";
GRANT SELECT (id) ON "boxpair"."outbox_deferred" TO "boxpair_archiver";
GRANT SELECT (id, shard, state, discarded_at, attempts, last_error, reason), DELETE ON "boxpair"."outbox_parked" TO "boxpair_archiver";
GRANT SELECT (event_id, outcome, at), DELETE ON "boxpair"."outbox_attempts" TO "boxpair_archiver";
GRANT SELECT, DELETE ON "boxpair"."outbox_receipts" TO "boxpair_archiver";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_archiver";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: operator
-- Looks at what is parked or deferred, with its content, and redrives, discards or replays it, cancels or moves
-- it. It can have an event sent again, not change one. It pauses topics, downstreams and consumers.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_operator";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT ON "boxpair"."outbox_events", "boxpair"."outbox_queue", "boxpair"."outbox_attempts", "boxpair"."outbox_receipts",
      "boxpair"."outbox_relays", "boxpair"."outbox_routes", "boxpair"."outbox_status", "boxpair"."inbox", "boxpair"."inbox_consumers",
      "boxpair"."inbox_handlers"
    TO "boxpair_operator";
GRANT UPDATE (due_at) ON "boxpair"."outbox_events" TO "boxpair_operator";
GRANT SELECT, UPDATE (due_at), DELETE ON "boxpair"."outbox_deferred" TO "boxpair_operator";
GRANT SELECT, INSERT (id, shard, key, state, reason, discarded_at), UPDATE (state, attempts, next_attempt_at, reason, discarded_at)
    ON "boxpair"."outbox_parked" TO "boxpair_operator";
GRANT INSERT (event_id, outcome, error) ON "boxpair"."outbox_attempts" TO "boxpair_operator";
GRANT INSERT (shard, id, round) ON "boxpair"."outbox_queue" TO "boxpair_operator";
GRANT SELECT, UPDATE (rewind_to, rewind_ticket) ON "boxpair"."outbox_shards" TO "boxpair_operator";
GRANT USAGE ON SEQUENCE "boxpair"."outbox_tickets" TO "boxpair_operator";
GRANT SELECT ON SEQUENCE "boxpair"."outbox_events_id_seq" TO "boxpair_operator";
GRANT SELECT, UPDATE (state, attempts, next_attempt_at, forced, reason, discarded_at) ON "boxpair"."inbox_parked"
    TO "boxpair_operator";
GRANT SELECT, DELETE ON "boxpair"."inbox_attempts" TO "boxpair_operator";
GRANT SELECT ON "boxpair"."inbox_status" TO "boxpair_operator";
GRANT SELECT, INSERT (consumer, dispatch_id, outcome, error) ON "boxpair"."inbox_history" TO "boxpair_operator";
GRANT SELECT, UPDATE (run, due_at, lease_until, ended_at, attempts, state, result, reason)
    ON "boxpair"."inbox_effects" TO "boxpair_operator";
GRANT SELECT, INSERT, UPDATE (paused_since, paused_until, reason, paused_by), DELETE ON "boxpair"."pauses" TO "boxpair_operator";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_operator";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;

-- role: monitor
-- Counts and measures, and reads why something waits. It sees names and keys, no payloads and no
-- headers, and changes nothing.
DO $boxpair$ BEGIN
    GRANT USAGE ON SCHEMA "boxpair" TO "boxpair_monitor";
EXCEPTION WHEN undefined_object THEN
    RAISE undefined_object USING MESSAGE = SQLERRM || ': CREATE ROLE it first, as an administrator, or leave its section out';
END $boxpair$;
GRANT SELECT ON "boxpair"."outbox_status", "boxpair"."outbox_queue", "boxpair"."outbox_deferred", "boxpair"."outbox_parked",
      "boxpair"."outbox_attempts", "boxpair"."outbox_receipts", "boxpair"."outbox_shards", "boxpair"."outbox_relays",
      "boxpair"."outbox_routes", "boxpair"."pauses", "boxpair"."rates",
      "boxpair"."inbox_consumers", "boxpair"."inbox_forgotten", "boxpair"."inbox", "boxpair"."inbox_attempts",
      "boxpair"."inbox_handlers"
    TO "boxpair_monitor";
GRANT SELECT (id, dispatch_id, digest, shard, topic, key, type, producer, source, version, index, schema_version,
              content_type, correlation_id, traceparent, tracestate, occurred_at, created_at, resend_seconds, due_at)
    ON "boxpair"."outbox_events" TO "boxpair_monitor";
GRANT SELECT ON SEQUENCE "boxpair"."outbox_events_id_seq" TO "boxpair_monitor";
GRANT SELECT (id, consumer, dispatch_id, digest, stamp, topic, key, state, ordered, claimed, forced, attempts,
              parked_at, next_attempt_at, last_error, reason, discarded_at)
    ON "boxpair"."inbox_parked" TO "boxpair_monitor";
GRANT SELECT ON "boxpair"."inbox_history", "boxpair"."inbox_status" TO "boxpair_monitor";
GRANT SELECT (id, run, prepared_at, due_at, lease_until, ended_at, dispatch_id, effect_key, attempts, consumer, ordered,
              uncertain, state, has_result, topic, key, last_error, reason)
    ON "boxpair"."inbox_effects" TO "boxpair_monitor";
DO $boxpair$ BEGIN
    GRANT SELECT ON "boxpair"."schema_migrations" TO "boxpair_monitor";
EXCEPTION WHEN undefined_table THEN NULL; -- another tool has made the tables
END $boxpair$;
