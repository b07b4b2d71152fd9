package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

const (
	// dueShardsStmt tells for each shard whether an event is due, and the delay of the next event.
	dueShardsStmt = `
SELECT s.shard,
       EXISTS (SELECT 1 FROM {outbox_deferred} d WHERE d.shard = s.shard AND d.due_at <= {now}),
       (SELECT MIN(d.due_at) - {now} FROM {outbox_deferred} d WHERE d.shard = s.shard AND d.due_at > {now})
FROM {outbox_shards} s WHERE s.shard IN ?`

	// deferredDueStmt skips events that another transaction is cancelling or moving.
	deferredDueStmt = `SELECT id FROM {outbox_deferred} {by due} WHERE shard = ? AND due_at <= {now} ORDER BY due_at, id LIMIT ? {lock_free}`

	// deferredIDsStmt locks the deferred events among some events, in the order of their dispatch
	// IDs. All transactions use this order.
	deferredIDsStmt = `
SELECT d.id, d.shard, d.{event_key}, e.dispatch_id FROM {outbox_events} e {by dispatch_id}
{then_join} {outbox_deferred} d ON d.id = e.id WHERE e.dispatch_id IN ? {lock}`
)

// Undefer implements [outbox.RelayStore]. It begins a transaction only if an event is due.
func (s *Store) Undefer(ctx context.Context, relay string, leases []outbox.Lease, limit int) (outbox.Undeferred, error) {
	var u outbox.Undeferred
	if len(leases) == 0 {
		return u, nil
	}
	due, next, err := s.dueShards(ctx, leases)
	if err != nil {
		return u, fmt.Errorf("look for deferred events: %w", err)
	}
	u.Next = next
	leases = slices.DeleteFunc(slices.Clone(leases), func(l outbox.Lease) bool { return !slices.Contains(due, l.Shard) })
	if len(leases) == 0 {
		return u, nil
	}
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		u.Moved, u.Lost = nil, nil
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		for _, lease := range leases {
			if !owned[lease] {
				u.Lost = append(u.Lost, lease.Shard)
				continue
			}
			if err := s.undefer(ctx, tx, lease.Shard, limit, &u); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return outbox.Undeferred{}, fmt.Errorf("queue deferred events: %w", err)
	}
	return u, nil
}

// dueShards returns the shards of leases with a due event. next is how long from now the next event
// of any shard is due, or 0 without any.
func (s *Store) dueShards(ctx context.Context, leases []outbox.Lease) (due []int, next time.Duration, err error) {
	err = s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		var shard int
		var some bool
		var first sql.NullInt64
		err := rows.Scan(&shard, &some, &first)
		if some {
			due = append(due, shard)
		}
		if wait := elapsed(first); first.Valid && (next == 0 || wait < next) {
			next = wait
		}
		return err
	}, dueShardsStmt, shardsOf(leases))
	return due, next, err
}

// undefer moves the due events of a shard.
func (s *Store) undefer(ctx context.Context, tx *sql.Tx, shard, limit int, u *outbox.Undeferred) error {
	ids, err := s.c.IDs(ctx, tx, deferredDueStmt, shard, limit)
	if err != nil || len(ids) == 0 {
		return err
	}
	if _, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_deferred} WHERE id IN ?`, ids); err != nil {
		return err
	}
	_, err = s.c.Exec(ctx, tx, `INSERT INTO {outbox_queue} (shard, id) SELECT ?, l.value FROM ? l`, shard, Rows(ids))
	if err == nil {
		_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_shards} SET low_water = {least}(low_water, ?), tail = {least}(tail, ?) WHERE shard = ?`,
			slices.Min(ids)-1, slices.Min(ids)-1, shard)
	}
	for _, id := range ids {
		u.Moved = append(u.Moved, outbox.Moved{Shard: shard, Seq: id})
	}
	return err
}

