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

// parkedRow is a message to be parked.
type parkedRow struct {
	consumer  int
	message   *consumer.Message
	key       string
	ordered   bool
	claimed   bool
	state     consumer.State
	attempts  int
	retryIn   time.Duration
	lastError string
}

// park writes a row. One that is there already, of a message without a claim that was
// parked before, is left alone.
func (s *Store) park(ctx context.Context, tx *sql.Tx, r parkedRow) (int64, error) {
	at := now()
	var stamp, next sql.NullInt64
	if !r.message.Stamp.IsZero() {
		stamp = sql.NullInt64{Int64: r.message.Stamp.UnixMicro(), Valid: true}
	}
	if r.state == consumer.Retrying {
		next = sql.NullInt64{Int64: at + micros(r.retryIn), Valid: true}
	}
	payload := r.message.Payload
	if payload == nil {
		payload = []byte{}
	}
	return s.exec(ctx, tx, `
		INSERT INTO {inbox_parked} (consumer, dispatch_id, digest, topic, key, ordered, claimed, stamp, metadata, payload,
		                            state, attempts, next_attempt_at, parked_at, last_error)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT (consumer, dispatch_id, digest) DO NOTHING`,
		r.consumer, r.message.ID[:], r.message.Digest[:], r.message.Topic, r.key, r.ordered, r.claimed, stamp,
		encodeMetadata(r.message.Metadata), payload, r.state, r.attempts, next, at, r.lastError)
}

// ParkMessage keeps a message.
func (s *Store) ParkMessage(ctx context.Context, p consumer.Parking) (consumer.Verdict, error) {
	if p.Message == nil {
		return consumer.None, errors.New("park: message is nil")
	}
	row := parkedRow{
		consumer: p.Consumer, message: p.Message, key: p.Message.Key, ordered: p.Ordered, state: p.State,
		attempts: p.Attempts, retryIn: p.RetryIn, lastError: p.LastError,
		claimed: p.State == consumer.Retrying || p.State == consumer.Dead,
	}
	verdict := consumer.Applied
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if row.claimed {
			n, err := s.exec(ctx, tx, claimStmt, p.Consumer, p.Message.ID[:], p.Message.Digest[:], stampOr(p.Message.Stamp, now()), nil)
			if err != nil {
				return err
			}
			if n == 0 {
				verdict = consumer.Duplicate
				return errNothing
			}
		}
		n, err := s.park(ctx, tx, row)
		if err == nil && n == 0 && row.claimed {
			return errors.New("a message without a claim is parked under the same ID and digest")
		}
		return err
	})
	if err != nil && !errors.Is(err, errNothing) {
		return consumer.None, fmt.Errorf("park: %w", &ownError{err})
	}
	return verdict, nil
}

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
p.state, p.attempts, p.parked_at, p.next_attempt_at, p.last_error, p.reason, p.ordered, p.claimed`

func scanParked(rows *sql.Rows) (m consumer.ParkedMessage, ordered, claimed bool, err error) {
	var id, digest, metadata, payload sql.RawBytes
	var stamp, next sql.NullInt64
	var parked int64
	err = rows.Scan(&m.Seq, &m.Consumer, &id, &digest, &m.Topic, &m.Key, &stamp, &metadata, &payload,
		&m.State, &m.Attempts, &parked, &next, &m.LastError, &m.Reason, &ordered, &claimed)
	if err != nil {
		return m, false, false, err
	}
	if m.ID, err = uuid.FromBytes(id); err != nil {
		return m, false, false, fmt.Errorf("parked message %d: dispatch ID: %w", m.Seq, err)
	}
	if m.Metadata, err = decodeMetadata(metadata); err != nil {
		return m, false, false, fmt.Errorf("parked message %d: %w", m.Seq, err)
	}
	m.Digest, m.Payload = digestOf(digest), slices.Clone([]byte(payload))
	m.Stamp, m.ParkedAt, m.NextAttemptAt = optional(stamp), instant(parked), optional(next)
	return m, ordered, claimed, nil
}

// ApplyParked runs fn for a parked message. No other process has it locked: it
// would have the whole database locked.
func (s *Store) ApplyParked(ctx context.Context, c consumer.Claim, seq int64,
	fn func(ctx context.Context, tx *sql.Tx, m *consumer.ParkedMessage) error,
) (bool, error) {
	err := s.transact(ctx, s.limits(&c), func(ctx context.Context, tx *sql.Tx) error {
		m, ordered, claimed, err := s.take(ctx, tx, c.Consumer, seq)
		if err != nil {
			return err
		}
		if err := fn(ctx, tx, m); err != nil {
			return err
		}
		if err := s.applied(context.WithoutCancel(ctx), tx, c.Consumer, m, ordered, claimed); err != nil {
			return fmt.Errorf("remove parked message: %w", &ownError{err})
		}
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// take reads a parked message that may run now, or gives errNothing.
func (s *Store) take(ctx context.Context, tx *sql.Tx, consumerID int, seq int64) (m *consumer.ParkedMessage, ordered, claimed bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, false, err
	}
	err = s.each(context.WithoutCancel(ctx), tx, func(rows *sql.Rows) (err error) {
		m = &consumer.ParkedMessage{}
		*m, ordered, claimed, err = scanParked(rows)
		return err
	}, `SELECT `+parkedColumns+` FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
		WHERE p.seq = ? AND p.consumer = ? AND p.state = 'retrying' AND p.next_attempt_at <= ? AND `+isFirst,
		seq, consumerID, now())
	if err != nil {
		return nil, false, false, fmt.Errorf("read parked message: %w", &ownError{err})
	}
	if m == nil {
		return nil, false, false, errNothing
	}
	return m, ordered, claimed, nil
}

// applied removes a parked message, turns its claim into that of an applied one, the
// newest, and lets the next of its key run.
func (s *Store) applied(ctx context.Context, tx *sql.Tx, consumerID int, m *consumer.ParkedMessage, ordered, claimed bool) error {
	if _, err := s.exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE seq = ?`, m.Seq); err != nil {
		return err
	}
	if claimed {
		_, err := s.exec(ctx, tx, `UPDATE {inbox} SET applied_at = ?, seq = (SELECT max(seq) + 1 FROM {inbox})
			WHERE consumer = ? AND dispatch_id = ?`, now(), consumerID, m.ID[:])
		if err != nil {
			return err
		}
	}
	if err := s.forgetAttempts(ctx, tx, consumerID, m.ID); err != nil {
		return err
	}
	return s.promoteMessage(ctx, tx, consumerID, m.Key, ordered)
}

