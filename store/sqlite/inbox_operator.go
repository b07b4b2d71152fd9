package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

// selectsMessages returns the conditions of f on parked messages p with their consumers n.
func selectsMessages(f consumer.Filter) *where {
	w := &where{}
	w.add("p.seq > ?", f.After)
	if f.Consumer != "" {
		w.add("n.name = ?", f.Consumer)
	}
	if len(f.IDs) > 0 {
		w.add("p.dispatch_id IN (SELECT unhex(value) FROM json_each(?))", idArray(f.IDs))
	}
	if len(f.States) > 0 {
		w.add("p.state IN (SELECT value FROM json_each(?))", jsonArray(f.States))
	}
	if f.Topic != "" {
		w.add("p.topic = ?", f.Topic)
	}
	if f.Key != "" {
		w.add("p.key = ?", f.Key)
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

func (s *Store) chooseMessages(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]messageChoice, error) {
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
	}, `SELECT p.seq, p.consumer, p.dispatch_id, p.key, p.ordered
		FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE `+w.String()+` ORDER BY p.seq LIMIT ?`, append(w.args, limitOf(limit))...)
	return list, err
}

// RedriveMessages makes messages retrying and due that wait for an operator.
func (s *Store) RedriveMessages(ctx context.Context, f consumer.Filter) ([]uuid.UUID, error) {
	w := selectsMessages(f)
	w.add("(p.state IN ('dead', 'too_old') OR p.state = 'altered' AND ?)", f.Force)
	ids, err := s.settle(ctx, w, f.Limit, func(ctx context.Context, tx *sql.Tx, c messageChoice) error {
		_, err := s.exec(ctx, tx, `UPDATE {inbox_parked} SET forced = forced OR state = 'altered', state = 'retrying', attempts = 0,
			next_attempt_at = ? WHERE seq = ?`, now(), c.seq)
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
		_, err := s.exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'discarded', reason = ?, next_attempt_at = NULL, discarded_at = ?
			WHERE seq = ?`, reason, now(), c.seq)
		if err == nil {
			err = s.note(ctx, tx, c.consumer, c.id, "discarded", reason)
		}
		if err != nil || !c.ordered || c.key == "" {
			return err
		}
		_, err = s.exec(ctx, tx, `UPDATE {inbox_parked} AS p SET state = 'retrying', next_attempt_at = ?
			WHERE p.consumer = ? AND p.key = ? AND p.ordered AND p.state IN ('retrying', 'following')
			  AND p.state = 'following' AND `+isFirst, now(), c.consumer, c.key)
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
