package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

// isFirst holds for a parked message p that no earlier live one of its key
// stands in front of.
const isFirst = `(NOT p.ordered OR p.key = '' OR NOT EXISTS (
	SELECT 1 FROM {inbox_parked} h
	WHERE h.consumer = p.consumer AND h.key = p.key AND h.seq < p.seq AND h.ordered AND h.state IN ('retrying', 'following')))`

// DueMessages names messages that are due.
func (s *Store) DueMessages(ctx context.Context, consumerID, limit int) (seqs []int64, next time.Duration, err error) {
	err = s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		at := now()
		err := s.each(ctx, tx, func(rows *sql.Rows) error {
			var seq int64
			err := rows.Scan(&seq)
			seqs = append(seqs, seq)
			return err
		}, `SELECT p.seq FROM {inbox_parked} p
			WHERE p.consumer = ? AND p.state = 'retrying' AND p.next_attempt_at <= ? AND `+isFirst+`
			ORDER BY p.next_attempt_at, p.seq LIMIT ?`, consumerID, at, limit)
		if err != nil {
			return err
		}
		var then int64
		err = s.one(ctx, tx, []any{&then}, `SELECT p.next_attempt_at FROM {inbox_parked} p
			WHERE p.consumer = ? AND p.state = 'retrying' AND p.next_attempt_at > ? AND `+isFirst+`
			ORDER BY p.next_attempt_at LIMIT 1`, consumerID, at)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		next = time.Duration(then-at) * time.Microsecond
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("read due messages: %w", &ownError{err})
	}
	return seqs, next, nil
}

// parkedColumns are the columns of a parked message, as scanParked takes them.
const parkedColumns = `p.seq, n.name, p.dispatch_id, p.digest, p.topic, p.key, p.stamp, p.metadata, p.payload,
p.state, p.attempts, p.parked_at, p.next_attempt_at, p.last_error, p.reason, p.consumer, p.ordered, p.claimed, p.forced`

// parkedMessage is a parked message with what only the store knows of it.
type parkedMessage struct {
	consumer.ParkedMessage
	place
	claimed, forced bool
}

// place is where the messages behind a parked one are found.
type place struct {
	consumer int
	key      string
	ordered  bool
}

func (m *parkedMessage) scan(rows *sql.Rows) error {
	var id, digest, metadata, payload sql.RawBytes
	var stamp, next sql.NullInt64
	var parked int64
	err := rows.Scan(&m.Seq, &m.Consumer, &id, &digest, &m.Topic, &m.Key, &stamp, &metadata, &payload,
		&m.State, &m.Attempts, &parked, &next, &m.LastError, &m.Reason, &m.consumer, &m.ordered, &m.claimed, &m.forced)
	if err != nil {
		return err
	}
	if m.ID, err = uuid.FromBytes(id); err != nil {
		return fmt.Errorf("parked message %d: dispatch ID: %w", m.Seq, err)
	}
	if m.Metadata, err = decodeMetadata(metadata); err != nil {
		return fmt.Errorf("parked message %d: %w", m.Seq, err)
	}
	m.Digest, m.Payload, m.key = digestOf(digest), slices.Clone([]byte(payload)), m.Key
	m.Stamp, m.ParkedAt, m.NextAttemptAt = optional(stamp), instant(parked), optional(next)
	return nil
}

// ApplyParked runs fn for a parked message. No other process has it locked: it
// would have the whole database locked. Of messages without a claim, one that was too old
// runs if nobody has applied it since, and an altered one that was forced runs without
// a claim; others are settled without running.
func (s *Store) ApplyParked(ctx context.Context, c consumer.Claim, seq int64,
	fn func(ctx context.Context, tx *sql.Tx, m *consumer.ParkedMessage) error,
) (bool, error) {
	ran := false
	err := s.transact(ctx, s.limits(&c), func(ctx context.Context, tx *sql.Tx) error {
		m, run, err := s.take(ctx, tx, c.Consumer, seq)
		if err != nil || !run {
			return err
		}
		if err := fn(ctx, tx, &m.ParkedMessage); err != nil {
			return err
		}
		ran = true
		if err := s.remove(context.WithoutCancel(ctx), tx, m); err != nil {
			return fmt.Errorf("remove parked message: %w", &ownError{err})
		}
		return s.noteApplied(ctx, tx, m.consumer, m.ID)
	})
	switch {
	case errors.Is(err, errNothing):
		return false, nil
	case err != nil:
		return false, err
	}
	return ran, nil
}

