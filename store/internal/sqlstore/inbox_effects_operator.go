package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// effectsWhere returns the conditions of f, except the states, on effects e with their consumers c.
func effectsWhere(f *inbox.EffectFilter) *where {
	w := &where{}
	w.add("e.id > ?", f.After)
	w.text("c.name", f.Consumer)
	w.ids("e.dispatch_id", f.IDs)
	w.ids("e.effect_key", f.Keys)
	w.during("e.prepared_at", f.Since, f.Until)
	return w
}

// chooseEffects reads effects that f selects, in one of states unless states is empty.
func (s *Store) chooseEffects(ctx context.Context, q Querier, f *inbox.EffectFilter, states []inbox.EffectState) ([]inbox.EffectRun, error) {
	at, err := s.c.Now(ctx, q)
	if err != nil {
		return nil, err
	}
	w := effectsWhere(f)
	if len(states) > 0 {
		w.add(`CASE WHEN e.lease_until < ? AND e.result IS NULL THEN 'uncertain' ELSE e.state END IN ?`, at, names(states))
	}
	return s.effects(ctx, q, at, w.String()+` ORDER BY e.id LIMIT ?`, w.and(limitOf(f.Limit))...)
}

// ListEffects implements [inbox.EffectStore].
func (s *Store) ListEffects(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error) {
	runs, err := s.chooseEffects(ctx, s.c.DB, &f, f.States)
	if err != nil {
		return nil, fmt.Errorf("list effects: %w", &OwnError{err})
	}
	list := make([]inbox.Effect, len(runs))
	for n := range runs {
		list[n] = runs[n].Effect
	}
	return list, nil
}

// EffectTransition returns the outcome that the history notes for a change of effects, and the
// states in which the change can begin. Unless wanted is empty, from has only wanted states. With
// an empty from, the change does nothing.
func EffectTransition(to inbox.EffectState, wanted []inbox.EffectState) (noted string, from []inbox.EffectState, err error) {
	noted, from = "effect_redriven", []inbox.EffectState{inbox.EffectDead, inbox.EffectUncertain}
	switch to {
	case inbox.EffectPending:
	case inbox.EffectAnswered:
		noted = "effect_resolved"
	case inbox.EffectDiscarded:
		noted = "effect_discarded"
		from = append(from, inbox.EffectPending, inbox.EffectAnswered)
	default:
		return "", nil, fmt.Errorf("change effects: effects cannot be changed to the state %q", to)
	}
	if len(wanted) > 0 {
		from = slices.DeleteFunc(from, func(state inbox.EffectState) bool { return !slices.Contains(wanted, state) })
	}
	return noted, from, nil
}

// ChangeEffects implements [inbox.EffectStore]. A new run number outdates a run in flight. Locked
// effects, which are being finished, are waited for.
func (s *Store) ChangeEffects(ctx context.Context, f inbox.EffectFilter, c inbox.EffectChange) ([]uuid.UUID, error) {
	noted, allowed, err := EffectTransition(c.State, f.States)
	if err != nil || len(allowed) == 0 {
		return nil, err
	}
	var ids []uuid.UUID
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		ids = nil
		runs, err := s.lockChosen(ctx, tx, f, allowed)
		if err != nil {
			return err
		}
		for n := range runs {
			r := &runs[n]
			if c.State == inbox.EffectAnswered && r.Result != nil {
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
		return nil, fmt.Errorf("change effects: %w", &OwnError{err})
	}
	return ids, nil
}

// lockChosen locks the effects that f selects, and returns the effects that f still selects under
// the lock.
func (s *Store) lockChosen(ctx context.Context, tx *sql.Tx, f inbox.EffectFilter, allowed []inbox.EffectState) ([]inbox.EffectRun, error) {
	found, err := s.chooseEffects(ctx, tx, &f, allowed)
	if err != nil || len(found) == 0 || !s.c.d.RowLocks {
		return found, err
	}
	seqs := make([]int64, len(found))
	for n := range found {
		seqs[n] = found[n].Seq
	}
	_, err = s.c.IDs(ctx, tx, `SELECT id FROM {inbox_effects} {by PRIMARY} WHERE id IN ? ORDER BY id {lock}`, seqs)
	if err != nil {
		return nil, err
	}
	again, err := s.chooseEffects(ctx, tx, &f, allowed)
	return slices.DeleteFunc(again, func(r inbox.EffectRun) bool { return !slices.Contains(seqs, r.Seq) }), err
}

func (s *Store) changeEffect(ctx context.Context, tx *sql.Tx, r *inbox.EffectRun, c inbox.EffectChange, noted string) error {
	state, attempts, ended, reason := c.State, 0, sql.NullInt64{}, ""
	switch {
	case state == inbox.EffectPending && r.Result != nil:
		state = inbox.EffectAnswered
	case state == inbox.EffectDiscarded:
		attempts, ended, reason = r.Attempts, sql.NullInt64{Valid: true}, c.Reason
	}
	var consumerID int
	err := s.c.One(ctx, tx, []any{&consumerID}, `SELECT consumer FROM {inbox_effects} WHERE id = ?`, r.Seq)
	if err == nil {
		_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_effects} SET state = ?, run = run + 1, lease_until = NULL, attempts = ?,
			result = COALESCE(?, result), reason = ?, due_at = {now} + ?, ended_at = {now} + ? WHERE id = ?`,
			string(state), attempts, optionalBytes(c.Result), Text(reason), effectDue(state, 0), ended, r.Seq)
	}
	if err != nil {
		return err
	}
	return s.c.note(ctx, tx, consumerID, r.ID, noted, c.Reason)
}

// ForgetEffects implements [inbox.EffectStore].
func (s *Store) ForgetEffects(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	n, err := s.forget(ctx, oldRows{
		table: `{inbox_effects}`, key: "id", where: "consumer = ? AND state IN ('done', 'discarded') AND ended_at < {now} - ?", first: "ended_at",
	}, limit, consumerID, Micros(age))
	if err != nil {
		return 0, fmt.Errorf("forget effects: %w", &OwnError{err})
	}
	return n, nil
}

// EffectStats implements [inbox.EffectStore].
func (s *Store) EffectStats(ctx context.Context, consumerID int) (inbox.EffectStats, error) {
	var st inbox.EffectStats
	counts := map[inbox.EffectState]*int64{
		inbox.EffectPending: &st.Pending, inbox.EffectDoing: &st.Doing, inbox.EffectAnswered: &st.Answered,
		inbox.EffectUncertain: &st.Uncertain, inbox.EffectDead: &st.Dead,
	}
	err := s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		var state inbox.EffectState
		var n, oldest int64
		if err := rows.Scan(&state, &n, &oldest); err != nil {
			return err
		}
		count, ok := counts[state]
		if !ok {
			return fmt.Errorf("an effect has the unknown state %q", state)
		}
		if *count = n; state != inbox.EffectDead {
			st.Oldest = max(st.Oldest, time.Duration(oldest)*time.Microsecond)
		}
		return nil
	}, `SELECT CASE WHEN lease_until < {now} AND result IS NULL THEN 'uncertain' ELSE state END AS seen, COUNT(*), {now} - MIN(prepared_at)
		FROM {inbox_effects} WHERE consumer = ? AND state NOT IN ('done', 'discarded') GROUP BY seen`, consumerID)
	if err != nil {
		return inbox.EffectStats{}, fmt.Errorf("count effects: %w", &OwnError{err})
	}
	return st, nil
}
