package sqlstore

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/boxpair/boxpair/store/outbox"
)

// ReportRoutes implements [outbox.RelayStore].
func (s *Store) ReportRoutes(ctx context.Context, relay string, routes []outbox.StalledRoute) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_routes}
			WHERE relay = ? OR relay NOT IN (SELECT l.id FROM {outbox_relays} l WHERE l.seen_until > {now})`, Text(relay))
		for i := range routes {
			if err != nil {
				break
			}
			r := &routes[i]
			_, err = s.c.Exec(ctx, tx, `INSERT INTO {outbox_routes} (relay, topic, route, state, since, last_error) VALUES (?, ?, ?, ?, {now} - ?, ?)`,
				Text(relay), Text(r.Topic), Text(r.Route), string(r.State), Micros(r.For), Text(r.LastError))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("report routes: %w", err)
	}
	return nil
}

// ListRoutes implements [outbox.OperatorStore].
func (s *Store) ListRoutes(ctx context.Context) ([]outbox.StalledRoute, error) {
	var list []outbox.StalledRoute
	err := s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		var r outbox.StalledRoute
		var age sql.NullInt64
		err := rows.Scan(&r.Relay, &r.Topic, &r.Route, &r.State, &age, &r.LastError)
		r.For = max(0, elapsed(age))
		list = append(list, r)
		return err
	}, `SELECT n.relay, n.topic, n.route, n.state, {now} - n.since, n.last_error
		FROM {outbox_routes} n JOIN {outbox_relays} l ON l.id = n.relay AND l.seen_until > {now} ORDER BY n.topic, n.relay`)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return list, nil
}
