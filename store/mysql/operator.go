package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
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

// any is String for conditions of which one has to hold.
func (w *where) any() string { return strings.Join(w.terms, " OR ") }

// with returns w with one condition more.
func (w *where) with(term string) *where {
	more := &where{terms: slices.Clone(w.terms), args: slices.Clone(w.args)}
	more.add(term)
	return more
}

// texts adds the condition that column is one of list.
func texts[T ~string](w *where, column string, list []T) {
	if len(list) == 0 {
		return
	}
	args := make([]any, len(list))
	for i := range list {
		args[i] = string(list[i])
	}
	w.add(column+" IN "+marks(len(list)), args...)
}

// selects returns the conditions of f on parked events p with their events e.
func selects(f producer.Filter) *where {
	w := &where{}
	w.add("p.id > ?", f.After)
	if len(f.IDs) > 0 {
		w.add(`e.dispatch_id IN ` + hexes(f.IDs))
	}
	texts(w, "p.state", f.States)
	if f.Topic != "" {
		w.add("e.topic = ?", []byte(f.Topic))
	}
	if f.Key != "" {
		w.add("e.event_key = ?", []byte(f.Key))
	}
	w.parked(f.Error, f.Since, f.Until)
	return w
}

// parked adds conditions on the last error of a parked p and on when it was parked.
func (w *where) parked(part string, since, until time.Time) {
	if part != "" {
		w.add("INSTR(p.last_error, ?) > 0", []byte(part))
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
		var shard int
		var parked int64
		var next, id sql.NullInt64
		err := scanRecord(rows, &p.Record, &id, &p.Seq, &shard, &p.State, &p.Attempts, &parked, &next, &p.LastError, &p.Reason)
		p.Shard, p.ParkedAt, p.NextAttemptAt = shard, instant(parked), optional(next)
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
	}, `SELECT a.at, a.outcome, a.error, a.relay FROM {outbox_events} e JOIN {outbox_attempts} a ON a.event_id = e.id
		WHERE e.dispatch_id = ? ORDER BY a.id LIMIT ?`, id[:], limitOf(limit))
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
		WHERE e.dispatch_id = ? AND JSON_CONTAINS(r.event_ids, CAST(e.id AS CHAR)) ORDER BY r.delivered_at, r.id`, id[:])
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

// choose selects parked events, locks the rows of their shards, and returns those that are still as the
// filter wants them. Nobody changes them now.
func (s *Store) choose(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]choice, error) {
	found, err := s.chosen(ctx, tx, w, limitOf(limit))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	seqs := make([]int64, len(found))
	for i, c := range found {
		seqs[i] = c.seq
	}
	if err := s.lockShards(ctx, tx, found); err != nil {
		return nil, err
	}
	return s.chosen(ctx, tx, w.with("p.id IN "+numbers(seqs)), len(seqs))
}

func (s *Store) chosen(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]choice, error) {
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
	}, `SELECT p.id, e.dispatch_id, p.shard, p.event_key, p.state
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE `+w.String()+` ORDER BY p.id LIMIT ?`, append(slices.Clone(w.args), limit)...)
	return list, err
}

// lockShards locks the rows of shards, whoever owns them.
func (s *Store) lockShards(ctx context.Context, tx *sql.Tx, list []choice) error {
	shards := make([]int, len(list))
	for i, c := range list {
		shards[i] = c.shard
	}
	slices.Sort(shards)
	_, err := s.ids(ctx, tx, `SELECT shard FROM {outbox_shards} FORCE INDEX (PRIMARY) WHERE shard IN `+numbers(slices.Compact(shards))+
		` ORDER BY shard FOR UPDATE`)
	return err
}

// Redrive makes dead events retrying and due.
func (s *Store) Redrive(ctx context.Context, f producer.Filter) (ids []uuid.UUID, refused int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids, refused = nil, 0
		w := selects(f).with("p.state = 'dead'")
		if !f.Force {
			late := w.with(expired)
			err := s.one(ctx, tx, []any{&refused}, `SELECT COUNT(*) FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
				WHERE `+late.String(), late.args...)
			if err != nil {
				return err
			}
			w = w.with("NOT " + expired)
		}
		chosen, err := s.choose(ctx, tx, w, f.Limit)
		if err != nil || len(chosen) == 0 {
			return err
		}
		seqs := make([]int64, len(chosen))
		for i, c := range chosen {
			seqs[i], ids = c.seq, append(ids, c.id)
		}
		_, err = s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'retrying', attempts = 0, next_attempt_at = {now} WHERE id IN `+numbers(seqs))
		if err != nil {
			return err
		}
		if err := s.logAttempts(ctx, tx, seqs, "redriven", "", ""); err != nil {
			return err
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
		chosen, err := s.choose(ctx, tx, selects(f).with("p.state NOT IN ('discarded', 'cancelled')"), f.Limit)
		if err != nil || len(chosen) == 0 {
			return err
		}
		seqs := make([]int64, len(chosen))
		for i, c := range chosen {
			seqs[i], ids = c.seq, append(ids, c.id)
		}
		_, err = s.exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'discarded', reason = ?, next_attempt_at = NULL, discarded_at = {now}
			WHERE id IN `+numbers(seqs), []byte(reason))
		if err != nil {
			return err
		}
		if err := s.logAttempts(ctx, tx, seqs, "discarded", reason, ""); err != nil {
			return err
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
		err := s.one(ctx, tx, []any{&held}, `SELECT EXISTS (SELECT 1 FROM {outbox_parked} WHERE shard = ? AND state = 'dead' AND event_key = ?)`,
			c.shard, []byte(c.key))
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
			SET rewind_to = LEAST(COALESCE(rewind_to, ?), ?), rewind_ticket = rewind_ticket + 1 WHERE shard = ?`, seq, seq, shard)
		if err != nil {
			return err
		}
	}
	return nil
}

