package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/outbox"
)

// reportRoutes is separate from the heartbeat: a role without privileges on the table, or a schema
// without the table, must not cost a relay its leases.
var reportRoutes = statement(`
WITH gone AS (
    DELETE FROM {{outbox_routes}} n
    WHERE n.relay = $1 AND n.topic <> ALL ($2::text[])
       OR NOT EXISTS (SELECT FROM {{outbox_relays}} l WHERE l.id = n.relay AND l.seen_until > clock_timestamp()) AND n.relay <> $1
)
INSERT INTO {{outbox_routes}} (relay, topic, route, state, since, last_error)
SELECT $1, r.topic, r.route, r.state, clock_timestamp() - r.micros * interval '1 us', r.error
FROM unnest($2::text[], $3::text[], $4::text[], $5::float8[], $6::text[]) r (topic, route, state, micros, error)
ON CONFLICT (relay, topic) DO UPDATE
SET route = excluded.route, state = excluded.state, since = excluded.since, last_error = excluded.last_error`)

// ReportRoutes implements [outbox.RelayStore].
func (s *Store) ReportRoutes(ctx context.Context, relay string, routes []outbox.StalledRoute) error {
	n := len(routes)
	topics, names, states, errs := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	ages := make([]float64, n)
	for i := range routes {
		r := &routes[i]
		topics[i], names[i], states[i], errs[i], ages[i] = r.Topic, r.Route, string(r.State), r.LastError, micros(r.For)
	}
	if _, err := s.exec(ctx, reportRoutes, relay, topics, names, states, ages, errs); err != nil {
		return failed("report routes", err)
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
