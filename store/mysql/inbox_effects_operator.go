package mysql

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

// ListEffects reads effects.
func (s *Store) ListEffects(ctx context.Context, f consumer.EffectFilter) ([]consumer.EffectRecord, error) {
	runs, err := s.chooseEffects(ctx, s.db, &f, f.States)
	if err != nil {
		return nil, fmt.Errorf("list effects: %w", &ownError{err})
	}
	list := make([]consumer.EffectRecord, len(runs))
	for n := range runs {
		list[n] = runs[n].EffectRecord
	}
	return list, nil
}

// ChangeEffects changes effects. A run that is in flight is outdated by a new number. Effects that are being finished
// are waited for.
func (s *Store) ChangeEffects(ctx context.Context, f consumer.EffectFilter, c consumer.EffectChange) ([]uuid.UUID, error) {
	noted, allowed := "effect_redriven", []consumer.EffectState{consumer.EffectDead, consumer.EffectUncertain}
	switch c.State {
	case consumer.EffectPending:
	case consumer.EffectAnswered:
		noted = "effect_resolved"
	case consumer.EffectDiscarded:
		noted = "effect_discarded"
		allowed = append(allowed, consumer.EffectPending, consumer.EffectAnswered)
	default:
		return nil, fmt.Errorf("change effects: %q is not a state to change to", c.State)
	}
	if len(f.States) > 0 {
		allowed = slices.DeleteFunc(allowed, func(state consumer.EffectState) bool { return !slices.Contains(f.States, state) })
	}
	if len(allowed) == 0 {
		return nil, nil
	}
	var ids []uuid.UUID
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids = nil
		runs, err := s.lockChosen(ctx, tx, f, allowed)
		if err != nil {
			return err
		}
		for n := range runs {
			r := &runs[n]
			if c.State == consumer.EffectAnswered && r.Result != nil {
				continue
			}
			if err := s.changeEffect(ctx, tx, r, c, noted); err != nil {
				return err
			}
			ids = append(ids, r.ID)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("change effects: %w", &ownError{err})
	}
	return ids, nil
}

// lockChosen locks what f selects, and returns those that are still as it wants them.
func (s *Store) lockChosen(ctx context.Context, tx *sql.Tx, f consumer.EffectFilter, allowed []consumer.EffectState) ([]consumer.EffectRun, error) {
	found, err := s.chooseEffects(ctx, tx, &f, allowed)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	seqs := make([]int64, len(found))
	for n := range found {
		seqs[n] = found[n].Seq
	}
	_, err = s.ids(ctx, tx, `SELECT id FROM {inbox_effects} FORCE INDEX (PRIMARY) WHERE id IN `+numbers(seqs)+` ORDER BY id FOR UPDATE`)
	if err != nil {
		return nil, err
	}
	again, err := s.chooseEffects(ctx, tx, &f, allowed)
	return slices.DeleteFunc(again, func(r consumer.EffectRun) bool { return !slices.Contains(seqs, r.Seq) }), err
}

func (s *Store) changeEffect(ctx context.Context, tx *sql.Tx, r *consumer.EffectRun, c consumer.EffectChange, noted string) error {
	state, attempts, ended := c.State, 0, sql.NullInt64{}
	switch {
	case state == consumer.EffectPending && r.Result != nil:
		state = consumer.EffectAnswered
	case state == consumer.EffectDiscarded:
		attempts, ended = r.Attempts, sql.NullInt64{Valid: true}
	}
	var consumerID int
	err := s.one(ctx, tx, []any{&consumerID}, `SELECT consumer FROM {inbox_effects} WHERE id = ?`, r.Seq)
	if err == nil {
		_, err = s.exec(ctx, tx, `UPDATE {inbox_effects} SET state = ?, run = run + 1, lease_until = NULL, attempts = ?,
			result = COALESCE(?, result), reason = ?, due_at = {now} + ?, ended_at = {now} + ? WHERE id = ?`,
			string(state), attempts, c.Result, []byte(c.Reason), effectDue(state, 0), ended, r.Seq)
	}
	if err != nil {
		return err
	}
	return s.note(ctx, tx, consumerID, r.ID, noted, c.Reason)
}

// ForgetEffects removes effects that ended long ago.
func (s *Store) ForgetEffects(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	var removed int64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		removed, err = s.exec(ctx, tx, `DELETE FROM {inbox_effects} WHERE consumer = ? AND ended_at < {now} - ? ORDER BY ended_at LIMIT ?`,
			consumerID, micros(age), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget effects: %w", &ownError{err})
	}
	return int(removed), nil
}

// EffectStats counts.
func (s *Store) EffectStats(ctx context.Context, consumerID int) (consumer.EffectStats, error) {
	var st consumer.EffectStats
	counts := map[consumer.EffectState]*int64{
		consumer.EffectPending: &st.Pending, consumer.EffectDoing: &st.Doing, consumer.EffectAnswered: &st.Answered,
		consumer.EffectUncertain: &st.Uncertain, consumer.EffectDead: &st.Dead,
	}
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var state consumer.EffectState
		var n, oldest int64
		if err := rows.Scan(&state, &n, &oldest); err != nil {
			return err
		}
		count, ok := counts[state]
		if !ok {
			return fmt.Errorf("an effect has the state %q", state)
		}
		if *count = n; state != consumer.EffectDead {
			st.Oldest = max(st.Oldest, time.Duration(oldest)*time.Microsecond)
		}
		return nil
	}, `SELECT CASE WHEN lease_until < {now} AND result IS NULL THEN 'uncertain' ELSE state END AS seen, COUNT(*), {now} - MIN(prepared_at)
		FROM {inbox_effects} WHERE consumer = ? AND state NOT IN ('done', 'discarded') GROUP BY seen`, consumerID)
	if err != nil {
		return consumer.EffectStats{}, fmt.Errorf("count effects: %w", &ownError{err})
	}
	return st, nil
}
