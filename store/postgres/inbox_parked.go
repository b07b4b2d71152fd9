package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
)

// isFirstMessage is the predicate for a message p that waits for no other message: p has no order,
// or its key has no lower live row.
const isFirstMessage = `(NOT p.ordered OR NOT EXISTS (
        SELECT FROM {{inbox_parked}} h
        WHERE h.consumer = p.consumer AND h.key = p.key AND h.ordered
            AND h.state IN ('retrying', 'following') AND h.id < p.id))`

// dueMessages reads the due rows, the longest due first, and the time in microseconds until the
// next row is due.
var dueMessages = statement(`
WITH now AS MATERIALIZED (SELECT clock_timestamp() AS t)
SELECT ARRAY(
           SELECT p.id FROM {{inbox_parked}} p
           WHERE p.consumer = $1 AND p.state = 'retrying' AND p.next_attempt_at <= now.t AND ` + isFirstMessage + `
           ORDER BY p.next_attempt_at, p.id LIMIT $2),
       coalesce((
           SELECT ceil(extract(epoch FROM p.next_attempt_at - now.t) * 1000000)::bigint FROM {{inbox_parked}} p
           WHERE p.consumer = $1 AND p.state = 'retrying' AND p.next_attempt_at > now.t AND ` + isFirstMessage + `
           ORDER BY p.next_attempt_at LIMIT 1), 0)
FROM now`)

// DueMessages implements [inbox.ParkedStore].
func (s *Store) DueMessages(ctx context.Context, consumer int, limit int) ([]int64, time.Duration, error) {
	var seqs []int64
	var next int64
	if err := s.queryRow(ctx, dueMessages, consumer, limit).Scan(&seqs, &next); err != nil {
		return nil, 0, failed("read due messages", &ownError{err})
	}
	return seqs, time.Duration(next) * time.Microsecond, nil
}

// DueAndIdentity implements [inbox.DueIdentifier] in one round trip. As in [Store.DueMessages], the
// server plans the statement for the present size of the tables.
func (s *Store) DueAndIdentity(ctx context.Context, consumer int, limit int) (seqs []int64, next time.Duration, name string, err error) {
	if !s.keeps || s.hidden.Load() {
		return nil, 0, "", errors.ErrUnsupported
	}
	var micros int64
	b := &pgx.Batch{}
	b.Queue("SELECT set_config('plan_cache_mode', 'force_custom_plan', true)")
	b.Queue(s.sql[dueMessages], consumer, limit).QueryRow(func(row pgx.Row) error { return row.Scan(&seqs, &micros) })
	b.Queue(identity + named).QueryRow(func(row pgx.Row) error { return row.Scan(&name) })
	err = s.pool.SendBatch(ctx, b).Close()
	if hides(err) {
		s.hidden.Store(true)
		return nil, 0, "", errors.ErrUnsupported
	}
	if err != nil {
		return nil, 0, "", failed("read due messages", &ownError{err})
	}
	return seqs, time.Duration(micros) * time.Microsecond, name, nil
}

// place locates a parked message: the lock of its key, and its claim.
type place struct {
	consumer int
	key      string // "" if the message has no order
	id       pgtype.UUID
}

var readPlace = statement(`
SELECT consumer, CASE WHEN ordered THEN key ELSE '' END, dispatch_id FROM {{inbox_parked}} WHERE id = $1`)

// place reads the columns of a parked message that never change. ok is false if the row does not
// exist.
func (s *Store) place(ctx context.Context, seq int64) (p place, ok bool, err error) {
	err = s.queryRow(ctx, readPlace, seq).Scan(&p.consumer, &p.key, &p.id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return place{}, false, nil
	case err != nil:
		return place{}, false, failed("read a parked message", &ownError{err})
	}
	return p, true, nil
}

const messageColumns = `p.id, c.name, p.dispatch_id, p.digest, p.stamp, p.topic, p.key, p.state, p.metadata, p.payload,
    p.attempts, p.parked_at, p.next_attempt_at, coalesce(p.last_error, ''), coalesce(p.reason, ''),
    p.ordered, p.claimed, p.forced`

// takeMessage locks a row that may run now. The lock of the key is taken before: rows of the key
// are added and removed under that lock.
var takeMessage = statement(`
SELECT ` + messageColumns + `
FROM {{inbox_parked}} p JOIN {{inbox_consumers}} c ON c.id = p.consumer
WHERE p.id = $1 AND p.consumer = $2 AND p.state = 'retrying' AND p.next_attempt_at <= clock_timestamp() AND ` + isFirstMessage + `
FOR UPDATE OF p SKIP LOCKED`)

// tryMessage takes the lock of a key only if no other process has the message, which the first lock
// tells. Otherwise the other process holds the lock of the key for as long as its handler runs, and
// a wait would be useless.
const tryMessage = `
SELECT CASE WHEN pg_try_advisory_xact_lock($1::bigint) THEN pg_advisory_xact_lock($2::bigint) IS NOT NULL ELSE false END`

