package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
)

const (
	// expired is the predicate, with the time, for an event e that may not be sent again any more.
	expired = `coalesce(e.resend_seconds > 0 AND ` + stamp + ` + e.resend_seconds * 1000000 <= ?, 0)`

	// placeStmt halves the log by ids, which stamps follow, so that it needs no index on them. Those that
	// were deferred have their own: their stamps are later than those of their neighbours.
	placeStmt = `
WITH RECURSIVE s (low, high) AS (
	SELECT coalesce(min(id), 1) - 1, coalesce(max(id), 0) FROM {outbox_events}
	UNION ALL
	SELECT CASE WHEN p.created_at < ?1 THEN p.id ELSE s.low END,
	       CASE WHEN p.created_at < ?1 THEN s.high ELSE s.low + (s.high - s.low) / 2 END
	FROM s JOIN {outbox_events} p ON p.id = (
		SELECT min(e.id) FROM {outbox_events} e WHERE e.id > s.low + (s.high - s.low) / 2)
	WHERE s.low < s.high
)
SELECT min(max(low), coalesce((SELECT min(id) - 1 FROM (SELECT id FROM {outbox_events} WHERE due_at >= ?1)), max(low))) FROM s`

	// delivered holds for an event e that is neither deferred, queued nor parked.
	delivered = `NOT EXISTS (SELECT 1 FROM {outbox_deferred} d WHERE d.id = e.id)
		AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = e.shard AND q.id = e.id)
		AND NOT EXISTS (SELECT 1 FROM {outbox_parked} p WHERE p.id = e.id)`
)

// Place finds the place of a time in the log.
func (s *Store) Place(ctx context.Context, at time.Time) (after int64, err error) {
	if at.IsZero() {
		return 0, nil
	}
	if err := s.one(ctx, s.db, []any{&after}, placeStmt, at.UnixMicro()); err != nil {
		return 0, fmt.Errorf("look for a place in the log: %w", err)
	}
	return after, nil
}

// Retained looks through a part of the log.
func (s *Store) Retained(ctx context.Context, f producer.Selection, after int64, scan, limit int) (producer.Page, error) {
	page := producer.Page{Through: after}
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		part := &where{}
		part.add("id > ?", after)
		if len(f.IDs) > 0 {
			part.add("dispatch_id IN (SELECT unhex(value) FROM json_each(?))", idArray(f.IDs))
		}
		among := `(SELECT * FROM {outbox_events} WHERE ` + part.String() + ` ORDER BY id LIMIT ?) e`
		args := append(part.args, scan)
		var n int
		var through, stamp sql.NullInt64
		err := s.one(ctx, tx, []any{&n, &through, &stamp}, `SELECT count(*), max(e.id), min(e.created_at) FROM `+among, args...)
		if err != nil || n == 0 {
			page.End = true
			return err
		}
		page.Through, page.Stamp, page.End = through.Int64, optional(stamp), n < scan
		if err := s.retained(ctx, tx, f, among, args, limit, &page); err != nil {
			return err
		}
		if picked := len(page.Events); picked > 0 && picked == limit {
			page.Through, page.End = page.Events[picked-1].Seq, false
		}
		return nil
	})
	if err != nil {
		return producer.Page{}, fmt.Errorf("read the log: %w", err)
	}
	return page, nil
}

// retained adds to page what f selects among events of the log.
func (s *Store) retained(ctx context.Context, tx *sql.Tx, f producer.Selection, among string, args []any, limit int, page *producer.Page) error {
	w := &where{}
	w.add(delivered)
	if f.Topic != "" {
		w.add("e.topic = ?", f.Topic)
	}
	if f.Key != "" {
		w.add("e.key = ?", f.Key)
	}
	to := int64(math.MaxInt64)
	if !f.To.IsZero() {
		to = f.To.UnixMicro()
	}
	from := int64(math.MinInt64)
	if !f.From.IsZero() {
		from = f.From.UnixMicro()
	}
	w.add(stamp+" >= ? AND "+stamp+" < ?", from, to)
	all := append([]any{now()}, args...)
	return s.each(ctx, tx, func(rows *sql.Rows) error {
		var e producer.Retained
		var id sql.RawBytes
		var created, resend int64
		if err := rows.Scan(&e.Seq, &id, &created, &resend, &e.Expired); err != nil {
			return err
		}
		e.Stamp = instant(created)
		if resend > 0 {
			e.ResendUntil = e.Stamp.Add(time.Duration(resend) * time.Second)
		}
		var err error
		e.ID, err = uuid.FromBytes(id)
		page.Events = append(page.Events, e)
		return err
	}, `SELECT e.id, e.dispatch_id, `+stamp+`, e.resend_seconds, `+expired+` FROM `+among+`
		WHERE `+w.String()+` ORDER BY e.id LIMIT ?`, append(append(all, w.args...), limit)...)
}

// Requeue queues events again. The number of the request for a rewind, of which a shard never has
// the same twice, is the round.
func (s *Store) Requeue(ctx context.Context, seqs []int64) ([]producer.Requeued, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	var queued []producer.Requeued
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		queued = nil
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var r producer.Requeued
			var id sql.RawBytes
			if err := rows.Scan(&r.Shard, &r.Seq, &r.Round, &id); err != nil {
				return err
			}
			var err error
			r.ID, err = uuid.FromBytes(id)
			queued = append(queued, r)
			return err
		}, `SELECT e.shard, e.id, s.rewind_ticket + 1, e.dispatch_id
			FROM {outbox_events} e JOIN {outbox_shards} s ON s.shard = e.shard
			WHERE e.id IN (SELECT value FROM json_each(?)) AND `+delivered+` ORDER BY e.id`, numbers(seqs))
		if err != nil {
			return err
		}
		at := now()
		changed := make([]choice, len(queued))
		for i, r := range queued {
			if _, err := s.exec(ctx, tx, `INSERT INTO {outbox_queue} (shard, id, round) VALUES (?, ?, ?)`, r.Shard, r.Seq, r.Round); err != nil {
				return err
			}
			if err := s.logAttempt(ctx, tx, r.Seq, at, "replayed", "", ""); err != nil {
				return err
			}
			changed[i] = choice{seq: r.Seq, shard: r.Shard}
		}
		return s.rewind(ctx, tx, changed)
	})
	if err != nil {
		return nil, fmt.Errorf("queue events again: %w", err)
	}
	return queued, nil
}

// StillQueued counts queue rows that are still there.
func (s *Store) StillQueued(ctx context.Context, rows []producer.Requeued) (n int, err error) {
	for _, r := range rows {
		var there bool
		err := s.one(ctx, s.db, []any{&there}, `SELECT EXISTS (SELECT 1 FROM {outbox_queue} WHERE shard = ? AND id = ? AND round = ?)`,
			r.Shard, r.Seq, r.Round)
		if err != nil {
			return 0, fmt.Errorf("look for replayed events: %w", err)
		}
		if there {
			n++
		}
	}
	return n, nil
}
