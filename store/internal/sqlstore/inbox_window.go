package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// Register implements [inbox.WindowStore]. It also heals keys whose first message is following.
// This library leaves no such key.
func (s *Store) Register(ctx context.Context, name string, window time.Duration) (inbox.Registration, error) {
	var r inbox.Registration
	var forgotten, horizon, horizonUntil sql.NullInt64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		read := func() error {
			return s.c.One(ctx, tx, []any{&r.Consumer, &forgotten, &horizon, &horizonUntil}, `
				SELECT id, forgotten_until, CASE WHEN horizon_until > {now} THEN horizon_us END, CASE WHEN horizon_until > {now} THEN horizon_until END
				FROM {inbox_consumers} WHERE name = ?`, Text(name))
		}
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_consumers} SET window_us = ? WHERE name = ?`, Micros(window), Text(name))
		if err != nil {
			return err
		}
		if err = read(); errors.Is(err, sql.ErrNoRows) { // not by the upsert alone, which uses up a number even for an existing row
			_, err = s.c.Exec(ctx, tx, `INSERT INTO {inbox_consumers} (name, window_us, registered_at, passed_at) VALUES (?, ?, {now}, {now})
				{again name} window_us = ?`, Text(name), Micros(window), Micros(window))
			if err == nil {
				err = read()
			}
		}
		if err != nil {
			return err
		}
		return s.healMessages(ctx, tx, r.Consumer)
	})
	if err != nil {
		return inbox.Registration{}, fmt.Errorf("register consumer: %w", &OwnError{err})
	}
	r.ForgottenUntil, r.Horizon, r.HorizonUntil = Optional(forgotten), elapsed(horizon), Optional(horizonUntil)
	return r, nil
}

// healMessages makes followers retrying that are the first of their keys.
func (s *Store) healMessages(ctx context.Context, tx *sql.Tx, consumerID int) error {
	first, err := s.c.IDs(ctx, tx, `SELECT p.seq FROM {inbox_parked} p WHERE p.consumer = ? AND p.state = 'following' AND `+isFirst, consumerID)
	if err != nil || len(first) == 0 {
		return err
	}
	_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE state = 'following' AND seq IN ?`, first)
	return err
}

// NoteHorizon implements [inbox.WindowStore]. horizon_until is set first: in MySQL later
// assignments see the new value of horizon_us.
func (s *Store) NoteHorizon(ctx context.Context, consumerID int, horizon time.Duration, until time.Time) error {
	us, at := Micros(horizon), until.UnixMicro()
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_consumers}
			SET horizon_until = CASE WHEN horizon_us = ? THEN {greatest}(horizon_until, ?) ELSE ? END, horizon_us = ?
			WHERE id = ? AND (horizon_us IS NULL OR horizon_us <= ? OR horizon_until <= {now})`, us, at, at, us, consumerID, us)
		return err
	})
	if err != nil {
		return fmt.Errorf("note horizon: %w", &OwnError{err})
	}
	return nil
}

// Newest implements [inbox.WindowStore].
func (s *Store) Newest(ctx context.Context, consumerID, limit int) ([]inbox.Seen, error) {
	seen, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (v inbox.Seen, err error) {
		var id, digest sql.RawBytes
		if err := rows.Scan(&id, &digest); err != nil {
			return v, err
		}
		v.Digest = Digest(digest)
		v.ID, err = uuid.FromBytes(id)
		return v, err
	}, `SELECT dispatch_id, digest FROM {inbox} {by_newest} WHERE consumer = ? AND applied_at IS NOT NULL
		ORDER BY {newest} DESC LIMIT ?`, consumerID, max(0, limit))
	if err != nil {
		return nil, fmt.Errorf("read newest dispatch IDs: %w", &OwnError{err})
	}
	slices.Reverse(seen)
	return seen, nil
}

// AdvanceForgotten implements [inbox.WindowStore]. A step is the time since the last pass or the
// registration. The distance between two forgotten times was rejected as a measure: a shorter
// window increases it without any jump of the clock.
func (s *Store) AdvanceForgotten(ctx context.Context, consumerID int, window, maxStep time.Duration) (time.Time, error) {
	var holds sql.NullInt64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var registered, passed, at int64
		err := s.c.One(ctx, tx, []any{&registered, &passed, &holds},
			`SELECT registered_at, passed_at, forgotten_until FROM {inbox_consumers} WHERE id = ? {lock}`, consumerID)
		if errors.Is(err, sql.ErrNoRows) {
			return ErrNotRegistered(consumerID)
		}
		if err == nil { // after the wait for the lock
			at, err = s.c.Now(ctx, tx)
		}
		if err != nil {
			return err
		}
		if at-passed > Micros(maxStep) {
			return &inbox.ClockJumpError{Since: time.UnixMicro(passed)}
		}
		if until := at - Micros(window); until > registered && (!holds.Valid || until > holds.Int64) {
			holds = sql.NullInt64{Int64: until, Valid: true}
			_, err := s.c.Exec(ctx, tx, `INSERT INTO {inbox_forgotten} (consumer, set_at, until) VALUES (?, ?, ?)`, consumerID, at, until)
			if err != nil {
				return err
			}
		}
		_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_consumers} SET passed_at = ?, forgotten_until = ? WHERE id = ?`, at, holds, consumerID)
		return err
	})
	switch {
	case errors.Is(err, inbox.ErrClockJump):
		return Optional(holds), err
	case err != nil:
		return time.Time{}, fmt.Errorf("advance forgotten time: %w", &OwnError{err})
	}
	return Optional(holds), nil
}

