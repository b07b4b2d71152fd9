package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer"
)

// givenUp is the predicate of the index on parked events that nobody waits for.
const givenUp = `state IN ('discarded', 'cancelled')`

const (
	oldReceiptsStmt = `SELECT id, delivered_at, event_ids, json_array_length(event_ids) FROM {outbox_receipts}
		WHERE delivered_at >= ? AND delivered_at < ? ORDER BY delivered_at, id`

	// removeEventsStmt removes those of the events ?1 that are not to stay.
	removeEventsStmt = `
		DELETE FROM {outbox_events} AS e WHERE e.id IN (SELECT value FROM json_each(?1))
		  AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = e.shard AND q.id = e.id)
		  AND NOT EXISTS (SELECT 1 FROM {outbox_deferred} d WHERE d.id = e.id)
		  AND NOT EXISTS (SELECT 1 FROM {outbox_parked} p WHERE p.id = e.id)
		  AND NOT EXISTS (SELECT 1 FROM {outbox_attempts} a WHERE a.event_id = e.id AND a.outcome = 'replayed' AND a.at >= ?2)
		RETURNING id`
)

// RemoveDelivered removes old receipts with their events. One transaction writes at
// a time, so nothing can be queued again meanwhile.
func (s *Store) RemoveDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (producer.Removed, error) {
	var r producer.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = producer.Removed{}
		before := now() - micros(retention)
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
		_, err = s.exec(ctx, tx, `DELETE FROM {outbox_receipts} WHERE id IN (SELECT value FROM json_each(?))`, numbers(receipts))
		r.Receipts = len(receipts)
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

// oldReceipts reads the oldest receipts and the events that they name, as JSON arrays each.
func (s *Store) oldReceipts(ctx context.Context, tx *sql.Tx, from, before int64, limit int, r *producer.Removed) (ids []int64, named []string, err error) {
	events := 0
	err = s.each(ctx, tx, func(rows *sql.Rows) error {
		if events >= limit {
			return errNothing
		}
		var id, at int64
		var list string
		var n int
		err := rows.Scan(&id, &at, &list, &n)
		ids, named, events = append(ids, id), append(named, list), events+n
		r.Through = instant(at)
		return err
	}, oldReceiptsStmt, from, before)
	r.Full = events >= limit
	if errors.Is(err, errNothing) {
		err = nil
	}
	return ids, named, err
}

// removeEvents removes the events in lists that are not to stay, and their attempts.
func (s *Store) removeEvents(ctx context.Context, tx *sql.Tx, lists []string, before int64, r *producer.Removed) error {
	var gone []int64
	for _, list := range lists {
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			gone = append(gone, id)
			return err
		}, removeEventsStmt, list, before)
		if err != nil {
			return err
		}
	}
	r.Events = len(gone)
	return s.removeAttempts(ctx, tx, gone, r)
}

func (s *Store) removeAttempts(ctx context.Context, tx *sql.Tx, events []int64, r *producer.Removed) error {
	n, err := s.exec(ctx, tx, `DELETE FROM {outbox_attempts} WHERE event_id IN (SELECT value FROM json_each(?))`, numbers(events))
	r.Attempts = int(n)
	return err
}

// RemoveDiscarded removes events that were discarded long ago.
func (s *Store) RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (producer.Removed, error) {
	var r producer.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = producer.Removed{}
		var ids []int64
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			ids = append(ids, id)
			return err
		}, `SELECT p.id FROM {outbox_parked} p WHERE p.`+givenUp+` AND p.discarded_at < ?
			AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = p.shard AND q.id = p.id)
			ORDER BY p.discarded_at LIMIT ?`, now()-micros(retention), limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		r.Full = len(ids) >= limit
		if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_parked} WHERE id IN (SELECT value FROM json_each(?))`, numbers(ids)); err != nil {
			return err
		}
		n, err := s.exec(ctx, tx, `DELETE FROM {outbox_events} WHERE id IN (SELECT value FROM json_each(?))`, numbers(ids))
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
