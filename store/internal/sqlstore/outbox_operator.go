package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

// selects returns the conditions of f on parked events p with their events e.
func selects(f outbox.Filter) *where {
	w := &where{}
	w.add("p.id > ?", f.After)
	if len(f.IDs) > 0 {
		w.add("{of_events p}", f.IDs)
	}
	w.text("e.topic", f.Topic)
	w.text("e.{event_key}", f.Key)
	w.parked(names(f.States), f.Error, f.Since, f.Until)
	return w
}

// ListParked implements [outbox.OperatorStore].
func (s *Store) ListParked(ctx context.Context, f outbox.Filter) ([]outbox.Parked, error) {
	w := selects(f)
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (p outbox.Parked, err error) {
		var parked int64
		var next, id sql.NullInt64
		// The last error of an unreadable event says why it is dead.
		_, err = ScanRecord(rows, &p.Record, &id, &p.Seq, &p.Shard, &p.State, &p.Attempts, &parked, &next, &p.LastError, &p.Reason)
		p.ParkedAt, p.NextAttemptAt = Instant(parked), Optional(next)
		return p, err
	}, `SELECT p.id, p.shard, p.state, p.attempts, p.parked_at, p.next_attempt_at, p.last_error, p.reason, `+RecordColumns+`
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE `+w.String()+` ORDER BY p.id LIMIT ?`, w.and(limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("list parked events: %w", err)
	}
	return list, nil
}

// Attempts implements [outbox.OperatorStore].
func (s *Store) Attempts(ctx context.Context, id uuid.UUID, limit int) ([]outbox.Attempt, error) {
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (a outbox.Attempt, err error) {
		var at int64
		err = rows.Scan(&at, &a.Outcome, &a.Error, &a.Relay)
		a.At = Instant(at)
		return a, err
	}, `SELECT a.at, a.outcome, a.error, a.relay FROM {outbox_events} e JOIN {outbox_attempts} a ON a.event_id = e.id
		WHERE e.dispatch_id = ? ORDER BY a.id LIMIT ?`, id[:], limitOf(limit))
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	return list, nil
}

// Deliveries implements [outbox.OperatorStore].
func (s *Store) Deliveries(ctx context.Context, id uuid.UUID) ([]outbox.Delivery, error) {
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (d outbox.Delivery, err error) {
		var at int64
		err = rows.Scan(&at, &d.Relay)
		d.At = Instant(at)
		return d, err
	}, `SELECT r.delivered_at, r.relay FROM {outbox_events} e JOIN {outbox_receipts} r ON r.first_id <= e.id AND r.last_id >= e.id
		WHERE e.dispatch_id = ? AND {in_receipt} ORDER BY r.delivered_at, r.id`, id[:])
	if err != nil {
		return nil, fmt.Errorf("read deliveries: %w", err)
	}
	return list, nil
}

// choice is a parked event that an operator's filter selects.
type choice struct {
	seq   int64
	id    uuid.UUID
	shard int
	key   string
	state outbox.State
}

// seqs returns the places and the dispatch IDs of the chosen events.
func seqs(list []choice) (seqs []int64, ids []uuid.UUID) {
	for _, c := range list {
		seqs, ids = append(seqs, c.seq), append(ids, c.id)
	}
	return seqs, ids
}

// choose selects parked events, locks the rows of their shards and then their own rows, and returns
// the events that w still selects under the locks. No other transaction can change them before the
// end of tx: a relay locks the row of the shard, and the janitor the rows of events.
func (s *Store) choose(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]choice, error) {
	found, err := s.chosen(ctx, tx, w, limitOf(limit))
	if err != nil || len(found) == 0 || !s.c.d.RowLocks {
		return found, err
	}
	shards := make([]int64, len(found))
	for i, c := range found {
		shards[i] = int64(c.shard)
	}
	slices.Sort(shards)
	if err := s.lockShards(ctx, tx, slices.Compact(shards)); err != nil {
		return nil, err
	}
	places, _ := seqs(found)
	_, err = s.c.IDs(ctx, tx, `SELECT id FROM {outbox_parked} {by PRIMARY} WHERE id IN ? ORDER BY id {lock}`, places)
	if err != nil {
		return nil, err
	}
	return s.chosen(ctx, tx, w.with("p.id IN ?", places), len(places))
}

func (s *Store) chosen(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]choice, error) {
	list, err := collect(ctx, s.c, tx, func(rows *sql.Rows) (c choice, err error) {
		var id sql.RawBytes
		if err := rows.Scan(&c.seq, &id, &c.shard, &c.key, &c.state); err != nil {
			return c, err
		}
		copy(c.id[:], id)
		return c, nil
	}, `SELECT p.id, e.dispatch_id, p.shard, p.{event_key}, p.state
		FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
		WHERE `+w.String()+` ORDER BY p.id LIMIT ?`, w.and(limit)...)
	return list, err
}

// lockShards locks the rows of shards, regardless of their owners.
func (s *Store) lockShards(ctx context.Context, tx *sql.Tx, shards []int64) error {
	_, err := s.c.IDs(ctx, tx, `SELECT shard FROM {outbox_shards} {by PRIMARY} WHERE shard IN ? ORDER BY shard {lock}`, shards)
	return err
}

