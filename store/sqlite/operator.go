package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/producer"
)

const (
	defaultLimit = 100
	// countCap is where counting stops: reading that many rows takes milliseconds.
	countCap = 100_000
)

// where collects conditions and their arguments.
type where struct {
	terms []string
	args  []any
}

func (w *where) add(term string, args ...any) {
	w.terms = append(w.terms, term)
	w.args = append(w.args, args...)
}

func (w *where) String() string { return strings.Join(w.terms, " AND ") }

// idArray returns IDs as a JSON array of hexadecimal strings.
func idArray(ids []uuid.UUID) string {
	list := make([]string, len(ids))
	for i := range ids {
		list[i] = hex.EncodeToString(ids[i][:])
	}
	return jsonArray(list)
}

func jsonArray[T ~string](list []T) string {
	text, err := json.Marshal(list)
	if err != nil {
		panic(err) // strings can be encoded
	}
	return string(text)
}

// selects returns the conditions of f on parked events p with their events e.
func selects(f producer.Filter) *where {
	w := &where{}
	w.add("p.id > ?", f.After)
	if len(f.IDs) > 0 {
		w.add(`p.id IN (SELECT id FROM {outbox_events} WHERE dispatch_id IN (SELECT unhex(value) FROM json_each(?)))`, idArray(f.IDs))
	}
	if len(f.States) > 0 {
		w.add("p.state IN (SELECT value FROM json_each(?))", jsonArray(f.States))
	}
	if f.Topic != "" {
		w.add("e.topic = ?", f.Topic)
	}
	if f.Key != "" {
		w.add("e.key = ?", f.Key)
	}
	w.parked(f.Error, f.Since, f.Until)
	return w
}

// parked adds conditions on the last error of a parked p and on when it was parked.
func (w *where) parked(part string, since, until time.Time) {
	if part != "" {
		w.add("instr(p.last_error, ?) > 0", part)
	}
	if !since.IsZero() {
		w.add("p.parked_at >= ?", since.UnixMicro())
	}
	if !until.IsZero() {
		w.add("p.parked_at < ?", until.UnixMicro())
	}
}

func limitOf(n int) int {
	if n <= 0 {
		return defaultLimit
	}
	return n
}

// ListParked reads parked events.
func (s *Store) ListParked(ctx context.Context, f producer.Filter) ([]producer.Parked, error) {
	w := selects(f)
	var list []producer.Parked
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var p producer.Parked
		var parked int64
		var next, id sql.NullInt64
		err := scanRecord(rows, &p.Record, &id, &p.Seq, &p.Shard, &p.State, &p.Attempts, &parked, &next, &p.LastError, &p.Reason)
		p.ParkedAt, p.NextAttemptAt = instant(parked), optional(next)
		list = append(list, p)
		return err
	}, `SELECT p.id, p.shard, p.state, p.attempts, p.parked_at, p.next_attempt_at, p.last_error, p.reason, `+recordColumns+`
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE `+w.String()+` ORDER BY p.id LIMIT ?`, append(w.args, limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("list parked events: %w", err)
	}
	return list, nil
}

// Attempts reads the attempts of an event.
func (s *Store) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]producer.Attempt, error) {
	var list []producer.Attempt
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var a producer.Attempt
		var at int64
		err := rows.Scan(&at, &a.Outcome, &a.Error, &a.Relay)
		a.At = instant(at)
		list = append(list, a)
		return err
	}, `SELECT at, outcome, error, relay FROM {outbox_attempts}
		WHERE event_id = (SELECT id FROM {outbox_events} WHERE dispatch_id = ?) ORDER BY id LIMIT ?`, id[:], limitOf(limit))
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	return list, nil
}

// Deliveries reads when an event was delivered.
func (s *Store) Deliveries(ctx context.Context, id uuid.UUID) ([]producer.Delivery, error) {
	var list []producer.Delivery
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var d producer.Delivery
		var at int64
		err := rows.Scan(&at, &d.Relay)
		d.At = instant(at)
		list = append(list, d)
		return err
	}, `SELECT r.delivered_at, r.relay FROM {outbox_events} e JOIN {outbox_receipts} r ON r.first_id <= e.id AND r.last_id >= e.id
		WHERE e.dispatch_id = ? AND e.id IN (SELECT value FROM json_each(r.event_ids)) ORDER BY r.delivered_at, r.id`, id[:])
	if err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	return list, nil
}

// choice is a parked event that an operator's filter has selected.
type choice struct {
	seq   int64
	id    uuid.UUID
	shard int
	key   string
	state producer.State
}

func (s *Store) choose(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]choice, error) {
	var list []choice
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		var c choice
		var id sql.RawBytes
		if err := rows.Scan(&c.seq, &id, &c.shard, &c.key, &c.state); err != nil {
			return err
		}
		copy(c.id[:], id)
		list = append(list, c)
		return nil
	}, `SELECT p.id, e.dispatch_id, p.shard, p.key, p.state
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE `+w.String()+` ORDER BY p.id LIMIT ?`, append(w.args, limitOf(limit))...)
	return list, err
}

