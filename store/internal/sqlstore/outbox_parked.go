package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

// isHead holds for a parked event p without an earlier live event of its key. Events without a key
// have no order.
const isHead = `(p.{event_key} = '' OR NOT EXISTS (
	SELECT 1 FROM {outbox_parked} h WHERE h.shard = p.shard AND {live h} AND h.{event_key} = p.{event_key} AND h.id < p.id))`

// unheld holds for a parked event p without an earlier dead event of its key. Its argument tells
// whether dead events hold their keys; otherwise it holds for every event.
const unheld = `(NOT ? OR p.{event_key} = '' OR NOT EXISTS (
	SELECT 1 FROM {outbox_parked} d WHERE d.shard = p.shard AND d.state = 'dead' AND d.{event_key} = p.{event_key} AND d.id < p.id))`

// Heal implements [outbox.RelayStore]. It skips lost leases.
func (s *Store) Heal(ctx context.Context, relay string, leases []outbox.Lease, hold bool) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		for lease := range owned {
			if err := s.c.d.Heal(ctx, tx, lease.Shard, hold); err != nil {
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

// parkStmt parks an event, with its key from the log. An event that has a row already, since an
// operator discarded and replayed it, is parked again.
const parkStmt = `
INSERT INTO {outbox_parked} (id, shard, {event_key}, state, attempts, next_attempt_at, parked_at, last_error)
SELECT n.id, n.shard, COALESCE(e.{event_key}, ''), ?, ?, {now} + ?, {now}, ?
FROM (SELECT ? AS id, ? AS shard) n LEFT JOIN {outbox_events} e ON e.id = n.id WHERE true
{again id} state = ?, attempts = ?, next_attempt_at = {now} + ?, parked_at = {now}, last_error = ?, reason = '', discarded_at = NULL`

// park writes the row of an event that was removed from the queue. in is the delay until the event
// is due, or NULL.
func (s *Store) park(ctx context.Context, tx *sql.Tx, shard int, id int64, state outbox.State, attempts int, in sql.NullInt64, text string) error {
	_, err := s.c.Exec(ctx, tx, parkStmt, string(state), attempts, in, Text(text), id, shard, string(state), attempts, in, Text(text))
	return err
}

// Park implements [outbox.RelayStore].
func (s *Store) Park(ctx context.Context, relay string, lease outbox.Lease, failures []outbox.Failure) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		for i := range failures {
			f := &failures[i]
			gone, err := s.c.d.Dequeue(ctx, tx, []outbox.Mark{{Lease: lease, Seq: f.Seq, Round: f.Round}})
			if err != nil {
				return err
			}
			if len(gone) == 0 {
				continue // the row is of another round, or was marked
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

// Follow implements [outbox.RelayStore].
func (s *Store) Follow(ctx context.Context, relay string, lease outbox.Lease, marks []outbox.Mark) (bool, error) {
	lost, err := s.fenced(ctx, relay, lease, func(ctx context.Context, tx *sql.Tx) error {
		gone, err := s.c.d.Dequeue(ctx, tx, marks)
		if err != nil {
			return err
		}
		for _, id := range gone {
			if err := s.park(ctx, tx, lease.Shard, id, outbox.Following, 0, sql.NullInt64{}, ""); err != nil {
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
	// dueStmt reads due retrying events, through the index on time.
	dueStmt = `
SELECT p.id, p.shard, p.attempts, p.state, p.next_attempt_at, ` + RecordColumns + `
FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
WHERE p.state = 'retrying' AND p.next_attempt_at > ? AND p.next_attempt_at <= ? AND p.next_attempt_at >= ? AND (p.next_attempt_at > ? OR p.id > ?)
  AND p.shard IN ? AND ` + isHead + ` AND ` + unheld + ` ORDER BY p.next_attempt_at, p.id LIMIT ?`
	nextDueStmt = `
SELECT p.next_attempt_at FROM {outbox_parked} p
WHERE p.state = 'retrying' AND p.next_attempt_at > ? AND p.next_attempt_at <= ? AND p.shard IN ? AND ` + isHead + ` AND ` + unheld + ` ORDER BY p.next_attempt_at LIMIT 1`
)

// Due implements [outbox.RelayStore]. The next due time is read before the due heads: an event that
// changes in between is either due or found by the next call.
func (s *Store) Due(
	ctx context.Context, shards []int, hold bool, after outbox.DuePoint, longest time.Duration, limit int,
) (due []outbox.Queued, next time.Duration, err error) {
	var then int64
	at, err := s.c.Now(ctx, s.c.DB)
	far := at + longest.Microseconds()
	if err == nil {
		err = s.c.One(ctx, s.c.DB, []any{&then}, nextDueStmt, at, far, shards, hold)
	}
	switch {
	case err == nil:
		next = time.Duration(then-at) * time.Microsecond
	case !errors.Is(err, sql.ErrNoRows):
		return nil, 0, fmt.Errorf("read when events are due: %w", err)
	}
	from := after.At.UnixMicro()
	for _, r := range [...]struct{ above, through int64 }{{math.MinInt64, at}, {far, math.MaxInt64}} {
		if len(due) == limit {
			break
		}
		err = s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
			var e outbox.Queued
			var dueAt int64
			err := ScanQueued(rows, &e, &e.Seq, &e.Shard, &e.Attempts, &e.State, &dueAt)
			e.DueAt = Instant(dueAt)
			due = append(due, e)
			return err
		}, dueStmt, r.above, r.through, from, from, after.Seq, shards, hold, limit-len(due))
		if err != nil {
			return nil, 0, fmt.Errorf("read due events: %w", err)
		}
	}
	return due, next, nil
}

// FetchParked implements [outbox.RelayStore], a key after the other.
func (s *Store) FetchParked(ctx context.Context, keys []outbox.BlockedKey, hold bool, limit int) ([][]outbox.Queued, error) {
	found := make([][]outbox.Queued, len(keys))
	for i, k := range keys {
		var err error
		if found[i], err = s.parkedOfKey(ctx, k.Shard, k.Key, hold, limit); err != nil {
			return nil, fmt.Errorf("fetch parked events of shard %d: %w", k.Shard, err)
		}
	}
	return found, nil
}

func (s *Store) parkedOfKey(ctx context.Context, shard int, key string, hold bool, limit int) ([]outbox.Queued, error) {
	dead := 0
	if hold {
		dead = 1
	}
	return collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (e outbox.Queued, err error) {
		err = ScanQueued(rows, &e, &e.Seq, &e.Attempts, &e.State)
		e.Shard = shard
		return e, err
	}, `SELECT p.id, p.attempts, p.state, `+RecordColumns+`
		FROM (
			SELECT * FROM (SELECT p.id FROM {outbox_parked} p WHERE p.shard = ? AND {live p} AND p.{event_key} = ? ORDER BY p.id LIMIT ?) l
			UNION ALL
			SELECT * FROM (SELECT p.id FROM {outbox_parked} p WHERE p.shard = ? AND p.state = 'dead' AND p.{event_key} = ? ORDER BY p.id LIMIT ?) d
		) k JOIN {outbox_parked} p ON p.id = k.id LEFT JOIN {outbox_events} e ON e.id = p.id ORDER BY p.id LIMIT ?`,
		shard, Text(key), limit, shard, Text(key), dead, limit)
}

// Retry implements [outbox.RelayStore].
func (s *Store) Retry(ctx context.Context, relay string, lease outbox.Lease, failures []outbox.Failure, hold bool) (bool, error) {
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

func (s *Store) retry(ctx context.Context, tx *sql.Tx, relay string, shard int, f *outbox.Failure, hold bool) error {
	// Only a live event changes: an operator may have discarded the event meanwhile. Followers
	// count, too: a follower is sent as soon as its predecessor is confirmed, and may fail before
	// it is promoted. The condition on attempts makes a repeated call harmless: an operator may
	// have redriven a dead event since the first call.
	var key string
	err := s.c.One(ctx, tx, []any{&key}, `SELECT p.{event_key} FROM {outbox_parked} p WHERE p.id = ? AND p.shard = ? AND p.attempts = ? AND {live p}`,
		f.Seq, shard, f.Attempts-1)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	} else if err != nil {
		return err
	}
	state, in := nextState(f)
	_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_parked} SET state = ?, attempts = ?, next_attempt_at = {now} + ?, last_error = ? WHERE id = ?`,
		string(state), f.Attempts, in, Text(f.Error), f.Seq)
	if err != nil {
		return err
	}
	if err := s.logAttempts(ctx, tx, []int64{f.Seq}, f.Outcome.String(), f.Error, relay); err != nil {
		return err
	}
	if !f.Dead || hold {
		return nil
	}
	return s.promote(ctx, tx, shard, key, false)
}

// nextState returns the state of a failed event, and the delay in microseconds until it is due.
func nextState(f *outbox.Failure) (outbox.State, sql.NullInt64) {
	if f.Dead {
		return outbox.Dead, sql.NullInt64{}
	}
	return outbox.Retrying, sql.NullInt64{Int64: Micros(f.RetryIn), Valid: true}
}

// promote makes the next live event of a key retrying and due; with hold, not behind a dead event.
// The caller has locked the row of the shard.
func (s *Store) promote(ctx context.Context, tx *sql.Tx, shard int, key string, hold bool) error {
	if key == "" {
		return nil // no event waits
	}
	var id sql.NullInt64
	err := s.c.One(ctx, tx, []any{&id}, `SELECT MIN(p.id) FROM {outbox_parked} p WHERE p.shard = ? AND {live p} AND p.{event_key} = ?`, shard, Text(key))
	if err != nil || !id.Valid {
		return err
	}
	if hold {
		var held bool
		err := s.c.One(ctx, tx, []any{&held}, `SELECT EXISTS (SELECT 1 FROM {outbox_parked} WHERE shard = ? AND state = 'dead' AND {event_key} = ? AND id < ?)`,
			shard, Text(key), id.Int64)
		if err != nil || held {
			return err
		}
	}
	_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE id = ?`, id.Int64)
	return err
}

// Sent implements [outbox.RelayStore]. An event that was discarded meanwhile stays discarded, and
// gets a receipt as well: both are true.
func (s *Store) Sent(ctx context.Context, relay string, marks []outbox.Mark, hold bool) (lost []int, err error) {
	if len(marks) == 0 {
		return nil, nil
	}
	leases := make([]outbox.Lease, len(marks))
	for i, m := range marks {
		leases[i] = m.Lease
	}
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		lost = nil
		owned, err := s.owned(ctx, tx, relay, leases)
		if err != nil {
			return err
		}
		mine := make(map[int][]int64)
		for _, m := range marks {
			if owned[m.Lease] {
				mine[m.Shard] = append(mine[m.Shard], m.Seq)
			} else {
				lost = append(lost, m.Shard)
			}
		}
		var delivered []int64
		for _, shard := range slices.Sorted(maps.Keys(mine)) {
			ids, err := s.sent(ctx, tx, shard, mine[shard], hold)
			if err != nil {
				return err
			}
			delivered = append(delivered, ids...)
		}
		return s.receipt(ctx, tx, relay, delivered)
	})
	if err != nil {
		return nil, fmt.Errorf("remove sent events: %w", err)
	}
	slices.Sort(lost)
	return slices.Compact(lost), nil
}

// sent removes delivered events of a shard, and returns those that are found.
func (s *Store) sent(ctx context.Context, tx *sql.Tx, shard int, seqs []int64, hold bool) (delivered []int64, err error) {
	var live []int64
	keys := make(map[string]struct{})
	err = s.c.Each(ctx, tx, func(rows *sql.Rows) error {
		var id int64
		var key string
		var lives bool
		err := rows.Scan(&id, &key, &lives)
		if delivered = append(delivered, id); lives {
			live = append(live, id)
			keys[key] = struct{}{}
		}
		return err
	}, `SELECT p.id, p.{event_key}, {live p} FROM {outbox_parked} p WHERE p.id IN ? AND +p.shard = ? AND ({live p} OR p.state = 'discarded')
		ORDER BY p.id`, seqs, shard) // + keeps SQLite from using the index on shard
	if err != nil {
		return nil, err
	}
	if len(live) > 0 {
		if _, err := s.c.Exec(ctx, tx, `DELETE FROM {outbox_parked} WHERE id IN ?`, live); err != nil {
			return nil, err
		}
	}
	for key := range keys {
		if err := s.promote(ctx, tx, shard, key, hold); err != nil {
			return nil, err
		}
	}
	return delivered, nil
}