// expired holds for an event e that must not be sent again any more.
const expired = `COALESCE(e.resend_seconds > 0 AND ` + StampOf + ` + e.resend_seconds * 1000000 <= {now}, 0)`

// Redrive implements [outbox.OperatorStore].
func (s *Store) Redrive(ctx context.Context, f outbox.Filter, reason string) (ids []uuid.UUID, refused int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids, refused = nil, 0
		// Without States and IDs, only dead events are redriven, and without States no discarded event.
		w := selects(f).with("(p.state = 'dead' OR p.state = 'retrying' AND ? OR p.state = 'discarded' AND ?)",
			len(f.States)+len(f.IDs) > 0, slices.Contains(f.States, outbox.Discarded))
		timely := w
		if !f.Force {
			timely = w.with("(p.state = 'retrying' OR NOT " + expired + ")")
		}
		chosen, err := s.choose(ctx, tx, timely, f.Limit)
		if err != nil {
			return err
		}
		if !f.Force && len(chosen) < limitOf(f.Limit) {
			late := w.with("p.state <> 'retrying' AND " + expired)
			err := s.c.One(ctx, tx, []any{&refused}, `SELECT COUNT(*) FROM {outbox_parked} p LEFT JOIN {outbox_events} e ON e.id = p.id
				WHERE `+late.String(), late.args...)
			if err != nil {
				return err
			}
		}
		if len(chosen) == 0 {
			return nil
		}
		var places []int64
		places, ids = seqs(chosen)
		_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_parked}
			SET state = 'retrying', attempts = 0, next_attempt_at = {now}, reason = '', discarded_at = NULL WHERE id IN ?`, places)
		if err != nil {
			return err
		}
		if err := s.logAttempts(ctx, tx, places, "redriven", reason, ""); err != nil {
			return err
		}
		return s.rewind(ctx, tx, chosen)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("redrive: %w", err)
	}
	return ids, refused, nil
}

// Discard implements [outbox.OperatorStore].
func (s *Store) Discard(ctx context.Context, f outbox.Filter, reason string) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids = nil
		chosen, err := s.choose(ctx, tx, selects(f).with("p.state NOT IN ('discarded', 'cancelled')"), f.Limit)
		if err != nil || len(chosen) == 0 {
			return err
		}
		var places []int64
		places, ids = seqs(chosen)
		_, err = s.c.Exec(ctx, tx, `UPDATE {outbox_parked} SET state = 'discarded', reason = ?, next_attempt_at = NULL, discarded_at = {now}
			WHERE id IN ?`, Text(reason), places)
		if err != nil {
			return err
		}
		if err := s.logAttempts(ctx, tx, places, "discarded", reason, ""); err != nil {
			return err
		}
		for _, c := range chosen {
			if err := s.promoteBehind(ctx, tx, c); err != nil {
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

// promoteBehind promotes the event behind a discarded event c. If c was dead, it does so only if
// the key has no other dead event: a relay that goes on past dead events has promoted the next
// event already, and a relay that holds keys waits for all dead events. No event waits for a
// follower.
func (s *Store) promoteBehind(ctx context.Context, tx *sql.Tx, c choice) error {
	switch c.state {
	case outbox.Retrying:
		return s.promote(ctx, tx, c.shard, c.key, false)
	case outbox.Dead:
		var held bool
		err := s.c.One(ctx, tx, []any{&held}, `SELECT EXISTS (SELECT 1 FROM {outbox_parked} WHERE shard = ? AND state = 'dead' AND {event_key} = ?)`,
			c.shard, Text(c.key))
		if err != nil || held {
			return err
		}
		return s.promote(ctx, tx, c.shard, c.key, false)
	}
	return nil
}

// rewind asks the owners of the shards of changed events to read the shards again.
func (s *Store) rewind(ctx context.Context, tx *sql.Tx, changed []choice) error {
	lowest := make(map[int]int64)
	for _, c := range changed { // ascending by seq
		if _, ok := lowest[c.shard]; !ok {
			lowest[c.shard] = c.seq
		}
	}
	for shard, seq := range lowest {
		_, err := s.c.Exec(ctx, tx, `UPDATE {outbox_shards}
			SET rewind_to = {least}(COALESCE(rewind_to, ?), ?), rewind_ticket = rewind_ticket + 1 WHERE shard = ?`, seq, seq, shard)
		if err != nil {
			return err
		}
	}
	return nil
}

// Stats implements [outbox.OperatorStore].
func (s *Store) Stats(ctx context.Context) (outbox.Stats, error) {
	var st outbox.Stats
	var oldest sql.NullInt64
	err := s.c.One(ctx, s.c.DB, []any{&st.Pending, &st.Retrying, &st.Following, &st.Dead, &st.Owned, &st.Relays, &st.Deferred, &oldest},
		s.c.d.Stats, countCap+1, countCap, countCap, countCap, countCap)
	if err != nil {
		return outbox.Stats{}, fmt.Errorf("read outbox stats: %w", err)
	}
	if st.Pending > countCap {
		st.Pending, st.PendingCapped = countCap, true
	}
	st.OldestPending = max(0, elapsed(oldest))
	return st, nil
}