// take reads a parked message and tells whether it is to run. If it is not there any
// more, or not to run yet, it gives errNothing.
func (s *Store) take(ctx context.Context, tx *sql.Tx, consumerID int, seq int64) (m *parkedMessage, run bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	ctx = context.WithoutCancel(ctx)
	err = s.each(ctx, tx, func(rows *sql.Rows) error {
		m = &parkedMessage{}
		return m.scan(rows)
	}, `SELECT `+parkedColumns+` FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE p.seq = ? AND p.consumer = ? AND p.state = 'retrying' AND p.next_attempt_at <= ? AND `+isFirst,
		seq, consumerID, now())
	switch {
	case err != nil:
		return nil, false, fmt.Errorf("read parked message: %w", &ownError{err})
	case m == nil:
		return nil, false, errNothing
	case m.claimed:
		return m, true, nil
	}
	if run, err = s.claimParked(ctx, tx, m); err != nil {
		return nil, false, fmt.Errorf("claim parked message: %w", &ownError{err})
	}
	return m, run, nil
}

// claimParked claims a message that was set aside without a claim, and tells whether it
// is to run. Its dispatch ID is remembered from now on, not from its stamp, which is
// forgotten already.
func (s *Store) claimParked(ctx context.Context, tx *sql.Tx, m *parkedMessage) (run bool, err error) {
	at := now()
	n, err := s.exec(ctx, tx, claimStmt, m.consumer, m.ID[:], m.Digest[:], at, at)
	if err != nil || n > 0 {
		return err == nil, err
	}
	verdict, err := s.compare(ctx, tx, m.consumer, m.ID, m.Digest)
	switch {
	case err != nil:
		return false, err
	case verdict != consumer.Altered:
		return false, s.remove(ctx, tx, m)
	case m.forced:
		return true, nil
	}
	// It was redriven as too old.
	_, err = s.exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'altered', next_attempt_at = NULL WHERE seq = ?`, m.Seq)
	if err != nil {
		return false, err
	}
	return false, s.promoteMessage(ctx, tx, m.place, m.Seq)
}

// remove removes a parked message, turns its claim into that of an applied one, the
// newest, and lets the next of its key run.
func (s *Store) remove(ctx context.Context, tx *sql.Tx, m *parkedMessage) error {
	if _, err := s.exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE seq = ?`, m.Seq); err != nil {
		return err
	}
	if m.claimed {
		_, err := s.exec(ctx, tx, `UPDATE {inbox} SET applied_at = ?, seq = (SELECT max(seq) + 1 FROM {inbox})
			WHERE consumer = ? AND dispatch_id = ?`, now(), m.consumer, m.ID[:])
		if err != nil {
			return err
		}
	}
	if err := s.forgetAttempts(ctx, tx, m.consumer, m.ID); err != nil {
		return err
	}
	return s.promoteMessage(ctx, tx, m.place, m.Seq)
}

// promoteMessage makes the first live message of a key retrying and due, if it
// comes after the one that is gone.
func (s *Store) promoteMessage(ctx context.Context, tx *sql.Tx, at place, gone int64) error {
	if !at.ordered || at.key == "" {
		return nil // nobody waits
	}
	_, err := s.exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'retrying', next_attempt_at = ?
		WHERE seq > ? AND seq = (SELECT min(seq) FROM {inbox_parked}
		                         WHERE consumer = ? AND key = ? AND ordered AND state IN ('retrying', 'following'))`,
		now(), gone, at.consumer, at.key)
	return err
}

// RetryMessage counts a failed attempt of a parked message. One that is not
// retrying any more is left alone.
func (s *Store) RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error {
	state, next := consumer.Retrying, due(now(), retryIn)
	if dead {
		state, next = consumer.Dead, sql.NullInt64{}
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var at place
		var id []byte
		was := 0
		err := s.one(ctx, tx, []any{&was}, `SELECT attempts FROM {inbox_parked} WHERE seq = ? AND state = 'retrying'`, seq)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		err = s.one(ctx, tx, []any{&at.consumer, &id, &at.key, &at.ordered}, `
			UPDATE {inbox_parked} SET state = ?, attempts = max(attempts, ?), next_attempt_at = ?, last_error = ?
			WHERE seq = ? AND state = 'retrying' RETURNING consumer, dispatch_id, key, ordered`, state, attempts, next, lastError, seq)
		if err != nil {
			return err
		}
		if err := s.noteRetry(ctx, tx, at.consumer, uuid.UUID(id), attempts > was, dead, lastError); err != nil {
			return err
		}
		if err := s.forgetAttempts(ctx, tx, at.consumer, uuid.UUID(id)); err != nil || !dead {
			return err
		}
		return s.promoteMessage(ctx, tx, at, seq)
	})
	if err != nil {
		return fmt.Errorf("retry parked message: %w", &ownError{err})
	}
	return nil
}
