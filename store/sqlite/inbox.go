package sqlite

import (
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/transport"
)

var (
	_ producer.Store[*sql.Tx] = (*Store)(nil)
	_ consumer.Store[*sql.Tx] = (*Store)(nil)
)

// errNothing rolls a transaction back that has found nothing to commit.
var errNothing = errors.New("nothing to commit")

// claimStmt is the claim: the unique index decides.
const claimStmt = `
INSERT INTO {inbox} (consumer, dispatch_id, digest, stamp, applied_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (consumer, dispatch_id) DO NOTHING`

// checkStmt tells what else there is to know of a message that was claimed.
const checkStmt = `
SELECT c.forgotten_until,
       ? <> '' AND EXISTS (SELECT 1 FROM {inbox_parked} p
           WHERE p.consumer = c.id AND p.key = ? AND p.ordered AND p.state IN ('retrying', 'following')),
       EXISTS (SELECT 1 FROM {inbox_attempts} a WHERE a.consumer = c.id AND a.dispatch_id = ?)
FROM {inbox_consumers} c WHERE c.id = ?`

// Apply claims a message and runs fn in the transaction of the claim. SQLite has one
// isolation level, which is serializable. Every other write transaction waits meanwhile,
// so Claim.LockTimeout bounds the wait for all of them, not only for one with the same claim.
func (s *Store) Apply(ctx context.Context, c consumer.Claim, fn func(ctx context.Context, tx *sql.Tx) error) (consumer.Verdict, error) {
	var verdict consumer.Verdict
	err := s.transact(ctx, s.limits(&c), func(ctx context.Context, tx *sql.Tx) (err error) {
		if verdict, err = s.claim(ctx, tx, &c); err != nil {
			return fmt.Errorf("claim: %w", &ownError{err})
		}
		switch verdict {
		case consumer.Applied:
			if err := fn(ctx, tx); err != nil {
				return err
			}
			return s.noteApplied(ctx, tx, c.Consumer, c.ID)
		case consumer.Followed:
			return nil
		}
		return errNothing
	})
	switch {
	case errors.Is(err, errNothing):
		return verdict, nil
	case err != nil:
		return consumer.None, err
	}
	return verdict, nil
}

func (s *Store) limits(c *consumer.Claim) limits {
	l := limits{wait: s.busy, idle: c.IdleTimeout}
	if c.LockTimeout > 0 {
		l.wait = c.LockTimeout
	}
	return l
}

// claim makes the claim and says what follows from it. It does not end with ctx halfway:
// an interrupted statement would take the transaction with it.
func (s *Store) claim(ctx context.Context, tx *sql.Tx, c *consumer.Claim) (consumer.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return consumer.None, err
	}
	ctx = context.WithoutCancel(ctx)
	at := now()
	verdict, blocked, err := s.insertClaim(ctx, tx, c, stampOr(c.Stamp, at), sql.NullInt64{Int64: at, Valid: true})
	if err == nil && verdict == consumer.Applied && blocked {
		return consumer.Followed, s.follow(ctx, tx, c)
	}
	return verdict, err
}

// insertClaim claims a message that is applied at a time, or parked. The verdict is
// not Followed, but blocked tells whether it should be.
func (s *Store) insertClaim(ctx context.Context, tx *sql.Tx, c *consumer.Claim, stamp int64, applied sql.NullInt64) (verdict consumer.Verdict, blocked bool, err error) {
	n, err := s.exec(ctx, tx, claimStmt, c.Consumer, c.ID[:], c.Digest[:], stamp, applied)
	if err != nil {
		return consumer.None, false, err
	}
	if n == 0 {
		verdict, err := s.compare(ctx, tx, c.Consumer, c.ID, c.Digest)
		return verdict, false, err
	}
	var forgotten sql.NullInt64
	var attempted bool
	err = s.one(ctx, tx, []any{&forgotten, &blocked, &attempted}, checkStmt, c.Key, c.Key, c.ID[:], c.Consumer)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return consumer.None, false, errNotRegistered(c.Consumer)
	case err != nil:
		return consumer.None, false, err
	case forgotten.Valid && stamp < forgotten.Int64:
		return consumer.TooOld, false, nil
	case attempted:
		err = s.forgetAttempts(ctx, tx, c.Consumer, c.ID)
	}
	return consumer.Applied, blocked, err
}

