package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/control"
)

// Pauses implements [control.Store].
func (s *Store) Pauses(ctx context.Context) ([]control.Pause, error) {
	var list []control.Pause
	err := s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		var p control.Pause
		var since int64
		var until sql.NullInt64
		err := rows.Scan(&p.Kind, &p.Name, &since, &until, &p.Reason, &p.By)
		p.Since = time.UnixMicro(since)
		if until.Valid {
			p.Until = time.UnixMicro(until.Int64)
		}
		list = append(list, p)
		return err
	}, `SELECT kind, name, paused_since, paused_until, reason, paused_by FROM {pauses}
		WHERE paused_until IS NULL OR paused_until > {now} ORDER BY kind, name`)
	if err != nil {
		return nil, fmt.Errorf("read pauses: %w", err)
	}
	return list, nil
}

// SetPause implements [control.Store].
func (s *Store) SetPause(ctx context.Context, p control.Pause) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := s.c.Exec(ctx, tx, `DELETE FROM {pauses} WHERE paused_until <= {now}`); err != nil {
			return err
		}
		var until any
		if !p.Until.IsZero() {
			until = p.Until.UnixMicro()
		}
		_, err := s.c.Exec(ctx, tx, `INSERT INTO {pauses} (kind, name, paused_since, paused_until, reason, paused_by)
			VALUES (?, ?, {now}, ?, ?, {user_or ?}) {again kind, name} paused_until = ?, reason = ?, paused_by = {user_or ?}`,
			string(p.Kind), Text(p.Name), until, Text(p.Reason), Text(p.By), until, Text(p.Reason), Text(p.By))
		return err
	})
	if err != nil {
		return fmt.Errorf("pause: %w", err)
	}
	return nil
}

// EndPause implements [control.Store].
func (s *Store) EndPause(ctx context.Context, kind control.Kind, name string) (bool, error) {
	found := false
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var inForce int
		if err := s.c.One(ctx, tx, []any{&inForce}, `SELECT COUNT(*) FROM {pauses}
			WHERE kind = ? AND name = ? AND (paused_until IS NULL OR paused_until > {now})`, string(kind), Text(name)); err != nil {
			return err
		}
		found = inForce > 0
		_, err := s.c.Exec(ctx, tx, `DELETE FROM {pauses} WHERE kind = ? AND name = ?`, string(kind), Text(name))
		return err
	})
	if err != nil {
		return false, fmt.Errorf("end a pause: %w", err)
	}
	return found, nil
}

// TakeTokens implements [control.Store].
func (s *Store) TakeTokens(ctx context.Context, name string, perSecond float64, want int) (granted int, next time.Duration, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `INSERT INTO {rates} (name, tokens, filled_at) VALUES (?, ?, {now}) {again name} name = ?`,
			Text(name), control.BucketSize(perSecond), Text(name)) // locks the row
		if err != nil {
			return err
		}
		var b control.Bucket
		var now int64
		if err := s.c.One(ctx, tx, []any{&b.Tokens, &b.FilledAt, &now}, `SELECT tokens, filled_at, {now} FROM {rates} WHERE name = ? {lock}`, Text(name)); err != nil {
			return err
		}
		granted, next = b.Take(now, perSecond, want)
		_, err = s.c.Exec(ctx, tx, `UPDATE {rates} SET tokens = ?, filled_at = ? WHERE name = ?`, b.Tokens, b.FilledAt, Text(name))
		return err
	})
	if err != nil {
		return 0, 0, fmt.Errorf("take tokens: %w", err)
	}
	return granted, next, nil
}