// Redrive makes dead events retrying and due.
func (s *Store) Redrive(ctx context.Context, f producer.Filter) (ids []uuid.UUID, refused int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids, refused = nil, 0
		at := now()
		w := selects(f)
		w.add("p.state = 'dead'")
		if !f.Force {
			late := &where{terms: append(w.terms[:len(w.terms):len(w.terms)], expired), args: append(w.args[:len(w.args):len(w.args)], at)}
			err := s.one(ctx, tx, []any{&refused}, `SELECT count(*) FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
				WHERE `+late.String(), late.args...)
			if err != nil {
				return err
			}
			w.add("NOT "+expired, at)
		}
		chosen, err := s.choose(ctx, tx, w, f.Limit)
		if err != nil {
			return err
		}
		for _, c := range chosen {
			_, err := s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'retrying', attempts = 0, next_attempt_at = ? WHERE id = ?`,
				at, c.seq)
			if err != nil {
				return err
			}
			if err := s.logAttempt(ctx, tx, c.seq, at, "redriven", "", ""); err != nil {
				return err
			}
			ids = append(ids, c.id)
		}
		return s.rewind(ctx, tx, chosen)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("redrive: %w", err)
	}
	return ids, refused, nil
}

// Discard gives up parked events.
func (s *Store) Discard(ctx context.Context, f producer.Filter, reason string) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids = nil
		w := selects(f)
		w.add("p.state NOT IN ('discarded', 'cancelled')")
		chosen, err := s.choose(ctx, tx, w, f.Limit)
		if err != nil {
			return err
		}
		at := now()
		for _, c := range chosen {
			_, err := s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'discarded', reason = ?, next_attempt_at = NULL, discarded_at = ?
				WHERE id = ?`, reason, at, c.seq)
			if err != nil {
				return err
			}
			if err := s.logAttempt(ctx, tx, c.seq, at, "discarded", reason, ""); err != nil {
				return err
			}
			ids = append(ids, c.id)
		}
		for _, c := range chosen {
			if err := s.succeed(ctx, tx, c); err != nil {
				return err
			}
		}
		return s.rewind(ctx, tx, chosen)
	})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return ids, nil
}

// succeed promotes the event behind a discarded one. Behind a dead one it does so
// only if no other dead one is left: a relay that goes on past dead events has
// promoted it already, and one that holds their keys waits for all of them. Behind a
// follower nobody has waited.
func (s *Store) succeed(ctx context.Context, tx *sql.Tx, c choice) error {
	switch c.state {
	case producer.Retrying:
		return s.promote(ctx, tx, c.shard, c.key)
	case producer.Dead:
		var held bool
		err := s.one(ctx, tx, []any{&held}, `SELECT EXISTS (SELECT 1 FROM {outbox_parked} WHERE shard = ? AND key = ? AND state = 'dead')`,
			c.shard, c.key)
		if err != nil || held {
			return err
		}
		return s.promote(ctx, tx, c.shard, c.key)
	}
	return nil
}

// rewind asks whoever owns the shards of what was changed to read them again.
func (s *Store) rewind(ctx context.Context, tx *sql.Tx, changed []choice) error {
	lowest := make(map[int]int64)
	for _, c := range changed { // by ascending seq
		if _, ok := lowest[c.shard]; !ok {
			lowest[c.shard] = c.seq
		}
	}
	for shard, seq := range lowest {
		_, err := s.exec(ctx, tx, `UPDATE {outbox_shards}
			SET rewind_to = min(coalesce(rewind_to, ?), ?), rewind_ticket = rewind_ticket + 1 WHERE shard = ?`, seq, seq, shard)
		if err != nil {
			return err
		}
	}
	return nil
}

// statsStmt counts through indexes only, and no further than the cap. The oldest
// event is found by one look into the queue per shard; replayed ones were delivered in their time.
// Deferred ones count from when they are due, also where no relay has moved them.
const statsStmt = `
SELECT (SELECT count(*) FROM (SELECT 1 FROM {outbox_queue} LIMIT ?)),
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'retrying' LIMIT ?)),
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state IN ('retrying', 'following') LIMIT ?)),
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'dead' LIMIT ?)),
       (SELECT count(*) FROM {outbox_shards} WHERE owner IS NOT NULL AND lease_until > ?),
       (SELECT count(*) FROM {outbox_relays} WHERE seen_until > ?),
       (SELECT count(*) FROM (SELECT 1 FROM {outbox_deferred} LIMIT ?)),
       (SELECT min(at) FROM (
           SELECT ` + stamp + ` AS at FROM {outbox_events} e WHERE e.id IN (
               SELECT (SELECT min(q.id) FROM {outbox_queue} q WHERE q.shard = s.shard AND q.round = 0) FROM {outbox_shards} s
               UNION ALL SELECT min(id) FROM {outbox_parked} WHERE state IN ('retrying', 'following'))
           UNION ALL
           SELECT (SELECT min(d.due_at) FROM {outbox_deferred} d WHERE d.shard = s.shard AND d.due_at <= ?) FROM {outbox_shards} s))`

// Stats reads the state of the outbox.
func (s *Store) Stats(ctx context.Context) (producer.Stats, error) {
	var st producer.Stats
	var oldest sql.NullInt64
	at := now()
	err := s.one(ctx, s.db, []any{&st.Pending, &st.Retrying, &st.Following, &st.Dead, &st.Owned, &st.Relays, &st.Deferred, &oldest},
		statsStmt, countCap+1, countCap, countCap, countCap, at, at, countCap, at)
	if err != nil {
		return producer.Stats{}, fmt.Errorf("read outbox stats: %w", err)
	}
	st.Following = max(0, st.Following-st.Retrying)
	if st.Pending > countCap {
		st.Pending, st.PendingCapped = countCap, true
	}
	if oldest.Valid {
		st.OldestPending = max(0, time.Duration(at-oldest.Int64)*time.Microsecond)
	}
	return st, nil
}
