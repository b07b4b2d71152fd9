package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/outbox"
)

// beginList precedes the statements that list. Like the janitor's, they go by indexes, whatever the
// statistics say.
const beginList = `SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)`

// sizeOf is the size of the content of an event e. The size of a payload is known without reading
// the payload.
const sizeOf = `octet_length(e.payload) + octet_length(e.headers::text)`

var listDelivered = statement(oldReceipts + `
SELECT old.delivered_at, old.id, e.id, e.bytes, old.n >= $3
FROM old LEFT JOIN LATERAL (
    SELECT e.id, ` + sizeOf + ` AS bytes FROM unnest(old.event_ids) AS u (id)
    CROSS JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = u.id OFFSET 0) e
    WHERE NOT ` + retained + `
) e ON true
ORDER BY old.delivered_at, old.id, e.id`)

// listedEvents reads the content of events.
var listedEvents = statement(`
SELECT e.shard, e.id, 0, 0, '', ` + eventColumns + `
FROM unnest($1::bigint[]) AS u (id) CROSS JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = u.id OFFSET 0) e
ORDER BY e.id`)

// ListDelivered implements [outbox.ArchiveStore].
func (s *Store) ListDelivered(ctx context.Context, retention time.Duration, after time.Time, limit int) (list outbox.Removable, err error) {
	err = s.reading(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql[listDelivered], s.mode, retention.Microseconds(), sinceOf(after), limit)
		if err != nil {
			return err
		}
		if err := takeReceipts(rows, &list); err != nil {
			return err
		}
		return s.readListed(ctx, tx, &list, func(e *outbox.Archived) {
			e.State, e.EndedAt = outbox.DeliveredState, list.EndedAt(e.Seq)
		})
	})
	if err != nil {
		return outbox.Removable{}, failed("list delivered events", err)
	}
	return list, nil
}

// takeReceipts reads receipts and their events into list, until list is full.
func takeReceipts(rows pgx.Rows, list *outbox.Removable) error {
	var receipt outbox.Receipt
	var events []outbox.Sized
	open := true
	var at time.Time
	var id int64
	var seq, bytes pgtype.Int8
	var full bool
	_, err := pgx.ForEachRow(rows, []any{&at, &id, &seq, &bytes, &full}, func() error {
		if open && receipt.ID != 0 && receipt.ID != id {
			open = list.Take(receipt, events)
			events = events[:0]
		}
		receipt = outbox.Receipt{At: at.UTC(), ID: id}
		if seq.Valid {
			events = append(events, outbox.Sized{Seq: seq.Int64, Bytes: bytes.Int64})
		}
		list.Full = list.Full || full
		return nil
	})
	if err == nil && open && receipt.ID != 0 {
		list.Take(receipt, events)
	}
	return err
}

// readListed reads the content of the events of list. complete adds to an event what the log does
// not have.
func (s *Store) readListed(ctx context.Context, tx pgx.Tx, list *outbox.Removable, complete func(*outbox.Archived)) error {
	rows, err := tx.Query(ctx, s.sql[listedEvents], s.mode, list.Seqs)
	if err != nil {
		return err
	}
	scan := newQueuedScan()
	list.Events, err = pgx.CollectRows(rows, func(pgx.CollectableRow) (outbox.Archived, error) {
		q, err := scan.row(rows)
		e := outbox.Archived{Record: q.Record, Seq: q.Seq, Unreadable: q.Unreadable}
		e.Shard = q.Shard
		complete(&e)
		return e, err
	})
	return err
}

var listDiscarded = statement(`
SELECT p.id, coalesce(e.bytes, 0), p.state, p.discarded_at, p.attempts, coalesce(p.last_error, ''), coalesce(p.reason, '')
FROM {{outbox_parked}} p LEFT JOIN LATERAL (
    SELECT ` + sizeOf + ` AS bytes FROM {{outbox_events}} e WHERE e.id = p.id OFFSET 0
) e ON true
WHERE ` + unclaimed + `
ORDER BY p.discarded_at LIMIT $2`)

// ListDiscarded implements [outbox.ArchiveStore].
func (s *Store) ListDiscarded(ctx context.Context, retention time.Duration, limit int) (list outbox.Removable, err error) {
	list.Discarded = true
	err = s.reading(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, s.sql[listDiscarded], s.mode, retention.Microseconds(), limit)
		if err != nil {
			return err
		}
		parked := make(map[int64]outbox.Archived)
		var e outbox.Archived
		var bytes int64
		open, n := true, 0
		_, err = pgx.ForEachRow(rows, []any{&e.Seq, &bytes, (*string)(&e.State), &e.EndedAt, &e.Attempts, &e.LastError, &e.Reason}, func() error {
			n++
			if open = open && list.TakeEvent(outbox.Sized{Seq: e.Seq, Bytes: bytes}, e.EndedAt); open {
				parked[e.Seq] = e
			}
			return nil
		})
		if err != nil {
			return err
		}
		list.Full = list.Full || n >= limit
		return s.readListed(ctx, tx, &list, func(e *outbox.Archived) {
			p := parked[e.Seq]
			e.State, e.EndedAt, e.Attempts, e.LastError, e.Reason = p.State, p.EndedAt.UTC(), p.Attempts, p.LastError, p.Reason
		})
	})
	if err != nil {
		return outbox.Removable{}, failed("list discarded events", err)
	}
	return list, nil
}

// reading runs fn in a transaction with one snapshot.
func (s *Store) reading(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, beginList); err != nil {
			return err
		}
		return fn(tx)
	})
}

// removeListedDelivered removes only events that were listed: an event that had to stay then has a
// later receipt, if it need not stay any more.
var removeListedDelivered = statement(`
WITH named AS MATERIALIZED (
    SELECT u.id FROM unnest($2::bigint[]) AS u (id)
)` + removeNamed + `, receipts AS (
    DELETE FROM {{outbox_receipts}} r USING unnest($3::timestamptz[], $4::bigint[]) AS o (delivered_at, id)
    WHERE r.delivered_at = o.delivered_at AND r.id = o.id RETURNING 1
)
SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM attempts), (SELECT count(*) FROM receipts), false, NULL::timestamptz`)

var removeListedDiscarded = statement(`
WITH old AS MATERIALIZED (
    SELECT p.id FROM unnest($2::bigint[]) AS u (id) JOIN {{outbox_parked}} p ON p.id = u.id
    WHERE ` + unclaimed + `
)` + removeOld + `false, NULL::timestamptz`)

// RemoveListed implements [outbox.ArchiveStore].
func (s *Store) RemoveListed(ctx context.Context, retention time.Duration, list outbox.Removable) (r outbox.Removed, err error) {
	if list.Discarded {
		r, err = s.remove(ctx, "remove discarded events", removeListedDiscarded, retention.Microseconds(), list.Seqs)
	} else {
		at, ids := make([]time.Time, len(list.Receipts)), make([]int64, len(list.Receipts))
		for i, receipt := range list.Receipts {
			at[i], ids[i] = receipt.At, receipt.ID
		}
		r, err = s.remove(ctx, "remove delivered events", removeListedDelivered, retention.Microseconds(), list.Seqs, at, ids)
	}
	if err != nil {
		return outbox.Removed{}, err
	}
	r.Full, r.Through = list.Full, list.Through
	return r, nil
}
