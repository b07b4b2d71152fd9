package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

const effectFilter = `
FROM {{inbox_effects}} e JOIN {{inbox_consumers}} c ON c.id = e.consumer
WHERE ($1 = '' OR c.name = $1)
    AND (cardinality($2::uuid[]) = 0 OR e.dispatch_id = ANY ($2))
    AND (cardinality($3::uuid[]) = 0 OR e.effect_key = ANY ($3))
    AND (cardinality($4::text[]) = 0 OR ` + effectState + ` = ANY ($4))
    AND e.prepared_at >= $5 AND e.prepared_at < $6 AND e.id > $7
ORDER BY e.id LIMIT $8`

func effectArgs(f *inbox.EffectFilter, states []inbox.EffectState) []any {
	names := make([]string, len(states))
	for i, state := range states {
		names[i] = string(state)
	}
	limit := f.Limit
	if limit <= 0 {
		limit = defaultFilterLimit
	}
	return []any{f.Consumer, idValues(f.IDs), idValues(f.Keys), names, sinceOf(f.Since), untilOf(f.Until), f.After, limit}
}

var listEffects = statement(`SELECT ` + effectColumns + effectFilter)

// ListEffects implements [inbox.EffectStore].
func (s *Store) ListEffects(ctx context.Context, f inbox.EffectFilter) ([]inbox.Effect, error) {
	list, err := readRows(ctx, s, listEffects, effectArgs(&f, f.States), func(row pgx.CollectableRow) (inbox.Effect, error) {
		r, err := scanEffect(row)
		return r.Effect, err
	})
	if err != nil {
		return nil, failed("list effects", &ownError{err})
	}
	return list, nil
}

// changeEffects changes the selected effects under their row locks. A new run number makes a run in
// flight outdated.
var changeEffects = statement(`
WITH chosen AS MATERIALIZED (SELECT e.id` + effectFilter + `),
locked AS MATERIALIZED (
    SELECT e.id, e.consumer, e.dispatch_id, e.result, e.attempts, ` + effectState + ` AS state
    FROM {{inbox_effects}} e JOIN chosen ON chosen.id = e.id ORDER BY e.id FOR UPDATE OF e
), u AS (
    UPDATE {{inbox_effects}} e
    SET state = n.state, run = e.run + 1, lease_until = NULL,
        attempts = CASE WHEN $9 = 'discarded' THEN e.attempts ELSE 0 END,
        result = coalesce($10, e.result), reason = CASE WHEN $9 = 'discarded' THEN $11 END,
        due_at = CASE WHEN $9 <> 'discarded' THEN clock_timestamp() END,
        ended_at = CASE WHEN $9 = 'discarded' THEN clock_timestamp() END
    FROM locked l, LATERAL (
        SELECT CASE WHEN $9 = 'pending' AND l.result IS NOT NULL THEN 'answered' ELSE $9 END AS state
    ) n
    WHERE e.id = l.id AND CASE $9
        WHEN 'discarded' THEN l.state IN ('pending', 'answered', 'dead', 'uncertain')
        WHEN 'answered' THEN l.state IN ('dead', 'uncertain') AND l.result IS NULL
        ELSE l.state IN ('dead', 'uncertain')
    END
    RETURNING e.id, e.consumer, e.dispatch_id
), h AS (
    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) SELECT consumer, dispatch_id, $12, $11 FROM u ORDER BY id
)
SELECT dispatch_id FROM u ORDER BY id`)

// ChangeEffects implements [inbox.EffectStore].
func (s *Store) ChangeEffects(ctx context.Context, f inbox.EffectFilter, c inbox.EffectChange) ([]uuid.UUID, error) {
	noted, states, err := sqlstore.EffectTransition(c.State, f.States)
	if err != nil || len(states) == 0 {
		return nil, err
	}
	ids, err := readRows(ctx, s, changeEffects, append(effectArgs(&f, states), string(c.State), c.Result, storable(c.Reason), noted), scanID)
	if err != nil {
		return nil, failed("change effects", &ownError{err})
	}
	return ids, nil
}

var forgetEffects = statement(`
DELETE FROM {{inbox_effects}} WHERE id IN (
    SELECT id FROM {{inbox_effects}}
    WHERE consumer = $1 AND state IN ('done', 'discarded') AND ended_at < clock_timestamp() - $2::bigint * interval '1 microsecond'
    ORDER BY ended_at LIMIT $3) AND state IN ('done', 'discarded')`)

// ForgetEffects implements [inbox.EffectStore].
func (s *Store) ForgetEffects(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	tag, err := s.exec(ctx, forgetEffects, consumerID, age.Microseconds(), limit)
	if err != nil {
		return 0, failed("forget effects", &ownError{err})
	}
	return int(tag.RowsAffected()), nil
}

var effectStats = statement(`
SELECT count(*) FILTER (WHERE e.state = 'pending'), count(*) FILTER (WHERE e.state = 'doing'),
       count(*) FILTER (WHERE e.state = 'answered'), count(*) FILTER (WHERE e.state = 'uncertain'),
       count(*) FILTER (WHERE e.state = 'dead'),
       coalesce(greatest(0, extract(epoch FROM clock_timestamp() -
           min(e.prepared_at) FILTER (WHERE e.state <> 'dead'))) * 1000000, 0)::bigint
FROM (SELECT e.prepared_at, ` + effectState + ` AS state FROM {{inbox_effects}} e
      WHERE e.consumer = $1 AND e.state NOT IN ('done', 'discarded')) e`)

// EffectStats implements [inbox.EffectStore].
func (s *Store) EffectStats(ctx context.Context, consumerID int) (inbox.EffectStats, error) {
	var st inbox.EffectStats
	var age int64
	err := s.queryRow(ctx, effectStats, consumerID).Scan(&st.Pending, &st.Doing, &st.Answered, &st.Uncertain, &st.Dead, &age)
	if err != nil {
		return inbox.EffectStats{}, failed("count effects", &ownError{err})
	}
	st.Oldest = time.Duration(age) * time.Microsecond
	return st, nil
}
