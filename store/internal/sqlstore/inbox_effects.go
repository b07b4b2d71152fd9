package sqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// PrepareEffect implements [inbox.EffectStore].
func (s *Store) PrepareEffect(ctx context.Context, tx *sql.Tx, e inbox.EffectIntent) error {
	n, err := s.c.Exec(ctx, tx, `
		INSERT INTO {inbox_effects} (consumer, dispatch_id, effect_key, topic, {message_key}, ordered, metadata, intent, prepared_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, {now}, {now}) {once consumer, dispatch_id}`,
		e.Consumer, e.ID[:], e.Key[:], Text(e.Topic), Text(e.OrderKey), e.Ordered, encodeMetadata(e.Metadata), Bytes(e.Intent))
	if err != nil {
		return fmt.Errorf("record an effect: %w", err)
	}
	if n == 1 {
		return nil
	}
	var known []byte
	err = s.c.One(ctx, tx, []any{&known}, `SELECT intent FROM {inbox_effects} WHERE consumer = ? AND dispatch_id = ? {lock}`, e.Consumer, e.ID[:])
	switch {
	case err != nil:
		return fmt.Errorf("read an effect: %w", err)
	case !bytes.Equal(known, e.Intent):
		return fmt.Errorf("record an effect: %w", inbox.ErrEffectConflict)
	}
	return nil
}

const effectColumns = `e.id, e.run, c.name, e.dispatch_id, e.effect_key, e.topic, e.{message_key}, e.metadata, e.state, e.uncertain, e.attempts,
e.intent, e.result, e.prepared_at, e.due_at, e.lease_until, e.ended_at, e.last_error, e.reason`

// scanEffect reads an effect as of the time at: if its lease has ended without a result, its state
// is uncertain.
func scanEffect(rows *sql.Rows, at int64) (r inbox.EffectRun, err error) {
	var id, key, metadata, intent, result sql.RawBytes
	var due, lease, ended sql.NullInt64
	var prepared int64
	err = rows.Scan(&r.Seq, &r.Run, &r.Consumer, &id, &key, &r.Topic, &r.OrderKey, &metadata, &r.State, &r.Uncertain, &r.Attempts,
		&intent, &result, &prepared, &due, &lease, &ended, &r.LastError, &r.Reason)
	if err != nil {
		return r, err
	}
	copy(r.ID[:], id)
	copy(r.Key[:], key)
	r.Intent = append([]byte{}, intent...)
	if result != nil {
		r.Result = append([]byte{}, result...)
	}
	r.PreparedAt, r.DueAt, r.LeaseUntil, r.EndedAt = Instant(prepared), Optional(due), Optional(lease), Optional(ended)
	if r.State == inbox.EffectDoing && lease.Int64 < at && result == nil {
		r.State = inbox.EffectUncertain
	}
	r.Metadata, err = decodeMetadata(metadata)
	return r, err
}

// effects reads effects by ascending Seq.
func (s *Store) effects(ctx context.Context, q Querier, at int64, where string, args ...any) ([]inbox.EffectRun, error) {
	list, err := collect(ctx, s.c, q, func(rows *sql.Rows) (inbox.EffectRun, error) { return scanEffect(rows, at) }, `SELECT `+effectColumns+` FROM {inbox_effects} e JOIN {inbox_consumers} c ON c.id = e.consumer WHERE `+where, args...)
	slices.SortFunc(list, func(a, b inbox.EffectRun) int { return cmp.Compare(a.Seq, b.Seq) })
	return list, err
}

// lockEffects locks effects, skips effects that another transaction has locked, and reads the
// locked effects by ascending Seq.
func (s *Store) lockEffects(ctx context.Context, tx *sql.Tx, at int64, where string, args ...any) ([]inbox.EffectRun, error) {
	if !s.c.d.RowLocks {
		return s.effects(ctx, tx, at, where, args...)
	}
	ids, err := s.c.IDs(ctx, tx, `SELECT e.id FROM {inbox_effects} e WHERE `+where+` {lock_free}`, args...)
	if err != nil || len(ids) == 0 {
		return nil, err
	}
	return s.effects(ctx, tx, at, `e.id IN ?`, ids)
}

// isFirstEffect holds for an effect e that waits for no earlier effect of its key.
const isFirstEffect = `(e.ordered = 0 OR NOT EXISTS (
	SELECT 1 FROM {inbox_effects} b WHERE b.consumer = e.consumer AND {waits b} AND b.{message_key} = e.{message_key} AND b.id < e.id))`