// ApplyParked implements [inbox.ParkedStore]. A message that was too old has no claim: it runs
// unless it was applied since, and its ID is then remembered for a window from now. An altered
// message that was forced runs without a claim. A message without a claim that was applied since is
// removed without running.
func (s *Store) ApplyParked(ctx context.Context, c inbox.Claim, seq int64, fn func(ctx context.Context, tx pgx.Tx, m *inbox.Parked) error) (bool, error) {
	at, ok, err := s.place(ctx, seq)
	if err != nil || !ok || at.consumer != c.Consumer {
		return false, err
	}
	t, ok, err := s.openParked(ctx, &c, seq, at.key)
	if t != nil {
		defer t.end(ctx)
	}
	if err != nil || !ok {
		return false, err
	}
	row, err := t.take(ctx, &c, seq)
	if err != nil || row == nil {
		return false, err
	}
	if !row.claimed {
		if run, err := t.claimParked(ctx, row, at); err != nil || !run {
			return false, err
		}
	}
	if err := t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx, &row.Parked) }); err != nil {
		return false, err
	}
	t.noteApplied(c.Consumer, row.ID)
	if err := t.flush(ctx); err != nil {
		return false, err
	}
	if err := t.remove(ctx, row, at); err != nil {
		return false, err
	}
	if err := t.commitClaim(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// openParked begins a transaction for a parked message. ok is false if another process has the
// message.
func (s *Store) openParked(ctx context.Context, c *inbox.Claim, seq int64, key string) (*transaction, bool, error) {
	o := s.optionsOf(c, key)
	late, lock := key != "" && o.isolation == inbox.ReadCommitted, int64(0)
	if late {
		lock, o.keys = o.keys[0], nil
	}
	t, err := s.open(ctx, o)
	if err != nil {
		return nil, false, err
	}
	free := true
	b := t.batch()
	if late {
		b.Queue(tryMessage, lockID(s.names, fmt.Sprintf("inbox seq %d", seq)), lock).QueryRow(func(row pgx.Row) error {
			return row.Scan(&free)
		})
	}
	err = t.sendOwn(ctx, "lock a parked message", b)
	if t.holdsLocks && sqlState(err) == "55P03" { // a handler has held the key for longer than LockTimeout
		return t, false, nil
	}
	return t, err == nil && free, err
}

// messageRow is a parked message with the columns that only the store reads.
type messageRow struct {
	inbox.Parked
	ordered, claimed, forced bool
}

func (r *messageRow) scan(row pgx.Row) error {
	var (
		id              pgtype.UUID
		digest, meta    []byte
		stamp, at, next pgtype.Timestamptz
		state           string
	)
	err := row.Scan(&r.Seq, &r.Consumer, &id, &digest, &stamp, &r.Topic, &r.Key, &state, &meta, &r.Payload,
		&r.Attempts, &at, &next, &r.LastError, &r.Reason, &r.ordered, &r.claimed, &r.forced)
	if err != nil {
		return err
	}
	r.ID, r.Digest, r.State = id.Bytes, digestOf(digest), inbox.State(state)
	r.Stamp, r.ParkedAt, r.NextAttemptAt = timeOf(stamp), timeOf(at), timeOf(next)
	r.Metadata, r.Unreadable = decodeMetadata(meta)
	return nil
}

// take locks the message and ends the claim's settings. It returns nil if the message must not be
// handled now.
func (t *transaction) take(ctx context.Context, c *inbox.Claim, seq int64) (*messageRow, error) {
	b := t.batch()
	row := &messageRow{}
	b.Queue(t.store.sql[takeMessage], seq, c.Consumer).QueryRow(func(r pgx.Row) error {
		err := row.scan(r)
		if errors.Is(err, pgx.ErrNoRows) {
			row, err = nil, nil
		}
		return err
	})
	b.Queue(t.store.sql[restoreSettings])
	return row, t.sendOwn(ctx, "lock a parked message", b)
}

// claimParked claims a message that was set aside without a claim, and tells whether to run the
// message. The dispatch ID is remembered from now on: the time of the stamp is forgotten already.
func (t *transaction) claimParked(ctx context.Context, row *messageRow, at place) (bool, error) {
	tag, err := t.tx.Exec(ctx, t.store.sql[insertClaim], at.consumer, at.id, digestValue(row.Digest), nil, true)
	if err != nil {
		return false, failed("claim a parked message", &ownError{err})
	}
	if tag.RowsAffected() == 1 {
		return true, nil
	}
	verdict, err := t.compare(ctx, at.consumer, row.ID, row.Digest)
	if err != nil || verdict == inbox.Altered && row.forced {
		return err == nil, err
	}
	if verdict == inbox.Altered { // the message was redriven as too old
		b := t.batch()
		b.Queue(indexesOnly)
		b.Queue(t.store.sql[alterMessage], row.Seq)
		t.store.queuePromote(b, at, row.Seq)
		return false, t.sendAndCommit(ctx, "set a message aside", b)
	}
	if err := t.remove(ctx, row, at); err != nil {
		return false, err
	}
	return false, t.commitClaim(ctx)
}

var (
	alterMessage = statement(`
UPDATE {{inbox_parked}} SET state = 'altered', next_attempt_at = NULL WHERE id = $1`)
	deleteMessage = statement(`DELETE FROM {{inbox_parked}} WHERE id = $1`)
	// A message without a claim must not touch the claim of different content.
	markApplied = statement(`
UPDATE {{inbox}} SET applied_at = clock_timestamp() WHERE consumer = $1 AND dispatch_id = $2 AND applied_at IS NULL`)
	// promoteMessage makes the first live message of a key run if it comes after the removed
	// message.
	promoteMessage = statement(`
UPDATE {{inbox_parked}} SET state = 'retrying', next_attempt_at = clock_timestamp()
WHERE id > $3 AND id = (
    SELECT p.id FROM {{inbox_parked}} p
    WHERE p.consumer = $1 AND p.key = $2 AND p.ordered AND p.state IN ('retrying', 'following')
    ORDER BY p.id LIMIT 1)`)
)

// remove deletes the row of a handled message.
func (t *transaction) remove(ctx context.Context, row *messageRow, at place) error {
	b := t.batch()
	b.Queue(indexesOnly)
	b.Queue(t.store.sql[deleteMessage], row.Seq)
	if row.claimed {
		b.Queue(t.store.sql[markApplied], at.consumer, at.id)
	}
	b.Queue(t.store.sql[deleteAttempts], at.consumer, at.id)
	t.store.queuePromote(b, at, row.Seq)
	return t.sendOwn(ctx, "remove a parked message", b)
}

func (s *Store) queuePromote(b *pgx.Batch, at place, gone int64) {
	if at.key != "" {
		b.Queue(s.sql[promoteMessage], at.consumer, at.key, gone)
	}
}

var (
	retryMessage = statement(`
WITH o AS MATERIALIZED (
    SELECT id, attempts FROM {{inbox_parked}} WHERE id = $1 AND state = 'retrying' FOR UPDATE
), r AS (
    UPDATE {{inbox_parked}} p
    SET attempts = greatest(p.attempts, $2), last_error = $4,
        next_attempt_at = clock_timestamp() + $3::bigint * interval '1 microsecond'
    FROM o WHERE p.id = o.id
    RETURNING p.consumer, p.dispatch_id, o.attempts AS was
), h AS (
    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error)
    SELECT consumer, dispatch_id, 'failed', $4 FROM r WHERE was < $2
)
DELETE FROM {{inbox_attempts}} a USING r WHERE a.consumer = r.consumer AND a.dispatch_id = r.dispatch_id`)

	buryMessage = statement(`
WITH o AS MATERIALIZED (
    SELECT id, attempts FROM {{inbox_parked}} WHERE id = $1 AND state = 'retrying' FOR UPDATE
), r AS (
    UPDATE {{inbox_parked}} p
    SET attempts = greatest(p.attempts, $2), last_error = $3, next_attempt_at = NULL, state = 'dead'
    FROM o WHERE p.id = o.id
    RETURNING p.consumer, p.dispatch_id, o.attempts AS was
)
INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error)
SELECT consumer, dispatch_id, CASE WHEN was < $2 THEN 'failed' ELSE 'dead' END, $3 FROM r`)
)

// RetryMessage implements [inbox.ParkedStore]. A message that was applied, discarded or buried
// meanwhile is left alone.
func (s *Store) RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error {
	if !dead {
		_, err := s.exec(ctx, retryMessage, seq, attempts, max(0, retryIn.Microseconds()), storable(lastError))
		if err != nil {
			return failed("schedule the next attempt of a parked message", &ownError{err})
		}
		return nil
	}
	at, ok, err := s.place(ctx, seq)
	if err != nil || !ok {
		return err
	}
	c := inbox.Claim{Consumer: at.consumer, IdleTimeout: ownIdle}
	t, err := s.open(ctx, s.optionsOf(&c, at.key))
	if err != nil {
		return err
	}
	defer t.end(ctx)
	buried := false
	b := t.batch()
	b.Queue(s.sql[buryMessage], seq, attempts, storable(lastError)).Exec(func(tag pgconn.CommandTag) error {
		buried = tag.RowsAffected() == 1
		return nil
	})
	if err := t.sendOwn(ctx, "bury a parked message", b); err != nil || !buried {
		return err
	}
	b = t.batch()
	b.Queue(s.sql[deleteAttempts], at.consumer, at.id)
	s.queuePromote(b, at, seq)
	return t.sendAndCommit(ctx, "bury a parked message", b)
}
