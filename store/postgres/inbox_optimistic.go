package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
)

// A claim that travels with what depends on it cannot be looked at in between, so the server has to
// stop at one that was not made: the claim is an insert that fails for a dispatch ID that is there,
// and the check behind it divides by zero. That is said in the server's log, with the statement and
// its comment.
var (
	claimOrFail = statement(`/* fails for a message that was applied before, which is handled */
INSERT INTO {{inbox}} (consumer, dispatch_id, digest, stamp, applied_at)
VALUES ($1, $2, $3, coalesce($4, clock_timestamp()), clock_timestamp())`)

	leanClaimOrFail = statement(`/* fails for a message that was applied before, which is handled */
INSERT INTO {{inbox}} (consumer, dispatch_id, digest, stamp, applied_at)
SELECT $2::smallint, $3::uuid, $4::bytea, coalesce($5::timestamptz, clock_timestamp()), clock_timestamp()
FROM (SELECT ` + saveLockTimeout + `) AS settings`)

	checkOrFail = statement(`/* fails for a message that is too old or follows others, which is handled */
SELECT 1 / count(*), ` + restoreLockTimeout + `, ` + restoreSeqscan + `
FROM {{inbox_consumers}} c
WHERE c.id = $1 AND NOT coalesce($2 < c.forgotten_until, false)
  AND NOT EXISTS (
      SELECT FROM {{inbox_parked}} p
      WHERE p.consumer = c.id AND p.key = $3 AND p.ordered AND p.state IN ('retrying', 'following'))`)

	checkLeanOrFail = statement(`/* fails for a message that is too old, which is handled */
SELECT 1 / count(*), ` + restoreLockTimeout + `
FROM {{inbox_consumers}} c WHERE c.id = $1 AND NOT coalesce($2 < c.forgotten_until, false)`)
)

// applyOptimistic runs fn and sends the claim, what fn has queued and the COMMIT in one round trip.
// If fn needs the transaction before, its first statement comes behind the claim. met is false if
// the claim met what [Store.Apply] has to deal with; then nothing is changed.
func (s *Store) applyOptimistic(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx pgx.Tx) error) (met bool, err error) {
	t := s.terms(c, c.Key)
	t.lean = c.Key == ""
	w, b, err := s.open(ctx, t)
	if err != nil {
		return true, err
	}
	defer w.end(ctx)
	l := &lateClaim{w: w, c: c, opening: b}
	err = w.run(ctx, l, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err != nil && !l.sent && ctx.Err() == nil {
		_ = l.send(ctx) // a copy fails where the first one has changed something
	}
	switch {
	case l.err != nil:
		return true, l.err
	case l.sent && !l.got.clear():
		return false, nil
	case err != nil:
		return true, err
	}
	w.noteApplied(c.Consumer, c.ID)
	if l.sent {
		return true, w.commit(ctx)
	}
	return l.commit(ctx)
}

// lateClaim is a claim that is sent when it is needed.
type lateClaim struct {
	w       *work
	c       *inbox.Claim
	opening *pgx.Batch // begins the transaction
	sent    bool
	got     claimed
	err     error // of sending
}

// send claims, unless that was done, for a handler that goes on in the transaction.
func (l *lateClaim) send(ctx context.Context) error {
	if !l.sent {
		l.sent = true
		if l.c.Key == "" {
			l.got, l.err = l.w.claimLean(ctx, l.opening, l.c)
		} else {
			l.got, l.err = l.w.claim(ctx, l.opening, l.c, true)
		}
	}
	switch {
	case l.err != nil:
		return l.err
	case !l.got.clear():
		return inbox.ErrNotClaimed
	}
	return nil
}

// commit sends the claim, what is queued and the COMMIT.
func (l *lateClaim) commit(ctx context.Context) (met bool, err error) {
	if err := ctx.Err(); err != nil {
		return true, fmt.Errorf("before commit: %w", err)
	}
	w, c, b := l.w, l.c, l.opening
	var claimed, checked bool
	note := func(passed *bool) func(pgconn.CommandTag) error {
		return func(pgconn.CommandTag) error {
			*passed = true
			return nil
		}
	}
	if c.Key == "" {
		b.Queue(w.store.sql[leanClaimOrFail], setting(c.LockTimeout), c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).
			Exec(note(&claimed))
		b.Queue(w.store.sql[checkLeanOrFail], c.Consumer, timeValue(c.Stamp)).Exec(note(&checked))
	} else {
		b.Queue(w.store.sql[claimOrFail], c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).Exec(note(&claimed))
		b.Queue(w.store.sql[checkOrFail], c.Consumer, timeValue(c.Stamp), c.Key).Exec(note(&checked))
	}
	ctx, cancel := committing(ctx)
	defer cancel()
	err = w.commitBehind(ctx, b)
	pgErr, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil, checked:
		return true, err
	case errors.Is(err, errNotSent): // the claim may be to blame, or the handler: that is found out one after the other
		return false, nil
	case !claimed && sqlState(err) == "23505", claimed && sqlState(err) == "22012": // unique_violation, division_by_zero
		return false, nil
	case answered: // the server answers in order, so this is not about the COMMIT, be it FATAL
		return true, failed("claim", &ownError{pgErr})
	default:
		return true, err
	}
}

var _ owner = (*lateClaim)(nil)

// begun returns the transaction, in which the claim was made.
func (l *lateClaim) begun(ctx context.Context) (pgx.Tx, error) {
	if err := l.send(ctx); err != nil {
		return nil, err
	}
	return l.w.tx, nil
}

// open implements [owner].
func (l *lateClaim) open() bool { return l.sent && l.err == nil }

// raw implements [owner].
func (l *lateClaim) raw() *pgx.Conn { return l.w.conn.Conn() }

// lends implements [owner]. No claim of a [SQLStore] is optimistic.
func (l *lateClaim) lends() *lentConn { return l.w.lends() }

// atCommit implements [owner].
func (l *lateClaim) atCommit() *pgx.Batch { return l.w.atCommit() }
