package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

// The queue is read in three steps: one statement finds the ranges with rows, one statement for
// each such range reads the rows by the primary key, and one statement reads the events. A relay
// asks for all its shards at once, and most shards are empty most of the time, while each statement
// over the many columns of an event is expensive, even without a row.
const (
	filledStmt = `
SELECT r.key FROM json_each(?) r
WHERE EXISTS (SELECT 1 FROM {outbox_queue} q
              WHERE q.shard = r.value ->> 0 AND q.id > r.value ->> 1 AND q.id <= r.value ->> 2)`
	rangeStmt = `
SELECT id, round FROM {outbox_queue} WHERE shard = ? AND id > ? AND id <= ?
  AND id NOT IN ? ORDER BY id LIMIT ?`
	eventsStmt = `
SELECT ` + sqlstore.RecordColumns + ` FROM {outbox_events} e WHERE e.id IN ?`
)

// Fetch implements [outbox.RelayStore].
func (s *Store) Fetch(ctx context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	var queued []outbox.Queued
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		filled, err := s.filled(ctx, tx, ranges)
		if err != nil {
			return err
		}
		var ids []int64
		for _, i := range filled {
			r := &ranges[i]
			err := s.core.Each(ctx, tx, func(rows *sql.Rows) error {
				q := outbox.Queued{Missing: true}
				q.Shard = r.Shard
				err := rows.Scan(&q.Seq, &q.Round)
				queued, ids = append(queued, q), append(ids, q.Seq)
				return err
			}, rangeStmt, r.Shard, r.After, sqlstore.Through(r), r.Except, r.Limit)
			if err != nil {
				return fmt.Errorf("shard %d: %w", r.Shard, err)
			}
		}
		if len(ids) == 0 {
			return nil
		}
		return s.events(ctx, tx, queued, ids)
	})
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	return queued, nil
}

// filled returns the indexes of ranges that have rows.
func (s *Store) filled(ctx context.Context, tx *sql.Tx, ranges []outbox.Range) ([]int, error) {
	if len(ranges) == 1 {
		return []int{0}, nil
	}
	list := make([][3]int64, len(ranges))
	for i := range ranges {
		list[i] = [3]int64{int64(ranges[i].Shard), ranges[i].After, sqlstore.Through(&ranges[i])}
	}
	text, err := json.Marshal(list)
	if err != nil {
		return nil, err
	}
	var filled []int
	err = s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var i int
		err := rows.Scan(&i)
		filled = append(filled, i)
		return err
	}, filledStmt, string(text))
	return filled, err
}

// events sorts queued and fills in the events. ids has the places of the events in the log.
func (s *Store) events(ctx context.Context, tx *sql.Tx, queued []outbox.Queued, ids []int64) error {
	slices.SortFunc(queued, func(a, b outbox.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	return s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var id sql.NullInt64
		var r outbox.Record
		unreadable, err := sqlstore.ScanRecord(rows, &r, &id)
		if err != nil {
			return err
		}
		i, found := slices.BinarySearchFunc(queued, id.Int64, func(q outbox.Queued, id int64) int { return cmp.Compare(q.Seq, id) })
		for ; found && i < len(queued) && queued[i].Seq == id.Int64; i++ { // ranges may overlap
			r.Shard = queued[i].Shard
			queued[i].Record, queued[i].Missing, queued[i].Unreadable = r, false, unreadable
		}
		return nil
	}, eventsStmt, ids)
}

// dequeue implements sqlstore.Dialect.
func (s *Store) dequeue(ctx context.Context, tx *sql.Tx, marks []outbox.Mark) ([]int64, error) {
	var gone []int64
	for at, ids := range sqlstore.ByRound(marks) {
		removed, err := s.core.IDs(ctx, tx, `DELETE FROM {outbox_queue} WHERE shard = ? AND id IN ? AND round = ? RETURNING id`, at.Shard, ids, at.Round)
		if err != nil {
			return nil, err
		}
		gone = append(gone, removed...)
	}
	slices.Sort(gone)
	return gone, nil
}

// receipt implements sqlstore.Dialect.
func (s *Store) receipt(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error {
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	_, err = s.core.Exec(ctx, tx, `INSERT INTO {outbox_receipts} (delivered_at, relay, event_ids) VALUES ({now}, ?, ?)`, relay, string(text))
	return err
}

// StillQueued implements [outbox.OperatorStore].
func (s *Store) StillQueued(ctx context.Context, rows []outbox.Requeued) (n int, err error) {
	for _, r := range rows {
		var there bool
		err := s.core.One(ctx, s.db, []any{&there}, `SELECT EXISTS (SELECT 1 FROM {outbox_queue} WHERE shard = ? AND id = ? AND round = ?)`,
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
