package mysql

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

// parkMessage writes a row, and tells whether there was none of the same message. One that is there is
// locked and keeps all but a number that changes nothing.
func (s *Store) parkMessage(ctx context.Context, tx *sql.Tx, r parkedRow) (fresh bool, err error) {
	var next sql.NullInt64
	if r.state == consumer.Retrying {
		next = due(r.retryIn)
	}
	payload := r.message.Payload
	if payload == nil {
		payload = []byte{}
	}
	n, err := s.exec(ctx, tx, `
		INSERT INTO {inbox_parked} (consumer, dispatch_id, digest, topic, message_key, ordered, claimed, stamp, metadata, payload,
		                            state, attempts, next_attempt_at, parked_at, last_error)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now} + ?, {now}, ?)
		ON DUPLICATE KEY UPDATE copies = copies + 1`,
		r.consumer, r.message.ID[:], r.message.Digest[:], []byte(r.message.Topic), []byte(r.key), r.ordered, r.claimed, stampOf(r.message.Stamp),
		encodeMetadata(r.message.Metadata), payload, string(r.state), r.attempts, next, []byte(r.lastError))
	return n == 1, err
}

// parkClaimed writes the row of a message that has just been claimed. If it was set aside before,
// without a claim, it takes its place among the parked ones anew.
func (s *Store) parkClaimed(ctx context.Context, tx *sql.Tx, r parkedRow) error {
	r.claimed = true
	// Most messages were not: deleting what is not there would lock the gap where it would be, above READ COMMITTED.
	aside, err := s.ids(ctx, tx, `SELECT seq FROM {inbox_parked} WHERE consumer = ? AND dispatch_id = ? AND digest = ? AND claimed = 0`,
		r.consumer, r.message.ID[:], r.message.Digest[:])
	if err != nil {
		return err
	}
	if len(aside) > 0 {
		if _, err := s.exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE seq IN `+numbers(aside)); err != nil {
			return err
		}
	}
	fresh, err := s.parkMessage(ctx, tx, r)
	if err == nil && !fresh {
		return errors.New("a parked message has lost its claim")
	}
	return err
}

// ParkMessage keeps a message. A live message of a key takes the key's lock, so that no newcomer can
// pass it unseen.
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
	if row.ordered && row.state == consumer.Retrying {
		if err := s.lockMessageKeys(ctx, tx, row.consumer, row.key); err != nil {
			return consumer.None, err
		}
	}
	c := consumer.Claim{Consumer: row.consumer, ID: m.ID, Digest: m.Digest, Stamp: m.Stamp}
	verdicts, err := s.insertClaims(ctx, tx, []consumer.Claim{c}, false)
	if err != nil {
		return consumer.None, err
	}
	switch verdicts[0] {
	case consumer.Applied:
		if err := s.parkClaimed(ctx, tx, row); err != nil {
			return consumer.None, err
		}
		return consumer.Applied, s.noteRetry(ctx, tx, row.consumer, m.ID, false, row.state == consumer.Dead && row.attempts == 0, row.lastError)
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
	return verdicts[0], nil
}

// unclaim takes back a claim that was just made.
func (s *Store) unclaim(ctx context.Context, tx *sql.Tx, c *consumer.Claim) error {
	_, err := s.exec(ctx, tx, `DELETE FROM {inbox} WHERE consumer = ? AND dispatch_id = ?`, c.Consumer, c.ID[:])
	return err
}

// setAside keeps a message without a claim, once.
func (s *Store) setAside(ctx context.Context, tx *sql.Tx, row parkedRow) (consumer.Verdict, error) {
	fresh, err := s.parkMessage(ctx, tx, row)
	switch {
	case err != nil:
		return consumer.None, err
	case !fresh:
		return consumer.Duplicate, nil
	}
	return consumer.Applied, nil
}
