package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

var _ consumer.EffectStore[*sql.Tx] = (*Store)(nil)

// PrepareEffect records an effect in a handler's transaction.
func (s *Store) PrepareEffect(ctx context.Context, tx *sql.Tx, e consumer.EffectIntent) error {
	at := now()
	n, err := s.exec(ctx, tx, `
		INSERT INTO {inbox_effects} (consumer, dispatch_id, effect_key, topic, key, ordered, metadata, intent, prepared_at, due_at)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (consumer, dispatch_id) DO NOTHING`,
		e.Consumer, e.ID[:], e.Key[:], e.Topic, e.OrderKey, e.Ordered, encodeMetadata(e.Metadata), e.Intent, at, at)
	if err != nil {
		return fmt.Errorf("record an effect: %w", err)
	}
	if n == 1 {
		return nil
	}
	var known []byte
	err = s.one(ctx, tx, []any{&known}, `SELECT intent FROM {inbox_effects} WHERE consumer = ? AND dispatch_id = ?`, e.Consumer, e.ID[:])
	switch {
	case err != nil:
		return fmt.Errorf("read an effect: %w", err)
	case !bytes.Equal(known, e.Intent):
		return fmt.Errorf("record an effect: %w", consumer.ErrEffectConflict)
	}
	return nil
}

const effectColumns = `e.id, e.run, c.name, e.dispatch_id, e.effect_key, e.topic, e.key, e.metadata, e.state, e.uncertain, e.attempts,
e.intent, e.result, e.prepared_at, e.due_at, e.lease_until, e.ended_at, e.last_error, e.reason`

// scanEffect reads an effect with its state as everybody is to see it at a time.
func scanEffect(rows *sql.Rows, at int64) (r consumer.EffectRun, err error) {
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
	r.PreparedAt, r.DueAt, r.LeaseUntil, r.EndedAt = instant(prepared), optional(due), optional(lease), optional(ended)
	if r.State == consumer.EffectDoing && lease.Int64 < at && result == nil {
		r.State = consumer.EffectUncertain
	}
	r.Metadata, err = decodeMetadata(metadata)
	return r, err
}

// effects reads effects, oldest first.
func (s *Store) effects(ctx context.Context, q querier, at int64, where string, args ...any) ([]consumer.EffectRun, error) {
	var list []consumer.EffectRun
	err := s.each(ctx, q, func(rows *sql.Rows) error {
		r, err := scanEffect(rows, at)
		list = append(list, r)
		return err
	}, `SELECT `+effectColumns+` FROM {inbox_effects} e JOIN {inbox_consumers} c ON c.id = e.consumer WHERE `+where, args...)
	return list, err
}

// isFirstEffect holds for an effect e that waits for no other one of its key.
const isFirstEffect = `(NOT e.ordered OR NOT EXISTS (
	SELECT 1 FROM {inbox_effects} b WHERE b.consumer = e.consumer AND b.key = e.key AND b.ordered AND b.id < e.id
	  AND b.state IN ('pending', 'doing', 'answered', 'uncertain')))`

// TakeEffects takes effects up.
func (s *Store) TakeEffects(ctx context.Context, t consumer.EffectTake) (runs []consumer.EffectRun, next time.Duration, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		at := now()
		if err := s.endLeases(ctx, tx, t, at); err != nil {
			return err
		}
		runs, err = s.effects(ctx, tx, at, `e.consumer = ? AND e.state IN ('pending', 'answered') AND e.due_at <= ? AND `+isFirstEffect+`
			ORDER BY e.due_at, e.id LIMIT ?`, t.Consumer, at, t.Limit)
		if err != nil {
			return err
		}
		for n := range runs {
			r := &runs[n]
			r.State, r.Run, r.Attempts, r.DueAt, r.LeaseUntil = consumer.EffectDoing, r.Run+1, r.Attempts+1, time.Time{}, instant(at+micros(t.Lease))
			_, err := s.exec(ctx, tx, `UPDATE {inbox_effects} SET state = 'doing', run = ?, attempts = ?, due_at = NULL, lease_until = ?
				WHERE id = ?`, r.Run, r.Attempts, at+micros(t.Lease), r.Seq)
			if err != nil {
				return err
			}
		}
		var due, lease sql.NullInt64
		err = s.one(ctx, tx, []any{&due, &lease}, `SELECT
			(SELECT min(due_at) FROM {inbox_effects} WHERE consumer = ?1 AND state IN ('pending', 'answered') AND due_at > ?2),
			(SELECT min(lease_until) FROM {inbox_effects} WHERE consumer = ?1 AND state = 'doing')`, t.Consumer, at)
		for _, then := range []sql.NullInt64{due, lease} {
			if wait := time.Duration(then.Int64-at) * time.Microsecond; then.Valid && (next == 0 || wait < next) {
				next = wait
			}
		}
		return err
	})
	if err != nil {
		return nil, 0, fmt.Errorf("take up effects: %w", &ownError{err})
	}
	slices.SortFunc(runs, func(a, b consumer.EffectRun) int { return int(a.Seq - b.Seq) })
	return runs, max(0, next), nil
}

