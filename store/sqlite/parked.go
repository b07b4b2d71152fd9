package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/producer"
)

// isHead holds for a parked event p that no earlier live event of its key stands
// in front of. Events without a key have no order.
const isHead = `(p.key = '' OR NOT EXISTS (
	SELECT 1 FROM {outbox_parked} h
	WHERE h.shard = p.shard AND h.key = p.key AND h.id < p.id AND h.state IN ('retrying', 'following')))`

// The blocked keys of a shard behind ?2, in their order. The statements jump through the index from
// key to key, so a key costs the same however many events it has parked.
const (
	nextLive = `(SELECT min(n.key) FROM {outbox_parked} n WHERE n.shard = ?1 AND n.key > k.key AND n.state IN ('retrying', 'following'))`
	nextDead = `(SELECT min(n.key) FROM {outbox_parked} n WHERE n.shard = ?1 AND n.key > k.key AND n.state = 'dead')`
	nextHeld = `min(coalesce(` + nextLive + `, ` + nextDead + `), coalesce(` + nextDead + `, ` + nextLive + `))`

	blockedStart = `WITH RECURSIVE keys (key) AS (SELECT ?2 UNION ALL SELECT `
	blockedEnd   = ` FROM keys k WHERE k.key IS NOT NULL) SELECT key FROM keys WHERE key IS NOT NULL LIMIT ?3 OFFSET 1`
	blockedStmt  = blockedStart + nextLive + blockedEnd
	heldStmt     = blockedStart + nextHeld + blockedEnd
)