// TakeEffects implements [inbox.EffectStore].
func (s *Store) TakeEffects(ctx context.Context, t inbox.EffectTake) (runs []inbox.EffectRun, next time.Duration, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		at, err := s.c.Now(ctx, tx)
		if err == nil {
			err = s.endLeases(ctx, tx, t, at)
		}
		if err == nil {
			runs, err = s.lockEffects(ctx, tx, at, `e.consumer = ? AND e.state IN ('pending', 'answered') AND e.due_at <= ? AND `+isFirstEffect+`
				ORDER BY e.due_at, e.id LIMIT ?`, t.Consumer, at, t.Limit)
		}
		if err != nil {
			return err
		}
		ids := make([]int64, len(runs))
		for n := range runs {
			r := &runs[n]
			ids[n] = r.Seq
			r.State, r.Run, r.Attempts, r.DueAt, r.LeaseUntil = inbox.EffectDoing, r.Run+1, r.Attempts+1, time.Time{}, Instant(at+Micros(t.Lease))
		}
		if len(ids) > 0 {
			_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_effects} SET state = 'doing', run = run + 1, attempts = attempts + 1, due_at = NULL, lease_until = ?
				WHERE id IN ?`, at+Micros(t.Lease), ids)
			if err != nil {
				return err
			}
		}
		next, err = s.nextEffect(ctx, tx, t.Consumer, at)
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("take up effects: %w", &OwnError{err})
	}
	return runs, next, nil
}

// nextEffect returns how long from now the next effect is due or the next lease ends, or 0 without
// any.
func (s *Store) nextEffect(ctx context.Context, tx *sql.Tx, consumerID int, at int64) (next time.Duration, err error) {
	var due, lease sql.NullInt64
	err = s.c.One(ctx, tx, []any{&due, &lease}, `SELECT
		(SELECT MIN(due_at) FROM {inbox_effects} WHERE consumer = ? AND state IN ('pending', 'answered') AND due_at > ?),
		(SELECT MIN(lease_until) FROM {inbox_effects} WHERE consumer = ? AND state = 'doing')`, consumerID, at, consumerID)
	for _, then := range []sql.NullInt64{due, lease} {
		if wait := time.Duration(then.Int64-at) * time.Microsecond; then.Valid && (next == 0 || wait < next) {
			next = wait
		}
	}
	return max(0, next), err
}

// endLeases ends expired leases. An effect with a known result is not uncertain.
func (s *Store) endLeases(ctx context.Context, tx *sql.Tx, t inbox.EffectTake, at int64) error {
	lost, err := s.lockEffects(ctx, tx, at, `e.consumer = ? AND e.state = 'doing' AND e.lease_until < ? ORDER BY e.id LIMIT 1000`, t.Consumer, at)
	if err != nil {
		return err
	}
	for n := range lost {
		r := &lost[n]
		state, outcome := inbox.EffectUncertain, "effect_uncertain"
		switch {
		case r.Result != nil && r.Attempts >= t.MaxAttempts:
			state, outcome = inbox.EffectDead, "effect_answered"
		case r.Result != nil:
			state, outcome = inbox.EffectAnswered, "effect_answered"
		case t.Again && r.Attempts < t.MaxAttempts:
			state = inbox.EffectPending
		}
		why := inbox.ErrLeaseEnded.Error()
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_effects} SET state = ?, lease_until = NULL, uncertain = ?, last_error = ?, due_at = ? + ? WHERE id = ?`,
			string(state), r.Result == nil, Text(why), at, effectDue(state, 0), r.Seq)
		if err == nil {
			err = s.c.note(ctx, tx, t.Consumer, r.ID, outcome, why)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// effectDue returns the delay in microseconds until an effect is due, or NULL if its state has no
// due time.
func effectDue(state inbox.EffectState, after time.Duration) sql.NullInt64 {
	if state != inbox.EffectPending && state != inbox.EffectAnswered {
		return sql.NullInt64{}
	}
	return dueIn(after)
}

// lockRun locks the row of r, and returns its consumer. It returns sql.ErrNoRows if a later run
// began or an operator changed the effect.
func (s *Store) lockRun(ctx context.Context, tx *sql.Tx, r *inbox.EffectRun) (consumerID int, err error) {
	err = s.c.One(ctx, tx, []any{&consumerID},
		`SELECT consumer FROM {inbox_effects} WHERE id = ? AND run = ? AND state IN ('doing', 'uncertain') {lock}`, r.Seq, r.Run)
	return consumerID, err
}

// SettleEffect implements [inbox.EffectStore].
func (s *Store) SettleEffect(ctx context.Context, r *inbox.EffectRun, o inbox.EffectOutcome) (settled bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		settled = false
		consumerID, err := s.lockRun(ctx, tx, r)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_effects} SET state = ?, uncertain = ?, attempts = ?, result = COALESCE(?, result), last_error = ?,
			lease_until = NULL, due_at = {now} + ? WHERE id = ?`,
			string(o.State), o.Uncertain, o.Attempts, optionalBytes(o.Result), Text(o.LastError), effectDue(o.State, o.In), r.Seq)
		if err == nil && o.Noted != "" {
			err = s.c.note(ctx, tx, consumerID, r.ID, o.Noted, o.LastError)
		}
		settled = err == nil
		return err
	})
	if err != nil {
		return false, fmt.Errorf("record what became of an effect: %w", &OwnError{err})
	}
	return settled, nil
}

// FinishEffect implements [inbox.EffectStore]. The locked row keeps other processes from taking the
// effect meanwhile.
func (s *Store) FinishEffect(ctx context.Context, c inbox.Claim, r *inbox.EffectRun, result []byte,
	fn func(ctx context.Context, tx *sql.Tx) error,
) (bool, error) {
	err := s.c.d.Claiming(ctx, &c, func(ctx context.Context, tx *sql.Tx) error {
		whole := s.c.d.StatementContext(ctx)
		_, err := s.lockRun(whole, tx, r)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNothing
		}
		if err == nil {
			err = s.c.d.EndLockTimeout(whole, tx, &c)
		}
		if err != nil {
			return fmt.Errorf("lock an effect: %w", &OwnError{err})
		}
		if err := s.c.RunChecked(ctx, tx, func() error { return fn(ctx, tx) }); err != nil {
			return err
		}
		_, err = s.c.Exec(whole, tx, `UPDATE {inbox_effects} SET state = 'done', result = ?, uncertain = 0, lease_until = NULL,
			ended_at = {now}, last_error = '' WHERE id = ?`, result, r.Seq)
		if err != nil {
			return fmt.Errorf("finish an effect: %w", &OwnError{err})
		}
		return nil
	})
	switch {
	case errors.Is(err, ErrNothing):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}
