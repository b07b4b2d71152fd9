package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
)

var _ inbox.EffectStore[pgx.Tx] = (*Store)(nil)

var (
	prepareEffect = statement(`
INSERT INTO {{inbox_effects}} (consumer, dispatch_id, effect_key, topic, key, ordered, metadata, intent, due_at)
VALUES ($1, $2, $3, $4, $5, $6, $7::jsonb, $8, clock_timestamp())
ON CONFLICT (consumer, dispatch_id) DO NOTHING`)

	readIntent = statement(`SELECT intent FROM {{inbox_effects}} WHERE consumer = $1 AND dispatch_id = $2`)
)

// PrepareEffect implements [inbox.EffectStore].
func (s *Store) PrepareEffect(ctx context.Context, tx pgx.Tx, e inbox.EffectIntent) error {
	metadata, err := encodeMetadata(e.Metadata)
	if err != nil {
		return fmt.Errorf("record an effect: %w", err)
	}
	tag, err := tx.Exec(ctx, s.sql[prepareEffect], e.Consumer, idValue(e.ID), idValue(e.Key),
		e.Topic, e.OrderKey, e.Ordered, metadata, e.Intent)
	if err != nil || tag.RowsAffected() == 1 {
		return wrapped("record an effect", err)
	}
	var known []byte
	err = tx.QueryRow(ctx, s.sql[readIntent], e.Consumer, idValue(e.ID)).Scan(&known)
	switch {
	case errors.Is(err, pgx.ErrNoRows): // removed since
		return fmt.Errorf("record an effect: %w", inbox.ErrEffectConflict)
	case err != nil:
		return wrapped("read an effect", err)
	case !bytes.Equal(known, e.Intent):
		return fmt.Errorf("record an effect: %w", inbox.ErrEffectConflict)
	}
	return nil
}

// wrapped wraps the error of a statement within a handler's transaction. It returns nil for nil.
func wrapped(doing string, err error) error {
	if err == nil {
		return nil
	}
	return failed(doing, err)
}

const effectColumns = `e.id, e.run, c.name, e.dispatch_id, e.effect_key, e.topic, e.key, e.metadata, ` + effectState + `,
    e.uncertain, e.attempts, e.intent, e.result, e.prepared_at, e.due_at, e.lease_until, e.ended_at,
    coalesce(e.last_error, ''), coalesce(e.reason, '')`

// effectState is the state to show. A process that did not come back has not written the state
// 'uncertain', which therefore follows from the end of the lease.
const effectState = `CASE WHEN e.state = 'doing' AND e.lease_until < clock_timestamp() AND NOT e.has_result THEN 'uncertain' ELSE e.state END`

func scanEffect(row pgx.CollectableRow) (r inbox.EffectRun, err error) {
	var (
		id, key              pgtype.UUID
		metadata             []byte
		state                string
		at, due, lease, ends pgtype.Timestamptz
	)
	err = row.Scan(&r.Seq, &r.Run, &r.Consumer, &id, &key, &r.Topic, &r.OrderKey, &metadata, &state,
		&r.Uncertain, &r.Attempts, &r.Intent, &r.Result, &at, &due, &lease, &ends, &r.LastError, &r.Reason)
	if err != nil {
		return r, err
	}
	r.ID, r.Key, r.State = id.Bytes, key.Bytes, inbox.EffectState(state)
	r.PreparedAt, r.DueAt, r.LeaseUntil, r.EndedAt = timeOf(at), timeOf(due), timeOf(lease), timeOf(ends)
	r.Metadata, err = decodeMetadata(metadata)
	return r, err
}

var (
	// endLeases ends the leases of processes that did not come back. An effect with a known result
	// is not uncertain.
	endLeases = statement(`
WITH old AS MATERIALIZED (
    SELECT e.id FROM {{inbox_effects}} e
    WHERE e.consumer = $1 AND e.state = 'doing' AND e.lease_until < clock_timestamp()
    LIMIT 1000 FOR UPDATE SKIP LOCKED
), u AS (
    UPDATE {{inbox_effects}} e
    SET state = n.state, lease_until = NULL, uncertain = e.result IS NULL, last_error = $4,
        due_at = CASE WHEN n.state IN ('pending', 'answered') THEN clock_timestamp() END
    FROM old, LATERAL (
        SELECT CASE
            WHEN b.result IS NOT NULL AND b.attempts >= $3 THEN 'dead'
            WHEN b.result IS NOT NULL THEN 'answered'
            WHEN $2 AND b.attempts < $3 THEN 'pending'
            ELSE 'uncertain'
        END AS state FROM {{inbox_effects}} b WHERE b.id = old.id
    ) n
    WHERE e.id = old.id
    RETURNING e.consumer, e.dispatch_id, e.result IS NULL AS lost
)
INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error)
SELECT consumer, dispatch_id, CASE WHEN lost THEN 'effect_uncertain' ELSE 'effect_answered' END, $4 FROM u`)

	takeEffects = statement(`
WITH due AS MATERIALIZED (
    SELECT e.id FROM {{inbox_effects}} e
    WHERE e.consumer = $1 AND e.state IN ('pending', 'answered') AND e.due_at <= clock_timestamp() AND ` + isFirstEffect + `
    ORDER BY e.due_at, e.id LIMIT $2
    FOR UPDATE SKIP LOCKED
), e AS (
    UPDATE {{inbox_effects}} e
    SET state = 'doing', run = e.run + 1, attempts = e.attempts + 1, due_at = NULL,
        lease_until = clock_timestamp() + $3::bigint * interval '1 microsecond'
    FROM due WHERE e.id = due.id AND e.state IN ('pending', 'answered') AND e.due_at <= clock_timestamp()
    RETURNING e.*
)
SELECT ` + effectColumns + ` FROM e JOIN {{inbox_consumers}} c ON c.id = e.consumer ORDER BY e.id`)

	nextEffect = statement(`
SELECT coalesce(ceil(extract(epoch FROM least(
    (SELECT min(e.due_at) FROM {{inbox_effects}} e
     WHERE e.consumer = $1 AND e.state IN ('pending', 'answered') AND e.due_at > clock_timestamp()),
    (SELECT min(e.lease_until) FROM {{inbox_effects}} e WHERE e.consumer = $1 AND e.state = 'doing')
) - clock_timestamp()) * 1000000)::bigint, 0)`)
)

