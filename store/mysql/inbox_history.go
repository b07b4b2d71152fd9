package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

// note adds to the history of a message.
func (s *Store) note(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID, outcome, text string) error {
	_, err := s.exec(ctx, tx, `INSERT INTO {inbox_history} (consumer, dispatch_id, at, outcome, error) VALUES (?, ?, {now}, ?, ?)`,
		consumerID, id[:], outcome, []byte(text))
	if err != nil {
		return fmt.Errorf("note what became of a message: %w", &ownError{err})
	}
	return nil
}

// noteRetry notes a counted attempt, or that a message is dead without one.
func (s *Store) noteRetry(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID, counted, dead bool, text string) error {
	switch {
	case counted:
		return s.note(ctx, tx, consumerID, id, "failed", text)
	case dead:
		return s.note(ctx, tx, consumerID, id, "dead", text)
	}
	return nil
}

// MessageAttempts reads the history of a message.
func (s *Store) MessageAttempts(ctx context.Context, name string, id uuid.UUID, limit int) ([]consumer.MessageAttempt, error) {
	var list []consumer.MessageAttempt
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var a consumer.MessageAttempt
		var at int64
		err := rows.Scan(&at, &a.Consumer, &a.Outcome, &a.Error)
		a.At = instant(at)
		list = append(list, a)
		return err
	}, `SELECT h.at, c.name, h.outcome, h.error FROM {inbox_history} h JOIN {inbox_consumers} c ON c.id = h.consumer
		WHERE h.dispatch_id = ? AND (? = '' OR c.name = ?) ORDER BY h.id LIMIT ?`, id[:], []byte(name), []byte(name), limit)
	if err != nil {
		return nil, fmt.Errorf("read the attempts of a message: %w", &ownError{err})
	}
	return list, nil
}

// ForgetHistory removes old entries, the oldest first.
func (s *Store) ForgetHistory(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	var removed int64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		removed, err = s.exec(ctx, tx, `DELETE FROM {inbox_history} WHERE consumer = ? AND at < {now} - ? ORDER BY at LIMIT ?`,
			consumerID, micros(age), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget old attempts: %w", &ownError{err})
	}
	return int(removed), nil
}