// compare tells whether a message that was claimed before is the same as then.
func (s *Store) compare(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID, digest transport.Digest) (consumer.Verdict, error) {
	var known sql.RawBytes
	var verdict consumer.Verdict
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		if err := rows.Scan(&known); err != nil {
			return err
		}
		verdict = consumer.Altered
		if digest.Matches(digestOf(known)) {
			verdict = consumer.Duplicate
		}
		return nil
	}, `SELECT digest FROM {inbox} WHERE consumer = ? AND dispatch_id = ?`, consumerID, id[:])
	return verdict, err
}

// follow parks the message of c behind others of its key.
func (s *Store) follow(ctx context.Context, tx *sql.Tx, c *consumer.Claim) error {
	if c.Message == nil {
		return errors.New("message has to follow another one of its key and was not given")
	}
	if err := s.unapply(ctx, tx, c.Consumer, c.ID); err != nil {
		return err
	}
	return s.parkClaimed(ctx, tx, parkedRow{
		consumer: c.Consumer, message: c.Message, key: c.Key, ordered: true, state: consumer.Following,
	})
}

// unapply notes that a claimed message was not applied yet.
func (s *Store) unapply(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID) error {
	_, err := s.exec(ctx, tx, `UPDATE {inbox} SET applied_at = NULL WHERE consumer = ? AND dispatch_id = ?`, consumerID, id[:])
	return err
}

func (s *Store) forgetAttempts(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID) error {
	_, err := s.exec(ctx, tx, `DELETE FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id = ?`, consumerID, id[:])
	return err
}

// Started counts a start.
func (s *Store) Started(ctx context.Context, consumerID int, id uuid.UUID) (int, error) {
	return s.count(ctx, "count start", `
		INSERT INTO {inbox_attempts} (consumer, dispatch_id, starts, updated_at) VALUES (?, ?, 1, ?)
		ON CONFLICT (consumer, dispatch_id) DO UPDATE SET starts = starts + 1, updated_at = excluded.updated_at
		RETURNING starts`, consumerID, id[:], now())
}

// Unstarted takes a start back.
func (s *Store) Unstarted(ctx context.Context, consumerID int, id uuid.UUID) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, `UPDATE {inbox_attempts} SET starts = starts - 1, updated_at = ?
			WHERE consumer = ? AND dispatch_id = ? AND starts > 0`, now(), consumerID, id[:])
		return err
	})
	if err != nil {
		return fmt.Errorf("take a start back: %w", &ownError{err})
	}
	return nil
}

// Failed counts a failed attempt and forgets the recorded starts.
func (s *Store) Failed(ctx context.Context, consumerID int, id uuid.UUID, lastError string) (attempts int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		err := s.one(ctx, tx, []any{&attempts}, `
		INSERT INTO {inbox_attempts} (consumer, dispatch_id, attempts, last_error, updated_at) VALUES (?, ?, 1, ?, ?)
		ON CONFLICT (consumer, dispatch_id) DO UPDATE
		SET attempts = attempts + 1, starts = 0, last_error = excluded.last_error, updated_at = excluded.updated_at
		RETURNING attempts`, consumerID, id[:], lastError, now())
		if err != nil {
			return err
		}
		return s.note(ctx, tx, consumerID, id, "failed", lastError)
	})
	if err != nil {
		return 0, fmt.Errorf("count attempt: %w", &ownError{err})
	}
	return attempts, nil
}

func (s *Store) count(ctx context.Context, doing, query string, args ...any) (n int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return s.one(ctx, tx, []any{&n}, query, args...)
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", doing, &ownError{err})
	}
	return n, nil
}

// stampOr returns the stamp of a message as it is stored, or at if it has none.
func stampOr(stamp time.Time, at int64) int64 {
	if stamp.IsZero() {
		return at
	}
	return stamp.UnixMicro()
}

func digestOf(b []byte) (d transport.Digest) {
	copy(d[:], b)
	return d
}

// encodeMetadata returns names and values, each behind its length, so that they may
// hold any bytes; nil for none.
func encodeMetadata(metadata map[string]string) []byte {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		for _, text := range []string{name, metadata[name]} {
			out = binary.AppendUvarint(out, uint64(len(text)))
			out = append(out, text...)
		}
	}
	return out
}

func decodeMetadata(b []byte) (map[string]string, error) {
	metadata := make(map[string]string)
	next := func() (string, error) {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return "", errors.New("metadata is cut off")
		}
		text := string(b[size : size+int(n)])
		b = b[size+int(n):]
		return text, nil
	}
	for len(b) > 0 {
		name, err := next()
		if err != nil {
			return nil, err
		}
		if metadata[name], err = next(); err != nil {
			return nil, err
		}
	}
	return metadata, nil
}