// isFirstEffect is the predicate for an effect e that waits for no other effect of its key. One
// check is enough: the first effect stays first until it ends.
const isFirstEffect = `(NOT e.ordered OR NOT EXISTS (
        SELECT FROM {{inbox_effects}} b
        WHERE b.consumer = e.consumer AND b.key = e.key AND b.ordered AND b.id < e.id
            AND b.state IN ('pending', 'doing', 'answered', 'uncertain')))`

// TakeEffects implements [inbox.EffectStore].
func (s *Store) TakeEffects(ctx context.Context, t inbox.EffectTake) ([]inbox.EffectRun, time.Duration, error) {
	doing := "take up effects"
	_, err := s.exec(ctx, endLeases, t.Consumer, t.Again, t.MaxAttempts, inbox.ErrLeaseEnded.Error())
	if err != nil {
		return nil, 0, failed(doing, &ownError{err})
	}
	runs, err := readRows(ctx, s, takeEffects, []any{t.Consumer, t.Limit, t.Lease.Microseconds()}, scanEffect)
	if err != nil {
		return nil, 0, failed(doing, &ownError{err})
	}
	if len(runs) == t.Limit {
		return runs, 0, nil
	}
	var next int64
	if err := s.queryRow(ctx, nextEffect, t.Consumer).Scan(&next); err != nil {
		next = 0 // the taken effects must not be lost
	}
	return runs, time.Duration(max(0, next)) * time.Microsecond, nil
}

var (
	settleEffect = statement(`
WITH u AS (
    UPDATE {{inbox_effects}} e
    SET state = $3::text, uncertain = $4, attempts = $5, result = coalesce($7, e.result), last_error = $9, lease_until = NULL,
        due_at = CASE WHEN $3::text IN ('pending', 'answered') THEN clock_timestamp() + $6::bigint * interval '1 microsecond' END
    WHERE e.id = $1 AND e.run = $2 AND e.state IN ('doing', 'uncertain')
    RETURNING e.consumer, e.dispatch_id
), h AS (
    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) SELECT consumer, dispatch_id, $8::text, $9 FROM u WHERE $8::text <> ''
)
SELECT count(*) FROM u`)

	lockEffect = statement(`
SELECT 1 FROM {{inbox_effects}} WHERE id = $1 AND run = $2 AND state IN ('doing', 'uncertain') FOR UPDATE`)

	finishEffect = statement(`
UPDATE {{inbox_effects}}
SET state = 'done', result = $2, uncertain = false, lease_until = NULL, ended_at = clock_timestamp(), last_error = NULL
WHERE id = $1`)
)

// SettleEffect implements [inbox.EffectStore].
func (s *Store) SettleEffect(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) (bool, error) {
	var n int
	err := s.queryRow(ctx, settleEffect, r.Seq, r.Run, string(o.State), o.Uncertain, o.Attempts, max(0, o.In.Microseconds()),
		o.Result, o.Noted, storable(o.LastError)).Scan(&n)
	if err != nil {
		return false, failed("record the outcome of an effect", &ownError{err})
	}
	return n == 1, nil
}

// FinishEffect implements [inbox.EffectStore]. The lock of the row keeps other processes from
// taking the effect meanwhile.
func (s *Store) FinishEffect(ctx context.Context, c inbox.Claim, r *inbox.EffectRun, result []byte,
	fn func(ctx context.Context, tx pgx.Tx) error,
) (bool, error) {
	t, err := s.open(ctx, s.optionsOf(&c, ""))
	if err != nil {
		return false, err
	}
	defer t.end(ctx)
	mine := true
	b := t.batch()
	b.Queue(s.sql[lockEffect], r.Seq, r.Run).QueryRow(func(row pgx.Row) error {
		err := row.Scan(nil)
		if errors.Is(err, pgx.ErrNoRows) {
			mine, err = false, nil
		}
		return err
	})
	b.Queue(s.sql[restoreSettings])
	if err := t.sendOwn(ctx, "lock an effect", b); err != nil || !mine {
		return false, err
	}
	if err := t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx) }); err != nil {
		return false, err
	}
	if err := t.flush(ctx); err != nil {
		return false, err
	}
	b = t.batch()
	b.Queue(s.sql[finishEffect], r.Seq, result)
	if err := t.sendOwn(ctx, "finish an effect", b); err != nil {
		return false, err
	}
	if err := t.commitClaim(ctx); err != nil {
		return false, err
	}
	return true, nil
}
