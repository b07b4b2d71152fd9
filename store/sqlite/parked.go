package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/boxpair/boxpair/store/outbox"
)

// The blocked keys of a shard behind ?2, in order. The statements jump through the index from key
// to key, so the cost of a key does not depend on its number of parked events.
const (
	nextLive = `(SELECT min(n.key) FROM {outbox_parked} n WHERE n.shard = ?1 AND n.key > k.key AND n.state IN ('retrying', 'following'))`
	nextDead = `(SELECT min(n.key) FROM {outbox_parked} n WHERE n.shard = ?1 AND n.key > k.key AND n.state = 'dead')`
	nextHeld = `min(coalesce(` + nextLive + `, ` + nextDead + `), coalesce(` + nextDead + `, ` + nextLive + `))`

	blockedStart = `WITH RECURSIVE keys (key) AS (SELECT ?2 UNION ALL SELECT `
	blockedEnd   = ` FROM keys k WHERE k.key IS NOT NULL) SELECT key FROM keys WHERE key IS NOT NULL LIMIT ?3 OFFSET 1`
	blockedStmt  = blockedStart + nextLive + blockedEnd
	heldStmt     = blockedStart + nextHeld + blockedEnd
)

// Blocked implements [outbox.RelayStore].
func (s *Store) Blocked(ctx context.Context, shards []int, hold bool, after outbox.BlockedKey, limit int) ([]outbox.BlockedKey, error) {
	query := blockedStmt
	if hold {
		query = heldStmt
	}
	var keys []outbox.BlockedKey
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, shard := range slices.Compact(slices.Sorted(slices.Values(shards))) {
			from := ""
			if shard == after.Shard {
				from = after.Key
			}
			if shard < after.Shard || len(keys) >= limit {
				continue
			}
			err := s.core.Each(ctx, tx, func(rows *sql.Rows) error {
				k := outbox.BlockedKey{Shard: shard}
				err := rows.Scan(&k.Key)
				keys = append(keys, k)
				return err
			}, query, shard, from, limit-len(keys))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read blocked keys: %w", err)
	}
	return keys, nil
}

// healStmt makes followers retrying that are the heads of their keys. It jumps through the index
// from key to key, so the cost of a key does not depend on its number of followers. With ?3, a head
// behind a dead event is not changed.
const healStmt = `
WITH RECURSIVE keys (key) AS (
	SELECT min(key) FROM {outbox_parked} WHERE shard = ?2 AND key > '' AND state IN ('retrying', 'following')
	UNION ALL
	SELECT (SELECT min(n.key) FROM {outbox_parked} n WHERE n.shard = ?2 AND n.key > k.key AND n.state IN ('retrying', 'following'))
	FROM keys k WHERE k.key IS NOT NULL
), first (key, id) AS (
	SELECT k.key, (SELECT min(h.id) FROM {outbox_parked} h WHERE h.shard = ?2 AND h.key = k.key AND h.state IN ('retrying', 'following'))
	FROM keys k
	WHERE k.key IS NOT NULL
), heads (id) AS (
	SELECT f.id FROM first f
	WHERE NOT (?3 AND EXISTS (SELECT 1 FROM {outbox_parked} d WHERE d.shard = ?2 AND d.key = f.key AND d.state = 'dead' AND d.id < f.id))
	UNION ALL
	SELECT id FROM {outbox_parked} WHERE shard = ?2 AND key = '' AND state IN ('retrying', 'following')
)
UPDATE {outbox_parked} SET state = 'retrying', next_attempt_at = ?1 WHERE id IN (SELECT id FROM heads) AND state = 'following'`

// heal implements sqlstore.Dialect.
func (s *Store) heal(ctx context.Context, tx *sql.Tx, shard int, hold bool) error {
	_, err := s.core.Exec(ctx, tx, healStmt, now(), shard, hold)
	return err
}
