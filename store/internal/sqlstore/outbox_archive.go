package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/store/outbox"
)

// ListDelivered implements [outbox.ArchiveStore].
func (s *Store) ListDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (outbox.Removable, error) {
	var list outbox.Removable
	err := s.listDelivered(ctx, retention, after, limit, &list)
	if err != nil {
		return outbox.Removable{}, fmt.Errorf("list delivered events: %w", err)
	}
	return list, nil
}

func (s *Store) listDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int, list *outbox.Removable) error {
	before, err := s.c.Now(ctx, s.c.DB)
	if err != nil {
		return err
	}
	before -= Micros(retention)
	from := int64(0)
	if !after.IsZero() {
		from = after.UnixMicro()
	}
	old, err := s.oldReceipts(ctx, s.c.DB, from, before, limit, &list.Full)
	if err != nil {
		return err
	}
	_, named := namedBy(old)
	sizes, err := s.sizes(ctx, named, before)
	if err != nil {
		return err
	}
	for _, r := range old {
		var events []outbox.Sized
		for _, id := range r.events {
			if bytes, removable := sizes[id]; removable {
				events = append(events, outbox.Sized{Seq: id, Bytes: bytes})
			}
		}
		if !list.Take(r.Receipt, events) {
			break
		}
	}
	return s.readListed(ctx, list, func(e *outbox.Archived) {
		e.State, e.EndedAt = outbox.DeliveredState, list.EndedAt(e.Seq)
	})
}

// sizes returns the sizes of the content of those of the events that need not stay.
func (s *Store) sizes(ctx context.Context, events []int64, before int64) (map[int64]int64, error) {
	sizes := make(map[int64]int64, len(events))
	for part := range slices.Chunk(events, maxListed) {
		err := s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
			var id, bytes int64
			err := rows.Scan(&id, &bytes)
			sizes[id] = bytes
			return err
		}, `SELECT e.id, COALESCE(LENGTH(e.payload), 0) + COALESCE(LENGTH(e.headers), 0) FROM {outbox_events} e WHERE e.id IN ? AND `+Delivered,
			part, before)
		if err != nil {
			return nil, err
		}
	}
	return sizes, nil
}

// readListed reads the content of the events of list. complete adds to an event what the log does
// not have.
func (s *Store) readListed(ctx context.Context, list *outbox.Removable, complete func(*outbox.Archived)) error {
	slices.Sort(list.Seqs)
	for part := range slices.Chunk(list.Seqs, maxListed) {
		events, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (e outbox.Archived, err error) {
			var id sql.NullInt64
			e.Unreadable, err = ScanRecord(rows, &e.Record, &id, &e.Seq, &e.Shard)
			complete(&e)
			return e, err
		}, `SELECT e.id, e.shard, `+RecordColumns+` FROM {outbox_events} e WHERE e.id IN ? ORDER BY e.id`, part)
		if err != nil {
			return err
		}
		list.Events = append(list.Events, events...)
	}
	return nil
}

// ListDiscarded implements [outbox.ArchiveStore].
func (s *Store) ListDiscarded(ctx context.Context, retention time.Duration, limit int) (outbox.Removable, error) {
	list := outbox.Removable{Discarded: true}
	parked := make(map[int64]outbox.Archived)
	n, open := 0, true
	err := s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		n++
		var e outbox.Archived
		var bytes, at int64
		if err := rows.Scan(&e.Seq, &bytes, &e.State, &at, &e.Attempts, &e.LastError, &e.Reason); err != nil {
			return err
		}
		e.EndedAt = Instant(at)
		if open = open && list.TakeEvent(outbox.Sized{Seq: e.Seq, Bytes: bytes}, e.EndedAt); open {
			parked[e.Seq] = e
		}
		return nil
	}, `SELECT p.id, COALESCE(LENGTH(e.payload), 0) + COALESCE(LENGTH(e.headers), 0), p.state, p.discarded_at, p.attempts,
			COALESCE(p.last_error, ''), COALESCE(p.reason, '')
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE `+unclaimed+` ORDER BY p.discarded_at LIMIT ?`, Micros(retention), limit)
	list.Full = list.Full || n >= limit
	if err == nil {
		err = s.readListed(ctx, &list, func(e *outbox.Archived) {
			p := parked[e.Seq]
			e.State, e.EndedAt, e.Attempts, e.LastError, e.Reason = p.State, p.EndedAt, p.Attempts, p.LastError, p.Reason
		})
	}
	if err != nil {
		return outbox.Removable{}, fmt.Errorf("list discarded events: %w", err)
	}
	return list, nil
}

// RemoveListed implements [outbox.ArchiveStore].
func (s *Store) RemoveListed(ctx context.Context, retention time.Duration, list outbox.Removable) (outbox.Removed, error) {
	var r outbox.Removed
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		r = outbox.Removed{Full: list.Full, Through: list.Through}
		if list.Discarded {
			return s.removeListedDiscarded(ctx, tx, retention, list.Seqs, &r)
		}
		before, err := s.c.Now(ctx, tx)
		if err != nil {
			return err
		}
		receipts := make([]int64, len(list.Receipts))
		for i, receipt := range list.Receipts {
			receipts[i] = receipt.ID
		}
		if err := s.removeNamed(ctx, tx, list.Seqs, before-Micros(retention), receipts, &r); err != nil {
			return err
		}
		return fault.Hit(ctx, fault.WithinDelete)
	})
	if err != nil {
		return outbox.Removed{}, fmt.Errorf("remove archived events: %w", err)
	}
	return r, nil
}

func (s *Store) removeListedDiscarded(ctx context.Context, tx *sql.Tx, retention time.Duration, seqs []int64, r *outbox.Removed) error {
	for part := range slices.Chunk(seqs, maxListed) {
		ids, err := s.c.IDs(ctx, tx, `SELECT p.id FROM {outbox_parked} p WHERE `+unclaimed+` AND p.id IN ? ORDER BY p.discarded_at {lock}`,
			Micros(retention), part)
		if err == nil && len(ids) > 0 {
			err = s.removeUnclaimed(ctx, tx, ids, r)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