// ErrNotRegistered returns the error for an unknown consumer.
func ErrNotRegistered(consumerID int) error {
	return fmt.Errorf("consumer %d is not registered", consumerID)
}

// Forget implements [inbox.WindowStore]. inbox_forgotten keeps all forgotten times younger than
// grace: with the newest time alone, a consumer that advances more often than once in grace would
// never forget anything.
func (s *Store) Forget(ctx context.Context, consumerID int, grace time.Duration, after time.Time, limit int) (inbox.Forgotten, error) {
	var f inbox.Forgotten
	from := int64(-1 << 62)
	if !after.IsZero() {
		from = after.UnixMicro()
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		f = inbox.Forgotten{}
		var until sql.NullInt64
		err := s.c.One(ctx, tx, []any{&until}, `SELECT MAX(until) FROM {inbox_forgotten} WHERE consumer = ? AND set_at <= {now} - ?`,
			consumerID, Micros(max(0, grace)))
		if err != nil {
			return err
		}
		if !until.Valid {
			return ErrNothing
		}
		if err := s.c.d.ForgetIDs(ctx, tx, consumerID, from, until.Int64, limit, &f); err != nil || f.IDs >= limit {
			return err
		}
		// Remove attempts of messages that never came again, and forgotten times that a later time
		// has replaced.
		_, err = s.c.Exec(ctx, tx, `DELETE FROM {inbox_attempts} WHERE consumer = ? AND updated_at < ? AND NOT EXISTS (
			SELECT 1 FROM {inbox_parked} p WHERE p.consumer = {inbox_attempts}.consumer AND p.dispatch_id = {inbox_attempts}.dispatch_id)`,
			consumerID, until.Int64)
		if err != nil {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `DELETE FROM {inbox_forgotten} WHERE consumer = ? AND until < ?`, consumerID, until.Int64)
		return err
	})
	if err != nil && !errors.Is(err, ErrNothing) {
		return inbox.Forgotten{}, fmt.Errorf("forget: %w", &OwnError{err})
	}
	return f, nil
}

// ForgetDiscarded implements [inbox.WindowStore].
func (s *Store) ForgetDiscarded(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	n, err := s.forget(ctx, oldRows{
		table: `{inbox_parked}`, key: "seq", where: "consumer = ? AND state = 'discarded' AND discarded_at < {now} - ?", first: "discarded_at",
	}, limit, consumerID, Micros(age))
	if err != nil {
		return 0, fmt.Errorf("forget discarded messages: %w", &OwnError{err})
	}
	return n, nil
}

// InboxStats implements [inbox.WindowStore], in one statement.
func (s *Store) InboxStats(ctx context.Context, consumerID int) (inbox.Stats, error) {
	var st inbox.Stats
	var forgotten, horizon, oldest sql.NullInt64
	err := s.c.One(ctx, s.c.DB, []any{&forgotten, &horizon, &st.Retrying, &st.Following, &st.Dead, &st.TooOld, &st.Altered, &oldest}, `
		SELECT c.forgotten_until, CASE WHEN c.horizon_until > {now} THEN c.horizon_us END,
			(SELECT COUNT(*) FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state = 'retrying'),
			(SELECT COUNT(*) FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state = 'following'),
			(SELECT COUNT(*) FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state = 'dead'),
			(SELECT COUNT(*) FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state = 'too_old'),
			(SELECT COUNT(*) FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state = 'altered'),
			(SELECT {greatest}(0, {now} - MIN(p.parked_at)) FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state IN ('retrying', 'following'))
		FROM {inbox_consumers} c WHERE c.id = ?`, consumerID)
	if err != nil {
		return inbox.Stats{}, fmt.Errorf("read inbox stats: %w", &OwnError{err})
	}
	st.ForgottenUntil, st.Horizon, st.OldestParked = Optional(forgotten), elapsed(horizon), elapsed(oldest)
	return st, nil
}

// ParkedConsumers implements [inbox.ParkedNamer]. The query reads only the index of states.
func (s *Store) ParkedConsumers(ctx context.Context) ([]string, error) {
	var names []string
	err := s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, `SELECT c.name FROM {inbox_consumers} c
		WHERE EXISTS (SELECT 1 FROM {inbox_parked} p WHERE p.consumer = c.id AND p.state IN ('retrying', 'following', 'dead', 'too_old', 'altered'))
		ORDER BY c.name LIMIT 100`)
	if err != nil {
		return nil, fmt.Errorf("read the consumers of parked messages: %w", err)
	}
	return names, nil
}

// FindConsumer implements [inbox.ConsumerFinder].
func (s *Store) FindConsumer(ctx context.Context, name string) (consumer int, err error) {
	err = s.c.One(ctx, s.c.DB, []any{&consumer}, `SELECT id FROM {inbox_consumers} WHERE name = ?`, Text(name))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return 0, inbox.ErrNoConsumer
	case err != nil:
		return 0, fmt.Errorf("find a consumer: %w", &OwnError{err})
	}
	return consumer, nil
}
