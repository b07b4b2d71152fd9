package postgres

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/boxpair/boxpair/store/inbox"
)

// The outcome of a claim that travels with the COMMIT cannot be read before the COMMIT. So a claim
// that was not made must be an error of the server: the insert fails for a known dispatch ID, and
// the check after the insert divides by zero. The server logs the error with the statement and its
// comment.
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

// applyOptimistic runs fn, and then sends the claim, the statements queued by fn and the COMMIT in
// one round trip. If fn runs a statement, the claim is sent before the statement. met is false if
// the claim was refused and [Store.Apply] must find out the reason; no change was made then.
func (s *Store) applyOptimistic(ctx context.Context, c *inbox.Claim, fn func(ctx context.Context, tx pgx.Tx) error) (met bool, err error) {
	o := s.optionsOf(c, c.Key)
	o.lean = c.Key == ""
	t, err := s.open(ctx, o)
	if err != nil {
		return true, err
	}
	defer t.end(ctx)
	l := &lateClaim{t: t, c: c}
	t.claim = l.send
	err = t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) })
	if err != nil && !l.sent && ctx.Err() == nil {
		_ = l.send(ctx) // a copy may fail on the changes of the first message
	}
	switch {
	case l.err != nil:
		return true, l.err
	case l.sent && !l.got.clear():
		return false, nil
	case err != nil:
		return true, err
	}
	t.noteApplied(c.Consumer, c.ID)
	if l.sent {
		return true, t.commitClaim(ctx)
	}
	return l.commit(ctx)
}

// lateClaim is a claim sent before the first statement of a handler, or with the COMMIT.
type lateClaim struct {
	t    *transaction
	c    *inbox.Claim
	sent bool
	got  claimed
	err  error // of sending
}

// send makes the claim before the handler's first statement.
func (l *lateClaim) send(ctx context.Context) error {
	l.sent = true
	if l.c.Key == "" {
		l.got, l.err = l.t.makeLeanClaim(ctx, l.c)
	} else {
		l.got, l.err = l.t.makeClaim(ctx, l.c, true)
	}
	switch {
	case l.err != nil:
		return l.err
	case !l.got.clear():
		return inbox.ErrNotClaimed
	}
	return nil
}

// commit sends the claim, the queued statements and the COMMIT.
func (l *lateClaim) commit(ctx context.Context) (met bool, err error) {
	claimed, checked := false, false
	note := func(passed *bool) func(pgconn.CommandTag) error {
		return func(pgconn.CommandTag) error {
			*passed = true
			return nil
		}
	}
	sql, c, b := l.t.store.sql, l.c, l.t.opening
	if c.Key == "" {
		b.Queue(sql[leanClaimOrFail], setting(c.LockTimeout), c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).
			Exec(note(&claimed))
		b.Queue(sql[checkLeanOrFail], c.Consumer, timeValue(c.Stamp)).Exec(note(&checked))
	} else {
		b.Queue(sql[claimOrFail], c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).Exec(note(&claimed))
		b.Queue(sql[checkOrFail], c.Consumer, timeValue(c.Stamp), c.Key).Exec(note(&checked))
	}
	outcome, err := l.t.askCommit(ctx)
	pgErr, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case outcome == committed, checked:
		return true, l.t.commitError(outcome, err)
	case outcome == unsent: // the claim or the handler is to blame; [Store.Apply] sends one after the other
		return false, nil
	case !claimed && sqlState(err) == "23505", claimed && sqlState(err) == "22012": // unique_violation, division_by_zero
		return false, nil
	case answered: // the server answers in order, so even a FATAL is not about the COMMIT
		return true, failed("claim", &ownError{pgErr})
	default:
		return true, l.t.commitError(outcome, err)
	}
}
