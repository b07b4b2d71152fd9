package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// ParkedRow is a message to park.
type ParkedRow struct {
	// Consumer is the ID of the consumer.
	Consumer int
	// Message is the message.
	Message *inbox.Message
	// Key is the key of the message. Ordered tells whether later messages of the key wait.
	Key     string
	Ordered bool
	// State, Attempts and LastError describe the message after its last attempt.
	State     inbox.State
	Attempts  int
	LastError string
	// RetryIn is how long from now a retrying message is due.
	RetryIn time.Duration

	claimed, fresh bool
}

// parkMessage inserts a row, and tells whether the row is new. An existing row of the message is
// locked and keeps its contents, except for a counter without meaning.
func (c *Core) parkMessage(ctx context.Context, tx *sql.Tx, r *ParkedRow) (fresh bool, err error) {
	var next sql.NullInt64
	if r.State == inbox.Retrying {
		next = dueIn(r.RetryIn)
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

// Follow parks a message, which was just claimed, behind other messages of its key.
func (c *Core) Follow(ctx context.Context, tx *sql.Tx, claim *inbox.Claim) error {
	if claim.Message == nil {
		return errors.New("claim of a following message has no Message")
	}
	_, err := c.Exec(ctx, tx, `UPDATE {inbox} SET applied_at = NULL WHERE consumer = ? AND dispatch_id = ?`, claim.Consumer, claim.ID[:])
	if err != nil {
		return err
	}
	return c.parkClaimed(ctx, tx, &ParkedRow{
		Consumer: claim.Consumer, Message: claim.Message, Key: claim.Key, Ordered: true, State: inbox.Following,
	})
}

// Unclaim deletes a claim that was just made.
func (c *Core) Unclaim(ctx context.Context, tx *sql.Tx, claim *inbox.Claim) error {
	_, err := c.Exec(ctx, tx, `DELETE FROM {inbox} WHERE consumer = ? AND dispatch_id = ?`, claim.Consumer, claim.ID[:])
	return err
}

// parkClaimed writes the row of a message that was just claimed. A message that was set aside
// before, without a claim, gets a new row, behind all parked messages.
func (c *Core) parkClaimed(ctx context.Context, tx *sql.Tx, r *ParkedRow) error {
	r.claimed = true
	// Most messages were not set aside. Deleting a missing row would lock its gap above READ
	// COMMITTED, so the rows are looked for first.
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

// ParkMessage implements [inbox.ParkedStore].
func (s *Store) ParkMessage(ctx context.Context, p inbox.Parking) (inbox.Verdict, error) {
	if p.Message == nil {
		return inbox.None, errors.New("park: Message is nil")
	}
	row := ParkedRow{
		Consumer: p.Consumer, Message: p.Message, Key: p.Message.Key, Ordered: p.Ordered && p.Message.Key != "", State: p.State,
		Attempts: p.Attempts, RetryIn: p.RetryIn, LastError: p.LastError, fresh: p.Fresh,
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
			return fmt.Errorf("a message cannot be parked in the state %q", row.State)
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

// claimAndPark claims and parks a message. If a copy was applied and forgotten meanwhile, or other
// content was claimed, the message is set aside. A live message with a key takes the lock of the
// key, so that no newcomer can overtake it. A fresh message takes no lock of a key, and is not set
// aside.
func (s *Store) claimAndPark(ctx context.Context, tx *sql.Tx, row *ParkedRow) (inbox.Verdict, error) {
	m := row.Message
	if row.Ordered && row.State == inbox.Retrying && !row.fresh {
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
		if err := s.placeFresh(ctx, tx, row); err != nil {
			return inbox.None, err
		}
		if err := s.c.parkClaimed(ctx, tx, row); err != nil {
			return inbox.None, err
		}
		return verdict, s.c.noteRetry(ctx, tx, row.Consumer, m.ID, false, row.State == inbox.Dead && row.Attempts == 0, row.LastError)
	case inbox.TooOld:
		// The claim was made before the forgotten time was read.
		if err := s.c.Unclaim(ctx, tx, &c); err != nil {
			return inbox.None, err
		}
		if row.fresh {
			return verdict, nil
		}
		row.State = inbox.TooOldState
		return s.setAside(ctx, tx, row)
	case inbox.Altered:
		if row.fresh {
			return verdict, nil
		}
		row.State = inbox.AlteredState
		return s.setAside(ctx, tx, row)
	}
	return verdict, nil
}

// placeFresh makes a fresh message follow if a live message of its key stays in front until tx
// ends: the lock of the row holds back the transaction that would remove the row, and which then
// promotes the followers that it sees. A locked row is passed over. The first row of the key is left
// alone: its handler would be put off.
func (s *Store) placeFresh(ctx context.Context, tx *sql.Tx, row *ParkedRow) error {
	at := place{consumer: row.Consumer, key: row.Key, ordered: row.Ordered}
	if !row.fresh || len(at.keys()) == 0 {
		return nil
	}
	first, err := s.firstMessage(ctx, tx, at)
	if err != nil || first == 0 {
		return err
	}
	ahead, err := s.c.IDs(ctx, tx, `SELECT p.seq FROM {inbox_parked} p {by live} WHERE p.consumer = ? AND {first p} AND p.{message_key} = ? AND p.seq > ?
		ORDER BY p.seq DESC LIMIT 1 {lock_free}`, row.Consumer, Text(row.Key), first)
	if len(ahead) > 0 {
		row.State = inbox.Following
	}
	return err
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
