package mysql

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer"
)

// removableStmt finds those of some events that are not to stay. Their rows are locked, so that
// nobody queues them again meanwhile: [Store.Requeue] locks them as well.
const removableStmt = `
SELECT e.id FROM {outbox_events} e
WHERE NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = e.shard AND q.id = e.id)
  AND NOT EXISTS (SELECT 1 FROM {outbox_deferred} d WHERE d.id = e.id)
  AND NOT EXISTS (SELECT 1 FROM {outbox_parked} p WHERE p.id = e.id)
  AND NOT EXISTS (SELECT 1 FROM {outbox_attempts} a WHERE a.event_id = e.id AND a.outcome = 'replayed' AND a.at >= ?)
  AND e.id IN `

// RemoveDelivered removes old receipts with their events.
func (s *Store) RemoveDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (producer.Removed, error) {
	var r producer.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = producer.Removed{}
		var before int64
		if err := s.one(ctx, tx, []any{&before}, `SELECT {now} - ?`, micros(retention)); err != nil {
			return err
		}
		from := int64(0)
		if !after.IsZero() {
			from = after.UnixMicro()
		}
		receipts, named, err := s.oldReceipts(ctx, tx, from, before, limit, &r)
		if err != nil || len(receipts) == 0 {
			return err
		}
		if err := s.removeEvents(ctx, tx, named, before, &r); err != nil {
			return err
		}
		n, err := s.exec(ctx, tx, `DELETE FROM {outbox_receipts} WHERE id IN `+numbers(receipts))
		r.Receipts = int(n) // another janitor may have read the same ones
		if err != nil {
			return err
		}
		return fault.Hit(ctx, fault.J2)
	})
	if err != nil {
		return producer.Removed{}, fmt.Errorf("remove delivered events: %w", err)
	}
	return r, nil
}

// oldReceipts reads the oldest receipts and the events that they name, ascending.
func (s *Store) oldReceipts(ctx context.Context, tx *sql.Tx, from, before int64, limit int, r *producer.Removed) (ids, named []int64, err error) {
	err = s.each(ctx, tx, func(rows *sql.Rows) error {
		if len(named) >= limit {
			return errNothing
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
		r.Through = instant(at)
		return nil
	}, `SELECT id, delivered_at, event_ids FROM {outbox_receipts} WHERE delivered_at >= ? AND delivered_at < ? ORDER BY delivered_at, id LIMIT ?`,
		from, before, limit)
	r.Full = len(named) >= limit
	if errors.Is(err, errNothing) {
		err = nil
	}
	slices.Sort(named)
	return ids, slices.Compact(named), err
}

// removeEvents removes those of the events that are not to stay, and their attempts.
func (s *Store) removeEvents(ctx context.Context, tx *sql.Tx, named []int64, before int64, r *producer.Removed) error {
	for part := range slices.Chunk(named, healAtOnce) {
		_, err := s.ids(ctx, tx, `SELECT id FROM {outbox_events} FORCE INDEX (PRIMARY) WHERE id IN `+numbers(part)+` ORDER BY id FOR UPDATE`)
		if err != nil {
			return err
		}
		gone, err := s.ids(ctx, tx, removableStmt+numbers(part), before)
		if err != nil || len(gone) == 0 {
			return err
		}
		if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_events} WHERE id IN `+numbers(gone)); err != nil {
			return err
		}
		if err := s.removeAttempts(ctx, tx, gone, r); err != nil {
			return err
		}
		r.Events += len(gone)
	}
	return nil
}

func (s *Store) removeAttempts(ctx context.Context, tx *sql.Tx, events []int64, r *producer.Removed) error {
	n, err := s.exec(ctx, tx, `DELETE FROM {outbox_attempts} WHERE event_id IN `+numbers(events))
	r.Attempts += int(n)
	return err
}

// RemoveDiscarded removes events that were discarded long ago.
func (s *Store) RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (producer.Removed, error) {
	var r producer.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = producer.Removed{}
		ids, err := s.ids(ctx, tx, `SELECT p.id FROM {outbox_parked} p
			WHERE p.state IN ('discarded', 'cancelled') AND p.discarded_at < {now} - ? AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = p.shard AND q.id = p.id)
			ORDER BY p.discarded_at LIMIT ? FOR UPDATE`, micros(retention), limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		r.Full = len(ids) >= limit
		if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_parked} WHERE id IN `+numbers(ids)); err != nil {
			return err
		}
		n, err := s.exec(ctx, tx, `DELETE FROM {outbox_events} WHERE id IN `+numbers(ids))
		r.Events = int(n)
		if err != nil {
			return err
		}
		if err := s.removeAttempts(ctx, tx, ids, &r); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.J2)
	})
	if err != nil {
		return producer.Removed{}, fmt.Errorf("remove discarded events: %w", err)
	}
	return r, nil
}