// statsStmt counts through indexes only, and no further than the cap. The oldest
// event is found by one look into the queue per shard; replayed ones were delivered in their time. Deferred ones
// count from when they are due, also where no relay has moved them.
const statsStmt = `
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_queue} LIMIT ?) a),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'retrying' LIMIT ?) b),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'following' LIMIT ?) c),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_parked} WHERE state = 'dead' LIMIT ?) d),
       (SELECT COUNT(*) FROM {outbox_shards} WHERE owner IS NOT NULL AND lease_until > {now}),
       (SELECT COUNT(*) FROM {outbox_relays} WHERE seen_until > {now}),
       (SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_deferred} LIMIT ?) f),
       (SELECT GREATEST(0, {now} - MIN(t.at)) FROM (
           SELECT ` + stamp + ` AS at FROM (
               SELECT (SELECT q.id FROM {outbox_queue} q WHERE q.shard = s.shard AND q.round = 0 ORDER BY q.id LIMIT 1) AS id FROM {outbox_shards} s
               UNION ALL SELECT MIN(id) FROM {outbox_parked} WHERE live = 1) o JOIN {outbox_events} e ON e.id = o.id
           UNION ALL
           SELECT (SELECT MIN(d.due_at) FROM {outbox_deferred} d WHERE d.shard = s.shard AND d.due_at <= {now}) FROM {outbox_shards} s) t)`

// Stats reads the state of the outbox.
func (s *Store) Stats(ctx context.Context) (producer.Stats, error) {
	var st producer.Stats
	var oldest sql.NullInt64
	err := s.one(ctx, s.db, []any{&st.Pending, &st.Retrying, &st.Following, &st.Dead, &st.Owned, &st.Relays, &st.Deferred, &oldest},
		statsStmt, countCap+1, countCap, countCap, countCap, countCap)
	if err != nil {
		return producer.Stats{}, fmt.Errorf("read outbox stats: %w", err)
	}
	if st.Pending > countCap {
		st.Pending, st.PendingCapped = countCap, true
	}
	st.OldestPending = time.Duration(oldest.Int64) * time.Microsecond
	return st, nil
}
