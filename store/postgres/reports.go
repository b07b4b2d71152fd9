package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// reportRelay is separate from the heartbeat: a role without privileges on the columns, or a schema
// without them, must not cost a relay its leases.
var reportRelay = statement(`
WITH me AS (
    UPDATE {{outbox_relays}} SET reported_at = clock_timestamp(), report = $2::json WHERE id = $1
), gone AS (
    DELETE FROM {{outbox_routes}} n
    WHERE $3::boolean AND (n.relay = $1 AND n.topic <> ALL ($4::text[])
       OR NOT EXISTS (SELECT FROM {{outbox_relays}} l WHERE l.id = n.relay AND l.seen_until > clock_timestamp()) AND n.relay <> $1)
)
INSERT INTO {{outbox_routes}} (relay, topic, route, state, since, last_error)
SELECT $1, r.topic, r.route, r.state, clock_timestamp() - r.micros * interval '1 us', r.error
FROM unnest($4::text[], $5::text[], $6::text[], $7::float8[], $8::text[]) r (topic, route, state, micros, error)
ON CONFLICT (relay, topic) DO UPDATE
SET route = excluded.route, state = excluded.state, since = excluded.since, last_error = excluded.last_error`)

// ReportRelay implements [outbox.RelayStore].
func (s *Store) ReportRelay(ctx context.Context, relay string, r outbox.Report) error {
	report, err := r.Encode()
	if err != nil {
		return failed("report a relay", err)
	}
	if !r.StalledChanged {
		r.Stalled = nil
	}
	n := len(r.Stalled)
	topics, names, states, errs := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	ages := make([]float64, n)
	for i := range r.Stalled {
		s := &r.Stalled[i]
		topics[i], names[i], states[i], errs[i], ages[i] = s.Topic, s.Route, string(s.State), s.LastError, micros(s.For)
	}
	if _, err := s.exec(ctx, reportRelay, relay, report, r.StalledChanged, topics, names, states, ages, errs); err != nil {
		return failed("report a relay", err)
	}
	return nil
}

var listRoutes = statement(`
SELECT n.relay, n.topic, n.route, n.state, greatest(extract(epoch FROM clock_timestamp() - n.since) * 1000000, 0)::bigint, n.last_error
FROM {{outbox_routes}} n JOIN {{outbox_relays}} l ON l.id = n.relay AND l.seen_until > clock_timestamp()
ORDER BY n.topic, n.relay`)

// ListRoutes implements [outbox.OperatorStore].
func (s *Store) ListRoutes(ctx context.Context) ([]outbox.StalledRoute, error) {
	list, err := readRows(ctx, s, listRoutes, nil, func(row pgx.CollectableRow) (r outbox.StalledRoute, err error) {
		var age int64
		err = row.Scan(&r.Relay, &r.Topic, &r.Route, (*string)(&r.State), &age, &r.LastError)
		r.For = time.Duration(age) * time.Microsecond
		return r, err
	})
	if err != nil {
		return nil, failed("list routes", err)
	}
	return list, nil
}

var listRelays = statement(`
SELECT l.id, l.seen_until, l.reported_at, l.report::text,
       ARRAY (SELECT s.shard::integer FROM {{outbox_shards}} s WHERE s.owner = l.id AND s.lease_until > clock_timestamp() ORDER BY s.shard)
FROM {{outbox_relays}} l WHERE l.seen_until > clock_timestamp() ORDER BY l.id COLLATE "C"`)

// ListRelays implements [outbox.OperatorStore].
func (s *Store) ListRelays(ctx context.Context) ([]outbox.Relay, error) {
	list, err := readRows(ctx, s, listRelays, nil, func(row pgx.CollectableRow) (r outbox.Relay, err error) {
		var at *time.Time
		var report *string
		if err = row.Scan(&r.Name, &r.SeenUntil, &at, &report, &r.Shards); err == nil && at != nil && report != nil {
			err = r.Decode(*report, *at)
		}
		return r, err
	})
	if err != nil {
		return nil, failed("list relays", err)
	}
	return list, nil
}

// reportHandlers takes the place of the process's reports. SKIP LOCKED keeps two processes that
// remove the same rows from waiting for each other.
var reportHandlers = statement(`
WITH gone AS (
    DELETE FROM {{inbox_handlers}} WHERE (process, consumer) IN (
        SELECT process, consumer FROM {{inbox_handlers}}
        WHERE process = $1 AND consumer <> ALL ($3::text[]) OR process <> $1 AND listed_until <= clock_timestamp()
        FOR UPDATE SKIP LOCKED)
)
INSERT INTO {{inbox_handlers}} (process, consumer, reported_at, listed_until, report)
SELECT $1, r.consumer, clock_timestamp(), clock_timestamp() + $2::float8 * interval '1 us', r.report::json
FROM unnest($3::text[], $4::text[]) r (consumer, report)
ON CONFLICT (process, consumer) DO UPDATE
SET reported_at = excluded.reported_at, listed_until = excluded.listed_until, report = excluded.report`)

// ReportHandlers implements [inbox.Reporter].
func (s *Store) ReportHandlers(ctx context.Context, p inbox.Process, ttl time.Duration, reports []inbox.HandlerReport) error {
	consumers, encoded := make([]string, len(reports)), make([]string, len(reports))
	for i := range reports {
		text, err := inbox.EncodeReport(p, reports[i])
		if err != nil {
			return failed("report handlers", err)
		}
		consumers[i], encoded[i] = reports[i].Consumer, text
	}
	if _, err := s.exec(ctx, reportHandlers, p.Name, micros(ttl), consumers, encoded); err != nil {
		return failed("report handlers", err)
	}
	return nil
}

var listHandlers = statement(`
SELECT consumer, process, reported_at, listed_until, report::text FROM {{inbox_handlers}}
WHERE listed_until > clock_timestamp() ORDER BY consumer COLLATE "C", process COLLATE "C"`)

// ListHandlers implements [inbox.Reporter].
func (s *Store) ListHandlers(ctx context.Context) ([]inbox.RunningHandler, error) {
	list, err := readRows(ctx, s, listHandlers, nil, func(row pgx.CollectableRow) (h inbox.RunningHandler, err error) {
		var at time.Time
		var report string
		if err = row.Scan(&h.Consumer, &h.Name, &at, &h.ListedUntil, &report); err == nil {
			err = h.Decode(report, at)
		}
		return h, err
	})
	if err != nil {
		return nil, failed("list handlers", err)
	}
	return list, nil
}
