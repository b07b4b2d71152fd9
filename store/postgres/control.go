package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/control"
)

var listPauses = statement(`
SELECT kind, name, paused_since, paused_until, reason, paused_by FROM {{pauses}}
WHERE paused_until IS NULL OR paused_until > clock_timestamp() ORDER BY kind, name COLLATE "C"`)

// Pauses implements [control.Store].
func (s *Store) Pauses(ctx context.Context) ([]control.Pause, error) {
	list, err := readRows(ctx, s, listPauses, nil, func(row pgx.CollectableRow) (p control.Pause, err error) {
		var until *time.Time
		err = row.Scan((*string)(&p.Kind), &p.Name, &p.Since, &until, &p.Reason, &p.By)
		if until != nil {
			p.Until = *until
		}
		return p, err
	})
	if err != nil {
		return nil, failed("read pauses", err)
	}
	return list, nil
}

var setPause = statement(`
WITH over AS (
    DELETE FROM {{pauses}} WHERE paused_until <= clock_timestamp() AND (kind, name) <> ($1::text, $2::text)
)
INSERT INTO {{pauses}} AS p (kind, name, paused_since, paused_until, reason, paused_by)
VALUES ($1::text, $2::text, clock_timestamp(), $3::timestamptz, $4::text, coalesce(nullif($5::text, ''), current_user))
ON CONFLICT (kind, name) DO UPDATE
SET paused_since = CASE WHEN p.paused_until <= excluded.paused_since THEN excluded.paused_since ELSE p.paused_since END,
    paused_until = excluded.paused_until, reason = excluded.reason, paused_by = excluded.paused_by`)

// SetPause implements [control.Store].
func (s *Store) SetPause(ctx context.Context, p control.Pause) error {
	var until *time.Time
	if !p.Until.IsZero() {
		until = &p.Until
	}
	if _, err := s.exec(ctx, setPause, string(p.Kind), p.Name, until, p.Reason, p.By); err != nil {
		return failed("pause", err)
	}
	return nil
}

var endPause = statement(`
DELETE FROM {{pauses}} WHERE kind = $1 AND name = $2 RETURNING coalesce(paused_until > clock_timestamp(), true)`)

// EndPause implements [control.Store].
func (s *Store) EndPause(ctx context.Context, kind control.Kind, name string) (bool, error) {
	ended, err := readRows(ctx, s, endPause, []any{string(kind), name}, pgx.RowTo[bool])
	if err != nil {
		return false, failed("end a pause", err)
	}
	return len(ended) > 0 && ended[0], nil
}

// takeTokens fills a bucket up to now and takes from it. While the statement waits for the row, another one may
// fill the bucket up to a later time: time does not go back, unless the clock was set back by more
// than a wait may take.
var takeTokens = statement(`
WITH r AS (
    INSERT INTO {{rates}} AS b (name, tokens, filled_at, granted)
    VALUES ($1::text, $3::float8 - least($4::float8, floor($3::float8)), clock_timestamp(), least($4::float8, floor($3::float8))::integer)
    ON CONFLICT (name) DO UPDATE SET
        granted = least($4::float8, floor(least($3::float8, b.tokens + $2::float8 * greatest(0, extract(epoch FROM excluded.filled_at - b.filled_at)::float8))))::integer,
        tokens = least($3::float8, b.tokens + $2::float8 * greatest(0, extract(epoch FROM excluded.filled_at - b.filled_at)::float8))
            - least($4::float8, floor(least($3::float8, b.tokens + $2::float8 * greatest(0, extract(epoch FROM excluded.filled_at - b.filled_at)::float8)))),
        filled_at = CASE WHEN b.filled_at > excluded.filled_at + interval '1 minute' THEN excluded.filled_at
            ELSE greatest(b.filled_at, excluded.filled_at) END
    RETURNING b.granted, b.tokens
)
SELECT granted, tokens FROM r`)

// TakeTokens implements [control.Store].
func (s *Store) TakeTokens(ctx context.Context, name string, perSecond float64, want int) (granted int, next time.Duration, err error) {
	var left float64
	if err := s.queryRow(ctx, takeTokens, name, perSecond, control.BucketSize(perSecond), float64(want)).Scan(&granted, &left); err != nil {
		return 0, 0, failed("take tokens", err)
	}
	return granted, control.NextToken(granted, left, perSecond), nil
}
