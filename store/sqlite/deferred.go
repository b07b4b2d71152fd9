package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
)

const (
	// dueShardsStmt tells which shards have something due, and when the next of each is.
	dueShardsStmt = `
SELECT l.value,
       EXISTS (SELECT 1 FROM {outbox_deferred} d WHERE d.shard = l.value AND d.due_at <= ?2),
       (SELECT min(d.due_at) FROM {outbox_deferred} d WHERE d.shard = l.value AND d.due_at > ?2)
FROM json_each(?1) l`

	deferredDueStmt = `SELECT id FROM {outbox_deferred} WHERE shard = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?`

	// deferredIDsStmt finds those of some events that are deferred.
	deferredIDsStmt = `
SELECT d.id, d.shard, d.key, e.dispatch_id FROM {outbox_events} e JOIN {outbox_deferred} d ON d.id = e.id
WHERE e.dispatch_id IN (SELECT unhex(value) FROM json_each(?)) ORDER BY d.id`
)

// Undefer moves what is due. Only where something is does it take the write lock.
func (s *Store) Undefer(ctx context.Context, relay string, leases []producer.Lease, limit int) (producer.Undeferred, error) {
	var u producer.Undeferred
	at := now()
	due, next, err := s.dueShards(ctx, leases, at)
	if err != nil {
		return u, fmt.Errorf("look for deferred events: %w", err)
	}
	if next > 0 {
		u.Next = time.Duration(next-at) * time.Microsecond
	}
	if len(due) == 0 {
		return u, nil
	}
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		u.Moved, u.Lost = nil, nil
		owned, err := s.owned(ctx, tx, relay)
		if err != nil {
			return err
		}
		for _, lease := range leases {
			switch {
			case !slices.Contains(due, lease.Shard):
			case !owned[lease]:
				u.Lost = append(u.Lost, lease.Shard)
			default:
				if err := s.undefer(ctx, tx, lease.Shard, limit, &u); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return producer.Undeferred{}, fmt.Errorf("queue deferred events: %w", err)
	}
	return u, nil
}

// dueShards returns the shards of leases with something due, and when the next event of any is due; 0: none is.
func (s *Store) dueShards(ctx context.Context, leases []producer.Lease, at int64) (due []int, next int64, err error) {
	shards := make([]int, len(leases))
	for i, l := range leases {
		shards[i] = l.Shard
	}
	err = s.each(ctx, s.db, func(rows *sql.Rows) error {
		var shard int
		var some bool
		var first sql.NullInt64
		err := rows.Scan(&shard, &some, &first)
		if some {
			due = append(due, shard)
		}
		if first.Valid && (next == 0 || first.Int64 < next) {
			next = first.Int64
		}
		return err
	}, dueShardsStmt, numbers(shards), at)
	return due, next, err
}

// undefer moves what is due in a shard.
func (s *Store) undefer(ctx context.Context, tx *sql.Tx, shard, limit int, u *producer.Undeferred) error {
	var ids []int64
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		var id int64
		err := rows.Scan(&id)
		ids = append(ids, id)
		return err
	}, deferredDueStmt, shard, now(), limit)
	if err != nil {
		return err
	}
	if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_deferred} WHERE id IN (SELECT value FROM json_each(?))`, numbers(ids)); err != nil {
		return err
	}
	_, err = s.exec(ctx, tx, `INSERT INTO {outbox_queue} (shard, id) SELECT ?, value FROM json_each(?)`, shard, numbers(ids))
	for _, id := range ids {
		u.Moved = append(u.Moved, producer.Moved{Shard: shard, Seq: id})
	}
	return err
}

// Cancel gives up deferred events.
func (s *Store) Cancel(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, reason string) ([]uuid.UUID, error) {
	return s.changeDeferred(ctx, tx, "cancel events", ids, func(ctx context.Context, c choice) error {
		at := now()
		if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_deferred} WHERE id = ?`, c.seq); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, `INSERT INTO {outbox_parked} (id, shard, key, state, parked_at, reason, discarded_at)
			VALUES (?, ?, ?, 'cancelled', ?, ?, ?)`, c.seq, c.shard, c.key, at, reason, at)
		if err != nil {
			return err
		}
		return s.logAttempt(ctx, tx, c.seq, at, "cancelled", reason, "")
	})
}

