package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

var (
	// insertClaim makes the claim. It waits for the end of a transaction that has inserted or is
	// deleting the row, and then inserts unless the row exists. A message claimed to be parked has
	// no applied_at.
	insertClaim = statement(`
INSERT INTO {{inbox}} (consumer, dispatch_id, digest, stamp, applied_at)
VALUES ($1, $2, $3, coalesce($4, clock_timestamp()), CASE WHEN $5 THEN clock_timestamp() END)
ON CONFLICT DO NOTHING`)

	// leanClaim is the claim of a message without an order, with its settings: the overhead of a
	// second statement would be about as large as the work of the claim. The settings are in force
	// while the insert waits, because their row is computed before the row to insert.
	leanClaim = statement(`
INSERT INTO {{inbox}} (consumer, dispatch_id, digest, stamp, applied_at)
SELECT $3::smallint, $4::uuid, $5::bytea, coalesce($6::timestamptz, clock_timestamp()), clock_timestamp()
FROM (SELECT ` + setTimeouts + `) AS settings
ON CONFLICT DO NOTHING`)

	// checkClaim runs after the claim, and so sees the commits of the transactions for which the
	// claim or the lock of the key has waited. If a dispatch ID was forgotten while a copy waited,
	// the copy is too old. checkClaim also ends the claim's settings.
	checkClaim = statement(checkClaimText)
	checkLean  = statement(`
SELECT coalesce($2 < forgotten_until, false), ` + restoreLockTimeout + `
FROM {{inbox_consumers}} WHERE id = $1`)

	// Above READ COMMITTED, checkClaim would see the snapshot of the claim. There the row lock
	// fails with a serialization failure if the row has changed since. A savepoint releases the
	// lock at once; otherwise an advance of the forgotten time would wait for all handlers. FOR KEY
	// SHARE would make no transaction wait, but does not fail for a changed row.
	checkClaimShared = statement(checkClaimText + " FOR SHARE OF c")

	readClaim = statement(`SELECT digest FROM {{inbox}} WHERE consumer = $1 AND dispatch_id = $2`)
)

const checkClaimText = `
SELECT coalesce($2 < c.forgotten_until, false),
       $3 <> '' AND EXISTS (
           SELECT FROM {{inbox_parked}} p
           WHERE p.consumer = c.id AND p.key = $3 AND p.ordered AND p.state IN ('retrying', 'following')),
       ` + restoreLockTimeout + `, ` + restoreSeqscan + `
FROM {{inbox_consumers}} c WHERE c.id = $1`

// claimed is the result of a claim.
type claimed struct {
	mine    bool // the claim was made
	tooOld  bool // the consumer has forgotten the time of the message
	blocked bool // live parked messages of the key exist
}

// clear tells whether to apply the message.
func (c *claimed) clear() bool { return c.mine && !c.tooOld && !c.blocked }

// Apply implements [inbox.ClaimStore]. The claim takes one round trip, or two for a known dispatch
// ID, and the commit takes another. fn gets ctx unchanged; fn must not end tx.
//
// An Optimistic claim at READ COMMITTED is sent before the first statement that fn runs in tx, or
// together with the statements that fn has queued ([AtCommit], [Store.AppendAtCommit]) and the
// COMMIT. With queued statements only, the message takes one round trip. If the database refuses
// such a claim, it logs an error, and Apply begins again as above.
func (s *Store) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx pgx.Tx) error) (inbox.Verdict, error) {
	if c.Optimistic && !c.Started && c.Isolation == inbox.ReadCommitted {
		switch met, err := s.applyOptimistic(ctx, &c, fn); {
		case err != nil:
			return inbox.None, err
		case met:
			return inbox.Applied, nil
		}
	}
	o := s.optionsOf(&c, c.Key)
	o.lean = c.Key == "" && c.Isolation == inbox.ReadCommitted
	t, err := s.open(ctx, o)
	if err != nil {
		return inbox.None, err
	}
	defer t.end(ctx)
	var got claimed
	if o.lean {
		got, err = t.makeLeanClaim(ctx, &c)
	} else {
		got, err = t.makeClaim(ctx, &c, true)
	}
	switch {
	case err != nil:
		return inbox.None, err
	case !got.mine:
		return t.compare(ctx, c.Consumer, c.ID, c.Digest)
	case got.tooOld:
		return inbox.TooOld, nil
	case got.blocked:
		if err := t.follow(ctx, &c); err != nil {
			return inbox.None, err
		}
		return inbox.Followed, nil
	}
	if err := t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) }); err != nil {
		return inbox.None, err
	}
	t.noteApplied(c.Consumer, c.ID)
	if c.Started {
		if err := t.forgetStarts(ctx, c.Consumer, idValue(c.ID)); err != nil {
			return inbox.None, err
		}
	}
	if err := t.commitClaim(ctx); err != nil {
		return inbox.None, err
	}
	return inbox.Applied, nil
}

