package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// farAhead bounds the remaining time of a lease without a known beginning. A lease that ends later
// shows that the clock was set back.
const farAhead = time.Hour

// Heartbeat implements [outbox.RelayStore]. It does not count relays that were seen before the
// clock was set back.
func (s *Store) Heartbeat(ctx context.Context, relay string, ttl time.Duration) (live int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_relays} WHERE seen_until <= {now}`); err != nil {
			return err
		}
		_, err := s.c.Exec(ctx, tx, `INSERT INTO {outbox_relays} (id, seen_at, seen_until) VALUES (?, {now}, {now} + ?)
			{again id} seen_at = {now}, seen_until = {now} + ?`, Text(relay), Micros(ttl), Micros(ttl))
		if err != nil {
			return err
		}
		return s.c.One(ctx, tx, []any{&live}, `SELECT COUNT(*) FROM {outbox_relays}
			WHERE COALESCE(seen_at >= seen_until OR seen_at - {now} <= seen_until - seen_at, seen_until <= {now} + ?)`, Micros(max(2*ttl, farAhead)))
	})
	if err != nil {
		return 0, fmt.Errorf("heartbeat: %w", err)
	}
	return live, nil
}

// Acquire implements [outbox.RelayStore].
func (s *Store) Acquire(ctx context.Context, relay string, ttl time.Duration, n int) ([]outbox.Grant, error) {
	if n <= 0 {
		return nil, nil
	}
	var grants []outbox.Grant
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		grants = nil
		var shards []int
		err := s.c.Each(ctx, tx, func(rows *sql.Rows) error {
			var g outbox.Grant
			err := rows.Scan(&g.Shard, &g.Epoch, &g.Abrupt, &g.Low, &g.Tail.Seq, &g.Tail.Passed, &g.History, &g.Ticket)
			grants, shards = append(grants, g), append(shards, g.Shard)
			return err
		}, `SELECT shard, epoch + 1, owner IS NOT NULL, CASE WHEN `+lowValid+` THEN {greatest}(0, {least}(low_water, COALESCE(rewind_to - 1, low_water))) ELSE 0 END,
			CASE WHEN `+lowValid+` AND tail > 0 THEN {greatest}(0, {least}(tail, COALESCE(rewind_to - 1, tail))) ELSE 0 END,
			CASE WHEN `+lowValid+` THEN tail_passed END,
			CASE WHEN `+lowValid+` THEN low_history ELSE '' END, rewind_ticket FROM {outbox_shards} {by PRIMARY}
			WHERE owner IS NULL OR lease_until <= {now} OR leased_at < lease_until AND leased_at - {now} > lease_until - leased_at
			OR leased_at IS NULL AND lease_until > {now} + ? ORDER BY shard LIMIT ? {lock_free}`, Micros(max(2*ttl, farAhead)), n)
		if err != nil || len(grants) == 0 {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET low_epoch = CASE WHEN `+lowValid+` THEN low_epoch + 1 END, owner = ?, epoch = epoch + 1, leased_at = {now}, lease_until = {now} + ? WHERE shard IN ?`,
			Text(relay), Micros(ttl), shards)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("acquire shards: %w", err)
	}
	return grants, nil
}

