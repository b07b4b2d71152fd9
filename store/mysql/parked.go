package mysql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxpair/boxpair/producer"
)

// isHead holds for a parked event p that no earlier live event of its key stands
// in front of. Events without a key have no order.
const isHead = `(p.event_key = '' OR NOT EXISTS (
	SELECT 1 FROM {outbox_parked} h WHERE h.shard = p.shard AND h.live = 1 AND h.event_key = p.event_key AND h.id < p.id))`

// Blocked reads blocked keys, in one statement. The index has them in order, so a key costs the same however
// many events it has parked.
func (s *Store) Blocked(ctx context.Context, shards []int, hold bool, after producer.BlockedKey, limit int) ([]producer.BlockedKey, error) {
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
	var keys []producer.BlockedKey
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var k producer.BlockedKey
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
	// heldStmt finds those of some events whose keys have a dead one.
	heldStmt = `SELECT p.id FROM {outbox_parked} p WHERE p.event_key > '' AND EXISTS (
		SELECT 1 FROM {outbox_parked} d WHERE d.shard = p.shard AND d.state = 'dead' AND d.event_key = p.event_key) AND p.id IN `
	healAtOnce = 1000
)

// Heal gives followers without a head one. Leases that are lost are passed over.
func (s *Store) Heal(ctx context.Context, relay string, leases []producer.Lease, hold bool) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		for lease := range owned {
			if err := s.heal(ctx, tx, lease.Shard, hold); err != nil {
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

func (s *Store) heal(ctx context.Context, tx *sql.Tx, shard int, hold bool) error {
	heads, err := s.ids(ctx, tx, headsStmt, shard)
	if err != nil {
		return err
	}
	keyless, err := s.ids(ctx, tx, keylessStmt, shard)
	if err != nil {
		return err
	}
	for part := range slices.Chunk(append(heads, keyless...), healAtOnce) {
		if hold {
			held, err := s.ids(ctx, tx, heldStmt+numbers(part))
			if err != nil {
				return err
			}
			part = slices.DeleteFunc(part, func(id int64) bool { return slices.Contains(held, id) })
		}
		if len(part) == 0 {
			continue
		}
		if _, err := s.exec(ctx, tx, healStmt+numbers(part)); err != nil {
			return err
		}
	}
	return nil
}

// parkStmt parks an event; its key is read from the log. An event that was parked
// before, discarded and sent anew by an operator, is parked again.
const parkStmt = `
INSERT INTO {outbox_parked} (id, shard, event_key, state, attempts, next_attempt_at, parked_at, last_error)
SELECT n.id, n.shard, COALESCE(e.event_key, ''), ?, ?, {now} + ?, {now}, ?
FROM (SELECT ? AS id, ? AS shard) n LEFT JOIN {outbox_events} e ON e.id = n.id
ON DUPLICATE KEY UPDATE state = ?, attempts = ?, next_attempt_at = {now} + ?, parked_at = {now}, last_error = ?, reason = '', discarded_at = NULL`

// park writes the row of an event that was taken out of the queue. It is due in a time, or has none.
func (s *Store) park(ctx context.Context, tx *sql.Tx, shard int, id int64, state producer.State, attempts int, in sql.NullInt64, text string) error {
	_, err := s.exec(ctx, tx, parkStmt, string(state), attempts, in, []byte(text), id, shard, string(state), attempts, in, []byte(text))
	return err
}

// Park moves events from the queue to the parked events.
func (s *Store) Park(ctx context.Context, relay string, lease producer.Lease, failures []producer.Failure) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		for i := range failures {
			f := &failures[i]
			gone, err := s.dequeue(ctx, tx, []producer.Mark{{Lease: lease, Seq: f.Seq, Round: f.Round}})
			if err != nil {
				return err
			}
			if len(gone) == 0 {
				continue // of another round, or marked
			}
			state, in := nextState(f)
			if err := s.park(ctx, tx, lease.Shard, f.Seq, state, f.Attempts, in, f.Error); err != nil {
				return err
			}
			if err := s.logAttempts(ctx, tx, gone, f.Outcome.String(), f.Error, relay); err != nil {
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
		gone, err := s.dequeue(ctx, tx, marks)
		if err != nil {
			return err
		}
		for _, id := range gone {
			if err := s.park(ctx, tx, lease.Shard, id, producer.Following, 0, sql.NullInt64{}, ""); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("follow: %w", err)
	}
	return lost, nil
}

const (
	// dueStmt reads retrying events that are due; the index has them by time.
	dueStmt = `
SELECT p.id, p.shard, p.attempts, p.state, p.next_attempt_at, ` + recordColumns + `
FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
WHERE p.state = 'retrying' AND p.next_attempt_at <= ? AND p.next_attempt_at >= ? AND (p.next_attempt_at > ? OR p.id > ?)
  AND ` + isHead + ` AND p.shard IN `
	nextDueStmt = `
SELECT p.next_attempt_at FROM {outbox_parked} p
WHERE p.state = 'retrying' AND p.next_attempt_at > ? AND ` + isHead + ` AND p.shard IN `
)

// Due reads heads that are due. The next one is looked for first: what changes in between is due, or is found
// by the next call.
func (s *Store) Due(ctx context.Context, shards []int, after producer.DuePoint, limit int) (due []producer.Queued, next time.Duration, err error) {
	var at, then int64
	err = s.one(ctx, s.db, []any{&at}, `SELECT {now}`)
	if err == nil {
		err = s.one(ctx, s.db, []any{&then}, nextDueStmt+numbers(shards)+` ORDER BY p.next_attempt_at LIMIT 1`, at)
	}
	switch {
	case err == nil:
		next = time.Duration(then-at) * time.Microsecond
	case !errors.Is(err, sql.ErrNoRows):
		return nil, 0, fmt.Errorf("read when events are due: %w", err)
	}
	from := after.At.UnixMicro()
	err = s.each(ctx, s.db, func(rows *sql.Rows) error {
		var e producer.Queued
		var shard int
		var dueAt int64
		err := scanQueued(rows, &e, &e.Seq, &shard, &e.Attempts, &e.State, &dueAt)
		e.Shard, e.DueAt = shard, instant(dueAt)
		due = append(due, e)
		return err
	}, dueStmt+numbers(shards)+` ORDER BY p.next_attempt_at, p.id LIMIT ?`, at, from, from, after.Seq, limit)
	if err != nil {
		return nil, 0, fmt.Errorf("read due events: %w", err)
	}
	return due, next, nil
}

// FetchParked reads the live events of one key.
func (s *Store) FetchParked(ctx context.Context, shard int, key string, limit int) ([]producer.Queued, error) {
	var live []producer.Queued
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var e producer.Queued
		err := scanQueued(rows, &e, &e.Seq, &e.Attempts, &e.State)
		e.Shard = shard
		live = append(live, e)
		return err
	}, `SELECT p.id, p.attempts, p.state, `+recordColumns+`
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE p.shard = ? AND p.live = 1 AND p.event_key = ? ORDER BY p.id LIMIT ?`, shard, []byte(key), limit)
	if err != nil {
		return nil, fmt.Errorf("fetch parked events of shard %d: %w", shard, err)
	}
	return live, nil
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
	// Only while it is live: an operator may have discarded it meanwhile. A follower is sent
	// as soon as its predecessor is confirmed, and may fail before it is promoted. The attempts
	// make it harmless to repeat this: what it buried may have been redriven since.
	var key string
	err := s.one(ctx, tx, []any{&key}, `SELECT event_key FROM {outbox_parked} WHERE id = ? AND shard = ? AND attempts = ? AND live = 1`,
		f.Seq, shard, f.Attempts-1)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	state, in := nextState(f)
	_, err = s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = ?, attempts = ?, next_attempt_at = {now} + ?, last_error = ? WHERE id = ?`,
		string(state), f.Attempts, in, []byte(f.Error), f.Seq)
	if err != nil {
		return err
	}
	if err := s.logAttempts(ctx, tx, []int64{f.Seq}, f.Outcome.String(), f.Error, relay); err != nil {
		return err
	}
	if !f.Dead || hold {
		return nil
	}
	return s.promote(ctx, tx, shard, key)
}

// nextState returns the state of a failed event and in how many microseconds it is due.
func nextState(f *producer.Failure) (producer.State, sql.NullInt64) {
	if f.Dead {
		return producer.Dead, sql.NullInt64{}
	}
	return producer.Retrying, sql.NullInt64{Int64: micros(f.RetryIn), Valid: true}
}

// promote makes the next live event of a key retrying and due. The row of the shard is locked.
func (s *Store) promote(ctx context.Context, tx *sql.Tx, shard int, key string) error {
	if key == "" {
		return nil // nobody waits
	}
	var id sql.NullInt64
	err := s.one(ctx, tx, []any{&id}, `SELECT MIN(id) FROM {outbox_parked} WHERE shard = ? AND live = 1 AND event_key = ?`, shard, []byte(key))
	if err != nil || !id.Valid {
		return err
	}
	_, err = s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE id = ?`, id.Int64)
	return err
}

