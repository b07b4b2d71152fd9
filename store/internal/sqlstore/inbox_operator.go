package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// selectsMessages returns the conditions of f on parked messages p with their consumers n.
func selectsMessages(f inbox.Filter) *where {
	w := &where{}
	w.add("p.seq > ?", f.After)
	w.text("n.name", f.Consumer)
	w.ids("p.dispatch_id", f.IDs)
	w.text("p.topic", f.Topic)
	w.text("p.{message_key}", f.Key)
	w.parked(names(f.States), f.Error, f.Since, f.Until)
	return w
}

// ListParkedMessages implements [inbox.ParkedStore].
func (s *Store) ListParkedMessages(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error) {
	w := selectsMessages(f)
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (inbox.Parked, error) {
		m, err := scanParked(rows)
		return m.Parked, err
	}, `SELECT `+parkedColumns+` FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE `+w.String()+` ORDER BY p.seq LIMIT ?`, w.and(limitOf(f.Limit))...)
	if err != nil {
		return nil, fmt.Errorf("list parked messages: %w", &OwnError{err})
	}
	return list, nil
}

// messageChoice is a parked message that an operator's filter selects.
type messageChoice struct {
	seq int64
	id  uuid.UUID
	place
}

// chooseMessages selects parked messages, locks their keys and then their rows, and returns the
// messages that w still selects under the locks. No other transaction can change them before the
// end of tx.
func (s *Store) chooseMessages(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]messageChoice, error) {
	found, err := s.chosenMessages(ctx, tx, w, limitOf(limit))
	if err != nil || len(found) == 0 || !s.c.d.RowLocks {
		return found, err
	}
	keys := make(map[int][]string) // by consumer
	seqs := make([]int64, len(found))
	for i, c := range found {
		seqs[i] = c.seq
		keys[c.consumer] = append(keys[c.consumer], c.keys()...)
	}
	for consumerID, list := range keys {
		if err := s.c.d.LockKeys(ctx, tx, consumerID, list...); err != nil {
			return nil, err
		}
	}
	// Only the rows of the messages are locked: handlers may be reading the row of the consumer.
	_, err = s.c.IDs(ctx, tx, `SELECT seq FROM {inbox_parked} {by PRIMARY} WHERE seq IN ? ORDER BY seq {lock}`, seqs)
	if err != nil {
		return nil, err
	}
	return s.chosenMessages(ctx, tx, w.with("p.seq IN ?", seqs), len(seqs))
}

func (s *Store) chosenMessages(ctx context.Context, tx *sql.Tx, w *where, limit int) ([]messageChoice, error) {
	list, err := collect(ctx, s.c, tx, func(rows *sql.Rows) (c messageChoice, err error) {
		var id sql.RawBytes
		if err := rows.Scan(&c.seq, &c.consumer, &id, &c.key, &c.ordered); err != nil {
			return c, err
		}
		copy(c.id[:], id)
		return c, nil
	}, `SELECT p.seq, p.consumer, p.dispatch_id, p.{message_key}, p.ordered
		FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE `+w.String()+` ORDER BY p.seq LIMIT ?`, w.and(limit)...)
	return list, err
}

// RedriveMessages implements [inbox.ParkedStore]. Only the first live message of a key becomes
// retrying; later messages follow.
func (s *Store) RedriveMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	w := selectsMessages(f)
	// A filter without states and IDs skips retrying messages, which are tried again anyway.
	w.add("(p.state IN ('dead', 'too_old') OR p.state = 'altered' AND ? OR p.state = 'retrying' AND ? OR p.state = 'discarded' AND ?)",
		f.Force, len(f.States)+len(f.IDs) > 0, slices.Contains(f.States, inbox.Discarded))
	ids, err := s.settle(ctx, w, f.Limit, func(ctx context.Context, tx *sql.Tx, c messageChoice) error {
		// forced is set first: MySQL assigns from left to right, and later assignments see the new
		// state. A discarded message without a claim may have been altered: without f.Force, its run
		// compares it with the claim, and sets it aside again.
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_parked}
			SET forced = (forced = 1 OR state = 'altered' OR state = 'discarded' AND claimed = 0 AND ?), state = 'retrying', attempts = 0,
				next_attempt_at = {now}, reason = '', discarded_at = NULL WHERE seq = ?`, f.Force, c.seq)
		if err == nil {
			err = s.followFirst(ctx, tx, c)
		}
		if err != nil {
			return err
		}
		return s.c.note(ctx, tx, c.consumer, c.id, "redriven", reason)
	})
	if err != nil {
		return nil, fmt.Errorf("redrive: %w", err)
	}
	return ids, nil
}

// followFirst makes a message following if its key has an earlier live message.
func (s *Store) followFirst(ctx context.Context, tx *sql.Tx, c messageChoice) error {
	if len(c.keys()) == 0 {
		return nil
	}
	first, err := s.firstMessage(ctx, tx, c.place)
	if err != nil || first == c.seq {
		return err
	}
	_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'following', next_attempt_at = NULL WHERE seq = ?`, c.seq)
	return err
}

// DiscardMessages implements [inbox.ParkedStore].
func (s *Store) DiscardMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	w := selectsMessages(f)
	w.add("p.state <> 'discarded'")
	ids, err := s.settle(ctx, w, f.Limit, func(ctx context.Context, tx *sql.Tx, c messageChoice) error {
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'discarded', reason = ?, next_attempt_at = NULL, discarded_at = {now}
			WHERE seq = ?`, Text(reason), c.seq)
		if err == nil {
			err = s.c.note(ctx, tx, c.consumer, c.id, "discarded", reason)
		}
		if err != nil || len(c.keys()) == 0 {
			return err
		}
		first, err := s.firstMessage(ctx, tx, c.place)
		if err != nil || first == 0 {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE seq = ? AND state = 'following'`, first)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("discard: %w", err)
	}
	return ids, nil
}

// settle applies an operator's change to the messages that w selects, and removes their counted
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
			if err := s.c.ForgetAttempts(ctx, tx, c.consumer, c.id); err != nil {
				return err
			}
			ids = append(ids, c.id)
		}
		return nil
	})
	if err != nil {
		return nil, &OwnError{err}
	}
	return ids, nil
}
