package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

// delivered holds for an event e that is neither deferred, queued nor parked.
const delivered = `NOT EXISTS (SELECT 1 FROM {outbox_deferred} d WHERE d.id = e.id)
		AND NOT EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = e.shard AND q.id = e.id)
		AND NOT EXISTS (SELECT 1 FROM {outbox_parked} p WHERE p.id = e.id)`

// Delivered holds for an event e that is neither deferred, queued nor parked, and was not replayed
// since its argument, a time in microseconds since 1970.
const Delivered = delivered + `
		AND NOT EXISTS (SELECT 1 FROM {outbox_attempts} a WHERE a.event_id = e.id AND a.outcome = 'replayed' AND a.at >= ?)`

// writtenBefore returns the last place in the log of an event that was written before at, by a binary
// search over IDs. Times of creation ascend with IDs, so the search needs no index on times.
func (s *Store) writtenBefore(ctx context.Context, at time.Time) (last int64, err error) {
	var low, high int64
	err = s.c.One(ctx, s.c.DB, []any{&low, &high}, `
		SELECT COALESCE((SELECT MIN(id) FROM {outbox_events}), 1) - 1, COALESCE((SELECT MAX(id) FROM {outbox_events}), 0)`) // each by one look into the index
	for err == nil && low < high {
		middle := low + (high-low)/2
		var id, created int64
		err = s.c.One(ctx, s.c.DB, []any{&id, &created}, `SELECT id, created_at FROM {outbox_events} WHERE id > ? ORDER BY id LIMIT 1`, middle)
		switch {
		case errors.Is(err, sql.ErrNoRows): // the events were removed meanwhile
			high, err = middle, nil
		case err == nil && created < at.UnixMicro():
			low = id
		default:
			high = middle
		}
	}
	return low, err
}

// Place implements [outbox.OperatorStore].
func (s *Store) Place(ctx context.Context, at time.Time) (after int64, err error) {
	if at.IsZero() {
		return 0, nil
	}
	low, err := s.writtenBefore(ctx, at)
	var deferred sql.NullInt64
	if err == nil { // stamps of deferred events are later than their neighbours' stamps
		err = s.c.One(ctx, s.c.DB, []any{&deferred}, `SELECT MIN(e.id) FROM (SELECT id FROM {outbox_events} WHERE due_at >= ?) e`, at.UnixMicro())
	}
	if err != nil {
		return 0, fmt.Errorf("look for a place in the log: %w", err)
	}
	if deferred.Valid {
		low = min(low, deferred.Int64-1)
	}
	return low, nil
}

// Retained implements [outbox.OperatorStore].
func (s *Store) Retained(ctx context.Context, f outbox.Selection, after int64, scan, limit int) (outbox.Page, error) {
	page := outbox.Page{Through: after}
	err := s.c.d.Read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		part := &where{}
		part.add("id > ?", after)
		part.ids("dispatch_id", f.IDs)
		var n int
		var through, stamp sql.NullInt64
		err := s.c.One(ctx, tx, []any{&n, &through, &stamp}, `SELECT COUNT(*), MAX(e.id), MIN(e.created_at) FROM (
			SELECT id, created_at FROM {outbox_events} WHERE `+part.String()+` ORDER BY id LIMIT ?) e`, part.and(scan)...)
		if err != nil || n == 0 {
			page.End = true
			return err
		}
		page.Through, page.Stamp, page.End = through.Int64, Optional(stamp), n < scan
		if err := s.retained(ctx, tx, f, after, through.Int64, limit, &page); err != nil {
			return err
		}
		if picked := len(page.Events); picked > 0 && picked == limit {
			page.Through, page.End = page.Events[picked-1].Seq, false
		}
		return nil
	})
	if err != nil {
		return outbox.Page{}, fmt.Errorf("read the log: %w", err)
	}
	return page, nil
}