// Sent removes parked events that were delivered. One that was discarded meanwhile
// stays so, and gets its receipt: both are true.
func (s *Store) Sent(ctx context.Context, relay string, lease producer.Lease, seqs []int64) (bool, error) {
	if len(seqs) == 0 {
		return false, nil
	}
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		var live, delivered []int64
		keys := make(map[string]struct{})
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var id int64
			var key string
			var lives bool
			err := rows.Scan(&id, &key, &lives)
			if delivered = append(delivered, id); lives {
				live = append(live, id)
				keys[key] = struct{}{}
			}
			return err
		}, `SELECT id, event_key, live FROM {outbox_parked} WHERE id IN `+numbers(seqs)+` AND shard = ? AND (live = 1 OR state = 'discarded') ORDER BY id`,
			lease.Shard)
		if err != nil {
			return err
		}
		if len(live) > 0 {
			if _, err := s.exec(ctx, tx, `DELETE FROM {outbox_parked} WHERE id IN `+numbers(live)); err != nil {
				return err
			}
		}
		for key := range keys {
			if err := s.promote(ctx, tx, lease.Shard, key); err != nil {
				return err
			}
		}
		return s.receipt(ctx, tx, relay, delivered)
	})
	if err != nil {
		return false, fmt.Errorf("remove sent events: %w", err)
	}
	return lost, nil
}

// logAttempts records what happened to events.
func (s *Store) logAttempts(ctx context.Context, tx *sql.Tx, ids []int64, outcome, text, relay string) error {
	for part := range slices.Chunk(ids, maxRows) {
		var args []any
		for _, id := range part {
			args = append(args, id, outcome, []byte(text), []byte(relay))
		}
		_, err := s.exec(ctx, tx, `INSERT INTO {outbox_attempts} (event_id, at, outcome, error, relay) VALUES `+
			strings.TrimSuffix(strings.Repeat(`(?, {now}, ?, ?, ?), `, len(part)), ", "), args...)
		if err != nil {
			return err
		}
	}
	return nil
}