// Blocked reads blocked keys.
func (s *Store) Blocked(ctx context.Context, shards []int, hold bool, after producer.BlockedKey, limit int) ([]producer.BlockedKey, error) {
	query := blockedStmt
	if hold {
		query = heldStmt
	}
	var keys []producer.BlockedKey
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		for _, shard := range slices.Compact(slices.Sorted(slices.Values(shards))) {
			from := ""
			if shard == after.Shard {
				from = after.Key
			}
			if shard < after.Shard || len(keys) >= limit {
				continue
			}
			err := s.each(ctx, tx, func(rows *sql.Rows) error {
				k := producer.BlockedKey{Shard: shard}
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

// healStmt makes followers that are the heads of their keys retrying. It jumps
// through the index from key to key, so a key costs the same however many events follow in
// it. With ?3, keys with a dead event are left alone.
const healStmt = `
WITH RECURSIVE keys (key) AS (
	SELECT min(key) FROM {outbox_parked} WHERE shard = ?2 AND key > '' AND state IN ('retrying', 'following')
	UNION ALL
	SELECT (SELECT min(n.key) FROM {outbox_parked} n WHERE n.shard = ?2 AND n.key > k.key AND n.state IN ('retrying', 'following'))
	FROM keys k WHERE k.key IS NOT NULL
), heads (id) AS (
	SELECT (SELECT min(h.id) FROM {outbox_parked} h WHERE h.shard = ?2 AND h.key = k.key AND h.state IN ('retrying', 'following'))
	FROM keys k
	WHERE k.key IS NOT NULL
	  AND NOT (?3 AND EXISTS (SELECT 1 FROM {outbox_parked} d WHERE d.shard = ?2 AND d.key = k.key AND d.state = 'dead'))
	UNION ALL
	SELECT id FROM {outbox_parked} WHERE shard = ?2 AND key = '' AND state IN ('retrying', 'following')
)
UPDATE {outbox_parked} SET state = 'retrying', next_attempt_at = ?1 WHERE id IN (SELECT id FROM heads) AND state = 'following'`

// Heal gives followers without a head one. Leases that are lost are passed over.
func (s *Store) Heal(ctx context.Context, relay string, leases []producer.Lease, hold bool) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay)
		if err != nil {
			return err
		}
		for _, lease := range leases {
			if !owned[lease] {
				continue
			}
			if _, err := s.exec(ctx, tx, healStmt, now(), lease.Shard, hold); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	return nil
}

// parkStmt parks an event; its key is read from the log. An event that was parked
// before, discarded and sent anew by an operator, is parked again.
const parkStmt = `
INSERT INTO {outbox_parked} (id, shard, key, state, attempts, next_attempt_at, parked_at, last_error)
SELECT ?, ?, coalesce((SELECT key FROM {outbox_events} WHERE id = ?), ''), ?, ?, ?, ?, ?
ON CONFLICT (id) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, next_attempt_at = excluded.next_attempt_at,
	parked_at = excluded.parked_at, last_error = excluded.last_error, reason = ''`

// Park moves events from the queue to the parked events.
func (s *Store) Park(ctx context.Context, relay string, lease producer.Lease, failures []producer.Failure) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		for i := range failures {
			f := &failures[i]
			gone, err := s.dequeue(ctx, tx, lease.Shard, map[int64][]int64{f.Round: {f.Seq}})
			if err != nil {
				return err
			}
			if len(gone) == 0 {
				continue // of another round, or marked
			}
			at := now()
			state, next := nextState(f, at)
			_, err = s.exec(ctx, tx, parkStmt, f.Seq, lease.Shard, f.Seq, state, f.Attempts, next, at, f.Error)
			if err != nil {
				return err
			}
			if err := s.logAttempt(ctx, tx, f.Seq, at, f.Outcome.String(), f.Error, relay); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("park: %w", err)
	}
	return lost, nil
}

// Follow moves events from the queue to the parked events, behind others of their keys.
func (s *Store) Follow(ctx context.Context, relay string, lease producer.Lease, marks []producer.Mark) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		for _, rounds := range byLease(marks) {
			gone, err := s.dequeue(ctx, tx, lease.Shard, rounds)
			if err != nil {
				return err
			}
			for _, id := range gone {
				if _, err := s.exec(ctx, tx, parkStmt, id, lease.Shard, id, producer.Following, 0, nil, now(), ""); err != nil {
					return err
				}
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("follow: %w", err)
	}
	return lost, nil
}

// dueStmt reads retrying events that are due; the index has them by time.
const dueStmt = `
SELECT p.id, p.shard, p.attempts, p.state, p.next_attempt_at, ` + recordColumns + `
FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
WHERE p.state = 'retrying' AND p.next_attempt_at <= ? AND (p.next_attempt_at, p.id) > (?, ?) AND p.shard IN (SELECT value FROM json_each(?)) AND ` + isHead + `
ORDER BY p.next_attempt_at, p.id LIMIT ?`

const nextDueStmt = `
SELECT p.next_attempt_at FROM {outbox_parked} p
WHERE p.state = 'retrying' AND p.next_attempt_at > ? AND p.shard IN (SELECT value FROM json_each(?)) AND ` + isHead + `
ORDER BY p.next_attempt_at LIMIT 1`

// Due reads heads that are due.
func (s *Store) Due(ctx context.Context, shards []int, after producer.DuePoint, limit int) (due []producer.Queued, next time.Duration, err error) {
	err = s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		at := now()
		var err error
		err = s.each(ctx, tx, func(rows *sql.Rows) error {
			var e producer.Queued
			var dueAt int64
			err := scanQueued(rows, &e, &e.Seq, &e.Shard, &e.Attempts, &e.State, &dueAt)
			e.DueAt = instant(dueAt)
			due = append(due, e)
			return err
		}, dueStmt, at, after.At.UnixMicro(), after.Seq, numbers(shards), limit)
		if err != nil {
			return err
		}
		var then int64
		err = s.one(ctx, tx, []any{&then}, nextDueStmt, at, numbers(shards))
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		next = time.Duration(then-at) * time.Microsecond
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read due events: %w", err)
	}
	return due, next, nil
}

// FetchParked reads the live events of one key.
func (s *Store) FetchParked(ctx context.Context, shard int, key string, limit int) ([]producer.Queued, error) {
	live, err := s.parked(ctx, s.db, `
		SELECT p.id, p.shard, p.attempts, p.state, `+recordColumns+`
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE p.shard = ? AND p.key = ? AND p.state IN ('retrying', 'following')
		ORDER BY p.id LIMIT ?`, shard, key, limit)
	if err != nil {
		return nil, fmt.Errorf("fetch parked events of shard %d: %w", shard, err)
	}
	return live, nil
}

func (s *Store) parked(ctx context.Context, q querier, query string, args ...any) ([]producer.Queued, error) {
	var list []producer.Queued
	err := s.each(ctx, q, func(rows *sql.Rows) error {
		var e producer.Queued
		err := scanQueued(rows, &e, &e.Seq, &e.Shard, &e.Attempts, &e.State)
		list = append(list, e)
		return err
	}, query, args...)
	return list, err
}

// Retry records further failures of parked events.
func (s *Store) Retry(ctx context.Context, relay string, lease producer.Lease, failures []producer.Failure, hold bool) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		for i := range failures {
			if err := s.retry(ctx, tx, relay, lease.Shard, &failures[i], hold); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("retry: %w", err)
	}
	return lost, nil
}

