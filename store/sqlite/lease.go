package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/producer"
)

// Heartbeat makes relay visible for ttl. Relays that are visible for longer than
// twice ttl are not counted: the clock was set back since.
func (s *Store) Heartbeat(ctx context.Context, relay string, ttl time.Duration) (live int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		at := now()
		if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_relays} WHERE seen_until <= ?`, at); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, `INSERT INTO {outbox_relays} (id, seen_until) VALUES (?, ?)
			ON CONFLICT (id) DO UPDATE SET seen_until = excluded.seen_until`, relay, at+micros(ttl))
		if err != nil {
			return err
		}
		return s.one(ctx, tx, []any{&live}, `SELECT count(*) FROM {outbox_relays} WHERE seen_until <= ?`, at+2*micros(ttl))
	})
	if err != nil {
		return 0, fmt.Errorf("heartbeat: %w", err)
	}
	return live, nil
}

// Acquire leases up to n shards. No other transaction writes meanwhile, so
// there are no locked shards to pass over.
func (s *Store) Acquire(ctx context.Context, relay string, ttl time.Duration, n int) ([]producer.Grant, error) {
	if n <= 0 {
		return nil, nil
	}
	var grants []producer.Grant
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		grants = nil
		at := now()
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var g producer.Grant
			err := rows.Scan(&g.Shard, &g.Epoch, &g.Abrupt)
			grants = append(grants, g)
			return err
		}, `SELECT shard, epoch + 1, owner IS NOT NULL FROM {outbox_shards}
			WHERE owner IS NULL OR lease_until <= ? OR lease_until > ? ORDER BY shard LIMIT ?`,
			at, at+2*micros(ttl), n)
		if err != nil {
			return err
		}
		for _, g := range grants {
			_, err := s.exec(ctx, tx, `UPDATE {outbox_shards} SET owner = ?, epoch = ?, lease_until = ? WHERE shard = ?`,
				relay, g.Epoch, at+micros(ttl), g.Shard)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("acquire shards: %w", err)
	}
	return grants, nil
}

// Renew extends leases. One that has expired and that nobody else has acquired is
// renewed too: its epoch has fenced everybody else off.
func (s *Store) Renew(ctx context.Context, relay string, ttl time.Duration, leases []producer.Lease) ([]producer.Renewal, error) {
	var renewals []producer.Renewal
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		renewals = nil
		until := now() + micros(ttl)
		for _, lease := range leases {
			var to sql.NullInt64
			var ticket int64
			err := s.one(ctx, tx, []any{&to, &ticket}, `UPDATE {outbox_shards} SET lease_until = ?
				WHERE shard = ? AND owner = ? AND epoch = ? RETURNING rewind_to, rewind_ticket`,
				until, lease.Shard, relay, lease.Epoch)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			} else if err != nil {
				return err
			}
			r := producer.Renewal{Lease: lease}
			if to.Valid {
				r.Rewind, r.RewindTo, r.Ticket = true, to.Int64, ticket
			}
			renewals = append(renewals, r)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return renewals, nil
}

// Release gives leases back.
func (s *Store) Release(ctx context.Context, relay string, leases []producer.Lease, forget bool) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, lease := range leases {
			_, err := s.exec(ctx, tx, `UPDATE {outbox_shards} SET owner = NULL, lease_until = 0
				WHERE shard = ? AND owner = ? AND epoch = ?`, lease.Shard, relay, lease.Epoch)
			if err != nil {
				return err
			}
		}
		if !forget {
			return nil
		}
		_, err := s.exec(ctx, tx, `DELETE FROM {outbox_relays} WHERE id = ?`, relay)
		return err
	})
	if err != nil {
		return fmt.Errorf("release leases: %w", err)
	}
	return nil
}

// ClearRewind clears the rewind of a shard if ticket still names it.
func (s *Store) ClearRewind(ctx context.Context, relay string, lease producer.Lease, ticket int64) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, `UPDATE {outbox_shards} SET rewind_to = NULL
			WHERE shard = ? AND owner = ? AND epoch = ? AND rewind_ticket = ?`, lease.Shard, relay, lease.Epoch, ticket)
		return err
	})
	if err != nil {
		return fmt.Errorf("clear rewind: %w", err)
	}
	return nil
}

// owned returns the leases that relay has. The caller's transaction has the write lock, so the
// answer holds until its end: this is the whole fence.
func (s *Store) owned(ctx context.Context, tx *sql.Tx, relay string) (map[producer.Lease]bool, error) {
	leases := make(map[producer.Lease]bool)
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		var l producer.Lease
		err := rows.Scan(&l.Shard, &l.Epoch)
		leases[l] = true
		return err
	}, `SELECT shard, epoch FROM {outbox_shards} WHERE owner = ?`, relay)
	return leases, err
}

// fenced runs fn in a transaction if relay has lease, and tells whether it has lost it.
func (s *Store) fenced(ctx context.Context, relay string, lease producer.Lease, fn func(ctx context.Context, tx *sql.Tx) error) (lost bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay)
		lost = !owned[lease]
		if err != nil || lost {
			return err
		}
		return fn(ctx, tx)
	})
	if err != nil {
		return false, fmt.Errorf("shard %d: %w", lease.Shard, err)
	}
	return lost, nil
}

// numbers returns list as a JSON array: the one value that a statement can take any
// number of numbers by, through json_each.
func numbers[T int | int64](list []T) string {
	if list == nil {
		return "[]"
	}
	text, err := json.Marshal(list)
	if err != nil {
		panic(err) // integers can be encoded
	}
	return string(text)
}