// endLeases deals with effects whose process did not come back. Where the result is known, nothing is uncertain.
func (s *Store) endLeases(ctx context.Context, tx *sql.Tx, t consumer.EffectTake, at int64) error {
	lost, err := s.effects(ctx, tx, at, `e.consumer = ? AND e.state = 'doing' AND e.lease_until < ? ORDER BY e.id LIMIT 1000`, t.Consumer, at)
	if err != nil {
		return err
	}
	for n := range lost {
		r := &lost[n]
		state, outcome := consumer.EffectUncertain, "effect_uncertain"
		switch {
		case r.Result != nil && r.Attempts >= t.MaxAttempts:
			state, outcome = consumer.EffectDead, "effect_answered"
		case r.Result != nil:
			state, outcome = consumer.EffectAnswered, "effect_answered"
		case t.Again && r.Attempts < t.MaxAttempts:
			state = consumer.EffectPending
		}
		why := consumer.ErrLeaseEnded.Error()
		_, err := s.exec(ctx, tx, `UPDATE {inbox_effects} SET state = ?, lease_until = NULL, uncertain = ?, last_error = ?, due_at = ? WHERE id = ?`,
			state, r.Result == nil, why, effectDue(state, at, 0), r.Seq)
		if err == nil {
			err = s.note(ctx, tx, t.Consumer, r.ID, outcome, why)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// optionalBytes returns nil bytes as NULL.
func optionalBytes(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// effectDue returns when an effect in a state is due, in the unit of columns.
func effectDue(state consumer.EffectState, at int64, in time.Duration) sql.NullInt64 {
	if state != consumer.EffectPending && state != consumer.EffectAnswered {
		return sql.NullInt64{}
	}
	return due(at, in)
}

// SettleEffect records what became of a run.
func (s *Store) SettleEffect(ctx context.Context, r *consumer.EffectRun, o consumer.EffectOutcome) (settled bool, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		settled = false
		var consumerID int
		err := s.one(ctx, tx, []any{&consumerID}, `
			UPDATE {inbox_effects} SET state = ?, uncertain = ?, attempts = ?, result = coalesce(?, result), last_error = ?, lease_until = NULL, due_at = ?
			WHERE id = ? AND run = ? AND state IN ('doing', 'uncertain') RETURNING consumer`,
			o.State, o.Uncertain, o.Attempts, optionalBytes(o.Result), o.LastError, effectDue(o.State, now(), o.In), r.Seq, r.Run)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		settled = true
		if o.Noted == "" {
			return nil
		}
		return s.note(ctx, tx, consumerID, r.ID, o.Noted, o.LastError)
	})
	if err != nil {
		return false, fmt.Errorf("record what became of an effect: %w", &ownError{err})
	}
	return settled, nil
}

// FinishEffect runs fn and makes the effect done. Nobody else can take it up meanwhile: there is one writer.
func (s *Store) FinishEffect(ctx context.Context, c consumer.Claim, r *consumer.EffectRun, result []byte,
	fn func(ctx context.Context, tx *sql.Tx) error,
) (bool, error) {
	err := s.transact(ctx, s.limits(&c), func(ctx context.Context, tx *sql.Tx) error {
		var there int
		err := s.one(context.WithoutCancel(ctx), tx, []any{&there},
			`SELECT 1 FROM {inbox_effects} WHERE id = ? AND run = ? AND state IN ('doing', 'uncertain')`, r.Seq, r.Run)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return errNothing
		case err != nil:
			return fmt.Errorf("read an effect: %w", &ownError{err})
		}
		if err := fn(ctx, tx); err != nil {
			return err
		}
		_, err = s.exec(context.WithoutCancel(ctx), tx, `UPDATE {inbox_effects} SET state = 'done', result = ?, uncertain = 0, lease_until = NULL,
			ended_at = ?, last_error = '' WHERE id = ?`, result, now(), r.Seq)
		if err != nil {
			return fmt.Errorf("finish an effect: %w", &ownError{err})
		}
		return nil
	})
	switch {
	case errors.Is(err, errNothing):
		return false, nil
	case err != nil:
		return false, err
	}
	return true, nil
}

// effectsWhere returns the conditions of f on effects e with their consumers c, the states apart.
func effectsWhere(f *consumer.EffectFilter) *where {
	w := &where{}
	w.add("e.id > ?", f.After)
	if f.Consumer != "" {
		w.add("c.name = ?", f.Consumer)
	}
	for column, ids := range map[string][]uuid.UUID{"e.dispatch_id": f.IDs, "e.effect_key": f.Keys} {
		if len(ids) > 0 {
			w.add(column+" IN (SELECT unhex(value) FROM json_each(?))", idArray(ids))
		}
	}
	if !f.Since.IsZero() {
		w.add("e.prepared_at >= ?", f.Since.UnixMicro())
	}
	if !f.Until.IsZero() {
		w.add("e.prepared_at < ?", f.Until.UnixMicro())
	}
	return w
}

// chooseEffects reads what f selects, in one of the states if there are any.
func (s *Store) chooseEffects(ctx context.Context, q querier, f *consumer.EffectFilter, states []consumer.EffectState) ([]consumer.EffectRun, error) {
	at := now()
	w := effectsWhere(f)
	if len(states) > 0 {
		w.add(`CASE WHEN e.lease_until < ? AND e.result IS NULL THEN 'uncertain' ELSE e.state END IN (SELECT value FROM json_each(?))`,
			at, jsonArray(states))
	}
	return s.effects(ctx, q, at, w.String()+` ORDER BY e.id LIMIT ?`, append(w.args, limitOf(f.Limit))...)
}
