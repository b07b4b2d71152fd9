package operate

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Of the events, one in a hundred is dead, and each of these numbers is in another state.
const (
	waiting  = 2_000 // pending, and as many deferred
	retrying = 500
	settled  = 1_000 // discarded
)

// fill makes an outbox and an inbox with n events each, as writers, relays and consumers leave them.
// Constraints and indexes of the two large tables are made at the end.
func fill(ctx context.Context, pool *pgxpool.Pool, n int) error {
	const part = 1_000_000
	begun := time.Now()
	if err := run(ctx, pool, before...); err != nil {
		return err
	}
	for from := 1; from <= n; from += part {
		to := min(from+part-1, n)
		if err := run(ctx, pool, fmt.Sprintf(events, from, to, n), fmt.Sprintf(applied, from, to, n)); err != nil {
			return err
		}
		say("%d of %d events after %v", to, n, time.Since(begun).Round(time.Second))
	}
	if err := run(ctx, pool, after...); err != nil {
		return err
	}
	if err := run(ctx, pool, fmt.Sprintf(rest, n)); err != nil {
		return err
	}
	// What waits is gathered from the log, by place.
	last := fmt.Sprintf("e.id > %d", n-2*waiting)
	err := run(ctx, pool,
		`INSERT INTO boxpair.outbox_queue (shard, id) SELECT shard, id FROM boxpair.outbox_events e WHERE `+last+` AND id % 2 = 0 AND id % 100 <> 0`,
		`INSERT INTO boxpair.outbox_deferred (id, due_at, shard, key)
		 SELECT id, due_at, shard, key FROM boxpair.outbox_events e WHERE `+last+` AND id % 2 = 1 AND id % 100 <> 0`,
		fmt.Sprintf(receipts, n-2*waiting), parked, attempts, fmt.Sprintf(messages, n), history, effects,
		`SELECT brin_summarize_new_values('boxpair.outbox_receipts_span'), brin_summarize_new_values('boxpair.inbox_newest')`,
		`VACUUM ANALYZE`, `CHECKPOINT`)
	if err == nil {
		say("%d events and messages made in %v", n, time.Since(begun).Round(time.Second))
	}
	return err
}

func run(ctx context.Context, pool *pgxpool.Pool, statements ...string) error {
	for _, sql := range statements {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%.60s…: %w", sql, err)
		}
	}
	return nil
}

