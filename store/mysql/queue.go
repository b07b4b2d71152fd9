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

	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

// Fetch implements [outbox.RelayStore] in one statement.
func (s *Store) Fetch(ctx context.Context, ranges []outbox.Range) ([]outbox.Queued, error) {
	if len(ranges) == 0 {
		return nil, nil
	}
	parts := make([]string, len(ranges))
	for i := range ranges {
		parts[i] = rangeQuery(&ranges[i])
	}
	var queued []outbox.Queued
	err := s.core.Each(ctx, s.db, func(rows *sql.Rows) error {
		var q outbox.Queued
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
	slices.SortStableFunc(queued, func(a, b outbox.Queued) int { return cmp.Compare(a.Seq, b.Seq) })
	return queued, nil
}

func rangeQuery(r *outbox.Range) string {
	except := ""
	if len(r.Except) > 0 {
		except = " AND id NOT IN " + numbers(r.Except)
	}
	return fmt.Sprintf(`(SELECT shard, id, round FROM {outbox_queue} WHERE shard = %d AND id > %d AND id <= %d%s ORDER BY id LIMIT %d)`,
		r.Shard, r.After, sqlstore.Through(r), except, r.Limit)
}

// dequeue implements sqlstore.Dialect.
func (s *Store) dequeue(ctx context.Context, tx *sql.Tx, marks []outbox.Mark) ([]int64, error) {
	if len(marks) == 0 {
		return nil, nil
	}
	rounds := make(map[int64]int64, len(marks))
	shards := make(map[int][]int64)
	for _, m := range marks {
		rounds[m.Seq] = m.Round
		shards[m.Shard] = append(shards[m.Shard], m.Seq)
	}
	var gone []int64
	there := make(map[int][]int64)
	err := s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var shard int
		var id, round int64
		err := rows.Scan(&shard, &id, &round)
		if err == nil && rounds[id] == round {
			gone, there[shard] = append(gone, id), append(there[shard], id)
		}
		return err
	}, `SELECT shard, id, round FROM {outbox_queue} WHERE `+queueRows(shards))
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	n, err := s.core.Exec(ctx, tx, `DELETE FROM {outbox_queue} WHERE `+queueRows(there))
	if err == nil && n != int64(len(gone)) {
		err = errors.New("queue rows have changed under the lock of their shard")
	}
	slices.Sort(gone)
	return gone, err
}

// queueRows selects queue rows by their shards and IDs.
func queueRows(shards map[int][]int64) string {
	terms := make([]string, 0, len(shards))
	for shard, ids := range shards {
		terms = append(terms, fmt.Sprintf("shard = %d AND id IN %s", shard, numbers(ids)))
	}
	return strings.Join(terms, " OR ")
}

// receipt implements sqlstore.Dialect.
func (s *Store) receipt(ctx context.Context, tx *sql.Tx, relay string, ids []int64) error {
	text, err := json.Marshal(ids)
	if err != nil {
		return err
	}
	_, err = s.core.Exec(ctx, tx, `INSERT INTO {outbox_receipts} (delivered_at, relay, first_id, last_id, events, event_ids) VALUES ({now}, ?, ?, ?, ?, ?)`,
		[]byte(relay), ids[0], ids[len(ids)-1], len(ids), string(text))
	return err
}

// StillQueued implements [outbox.OperatorStore].
func (s *Store) StillQueued(ctx context.Context, rows []outbox.Requeued) (n int, err error) {
	for part := range slices.Chunk(rows, maxListed) {
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
