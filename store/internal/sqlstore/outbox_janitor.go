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
		old, err := s.oldReceipts(ctx, tx, from, before, limit, &r.Full)
		if err != nil || len(old) == 0 {
			return err
		}
		receipts, named := namedBy(old)
		r.Through = old[len(old)-1].At
		if err := s.removeNamed(ctx, tx, named, before, receipts, &r); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.WithinDelete)
	})
	if err != nil {
		return outbox.Removed{}, fmt.Errorf("remove delivered events: %w", err)
	}
	return r, nil
}

// removeNamed removes receipts, and those of the named events that need not stay.
func (s *Store) removeNamed(ctx context.Context, tx *sql.Tx, named []int64, before int64, receipts []int64, r *outbox.Removed) error {
	for part := range slices.Chunk(named, maxListed) {
		gone, err := s.c.d.RemoveEvents(ctx, tx, part, before)
		if err == nil {
			err = s.removeAttempts(ctx, tx, gone, r)
		}
		if err != nil {
			return err
		}
		r.Events += len(gone)
	}
	if len(receipts) == 0 {
		return nil
	}
	n, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_receipts} WHERE id IN ?`, receipts)
	r.Receipts = int(n) // another janitor may have removed some receipts
	return err
}

// oldReceipt is a receipt past its retention, and the IDs of its events.
type oldReceipt struct {
	outbox.Receipt
	events []int64
}

// namedBy returns the IDs of receipts, and the IDs of their events, ascending.
func namedBy(old []oldReceipt) (ids, named []int64) {
	for _, r := range old {
		ids, named = append(ids, r.ID), append(named, r.events...)
	}
	slices.Sort(named)
	return ids, slices.Compact(named)
}

// oldReceipts reads the oldest receipts, until they name limit events.
func (s *Store) oldReceipts(ctx context.Context, q Querier, from, before int64, limit int, full *bool) (old []oldReceipt, err error) {
	named := 0
	err = s.c.Each(ctx, q, func(rows *sql.Rows) error {
		if named >= limit {
			return ErrNothing
		}
		var id, at int64
		var list sql.RawBytes
		if err := rows.Scan(&id, &at, &list); err != nil {
			return err
		}
		r := oldReceipt{Receipt: outbox.Receipt{ID: id, At: Instant(at)}}
		if err := json.Unmarshal(list, &r.events); err != nil {
			return fmt.Errorf("receipt %d is not a JSON array of numbers", id)
		}
		old, named = append(old, r), named+len(r.events)
		return nil
	}, `SELECT id, delivered_at, event_ids FROM {outbox_receipts} WHERE delivered_at >= ? AND delivered_at < ? ORDER BY delivered_at, id LIMIT ?`,
		from, before, limit)
	*full = named >= limit
	if errors.Is(err, ErrNothing) {
		err = nil
	}
	return old, err
}

func (s *Store) removeAttempts(ctx context.Context, tx *sql.Tx, events []int64, r *outbox.Removed) error {
	if len(events) == 0 {
		return nil
	}
	n, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_attempts} WHERE event_id IN ?`, events)
	r.Attempts += int(n)
	return err
}

// unclaimed holds for a discarded event p that is past its retention and not queued again.
const unclaimed = `p.state IN ('discarded', 'cancelled') AND p.discarded_at < {now} - ?
	AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = p.shard AND q.id = p.id)`

// RemoveDiscarded implements [outbox.JanitorStore].
func (s *Store) RemoveDiscarded(ctx context.Context, retention time.Duration, limit int) (outbox.Removed, error) {
	var r outbox.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = outbox.Removed{}
		ids, err := s.c.IDs(ctx, tx, `SELECT p.id FROM {outbox_parked} p WHERE `+unclaimed+` ORDER BY p.discarded_at LIMIT ? {lock}`,
			Micros(retention), limit)
		if err != nil || len(ids) == 0 {
			return err
		}
		r.Full = len(ids) >= limit
		return s.removeUnclaimed(ctx, tx, ids, &r)
	})
	if err != nil {
		return outbox.Removed{}, fmt.Errorf("remove discarded events: %w", err)
	}
	return r, nil
}

// removeUnclaimed removes parked events whose rows are locked.
func (s *Store) removeUnclaimed(ctx context.Context, tx *sql.Tx, ids []int64, r *outbox.Removed) error {
	if _, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_parked} WHERE id IN ?`, ids); err != nil {
		return err
	}
	n, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_events} WHERE id IN ?`, ids)
	r.Events += int(n)
	if err != nil {
		return err
	}
	if err := s.removeAttempts(ctx, tx, ids, r); err != nil {
		return err
	}
	return fault.Hit(ctx, fault.WithinDelete)
}

// CountRemovable implements [outbox.RemovableCounter]. Rows that change between its statements may be
// counted or not.
func (s *Store) CountRemovable(ctx context.Context, retention time.Duration, limit int) (outbox.RemovableCount, error) {
	var c outbox.RemovableCount
	if err := s.countRemovable(ctx, retention, limit, &c); err != nil {
		return outbox.RemovableCount{}, fmt.Errorf("count removable rows: %w", err)
	}
	return c, nil
}

func (s *Store) countRemovable(ctx context.Context, retention time.Duration, limit int, c *outbox.RemovableCount) error {
	before, err := s.c.Now(ctx, s.c.DB)
	if err != nil {
		return err
	}
	before -= Micros(retention)
	old, err := s.oldReceipts(ctx, s.c.DB, 0, before, limit, &c.Capped)
	if err != nil {
		return err
	}
	receipts, named := namedBy(old)
	c.Receipts = len(receipts)
	for part := range slices.Chunk(named, maxListed) {
		ids, err := s.c.IDs(ctx, s.c.DB, `SELECT e.id FROM {outbox_events} e WHERE e.id IN ? AND `+Delivered, part, before)
		if err == nil {
			err = s.countAttempts(ctx, ids, c)
		}
		if err != nil {
			return err
		}
		c.Delivered += len(ids)
	}
	var parked []int64
	err = s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		var id int64
		var state outbox.State
		err := rows.Scan(&id, &state)
		parked = append(parked, id)
		if state == outbox.Cancelled {
			c.Cancelled++
		}
		return err
	}, `SELECT p.id, p.state FROM {outbox_parked} p WHERE `+unclaimed+` ORDER BY p.discarded_at LIMIT ?`, Micros(retention), limit)
	c.Discarded, c.Capped = len(parked)-c.Cancelled, c.Capped || len(parked) >= limit
	for part := range slices.Chunk(parked, maxListed) {
		if err == nil {
			err = s.countAttempts(ctx, part, c)
		}
	}
	return err
}

func (s *Store) countAttempts(ctx context.Context, events []int64, c *outbox.RemovableCount) error {
	var n int
	err := s.c.One(ctx, s.c.DB, []any{&n}, `SELECT COUNT(*) FROM {outbox_attempts} WHERE event_id IN ?`, events)
	c.Attempts += n
	return err
}
