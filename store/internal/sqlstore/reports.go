package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
)

// ReportRelay implements [outbox.RelayStore].
func (s *Store) ReportRelay(ctx context.Context, relay string, r outbox.Report) error {
	report, err := r.Encode()
	if err != nil {
		return fmt.Errorf("report a relay: %w", err)
	}
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `UPDATE {outbox_relays} SET reported_at = {now}, report = ? WHERE id = ?`, Text(report), Text(relay))
		if err != nil || !r.StalledChanged {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `DELETE FROM {outbox_routes}
			WHERE relay = ? OR relay NOT IN (SELECT l.id FROM {outbox_relays} l WHERE l.seen_until > {now})`, Text(relay))
		for i := range r.Stalled {
			if err != nil {
				break
			}
			t := &r.Stalled[i]
			_, err = s.c.Exec(ctx, tx, `INSERT INTO {outbox_routes} (relay, topic, route, state, since, last_error) VALUES (?, ?, ?, ?, {now} - ?, ?)`,
				Text(relay), Text(t.Topic), Text(t.Route), string(t.State), Micros(t.For), Text(t.LastError))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("report a relay: %w", err)
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

// ListRelays implements [outbox.OperatorStore].
func (s *Store) ListRelays(ctx context.Context) ([]outbox.Relay, error) {
	var list []outbox.Relay
	err := s.c.d.Read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		err := s.c.Each(ctx, tx, func(rows *sql.Rows) error {
			var r outbox.Relay
			var until int64
			var at sql.NullInt64
			var report sql.NullString
			err := rows.Scan(&r.Name, &until, &at, &report)
			r.SeenUntil = Instant(until)
			if err == nil && at.Valid && report.Valid {
				err = r.Decode(report.String, Instant(at.Int64))
			}
			list = append(list, r)
			return err
		}, `SELECT id, seen_until, reported_at, report FROM {outbox_relays} WHERE seen_until > {now} ORDER BY id`)
		if err != nil {
			return err
		}
		return s.c.Each(ctx, tx, func(rows *sql.Rows) error {
			var owner string
			var shard int
			err := rows.Scan(&owner, &shard)
			for i := range list {
				if list[i].Name == owner {
					list[i].Shards = append(list[i].Shards, shard)
				}
			}
			return err
		}, `SELECT owner, shard FROM {outbox_shards} WHERE owner IS NOT NULL AND lease_until > {now} ORDER BY shard`)
	})
	if err != nil {
		return nil, fmt.Errorf("list relays: %w", err)
	}
	return list, nil
}

// ReportHandlers implements [inbox.Reporter].
func (s *Store) ReportHandlers(ctx context.Context, p inbox.Process, ttl time.Duration, reports []inbox.HandlerReport) error {
	encoded := make([]string, len(reports))
	for i := range reports {
		var err error
		if encoded[i], err = inbox.EncodeReport(p, reports[i]); err != nil {
			return fmt.Errorf("report handlers: %w", err)
		}
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `DELETE FROM {inbox_handlers} WHERE process = ? OR listed_until <= {now}`, Text(p.Name))
		for i := range reports {
			if err != nil {
				break
			}
			_, err = s.c.Exec(ctx, tx, `INSERT INTO {inbox_handlers} (process, consumer, reported_at, listed_until, report) VALUES (?, ?, {now}, {now} + ?, ?)`,
				Text(p.Name), Text(reports[i].Consumer), Micros(ttl), Text(encoded[i]))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("report handlers: %w", err)
	}
	return nil
}

// ListHandlers implements [inbox.Reporter].
func (s *Store) ListHandlers(ctx context.Context) ([]inbox.RunningHandler, error) {
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (h inbox.RunningHandler, err error) {
		var at, until int64
		var report string
		if err = rows.Scan(&h.Consumer, &h.Name, &at, &until, &report); err == nil {
			h.ListedUntil = Instant(until)
			err = h.Decode(report, Instant(at))
		}
		return h, err
	}, `SELECT consumer, process, reported_at, listed_until, report FROM {inbox_handlers} WHERE listed_until > {now} ORDER BY consumer, process`)
	if err != nil {
		return nil, fmt.Errorf("list handlers: %w", err)
	}
	return list, nil
}
