package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// ParkedRow is a message to be parked.
type ParkedRow struct {
	// Consumer is the number of its consumer.
	Consumer int
	// Message is the message.
	Message *inbox.Message
	// Key is its key, and Ordered tells whether later ones of it have to wait.
	Key     string
	Ordered bool
	// State is what the message is in, after so many attempts, and with the error of the last.
	State     inbox.State
	Attempts  int
	LastError string
	// RetryIn is in which time a retrying message is due.
	RetryIn time.Duration

	claimed bool
}

// parkMessage writes a row, and tells whether there was none of the same message. One that is there
// is locked and keeps all but a number that changes nothing.
func (c *Core) parkMessage(ctx context.Context, tx *sql.Tx, r *ParkedRow) (fresh bool, err error) {
	var next sql.NullInt64
	if r.State == inbox.Retrying {
		next = in(r.RetryIn)
	}
	n, err := c.Exec(ctx, tx, `
		INSERT INTO {inbox_parked} (consumer, dispatch_id, digest, topic, {message_key}, ordered, claimed, stamp, metadata, payload,
		                            state, attempts, next_attempt_at, parked_at, last_error)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {now} + ?, {now}, ?)
		{once consumer, dispatch_id, digest}`,
		r.Consumer, r.Message.ID[:], r.Message.Digest[:], Text(r.Message.Topic), Text(r.Key), r.Ordered, r.claimed, Stamp(r.Message.Stamp),
		encodeMetadata(r.Message.Metadata), Bytes(r.Message.Payload), string(r.State), r.Attempts, next, Text(r.LastError))
	return n == 1, err
}

// Follow parks the message of a claim that was just made behind others of its key.
func (c *Core) Follow(ctx context.Context, tx *sql.Tx, claim *inbox.Claim) error {
	if claim.Message == nil {
		return errors.New("message has to follow another one of its key and was not given")
	}
	_, err := c.Exec(ctx, tx, `UPDATE {inbox} SET applied_at = NULL WHERE consumer = ? AND dispatch_id = ?`, claim.Consumer, claim.ID[:])
	if err != nil {
		return err
	}
	return c.parkClaimed(ctx, tx, &ParkedRow{
		Consumer: claim.Consumer, Message: claim.Message, Key: claim.Key, Ordered: true, State: inbox.Following,
	})
}

// Unclaim takes back a claim that was just made.
func (c *Core) Unclaim(ctx context.Context, tx *sql.Tx, claim *inbox.Claim) error {
	_, err := c.Exec(ctx, tx, `DELETE FROM {inbox} WHERE consumer = ? AND dispatch_id = ?`, claim.Consumer, claim.ID[:])
	return err
}

// parkClaimed writes the row of a message that has just been claimed. If it was set aside before,
// without a claim, it takes its place among the parked ones anew.
func (c *Core) parkClaimed(ctx context.Context, tx *sql.Tx, r *ParkedRow) error {
	r.claimed = true
	// Most messages were not: deleting what is not there would lock the gap where it would be,
	// above READ COMMITTED.
	aside, err := c.IDs(ctx, tx, `SELECT seq FROM {inbox_parked} WHERE consumer = ? AND dispatch_id = ? AND digest = ? AND claimed = 0`,
		r.Consumer, r.Message.ID[:], r.Message.Digest[:])
	if err != nil {
		return err
	}
	if len(aside) > 0 {
		if _, err := c.Exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE seq IN ?`, aside); err != nil {
			return err
		}
	}
	fresh, err := c.parkMessage(ctx, tx, r)
	if err == nil && !fresh {
		return errors.New("a parked message has lost its claim")
	}
	return err
}

// ParkMessage keeps a message.
func (s *Store) ParkMessage(ctx context.Context, p inbox.Parking) (inbox.Verdict, error) {
	if p.Message == nil {
		return inbox.None, errors.New("park: there is no message")
	}
	row := ParkedRow{
		Consumer: p.Consumer, Message: p.Message, Key: p.Message.Key, Ordered: p.Ordered && p.Message.Key != "", State: p.State,
		Attempts: p.Attempts, RetryIn: p.RetryIn, LastError: p.LastError,
	}
	verdict := inbox.Applied
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		row := row
		switch row.State {
		case inbox.Retrying, inbox.Dead:
			verdict, err = s.claimAndPark(ctx, tx, &row)
		case inbox.TooOldState, inbox.AlteredState:
			verdict, err = s.setAside(ctx, tx, &row)
		default:
			return fmt.Errorf("%q is not a state to park in", row.State)
		}
		if err == nil && verdict != inbox.Applied {
			return ErrNothing
		}
		return err
	})
	switch {
	case errors.Is(err, ErrNothing):
	case err != nil:
		return inbox.None, fmt.Errorf("park: %w", &OwnError{err})
	}
	return verdict, nil
}

// claimAndPark claims and parks a message. Meanwhile another copy may have been applied and
// forgotten, or other content claimed. Then the message is still one to keep. A live message of a
// key takes the key's lock, so that no newcomer can pass it unseen.
func (s *Store) claimAndPark(ctx context.Context, tx *sql.Tx, row *ParkedRow) (inbox.Verdict, error) {
	m := row.Message
	if row.Ordered && row.State == inbox.Retrying {
		if err := s.c.d.LockKeys(ctx, tx, row.Consumer, row.Key); err != nil {
			return inbox.None, err
		}
	}
	c := inbox.Claim{Consumer: row.Consumer, ID: m.ID, Digest: m.Digest, Stamp: m.Stamp}
	verdict, err := s.c.d.ClaimToPark(ctx, tx, &c)
	if err != nil {
		return inbox.None, err
	}
	switch verdict {
	case inbox.Applied:
		if err := s.c.parkClaimed(ctx, tx, row); err != nil {
			return inbox.None, err
		}
		return verdict, s.c.noteRetry(ctx, tx, row.Consumer, m.ID, false, row.State == inbox.Dead && row.Attempts == 0, row.LastError)
	case inbox.TooOld:
		// The claim was made before the time that is forgotten was looked at.
		if err := s.c.Unclaim(ctx, tx, &c); err != nil {
			return inbox.None, err
		}
		row.State = inbox.TooOldState
		return s.setAside(ctx, tx, row)
	case inbox.Altered:
		row.State = inbox.AlteredState
		return s.setAside(ctx, tx, row)
	}
	return verdict, nil
}

// setAside keeps a message without a claim, once.
func (s *Store) setAside(ctx context.Context, tx *sql.Tx, row *ParkedRow) (inbox.Verdict, error) {
	fresh, err := s.c.parkMessage(ctx, tx, row)
	switch {
	case err != nil:
		return inbox.None, err
	case !fresh:
		return inbox.Duplicate, nil
	}
	return inbox.Applied, nil
}