// Reschedule moves deferred events to another time, in the log as well: the stamp goes by it.
func (s *Store) Reschedule(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, at time.Time) ([]uuid.UUID, error) {
	return s.changeDeferred(ctx, tx, "reschedule events", ids, func(ctx context.Context, c choice) error {
		if _, err := s.exec(ctx, tx, `UPDATE {outbox_deferred} SET due_at = ? WHERE id = ?`, at.UnixMicro(), c.seq); err != nil {
			return err
		}
		_, err := s.exec(ctx, tx, `UPDATE {outbox_events} SET due_at = ? WHERE id = ?`, at.UnixMicro(), c.seq)
		return err
	})
}

// changeDeferred changes those of ids that are deferred, with the write lock. A failure in between rolls all of tx back, so
// that nobody can commit a part of it.
func (s *Store) changeDeferred(
	ctx context.Context, tx *sql.Tx, doing string, ids []uuid.UUID, change func(ctx context.Context, c choice) error,
) ([]uuid.UUID, error) {
	if err := ctx.Err(); err != nil || len(ids) == 0 {
		return nil, err
	}
	// A statement whose context ends may take the whole transaction with it.
	inner := context.WithoutCancel(ctx)
	changed, err := s.changeEach(inner, tx, ids, change)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, errors.Join(err, s.abandon(tx)))
	}
	return changed, nil
}

func (s *Store) changeEach(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, change func(context.Context, choice) error) ([]uuid.UUID, error) {
	if _, err := s.exec(ctx, tx, lockStmt); err != nil {
		return nil, err
	}
	var list []choice
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		var c choice
		var id sql.RawBytes
		err := rows.Scan(&c.seq, &c.shard, &c.key, &id)
		copy(c.id[:], id)
		list = append(list, c)
		return err
	}, deferredIDsStmt, idArray(ids))
	if err != nil {
		return nil, err
	}
	changed := make([]uuid.UUID, len(list))
	for i, c := range list {
		if err := change(ctx, c); err != nil {
			return nil, err
		}
		changed[i] = c.id
	}
	return changed, nil
}

// ListDeferred reads deferred events.
func (s *Store) ListDeferred(ctx context.Context, f producer.DeferredFilter) ([]producer.Deferred, error) {
	w := &where{}
	w.add("d.id > ?", f.After)
	if len(f.IDs) > 0 {
		w.add(`d.id IN (SELECT id FROM {outbox_events} WHERE dispatch_id IN (SELECT unhex(value) FROM json_each(?)))`, idArray(f.IDs))
	}
	if f.Topic != "" {
		w.add("e.topic = ?", f.Topic)
	}
	if f.Key != "" {
		w.add("d.key = ?", f.Key)
	}
	if !f.From.IsZero() {
		w.add("d.due_at >= ?", f.From.UnixMicro())
	}
	if !f.To.IsZero() {
		w.add("d.due_at < ?", f.To.UnixMicro())
	}
	var list []producer.Deferred
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var d producer.Deferred
		var id sql.NullInt64
		var due int64
		err := scanRecord(rows, &d.Record, &id, &d.Seq, &d.Shard, &due)
		d.DueAt = instant(due)
		list = append(list, d)
		return err
	}, `SELECT d.id, d.shard, d.due_at, `+recordColumns+`
		FROM {outbox_deferred} d LEFT JOIN {outbox_events} e ON e.id = d.id
		WHERE `+w.String()+` ORDER BY d.id LIMIT ?`, append(w.args, limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("list deferred events: %w", err)
	}
	return list, nil
}
