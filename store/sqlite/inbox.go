package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

var (
	_ outbox.Store[*sql.Tx]       = (*Store)(nil)
	_ outbox.ArchiveStore         = (*Store)(nil)
	_ outbox.RemovableCounter     = (*Store)(nil)
	_ inbox.Store[*sql.Tx]        = (*Store)(nil)
	_ inbox.EffectStore[*sql.Tx]  = (*Store)(nil)
	_ inbox.RequestStore[*sql.Tx] = (*Store)(nil)
)

// claimStmt inserts a claim: the unique index decides.
const claimStmt = `
INSERT INTO {inbox} (consumer, dispatch_id, digest, stamp, applied_at) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (consumer, dispatch_id) DO NOTHING`

// checkStmt reads, after a claim, the forgotten time, whether the key is blocked, and whether
// attempts are counted.
const checkStmt = `
SELECT c.forgotten_until,
       ? <> '' AND EXISTS (SELECT 1 FROM {inbox_parked} p
           WHERE p.consumer = c.id AND p.key = ? AND p.ordered AND p.state IN ('retrying', 'following')),
       EXISTS (SELECT 1 FROM {inbox_attempts} a WHERE a.consumer = c.id AND a.dispatch_id = ?)
FROM {inbox_consumers} c WHERE c.id = ?`

// Apply implements [inbox.ClaimStore]. The only isolation level is serializable. Since write
// transactions take turns, Claim.LockTimeout bounds the wait for all earlier write transactions,
// not only for a copy of the message.
func (s *Store) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) (inbox.Verdict, error) {
	var verdict inbox.Verdict
	err := s.claiming(ctx, &c, func(ctx context.Context, tx *sql.Tx) (err error) {
		if verdict, err = s.claim(ctx, tx, &c); err != nil {
			return fmt.Errorf("claim: %w", &sqlstore.OwnError{Err: err})
		}
		switch verdict {
		case inbox.Applied:
			if err := s.core.RunChecked(ctx, tx, func() error { return fn(ctx, tx) }); err != nil {
				return err
			}
			return s.core.NoteApplied(ctx, tx, c.Consumer, c.ID)
		case inbox.Followed:
			return nil
		}
		return sqlstore.ErrNothing
	})
	switch {
	case errors.Is(err, sqlstore.ErrNothing):
		return verdict, nil
	case err != nil:
		return inbox.None, err
	}
	return verdict, nil
}

func (s *Store) limits(c *inbox.Claim) limits {
	l := limits{wait: s.busy, idle: c.IdleTimeout}
	if c.LockTimeout > 0 {
		l.wait = c.LockTimeout
	}
	return l
}

// claim makes the claim and returns the verdict. It does not end with ctx halfway: an interrupted
// statement would end the transaction.
func (s *Store) claim(ctx context.Context, tx *sql.Tx, c *inbox.Claim) (inbox.Verdict, error) {
	if err := ctx.Err(); err != nil {
		return inbox.None, err
	}
	ctx = context.WithoutCancel(ctx)
	at := now()
	verdict, blocked, err := s.insertClaim(ctx, tx, c, stampOr(c.Stamp, at), sql.NullInt64{Int64: at, Valid: true})
	if err == nil && verdict == inbox.Applied && blocked {
		return inbox.Followed, s.core.Follow(ctx, tx, c)
	}
	return verdict, err
}

// insertClaim claims a message that is applied at the time applied, or parked if applied is NULL.
// The verdict is never Followed; instead, blocked tells whether the message has to follow.
func (s *Store) insertClaim(ctx context.Context, tx *sql.Tx, c *inbox.Claim, stamp int64, applied sql.NullInt64) (verdict inbox.Verdict, blocked bool, err error) {
	n, err := s.core.Exec(ctx, tx, claimStmt, c.Consumer, c.ID[:], c.Digest[:], stamp, applied)
	if err != nil {
		return inbox.None, false, err
	}
	if n == 0 {
		verdict, err := s.core.Compare(ctx, tx, c)
		return verdict, false, err
	}
	var forgotten sql.NullInt64
	var attempted bool
	err = s.core.One(ctx, tx, []any{&forgotten, &blocked, &attempted}, checkStmt, c.Key, c.Key, c.ID[:], c.Consumer)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return inbox.None, false, sqlstore.ErrNotRegistered(c.Consumer)
	case err != nil:
		return inbox.None, false, err
	case forgotten.Valid && stamp < forgotten.Int64:
		return inbox.TooOld, false, nil
	case attempted:
		err = s.core.ForgetAttempts(ctx, tx, c.Consumer, c.ID)
	}
	return inbox.Applied, blocked, err
}

// claimToPark claims a message that is about to be parked.
func (s *Store) claimToPark(ctx context.Context, tx *sql.Tx, c *inbox.Claim) (inbox.Verdict, error) {
	verdict, _, err := s.insertClaim(ctx, tx, c, stampOr(c.Stamp, now()), sql.NullInt64{})
	return verdict, err
}

// stampOr returns stamp as it is stored, or at for a zero stamp.
func stampOr(stamp time.Time, at int64) int64 {
	if stamp.IsZero() {
		return at
	}
	return stamp.UnixMicro()
}

// ClaimRequest implements [inbox.RequestStore]. Write transactions take turns, so it never waits
// for another claim.
func (s *Store) ClaimRequest(ctx context.Context, tx *sql.Tx, r inbox.Request, _ time.Duration) (*inbox.Answer, error) {
	claimed, err := s.core.Exec(ctx, tx, `INSERT INTO {inbox_requests} (scope, key, fingerprint, claimed_at) VALUES (?, ?, ?, {now}) {once scope, key}`,
		r.Scope, r.Key, r.Fingerprint[:])
	if err != nil {
		return nil, fmt.Errorf("claim request: %w", err)
	}
	if claimed > 0 {
		return nil, nil
	}
	return s.core.StoredAnswer(ctx, tx, r)
}
