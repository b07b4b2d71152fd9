package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
)

// RemoveDelivered implements [outbox.JanitorStore].
func (s *Store) RemoveDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (outbox.Removed, error) {
	var r outbox.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = outbox.Removed{}
		before, err := s.c.Now(ctx, tx)
		if err != nil {
			return err
		}
		before -= Micros(retention)
		from := int64(0)
		if !after.IsZero() {
			from = after.UnixMicro()
		}
		receipts, named, err := s.oldReceipts(ctx, tx, from, before, limit, &r)
		if err != nil || len(receipts) == 0 {
			return err
		}
		for part := range slices.Chunk(named, maxListed) {
			gone, err := s.c.d.RemoveEvents(ctx, tx, part, before)
			if err == nil {
				err = s.removeAttempts(ctx, tx, gone, &r)
			}
			if err != nil {
				return err
			}
			r.Events += len(gone)
		}
		n, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_receipts} WHERE id IN ?`, receipts)
		r.Receipts = int(n) // another janitor may have removed some receipts
		if err != nil {
			return err
		}
		return fault.Hit(ctx, fault.WithinDelete)
	})
	if err != nil {
		return outbox.Removed{}, fmt.Errorf("remove delivered events: %w", err)
	}
	return r, nil
}

// oldReceipts reads the oldest receipts, and returns their IDs and the IDs of their events,
// ascending.
func (s *Store) oldReceipts(ctx context.Context, tx *sql.Tx, from, before int64, limit int, r *outbox.Removed) (ids, named []int64, err error) {
	err = s.c.Each(ctx, tx, func(rows *sql.Rows) error {
		if len(named) >= limit {
			return ErrNothing
		}
		var id, at int64
		var list sql.RawBytes
		if err := rows.Scan(&id, &at, &list); err != nil {
			return err
		}
		var events []int64
		if err := json.Unmarshal(list, &events); err != nil {
			return fmt.Errorf("receipt %d is not a JSON array of numbers", id)
		}
		ids, named = append(ids, id), append(named, events...)
		r.Through = Instant(at)
		return nil
	}, `SELECT id, delivered_at, event_ids FROM {outbox_receipts} WHERE delivered_at >= ? AND delivered_at < ? ORDER BY delivered_at, id LIMIT ?`,
		from, before, limit)
	r.Full = len(named) >= limit
	if errors.Is(err, ErrNothing) {
		err = nil
	}
	slices.Sort(named)
	return ids, slices.Compact(named), err
}

func (s *Store) removeAttempts(ctx context.Context, tx *sql.Tx, events []int64, r *outbox.Removed) error {
	if len(events) == 0 {
		return nil
	}
	n, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_attempts} WHERE event_id IN ?`, events)
	r.Attempts += int(n)
	return err
}

// RemoveDiscarded implements [outbox.JanitorStore].
func (s *Store) RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (outbox.Removed, error) {
	var r outbox.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = outbox.Removed{}
		ids, err := s.c.IDs(ctx, tx, `SELECT p.id FROM {outbox_parked} p WHERE p.state IN ('discarded', 'cancelled') AND p.discarded_at < {now} - ?
			AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = p.shard AND q.id = p.id)
			ORDER BY p.discarded_at LIMIT ? {lock}`, Micros(retention), limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		r.Full = len(ids) >= limit
		if _, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_parked} WHERE id IN ?`, ids); err != nil {
			return err
		}
		n, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_events} WHERE id IN ?`, ids)
		r.Events = int(n)
		if err != nil {
			return err
		}
		if err := s.removeAttempts(ctx, tx, ids, &r); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.WithinDelete)
	})
	if err != nil {
		return outbox.Removed{}, fmt.Errorf("remove discarded events: %w", err)
	}
	return r, nil
}