// forgetStarts deletes the counters of messages with the COMMIT. A handler may have taken a role
// that may neither delete nor even prepare the statement. Statements queued by the handler run
// under that role.
func (t *transaction) forgetStarts(ctx context.Context, consumerID int, ids ...pgtype.UUID) error {
	if t.session.IsClosed() || t.session.PgConn().TxStatus() != 'T' {
		return nil // the COMMIT will fail and say why
	}
	t.queue("RESET ROLE")
	if err := t.sendQueued(ctx); err != nil {
		return err
	}
	t.queue(t.store.sql[forgetStarts], consumerID, ids)
	return nil
}

// optionsOf returns how the transaction of a handler begins.
func (s *Store) optionsOf(c *inbox.Claim, key string) claimOptions {
	o := claimOptions{isolation: c.Isolation, idle: c.IdleTimeout, lock: c.LockTimeout}
	if key != "" {
		o.keys = []int64{s.keyLock(c.Consumer, key)}
	}
	return o
}

// makeClaim claims a message, to apply or to park it.
func (t *transaction) makeClaim(ctx context.Context, c *inbox.Claim, apply bool) (claimed, error) {
	var got claimed
	b := t.batch()
	b.Queue(t.store.sql[insertClaim], c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp), apply).
		Exec(func(tag pgconn.CommandTag) error {
			got.mine = tag.RowsAffected() == 1
			return nil
		})
	t.queueCheck(b, c, func(row pgx.Row) error { return row.Scan(&got.tooOld, &got.blocked, nil, nil) },
		checkClaim, checkClaimShared, timeValue(c.Stamp), c.Key)
	err := t.sendOwn(ctx, "claim", b)
	return got, err
}

// queueCheck queues the check after a claim, in the form that the isolation level needs.
func (t *transaction) queueCheck(b *pgx.Batch, c *inbox.Claim, scan func(row pgx.Row) error, plain, shared *template, args ...any) {
	args = append([]any{c.Consumer}, args...)
	read := func(row pgx.Row) error {
		err := scan(row)
		if errors.Is(err, pgx.ErrNoRows) {
			return errNotRegistered(c.Consumer)
		}
		return err
	}
	if c.Isolation == inbox.ReadCommitted {
		b.Queue(t.store.sql[plain], args...).QueryRow(read)
		return
	}
	b.Queue("SAVEPOINT boxpair_check")
	b.Queue(t.store.sql[shared], args...).QueryRow(read)
	b.Queue("ROLLBACK TO SAVEPOINT boxpair_check")
	b.Queue("RELEASE SAVEPOINT boxpair_check")
	b.Queue(t.store.sql[restoreSettings])
}

// makeLeanClaim is makeClaim for a message without an order that is to be applied, at READ
// COMMITTED.
func (t *transaction) makeLeanClaim(ctx context.Context, c *inbox.Claim) (claimed, error) {
	var got claimed
	b := t.batch()
	b.Queue(t.store.sql[leanClaim], setting(c.LockTimeout), setting(c.IdleTimeout),
		c.Consumer, idValue(c.ID), digestValue(c.Digest), timeValue(c.Stamp)).
		Exec(func(tag pgconn.CommandTag) error {
			got.mine = tag.RowsAffected() == 1
			return nil
		})
	b.Queue(t.store.sql[checkLean], c.Consumer, timeValue(c.Stamp)).QueryRow(func(row pgx.Row) error {
		err := row.Scan(&got.tooOld, nil)
		if errors.Is(err, pgx.ErrNoRows) {
			return errNotRegistered(c.Consumer)
		}
		return err
	})
	err := t.sendOwn(ctx, "claim", b)
	return got, err
}

