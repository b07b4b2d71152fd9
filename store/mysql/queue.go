package mysql

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/boxpair/boxpair/internal/sqlstore"
	"github.com/boxpair/boxpair/producer"
)

// Fetch reads the queue rows of ranges with their events, in one statement. An
// event that the log lacks is reported as missing.
func (s *Store) Fetch(ctx context.Context, ranges []producer.Range) ([]producer.Queued, error) {
	if len(ranges) == 0 {
		return nil, nil
	}
	parts := make([]string, len(ranges))
	for i := range ranges {
		parts[i] = rangeQuery(&ranges[i])
	}
	var queued []producer.Queued
	err := s.core.Each(ctx, s.db, func(rows *sql.Rows) error {
		var q producer.Queued
		var shard int
		err := sqlstore.ScanQueued(rows, &q, &shard, &q.Seq, &q.Round)
		q.Shard = shard
		queued = append(queued, q)
		return err
	}, `SELECT q.shard, q.id, q.round, `+sqlstore.RecordColumns+` FROM (`+strings.Join(parts, ` UNION ALL `)+`) q
		LEFT JOIN {outbox_events} e ON e.id = q.id`)
	if err != nil {
		return nil, fmt.Errorf("fetch: %w", err)
	}
	slices.SortStableFunc(queued, func(a, b producer.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	return queued, nil
}

func rangeQuery(r *producer.Range) string {
	except := ""
	if len(r.Except) > 0 {
		except = " AND id NOT IN " + numbers(r.Except)
	}
	return fmt.Sprintf(`(SELECT shard, id, round FROM {outbox_queue} WHERE shard = %d AND id > %d AND id <= %d%s ORDER BY id LIMIT %d)`,
		r.Shard, r.After, sqlstore.Through(r), except, r.Limit)
}

// dequeue removes queue rows of shards whose rows are locked, and returns which there were, ascending.
func (s *Store) dequeue(ctx context.Context, tx *sql.Tx, marks []producer.Mark) ([]int64, error) {
	groups := sqlstore.ByRound(marks)
	if len(groups) == 0 {
		return nil, nil
	}
	terms := make([]string, 0, len(groups))
	for at, ids := range groups {
		terms = append(terms, fmt.Sprintf("shard = %d AND round = %d AND id IN %s", at.Shard, at.Round, numbers(ids)))
	}
	where := strings.Join(terms, " OR ")
	gone, err := s.core.IDs(ctx, tx, `SELECT id FROM {outbox_queue} WHERE `+where)
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	n, err := s.core.Exec(ctx, tx, `DELETE FROM {outbox_queue} WHERE `+where)
	if err == nil && n != int64(len(gone)) {
		err = errors.New("queue rows have changed under the lock of their shard")
	}
	slices.Sort(gone)
	return gone, err
}

// receipt records that events were delivered now. The IDs ascend.
func (s *Store) receipt(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error {
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	_, err = s.core.Exec(ctx, tx, `INSERT INTO {outbox_receipts} (delivered_at, relay, first_id, last_id, events, event_ids) VALUES ({now}, ?, ?, ?, ?, ?)`,
		[]byte(relay), ids[0], ids[len(ids)-1], len(ids), string(text))
	return err
}

// StillQueued counts queue rows that are still there.
func (s *Store) StillQueued(ctx context.Context, rows []producer.Requeued) (n int, err error) {
	for part := range slices.Chunk(rows, healAtOnce) {
		terms := make([]string, len(part))
		for i, r := range part {
			terms[i] = fmt.Sprintf("shard = %d AND id = %d AND round = %d", r.Shard, r.Seq, r.Round)
		}
		var there int
		if err := s.core.One(ctx, s.db, []any{&there}, `SELECT COUNT(*) FROM {outbox_queue} WHERE `+strings.Join(terms, " OR ")); err != nil {
			return 0, fmt.Errorf("look for replayed events: %w", err)
		}
		n += there
	}
	return n, nil
}