func (s *Store) retry(ctx context.Context, tx *sql.Tx, relay string, shard int, f *producer.Failure, hold bool) error {
	at := now()
	state, next := nextState(f, at)
	var key string
	// Only while it is live: an operator may have discarded it meanwhile. A follower is sent
	// as soon as its predecessor is confirmed, and may fail before it is promoted. The attempts
	// make it harmless to repeat this: what it buried may have been redriven since.
	err := s.one(ctx, tx, []any{&key}, `UPDATE {outbox_parked} SET state = ?, attempts = ?, next_attempt_at = ?, last_error = ?
		WHERE id = ? AND shard = ? AND attempts = ? AND state IN ('retrying', 'following') RETURNING key`,
		state, f.Attempts, next, f.Error, f.Seq, shard, f.Attempts-1)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	if err := s.logAttempt(ctx, tx, f.Seq, at, f.Outcome.String(), f.Error, relay); err != nil {
		return err
	}
	if !f.Dead || hold {
		return nil
	}
	return s.promote(ctx, tx, shard, key)
}

// nextState returns the state of a failed event and, in the unit of columns, when it is due.
func nextState(f *producer.Failure, at int64) (producer.State, sql.NullInt64) {
	if f.Dead {
		return producer.Dead, sql.NullInt64{}
	}
	return producer.Retrying, sql.NullInt64{Int64: at + micros(f.RetryIn), Valid: true}
}

// promote makes the next live event of a key retrying and due.
func (s *Store) promote(ctx context.Context, tx *sql.Tx, shard int, key string) error {
	if key == "" {
		return nil // nobody waits
	}
	_, err := s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'retrying', next_attempt_at = ?
		WHERE id = (SELECT min(id) FROM {outbox_parked} WHERE shard = ? AND key = ? AND state IN ('retrying', 'following'))`,
		now(), shard, key)
	return err
}

// Sent removes parked events that were delivered. One that was discarded meanwhile
// stays so.
func (s *Store) Sent(ctx context.Context, relay string, lease producer.Lease, seqs []int64) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		var gone []int64
		keys := make(map[string]struct{})
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			var key string
			err := rows.Scan(&id, &key)
			gone = append(gone, id)
			keys[key] = struct{}{}
			return err
		}, `DELETE FROM {outbox_parked} WHERE id IN (SELECT value FROM json_each(?)) AND +shard = ? AND state IN ('retrying', 'following')
			RETURNING id, key`, numbers(seqs), lease.Shard) // + keeps it from reading the shard instead
		if err != nil {
			return err
		}
		for key := range keys {
			if err := s.promote(ctx, tx, lease.Shard, key); err != nil {
				return err
			}
		}
		// One that an operator discarded while it was sent keeps its row, and gets its receipt: both are true.
		err = s.each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			err := rows.Scan(&id)
			gone = append(gone, id)
			return err
		}, `SELECT id FROM {outbox_parked} WHERE id IN (SELECT value FROM json_each(?)) AND +shard = ? AND state = 'discarded'`,
			numbers(seqs), lease.Shard)
		if err != nil {
			return err
		}
		return s.receipt(ctx, tx, relay, gone)
	})
	if err != nil {
		return false, fmt.Errorf("remove sent events: %w", err)
	}
	return lost, nil
}

// logAttempt records what happened to an event.
func (s *Store) logAttempt(ctx context.Context, tx *sql.Tx, id, at int64, outcome, text, relay string) error {
	_, err := s.exec(ctx, tx, `INSERT INTO {outbox_attempts} (event_id, at, outcome, error, relay) VALUES (?, ?, ?, ?, ?)`,
		id, at, outcome, text, relay)
	return err
}