// promoteMessage makes the next live message of a key retrying and due.
func (s *Store) promoteMessage(ctx context.Context, tx *sql.Tx, consumerID int, key string, ordered bool) error {
	if !ordered || key == "" {
		return nil // nobody waits
	}
	_, err := s.exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'retrying', next_attempt_at = ?
		WHERE seq = (SELECT min(seq) FROM {inbox_parked}
		             WHERE consumer = ? AND key = ? AND ordered AND state IN ('retrying', 'following'))`, now(), consumerID, key)
	return err
}

// RetryMessage counts a failed attempt of a parked message. One that is not
// retrying any more is left alone.
func (s *Store) RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error {
	state, next := consumer.Retrying, sql.NullInt64{Int64: now() + micros(retryIn), Valid: true}
	if dead {
		state, next = consumer.Dead, sql.NullInt64{}
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var consumerID int
		var id []byte
		var key string
		var ordered bool
		err := s.one(ctx, tx, []any{&consumerID, &id, &key, &ordered}, `
			UPDATE {inbox_parked} SET state = ?, attempts = ?, next_attempt_at = ?, last_error = ?
			WHERE seq = ? AND state = 'retrying' RETURNING consumer, dispatch_id, key, ordered`, state, attempts, next, lastError, seq)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		if err := s.forgetStarts(ctx, tx, consumerID, id); err != nil || !dead {
			return err
		}
		return s.promoteMessage(ctx, tx, consumerID, key, ordered)
	})
	if err != nil {
		return fmt.Errorf("retry parked message: %w", &ownError{err})
	}
	return nil
}

func (s *Store) forgetStarts(ctx context.Context, tx *sql.Tx, consumerID int, id []byte) error {
	_, err := s.exec(ctx, tx, `UPDATE {inbox_attempts} SET starts = 0, updated_at = ? WHERE consumer = ? AND dispatch_id = ?`,
		now(), consumerID, id)
	return err
}
