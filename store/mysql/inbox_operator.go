package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

// selectsMessages returns the conditions of f on parked messages p with their consumers n.
func selectsMessages(f consumer.Filter) *where {
	w := &where{}
	w.add("p.seq > ?", f.After)
	if f.Consumer != "" {
		w.add("n.name = ?", []byte(f.Consumer))
	}
	if len(f.IDs) > 0 {
		w.add("p.dispatch_id IN " + hexes(f.IDs))
	}
	texts(w, "p.state", f.States)
	if f.Topic != "" {
		w.add("p.topic = ?", []byte(f.Topic))
	}
	if f.Key != "" {
		w.add("p.message_key = ?", []byte(f.Key))
	}
	w.parked(f.Error, f.Since, f.Until)
	return w
}

// ListParkedMessages reads parked messages.
func (s *Store) ListParkedMessages(ctx context.Context, f consumer.Filter) ([]consumer.ParkedMessage, error) {
	w := selectsMessages(f)
	var list []consumer.ParkedMessage
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var m parkedMessage
		err := m.scan(rows)
		list = append(list, m.ParkedMessage)
		return err
	}, `SELECT `+parkedColumns+` FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE `+w.String()+` ORDER BY p.seq LIMIT ?`, append(w.args, limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("list parked messages: %w", &ownError{err})
	}
	return list, nil
}

// messageChoice is a parked message that an operator's filter has selected.
type messageChoice struct {
	seq int64
	id  uuid.UUID
	place
}

// chooseMessages selects parked messages, locks their keys and then their rows, and returns those that are still
// as the filter wants them. Within tx nothing else changes them.
func (s *Store) chooseMessages(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]messageChoice, error) {
	found, err := s.chosenMessages(ctx, tx, w, limitOf(limit))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	keys := make(map[int][]string) // by consumer
	seqs := make([]int64, len(found))
	for i, c := range found {
		seqs[i] = c.seq
		keys[c.consumer] = append(keys[c.consumer], c.keys()...)
	}
	for consumerID, list := range keys {
		if err := s.lockMessageKeys(ctx, tx, consumerID, list...); err != nil {
			return nil, err
		}
	}
	// The rows, without the one of their consumer, which handlers may be reading.
	_, err = s.ids(ctx, tx, `SELECT seq FROM {inbox_parked} FORCE INDEX (PRIMARY) WHERE seq IN `+numbers(seqs)+` ORDER BY seq FOR UPDATE`)
	if err != nil {
		return nil, err
	}
	return s.chosenMessages(ctx, tx, w.with("p.seq IN "+numbers(seqs)), len(seqs))
}

func (s *Store) chosenMessages(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]messageChoice, error) {
	var list []messageChoice
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		var c messageChoice
		var id sql.RawBytes
		if err := rows.Scan(&c.seq, &c.consumer, &id, &c.key, &c.ordered); err != nil {
			return err
		}
		copy(c.id[:], id)
		list = append(list, c)
		return nil
	}, `SELECT p.seq, p.consumer, p.dispatch_id, p.message_key, p.ordered
		FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE `+w.String()+` ORDER BY p.seq LIMIT ?`, append(slices.Clone(w.args), limit)...)
	return list, err
}

// RedriveMessages makes messages retrying and due that wait for an operator.
func (s *Store) RedriveMessages(ctx context.Context, f consumer.Filter) ([]uuid.UUID, error) {
	w := selectsMessages(f)
	w.add("(p.state IN ('dead', 'too_old') OR p.state = 'altered' AND ?)", f.Force)
	ids, err := s.settle(ctx, w, f.Limit, func(ctx context.Context, tx *sql.Tx, c messageChoice) error {
		// forced first: MySQL assigns from left to right, and a later assignment sees the new state.
		_, err := s.exec(ctx, tx, `UPDATE {inbox_parked} SET forced = (forced = 1 OR state = 'altered'), state = 'retrying', attempts = 0,
			next_attempt_at = {now} WHERE seq = ?`, c.seq)
		if err != nil {
			return err
		}
		return s.note(ctx, tx, c.consumer, c.id, "redriven", "")
	})
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	return ids, nil
}

// DiscardMessages gives up parked messages. Followers that are left without a
// head get one.
func (s *Store) DiscardMessages(ctx context.Context, f consumer.Filter, reason string) ([]uuid.UUID, error) {
	w := selectsMessages(f)
	w.add("p.state <> 'discarded'")
	ids, err := s.settle(ctx, w, f.Limit, func(ctx context.Context, tx *sql.Tx, c messageChoice) error {
		_, err := s.exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'discarded', reason = ?, next_attempt_at = NULL, discarded_at = {now}
			WHERE seq = ?`, []byte(reason), c.seq)
		if err == nil {
			err = s.note(ctx, tx, c.consumer, c.id, "discarded", reason)
		}
		if err != nil || len(c.keys()) == 0 {
			return err
		}
		first, err := s.ids(ctx, tx, `SELECT seq FROM {inbox_parked} WHERE consumer = ? AND live = 1 AND message_key = ? ORDER BY seq LIMIT 1`,
			c.consumer, []byte(c.key))
		if err != nil || len(first) == 0 {
			return err
		}
		_, err = s.exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE seq = ? AND state = 'following'`, first[0])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return ids, nil
}

// settle does what an operator wants with the messages of w, and forgets their
// attempts and starts.
func (s *Store) settle(ctx context.Context, w *where, limit int, do func(context.Context, *sql.Tx, messageChoice) error) ([]uuid.UUID, error) {
	var ids []uuid.UUID
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids = nil
		chosen, err := s.chooseMessages(ctx, tx, w, limit)
		if err != nil {
			return err
		}
		for _, c := range chosen {
			if err := do(ctx, tx, c); err != nil {
				return err
			}
			if err := s.forgetAttempts(ctx, tx, c.consumer, c.id); err != nil {
				return err
			}
			ids = append(ids, c.id)
		}
		return nil
	})
	if err != nil {
		return nil, &ownError{err}
	}
	return ids, nil
}
