package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/consumer"
)

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

// park writes a row, unless there is one of the same message.
func (s *Store) park(ctx context.Context, tx *sql.Tx, r parkedRow) (int64, error) {
	at := now()
	var stamp, next sql.NullInt64
	if !r.message.Stamp.IsZero() {
		stamp = sql.NullInt64{Int64: r.message.Stamp.UnixMicro(), Valid: true}
	}
	if r.state == consumer.Retrying {
		next = due(at, r.retryIn)
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

// parkClaimed writes the row of a message that has just been claimed. If it was set aside before,
// without a claim, it takes its place among the parked ones anew.
func (s *Store) parkClaimed(ctx context.Context, tx *sql.Tx, r parkedRow) error {
	r.claimed = true
	_, err := s.exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE consumer = ? AND dispatch_id = ? AND digest = ? AND NOT claimed`,
		r.consumer, r.message.ID[:], r.message.Digest[:])
	if err != nil {
		return err
	}
	n, err := s.park(ctx, tx, r)
	if err == nil && n == 0 {
		return errors.New("a parked message has lost its claim")
	}
	return err
}

// due returns when a message is due, in the unit of columns.
func due(at int64, in time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: at + micros(max(0, in)), Valid: true}
}

// ParkMessage keeps a message.
func (s *Store) ParkMessage(ctx context.Context, p consumer.Parking) (consumer.Verdict, error) {
	if p.Message == nil {
		return consumer.None, errors.New("park: there is no message")
	}
	row := parkedRow{
		consumer: p.Consumer, message: p.Message, key: p.Message.Key, ordered: p.Ordered && p.Message.Key != "", state: p.State,
		attempts: p.Attempts, retryIn: p.RetryIn, lastError: p.LastError,
	}
	verdict := consumer.Applied
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		switch row.state {
		case consumer.Retrying, consumer.Dead:
			verdict, err = s.claimAndPark(ctx, tx, row)
		case consumer.TooOldState, consumer.AlteredState:
			verdict, err = s.setAside(ctx, tx, row)
		default:
			return fmt.Errorf("%q is not a state to park in", row.state)
		}
		if err == nil && verdict != consumer.Applied {
			return errNothing
		}
		return err
	})
	switch {
	case errors.Is(err, errNothing):
	case err != nil:
		return consumer.None, fmt.Errorf("park: %w", &ownError{err})
	}
	return verdict, nil
}

// claimAndPark claims and parks a message. Meanwhile another copy may have been applied and
// forgotten, or other content claimed. Then the message is still one to keep.
func (s *Store) claimAndPark(ctx context.Context, tx *sql.Tx, row parkedRow) (consumer.Verdict, error) {
	m := row.message
	c := consumer.Claim{Consumer: row.consumer, ID: m.ID, Digest: m.Digest}
	verdict, _, err := s.insertClaim(ctx, tx, &c, stampOr(m.Stamp, now()), sql.NullInt64{})
	if err != nil {
		return consumer.None, err
	}
	switch verdict {
	case consumer.Applied:
		if err := s.parkClaimed(ctx, tx, row); err != nil {
			return consumer.None, err
		}
		return verdict, s.noteRetry(ctx, tx, row.consumer, m.ID, false, row.state == consumer.Dead && row.attempts == 0, row.lastError)
	case consumer.TooOld:
		// The claim was made before the time that is forgotten was looked at.
		if err := s.unclaim(ctx, tx, &c); err != nil {
			return consumer.None, err
		}
		row.state = consumer.TooOldState
		return s.setAside(ctx, tx, row)
	case consumer.Altered:
		row.state = consumer.AlteredState
		return s.setAside(ctx, tx, row)
	}
	return verdict, nil
}

// unclaim takes back a claim that was just made.
func (s *Store) unclaim(ctx context.Context, tx *sql.Tx, c *consumer.Claim) error {
	_, err := s.exec(ctx, tx, `DELETE FROM {inbox} WHERE consumer = ? AND dispatch_id = ?`, c.Consumer, c.ID[:])
	return err
}

// setAside keeps a message without a claim, once.
func (s *Store) setAside(ctx context.Context, tx *sql.Tx, row parkedRow) (consumer.Verdict, error) {
	n, err := s.park(ctx, tx, row)
	switch {
	case err != nil:
		return consumer.None, err
	case n == 0:
		return consumer.Duplicate, nil
	}
	return consumer.Applied, nil
}
