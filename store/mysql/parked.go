package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/boxpair/boxpair/store/outbox"
)

// Blocked implements [outbox.RelayStore] in one statement. The index has the keys in order, so the
// cost of a key does not depend on its number of parked events.
func (s *Store) Blocked(ctx context.Context, shards []int, hold bool, after outbox.BlockedKey, limit int) ([]outbox.BlockedKey, error) {
	var parts []string
	var args []any
	for _, shard := range slices.Compact(slices.Sorted(slices.Values(shards))) {
		if shard < after.Shard {
			continue
		}
		from := ""
		if shard == after.Shard {
			from = after.Key
		}
		conditions := []string{"live = 1"}
		if hold {
			conditions = append(conditions, "state = 'dead'")
		}
		for _, c := range conditions {
			parts = append(parts, fmt.Sprintf(
				`(SELECT DISTINCT shard, event_key FROM {outbox_parked} WHERE shard = %d AND %s AND event_key > ? ORDER BY event_key LIMIT %d)`,
				shard, c, limit))
			args = append(args, []byte(from))
		}
	}
	if len(parts) == 0 {
		return nil, nil
	}
	var keys []outbox.BlockedKey
	err := s.core.Each(ctx, s.db, func(rows *sql.Rows) error {
		var k outbox.BlockedKey
		err := rows.Scan(&k.Shard, &k.Key)
		keys = append(keys, k)
		return err
	}, `SELECT DISTINCT k.shard, k.event_key FROM (`+strings.Join(parts, ` UNION ALL `)+`) k
		ORDER BY k.shard, k.event_key LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, fmt.Errorf("read blocked keys: %w", err)
	}
	return keys, nil
}

const (
	// headsStmt finds the first live event of every key of a shard.
	headsStmt   = `SELECT MIN(id) FROM {outbox_parked} WHERE shard = ? AND live = 1 AND event_key > '' GROUP BY event_key`
	keylessStmt = `SELECT id FROM {outbox_parked} WHERE shard = ? AND live = 1 AND event_key = '' AND state = 'following'`
	healStmt    = `UPDATE {outbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE state = 'following' AND id IN `
	// heldStmt finds the events among some events that are behind a dead event of their key.
	heldStmt = `SELECT p.id FROM {outbox_parked} p WHERE p.event_key > '' AND EXISTS (
		SELECT 1 FROM {outbox_parked} d WHERE d.shard = p.shard AND d.state = 'dead' AND d.event_key = p.event_key AND d.id < p.id) AND p.id IN `
	maxListed = 1000
)

// heal implements sqlstore.Dialect.
func (s *Store) heal(ctx context.Context, tx *sql.Tx, shard int, hold bool) error {
	heads, err := s.core.IDs(ctx, tx, headsStmt, shard)
	if err != nil {
		return err
	}
	keyless, err := s.core.IDs(ctx, tx, keylessStmt, shard)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(append(heads, keyless...), maxListed) {
		if hold {
			held, err := s.core.IDs(ctx, tx, heldStmt+numbers(part))
			if err != nil {
				return err
			}
			part = slices.DeleteFunc(part, func(id int64) bool { return slices.Contains(held, id) })
		}
		if len(part) == 0 {
			continue
		}
		if _, err := s.core.Exec(ctx, tx, healStmt+numbers(part)); err != nil {
			return err
		}
	}
	return nil
}
