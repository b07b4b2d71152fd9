package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// spanStmt reads since when the log is complete. Delivered events are removed together with their
// receipts, oldest first, so all events created since the oldest receipt are in the log. While the
// first receipt, number 1, is in its table, no event was removed. Without any receipt,
// sqlite_sequence tells whether a receipt ever existed.
const spanStmt = `
SELECT coalesce((SELECT max(id) FROM {outbox_events}), 0),
    CASE
        WHEN r.id = 1 THEN NULL
        WHEN r.id IS NOT NULL THEN r.delivered_at
        WHEN NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = ? AND seq > 0) THEN NULL
        ELSE ?
    END
FROM (SELECT 1) LEFT JOIN (SELECT id, delivered_at FROM {outbox_receipts} ORDER BY delivered_at, id LIMIT 1) r ON true`

// Span implements [audit.Outbox].
func (a *Auditor) Span(ctx context.Context) (audit.Span, error) {
	at := now()
	s := audit.Span{Now: sqlstore.Instant(at)}
	err := a.each(ctx, "read the span of the outbox", func(rows *sql.Rows) error {
		var since sql.NullInt64
		err := rows.Scan(&s.Last, &since)
		s.RetainedSince = sqlstore.Optional(since)
		return err
	}, spanStmt, a.names.Prefix()+"outbox_receipts", at)
	return s, err
}

// Events implements [audit.Outbox].
func (a *Auditor) Events(ctx context.Context, after int64, limit int) ([]audit.Event, error) {
	var list []audit.Event
	err := a.each(ctx, "read events", func(rows *sql.Rows) error {
		var e audit.Event
		err := scanEvent(rows, &e)
		list = append(list, e)
		return err
	}, `SELECT id, dispatch_id, digest, topic, created_at FROM {outbox_events} WHERE id > ? ORDER BY id LIMIT ?`, after, limit)
	return list, err
}

func scanEvent(rows *sql.Rows, e *audit.Event, more ...any) error {
	var id, digest sql.RawBytes
	var created int64
	if err := rows.Scan(append([]any{&e.Seq, &id, &digest, &e.Topic, &created}, more...)...); err != nil {
		return err
	}
	copy(e.ID[:], id)
	e.Digest, e.CreatedAt = sqlstore.Digest(digest), sqlstore.Instant(created)
	return nil
}

// A replayed event waits since its replay.
const (
	unsentQueueStmt = `
SELECT q.shard, q.id, e.dispatch_id, e.topic, ` + sqlstore.StampOf + `,
    CASE WHEN q.round > 0 THEN (
        SELECT max(x.at) FROM {outbox_attempts} x WHERE x.event_id = q.id AND x.outcome = 'replayed') ELSE ` + sqlstore.StampOf + ` END,
    'pending', 0, ''
FROM {outbox_queue} q LEFT JOIN {outbox_events} e ON e.id = q.id
WHERE (q.shard, q.id) > (?, ?) ORDER BY q.shard, q.id LIMIT ?`

	unsentParkedStmt = `
SELECT p.shard, p.id, e.dispatch_id, e.topic, ` + sqlstore.StampOf + `, p.parked_at, p.state, p.attempts,
    CASE WHEN p.state IN ('discarded', 'cancelled') THEN p.reason ELSE p.last_error END
FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
WHERE p.id > ? ORDER BY p.id LIMIT ?`

	unsentDeferredStmt = `
SELECT d.shard, d.id, e.dispatch_id, e.topic, e.created_at, d.due_at, ` + deferredState + `, 0, ''
FROM {outbox_deferred} d LEFT JOIN {outbox_events} e ON e.id = d.id
WHERE d.id > ? ORDER BY d.id LIMIT ?`

	// deferredState is the state of a deferred event d for an audit: a due event is pending, even
	// if it is not queued yet.
	deferredState = `CASE WHEN d.due_at > CAST(unixepoch('subsec') * 1000000 AS INTEGER) THEN 'deferred' ELSE 'pending' END`
)

// Unsent implements [audit.Outbox].
func (a *Auditor) Unsent(ctx context.Context, after audit.Place, limit int) ([]audit.Unsent, error) {
	if !after.Deferred && !after.Parked {
		list, err := a.unsent(ctx, unsentQueueStmt, after.Shard, after.Seq, limit)
		if err != nil || len(list) > 0 {
			return list, err
		}
		after = audit.Place{}
	}
	if !after.Deferred {
		list, err := a.unsent(ctx, unsentParkedStmt, after.Seq, limit)
		for i := range list {
			list[i].Parked = true
		}
		if err != nil || len(list) > 0 {
			return list, err
		}
		after = audit.Place{}
	}
	list, err := a.unsent(ctx, unsentDeferredStmt, after.Seq, limit)
	for i := range list {
		list[i].Deferred = true
	}
	return list, err
}

func (a *Auditor) unsent(ctx context.Context, query string, args ...any) ([]audit.Unsent, error) {
	var list []audit.Unsent
	err := a.each(ctx, "read unsent events", func(rows *sql.Rows) error {
		var u audit.Unsent
		var id sql.RawBytes
		var topic, why sql.NullString
		var created, since sql.NullInt64
		err := rows.Scan(&u.Shard, &u.Seq, &id, &topic, &created, &since, &u.State, &u.Attempts, &why)
		copy(u.ID[:], id)
		u.Missing, u.Topic, u.Why = id == nil, topic.String, why.String
		u.CreatedAt, u.Since = sqlstore.Optional(created), sqlstore.Optional(since)
		list = append(list, u)
		return err
	}, query, args...)
	return list, err
}

// FindEvents implements [audit.Outbox].
func (a *Auditor) FindEvents(ctx context.Context, ids []uuid.UUID, since time.Time) ([]audit.FoundEvent, error) {
	var list []audit.FoundEvent
	var delivered []int64
	err := a.each(ctx, "look events up", func(rows *sql.Rows) error {
		var e audit.FoundEvent
		err := scanEvent(rows, &e.Event, &e.State)
		if e.State == audit.Delivered {
			delivered = append(delivered, e.Seq)
		}
		list = append(list, e)
		return err
	}, `SELECT e.id, e.dispatch_id, e.digest, e.topic, `+sqlstore.StampOf+`,
		CASE WHEN EXISTS (SELECT 1 FROM {outbox_queue} q WHERE q.shard = e.shard AND q.id = e.id) THEN 'pending'
		     ELSE coalesce((SELECT p.state FROM {outbox_parked} p WHERE p.id = e.id),
		         (SELECT `+deferredState+` FROM {outbox_deferred} d WHERE d.id = e.id), 'delivered') END
		FROM {outbox_events} e WHERE e.dispatch_id IN ?`, ids)
	if err != nil || since.IsZero() || len(delivered) == 0 {
		return list, err
	}
	recent, err := a.recent(ctx, delivered, since)
	for i := range list {
		list[i].Recent = recent[list[i].Seq]
	}
	return list, err
}

// recent returns the events among seqs that were delivered since a time.
func (a *Auditor) recent(ctx context.Context, seqs []int64, since time.Time) (map[int64]bool, error) {
	recent := make(map[int64]bool)
	err := a.each(ctx, "read receipts", func(rows *sql.Rows) error {
		var seq int64
		err := rows.Scan(&seq)
		recent[seq] = true
		return err
	}, `SELECT DISTINCT j.value FROM {outbox_receipts} r, json_each(r.event_ids) j
		WHERE r.delivered_at >= ? AND j.value IN ?`, since.UnixMicro(), seqs)
	return recent, err
}