// retained adds to page the events that f selects in a part of the log.
func (s *Store) retained(ctx context.Context, tx *sql.Tx, f outbox.Selection, after, through int64, limit int, page *outbox.Page) error {
	w := &where{}
	w.add("e.id > ? AND e.id <= ?", after, through)
	w.add(delivered)
	w.ids("e.dispatch_id", f.IDs)
	w.text("e.topic", f.Topic)
	w.text("e.{event_key}", f.Key)
	from, to := int64(math.MinInt64), int64(math.MaxInt64)
	if !f.From.IsZero() {
		from = f.From.UnixMicro()
	}
	if !f.To.IsZero() {
		to = f.To.UnixMicro()
	}
	w.add(StampOf+" >= ? AND "+StampOf+" < ?", from, to)
	return s.c.Each(ctx, tx, func(rows *sql.Rows) error {
		var e outbox.Retained
		var id sql.RawBytes
		var created, resend int64
		if err := rows.Scan(&e.Seq, &id, &created, &resend, &e.Expired); err != nil {
			return err
		}
		e.Stamp = Instant(created)
		if resend > 0 {
			e.ResendUntil = e.Stamp.Add(time.Duration(resend) * time.Second)
		}
		var err error
		e.ID, err = uuid.FromBytes(id)
		page.Events = append(page.Events, e)
		return err
	}, `SELECT e.id, e.dispatch_id, `+StampOf+`, e.resend_seconds, `+expired+` FROM {outbox_events} e
		WHERE `+w.String()+` ORDER BY e.id LIMIT ?`, w.and(limit)...)
}

// Requeue implements [outbox.OperatorStore]. The round begins with the rewind ticket, since a shard
// never has two equal tickets.
func (s *Store) Requeue(ctx context.Context, seqs []int64, reason string) ([]outbox.Requeued, error) {
	if len(seqs) == 0 {
		return nil, nil
	}
	var queued []outbox.Requeued
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var err error
		if queued, err = s.requeueable(ctx, tx, seqs); err != nil || len(queued) == 0 {
			return err
		}
		changed := make([]choice, len(queued))
		list := make([]int64, len(queued))
		for i := range queued {
			r := &queued[i]
			r.Round = r.Round<<outbox.RoundChance | rand.Int64N(1<<outbox.RoundChance)
			if _, err := s.c.Exec(ctx, tx, `INSERT INTO {outbox_queue} (shard, id, round) VALUES (?, ?, ?)`, r.Shard, r.Seq, r.Round); err != nil {
				return err
			}
			changed[i], list[i] = choice{seq: r.Seq, shard: r.Shard}, r.Seq
		}
		if err := s.logAttempts(ctx, tx, list, "replayed", reason, ""); err != nil {
			return err
		}
		return s.rewind(ctx, tx, changed)
	})
	if err != nil {
		return nil, fmt.Errorf("queue events again: %w", err)
	}
	return queued, nil
}

// requeueable locks events and their shards, and returns the events that are neither deferred,
// queued nor parked.
func (s *Store) requeueable(ctx context.Context, tx *sql.Tx, seqs []int64) ([]outbox.Requeued, error) {
	if s.c.d.RowLocks {
		if err := s.lockEvents(ctx, tx, seqs); err != nil {
			return nil, err
		}
	}
	queued, err := collect(ctx, s.c, tx, func(rows *sql.Rows) (r outbox.Requeued, err error) {
		var id sql.RawBytes
		if err := rows.Scan(&r.Shard, &r.Seq, &r.Round, &id); err != nil {
			return r, err
		}
		r.ID, err = uuid.FromBytes(id)
		return r, err
	}, `SELECT e.shard, e.id, s.rewind_ticket + 1, e.dispatch_id
		FROM {outbox_events} e JOIN {outbox_shards} s ON s.shard = e.shard
		WHERE e.id IN ? AND `+delivered+` ORDER BY e.id`, seqs)
	return queued, err
}

// lockEvents locks the shards of events and then the events. A concurrent janitor has removed the
// events before lockEvents returns, or waits for the end of tx.
func (s *Store) lockEvents(ctx context.Context, tx *sql.Tx, seqs []int64) error {
	shards, err := s.c.IDs(ctx, tx, `SELECT DISTINCT shard FROM {outbox_events} WHERE id IN ?`, seqs)
	if err != nil || len(shards) == 0 {
		return err
	}
	if err := s.lockShards(ctx, tx, shards); err != nil {
		return err
	}
	_, err = s.c.IDs(ctx, tx, `SELECT id FROM {outbox_events} {by PRIMARY} WHERE id IN ? ORDER BY id {lock}`, seqs)
	return err
}