// compare returns the verdict on a claim that was not made: the dispatch ID is known, but the
// message may differ.
func (t *transaction) compare(ctx context.Context, consumerID int, id uuid.UUID, digest transport.Digest) (inbox.Verdict, error) {
	var known []byte
	err := t.tx.QueryRow(ctx, t.store.sql[readClaim], consumerID, idValue(id)).Scan(&known)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // forgotten in this moment
		return inbox.Duplicate, nil
	case err != nil:
		return inbox.None, failed("read the claim", &ownError{err})
	case !digest.Matches(digestOf(known)):
		return inbox.Altered, nil
	}
	return inbox.Duplicate, nil
}

// follow parks a newly claimed message behind the parked messages of its key.
func (t *transaction) follow(ctx context.Context, c *inbox.Claim) error {
	b := t.batch()
	b.Queue(indexesOnly)
	if err := t.queueFollower(b, c); err != nil {
		return err
	}
	if err := t.sendOwn(ctx, "park behind others", b); err != nil {
		return err
	}
	return t.commitClaim(ctx)
}

// unapplied marks a claimed message as not applied.
var unapplied = statement(`UPDATE {{inbox}} SET applied_at = NULL WHERE consumer = $1 AND dispatch_id = $2`)

var (
	// Rows are locked in the order of their IDs, here and in takeStartsBack, so that two groups
	// with common messages cannot wait for each other.
	countStarts = statement(`
INSERT INTO {{inbox_attempts}} AS a (consumer, dispatch_id, starts)
SELECT $1::smallint, id, 1 FROM unnest($2::uuid[]) AS id ORDER BY id
ON CONFLICT (consumer, dispatch_id) DO UPDATE SET starts = a.starts + 1, changed_at = clock_timestamp()
WHERE a.starts = 0 OR a.changed_at <= clock_timestamp() - $3::interval
RETURNING a.dispatch_id, a.starts`)

	takeStartsBack = statement(`
UPDATE {{inbox_attempts}} a SET starts = a.starts - 1, changed_at = clock_timestamp()
FROM (
    SELECT consumer, dispatch_id FROM {{inbox_attempts}}
    WHERE consumer = $1 AND dispatch_id = ANY ($2::uuid[]) AND starts > 0
    ORDER BY dispatch_id FOR UPDATE
) s
WHERE a.consumer = s.consumer AND a.dispatch_id = s.dispatch_id AND a.starts > 0`)

	// By the index, forgetStarts deletes in the order of the IDs, too.
	forgetStarts = statement(`DELETE FROM {{inbox_attempts}} WHERE consumer = $1 AND dispatch_id = ANY ($2::uuid[])`)

	countFailure = statement(`
WITH h AS (
    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) VALUES ($1, $2, 'failed', $3)
)
INSERT INTO {{inbox_attempts}} AS a (consumer, dispatch_id, attempts, last_error) VALUES ($1, $2, 1, $3)
ON CONFLICT (consumer, dispatch_id) DO UPDATE
SET attempts = a.attempts + 1, starts = 0, last_error = excluded.last_error, changed_at = clock_timestamp()
RETURNING a.attempts`)
)

// Started implements [inbox.ClaimStore].
func (s *Store) Started(ctx context.Context, consumer int, ids []uuid.UUID, within time.Duration) ([]int, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	places := make(map[uuid.UUID]int, len(ids))
	for i, id := range ids {
		places[id] = i
	}
	starts := make([]int, len(ids))
	_, err := readRows(ctx, s, countStarts, []any{consumer, idValues(ids), within}, func(row pgx.CollectableRow) (_ struct{}, err error) {
		var id pgtype.UUID
		var n int
		if err = row.Scan(&id, &n); err == nil {
			starts[places[id.Bytes]] = n
		}
		return struct{}{}, err
	})
	if err != nil {
		return nil, failed("record starts", &ownError{err})
	}
	return starts, nil
}

// Unstarted implements [inbox.ClaimStore].
func (s *Store) Unstarted(ctx context.Context, consumer int, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	if _, err := s.exec(ctx, takeStartsBack, consumer, idValues(ids)); err != nil {
		return failed("take back recorded starts", &ownError{err})
	}
	return nil
}

// Failed implements [inbox.ClaimStore].
func (s *Store) Failed(ctx context.Context, consumer int, id uuid.UUID, lastError string) (int, error) {
	var attempts int
	if err := s.queryRow(ctx, countFailure, consumer, idValue(id), storable(lastError)).Scan(&attempts); err != nil {
		return 0, failed("count a failed attempt", &ownError{err})
	}
	return attempts, nil
}