// Cancel implements [outbox.EventStore].
func (s *Store) Cancel(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, reason string) ([]uuid.UUID, error) {
	return s.changeDeferred(ctx, tx, "cancel events", ids, func(ctx context.Context, list []choice, seqs []int64) error {
		if _, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_deferred} WHERE id IN ?`, seqs); err != nil {
			return err
		}
		for _, c := range list {
			_, err := s.c.Exec(ctx, tx, `INSERT INTO {outbox_parked} (id, shard, {event_key}, state, parked_at, reason, discarded_at)
				VALUES (?, ?, ?, 'cancelled', {now}, ?, {now})`, c.seq, c.shard, Text(c.key), Text(reason))
			if err != nil {
				return err
			}
		}
		return s.logAttempts(ctx, tx, seqs, "cancelled", reason, "")
	})
}

// Reschedule implements [outbox.EventStore]. It changes the log as well: the stamp of an event
// depends on the due time.
func (s *Store) Reschedule(ctx context.Context, tx *sql.Tx, ids []uuid.UUID, at time.Time) ([]uuid.UUID, error) {
	return s.changeDeferred(ctx, tx, "reschedule events", ids, func(ctx context.Context, _ []choice, seqs []int64) error {
		if _, err := s.c.Exec(ctx, tx, `UPDATE {outbox_deferred} SET due_at = ? WHERE id IN ?`, at.UnixMicro(), seqs); err != nil {
			return err
		}
		_, err := s.c.Exec(ctx, tx, `UPDATE {outbox_events} SET due_at = ? WHERE id IN ?`, at.UnixMicro(), seqs)
		return err
	})
}

// changeDeferred locks and changes the deferred events among ids. A failure rolls all of tx back,
// so that the caller cannot commit a part of the change.
func (s *Store) changeDeferred(
	ctx context.Context, tx *sql.Tx, doing string, ids []uuid.UUID, change func(ctx context.Context, list []choice, seqs []int64) error,
) ([]uuid.UUID, error) {
	if err := ctx.Err(); err != nil || len(ids) == 0 {
		return nil, err
	}
	inner := s.c.d.StatementContext(ctx)
	list, err := s.deferred(inner, tx, ids)
	places, changed := seqs(list)
	if err == nil && len(list) > 0 {
		err = change(inner, list, places)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", doing, errors.Join(err, s.c.Abandon(tx)))
	}
	return changed, nil
}

// deferred locks the deferred events among ids, and returns them in the order of the log.
func (s *Store) deferred(ctx context.Context, tx *sql.Tx, ids []uuid.UUID) ([]choice, error) {
	if err := s.c.d.TakeWriteLock(ctx, tx); err != nil {
		return nil, err
	}
	list, err := collect(ctx, s.c, tx, func(rows *sql.Rows) (c choice, err error) {
		var id sql.RawBytes
		err = rows.Scan(&c.seq, &c.shard, &c.key, &id)
		copy(c.id[:], id)
		return c, err
	}, deferredIDsStmt, ids)
	slices.SortFunc(list, func(a, b choice) int { return cmp.Compare(a.seq, b.seq) })
	return list, err
}

// ListDeferred implements [outbox.OperatorStore].
func (s *Store) ListDeferred(ctx context.Context, f outbox.DeferredFilter) ([]outbox.Deferred, error) {
	w := &where{}
	w.add("d.id > ?", f.After)
	if len(f.IDs) > 0 {
		w.add("{of_events d}", f.IDs)
	}
	w.text("e.topic", f.Topic)
	w.text("d.{event_key}", f.Key)
	w.during("d.due_at", f.From, f.To)
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (d outbox.Deferred, err error) {
		var id sql.NullInt64
		var due int64
		_, err = ScanRecord(rows, &d.Record, &id, &d.Seq, &d.Shard, &due) // an unreadable event becomes dead when it is due
		d.DueAt = Instant(due)
		return d, err
	}, `SELECT d.id, d.shard, d.due_at, `+RecordColumns+`
		FROM {outbox_deferred} d LEFT JOIN {outbox_events} e ON e.id = d.id
		WHERE `+w.String()+` ORDER BY d.id LIMIT ?`, w.and(limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("list deferred events: %w", err)
	}
	return list, nil
}