// Renew implements [outbox.RelayStore]. It renews an expired lease, too, if no other relay has
// acquired the shard: the epoch has fenced off all other relays.
func (s *Store) Renew(ctx context.Context, relay string, ttl time.Duration, leases []outbox.Lease) ([]outbox.Renewal, error) {
	var renewals []outbox.Renewal
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		renewals = nil
		var shards []int
		err := s.c.Each(ctx, tx, func(rows *sql.Rows) error {
			var r outbox.Renewal
			var to sql.NullInt64
			if err := rows.Scan(&r.Shard, &r.Epoch, &to, &r.Ticket); err != nil || !slices.Contains(leases, r.Lease) {
				return err
			}
			if r.Rewind, r.RewindTo = to.Valid, to.Int64; !to.Valid {
				r.Ticket = 0
			}
			renewals, shards = append(renewals, r), append(shards, r.Shard)
			return nil
		}, `SELECT shard, epoch, rewind_to, rewind_ticket FROM {outbox_shards} {by PRIMARY}
			WHERE shard IN ? AND owner = ? ORDER BY shard {lock}`, shardsOf(leases), Text(relay))
		if err != nil || len(shards) == 0 {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET leased_at = {now}, lease_until = {now} + ? WHERE shard IN ?`, Micros(ttl), shards)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("renew leases: %w", err)
	}
	return renewals, nil
}

// Release implements [outbox.RelayStore].
func (s *Store) Release(ctx context.Context, relay string, leases []outbox.Lease, forget bool) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		var shards []int
		for lease := range owned {
			shards = append(shards, lease.Shard)
		}
		slices.Sort(shards)
		if len(shards) > 0 {
			if _, err := s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET owner = NULL, lease_until = 0 WHERE shard IN ?`, shards); err != nil {
				return err
			}
		}
		if !forget {
			return nil
		}
		_, err = s.c.Exec(ctx, tx, `DELETE FROM {outbox_relays} WHERE id = ?`, Text(relay))
		return err
	})
	if err != nil {
		return fmt.Errorf("release leases: %w", err)
	}
	return nil
}

// ClearRewind implements [outbox.RelayStore].
func (s *Store) ClearRewind(ctx context.Context, relay string, lease outbox.Lease, ticket int64) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET low_water = {least}(low_water, rewind_to - 1), tail = {least}(tail, rewind_to - 1), rewind_to = NULL
			WHERE shard = ? AND owner = ? AND epoch = ? AND rewind_ticket = ?`, lease.Shard, Text(relay), lease.Epoch, ticket)
		return err
	})
	if err != nil {
		return fmt.Errorf("clear rewind: %w", err)
	}
	return nil
}

// lowValid holds for a shard whose kept low-water marks are valid: the ending epoch maintained
// them, and the sequence of IDs was not reset.
const lowValid = `(low_epoch = epoch AND {greatest}(low_water, COALESCE(tail, 0)) <= (SELECT MAX(id) FROM {outbox_events}))`

// KeepLow implements [outbox.RelayStore].
func (s *Store) KeepLow(ctx context.Context, relay string, lows []outbox.Low, history string) error {
	leases := make([]outbox.Lease, len(lows))
	for i, low := range lows {
		leases[i] = low.Lease
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		for _, low := range lows {
			if !owned[low.Lease] {
				continue
			}
			_, err := s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET low_water = ?, low_epoch = epoch, low_history = ? WHERE shard = ?`,
				low.Seq, Text(history), low.Shard)
			if t := low.Tail; t != nil && err == nil {
				_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET tail = ?, tail_passed = ? WHERE shard = ?`, t.Seq, t.Passed, low.Shard)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("keep low-water marks: %w", err)
	}
	return nil
}

// owned returns the leases among leases that relay holds, and locks their rows in the order of the
// shards: the answer holds until the end of tx. This is the whole fence.
func (s *Store) owned(ctx context.Context, tx *sql.Tx, relay string, leases []outbox.Lease) (map[outbox.Lease]bool, error) {
	owned := make(map[outbox.Lease]bool, len(leases))
	if len(leases) == 0 {
		return owned, nil
	}
	err := s.c.Each(ctx, tx, func(rows *sql.Rows) error {
		var l outbox.Lease
		err := rows.Scan(&l.Shard, &l.Epoch)
		if slices.Contains(leases, l) {
			owned[l] = true
		}
		return err
	}, `SELECT shard, epoch FROM {outbox_shards} {by PRIMARY} WHERE shard IN ? AND owner = ? ORDER BY shard {lock}`,
		shardsOf(leases), Text(relay))
	return owned, err
}

// shardsOf returns the shards of leases, each once, ascending.
func shardsOf(leases []outbox.Lease) []int {
	shards := make([]int, len(leases))
	for i, l := range leases {
		shards[i] = l.Shard
	}
	slices.Sort(shards)
	return slices.Compact(shards)
}

// fenced runs fn in a transaction if relay holds lease, and tells whether the lease is lost.
func (s *Store) fenced(ctx context.Context, relay string, lease outbox.Lease, fn func(ctx context.Context, tx *sql.Tx) error) (lost bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay, []outbox.Lease{lease})
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