var (
	before = []string{
		`CREATE TABLE keys AS SELECT i AS n, 'customer-' || i AS key, (get_byte(sha256(convert_to('customer-' || i, 'UTF8')), 0) % 64)::smallint AS shard
		 FROM generate_series(0, 9999) i`,
		`CREATE TABLE causes AS SELECT i AS n, (ARRAY[
			'amqp: 504 CHANNEL_ERROR', 'amqp: 312 NO_ROUTE', 'amqp: 541 INTERNAL_ERROR', 'dial tcp: connection refused', 'dial tcp: i/o timeout',
			'tls: bad certificate', 'amqp: 403 ACCESS_REFUSED', 'amqp: 404 NOT_FOUND', 'unexpected EOF', 'write: broken pipe'])[1 + i % 10] ||
			' of node rabbit-' || i AS error FROM generate_series(0, 19) i`,
		`CREATE FUNCTION event_id(i bigint) RETURNS uuid IMMUTABLE LANGUAGE sql AS
		 $$ SELECT overlay(overlay(md5('event ' || i) PLACING '5' FROM 13) PLACING '8' FROM 17)::uuid $$`,
		`ALTER TABLE boxpair.outbox_events DROP CONSTRAINT outbox_events_dispatch, DROP CONSTRAINT outbox_events_pk`,
		`ALTER TABLE boxpair.inbox DROP CONSTRAINT inbox_pk`,
		`DROP INDEX boxpair.inbox_stamp`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size, registered_at)
		 SELECT 'stock/' || name, interval '10 days', now() - interval '30 days' FROM unnest(ARRAY['reserve', 'count', 'ship', 'bill', 'mail']) name`,
	}
	// after makes what before has dropped.
	after = []string{
		`ALTER TABLE boxpair.outbox_events ADD CONSTRAINT outbox_events_pk PRIMARY KEY (id), ADD CONSTRAINT outbox_events_dispatch UNIQUE (dispatch_id)`,
		`ALTER TABLE boxpair.inbox ADD CONSTRAINT inbox_pk PRIMARY KEY (consumer, dispatch_id)`,
		`CREATE INDEX inbox_stamp ON boxpair.inbox (consumer, stamp)`,
	}
)

const (
	// at is the time of writing of event i: even intervals over a week.
	at = `now() - interval '7 days' + i * (interval '7 days' / %[3]d)`

	// events is a part of the log. Any hundred neighbours have different keys.
	events = `
INSERT INTO boxpair.outbox_events (id, dispatch_id, shard, digest, topic, key, type, producer, source, version, content_type, correlation_id,
    headers, payload, occurred_at, created_at, due_at)
OVERRIDING SYSTEM VALUE
SELECT i, event_id(i), k.shard, decode(md5('content ' || i), 'hex'), (ARRAY['order.placed', 'order.paid', 'order.shipped', 'order.cancelled'])[1 + i / 100 %% 4],
    k.key, 'order', 'orders', 'order-' || i / 3, i %% 3, 'application/json', 'request-' || i / 5, '{"tenant":"blue"}',
    convert_to('{"order":' || i || ',"note":"' || repeat('x', 170) || '"}', 'UTF8'), ` + at + `, ` + at + `,
    CASE WHEN i > %[3]d - 4000 AND i %% 2 = 1 THEN now() + i %% 1000 * interval '1 minute' END
FROM generate_series(%[1]d::bigint, %[2]d) i JOIN keys k ON k.n = (i / 100 * 37 + i %% 100 * 101) %% 10000 ORDER BY i`

	// applied are the claims of the events, each by one consumer. One in a hundred is of a parked message.
	applied = `
INSERT INTO boxpair.inbox (stamp, applied_at, dispatch_id, consumer, digest)
SELECT ` + at + `, CASE WHEN i %% 100 <> 0 THEN ` + at + ` + interval '50 ms' END, event_id(i), 1 + i / 7 %% 5, decode(md5('content ' || i), 'hex')
FROM generate_series(%[1]d::bigint, %[2]d) i ORDER BY i`

	rest = `SELECT setval(pg_get_serial_sequence('boxpair.outbox_events', 'id'), %d)`

	receipts = `
INSERT INTO boxpair.outbox_receipts (relay, delivered_at, event_ids)
SELECT 'relay-1', max(created_at) + interval '20 ms', array_agg(id ORDER BY id)
FROM boxpair.outbox_events WHERE id <= %d AND id %% 100 <> 0 GROUP BY id / 100 ORDER BY id / 100`

	parked = `
INSERT INTO boxpair.outbox_parked (id, parked_at, next_attempt_at, attempts, shard, state, topic, key, last_error, reason, discarded_at)
SELECT e.id, e.created_at + interval '5 minutes', CASE WHEN e.state = 'retrying' THEN now() + interval '1 hour' END,
    CASE WHEN e.state = 'retrying' THEN 3 ELSE 10 END, e.shard, e.state, e.topic, e.key, c.error,
    CASE WHEN e.state = 'discarded' THEN 'was a test' END, CASE WHEN e.state = 'discarded' THEN now() END
FROM (
    SELECT *, CASE WHEN row_number() OVER (ORDER BY id DESC) <= 500 THEN 'retrying' WHEN row_number() OVER (ORDER BY id DESC) <= 1500 THEN 'discarded' ELSE 'dead' END AS state
    FROM boxpair.outbox_events WHERE id % 100 = 0
) e JOIN causes c ON c.n = e.id / 100 % 20 ORDER BY e.id`

	attempts = `
INSERT INTO boxpair.outbox_attempts (event_id, at, outcome, error, relay)
SELECT p.id, p.parked_at - (p.attempts - n) * interval '20 s', 'failed', p.last_error, 'relay-1'
FROM boxpair.outbox_parked p CROSS JOIN LATERAL generate_series(1, p.attempts) n ORDER BY p.id, n`

	messages = `
INSERT INTO boxpair.inbox_parked (parked_at, next_attempt_at, stamp, dispatch_id, attempts, consumer, ordered, claimed, state, digest, topic, key,
    metadata, payload, last_error)
SELECT e.created_at + interval '5 minutes', CASE WHEN e.id > %[1]d - 50000 THEN now() + interval '1 hour' END, e.created_at, e.dispatch_id, 10, 1 + e.id / 7 %% 5, false, true,
    CASE WHEN e.id > %[1]d - 50000 THEN 'retrying' ELSE 'dead' END, e.digest, e.topic, e.key,
    jsonb_build_object('topic', e.topic, 'key', e.key, 'producer', e.producer, 'correlation', e.correlation_id), e.payload, 'stock: ' || c.error
FROM boxpair.outbox_events e JOIN causes c ON c.n = e.id / 100 %% 20 WHERE e.id %% 100 = 0 ORDER BY e.id`

	history = `
INSERT INTO boxpair.inbox_history (at, dispatch_id, consumer, outcome, error)
SELECT p.parked_at - (p.attempts - n) * interval '20 s', p.dispatch_id, p.consumer, 'failed', p.last_error
FROM boxpair.inbox_parked p CROSS JOIN LATERAL generate_series(1, p.attempts) n ORDER BY p.id, n`

	effects = `
INSERT INTO boxpair.inbox_effects (prepared_at, due_at, ended_at, dispatch_id, effect_key, attempts, consumer, ordered, state, topic, key, metadata, intent, result, last_error)
SELECT i.applied_at, NULL, CASE WHEN n % 10 <> 0 THEN i.applied_at END, i.dispatch_id, i.dispatch_id, 1, i.consumer, false, CASE WHEN n % 10 = 0 THEN 'dead' ELSE 'done' END,
    'order.placed', 'customer-1', '{}', 'charge', CASE WHEN n % 10 <> 0 THEN 'charged'::bytea END, CASE WHEN n % 10 = 0 THEN 'card refused' END
FROM (SELECT *, row_number() OVER () AS n FROM boxpair.inbox WHERE applied_at IS NOT NULL AND consumer = 1 LIMIT 10000) i`
)
