package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
)

// Register makes a consumer known. Keys whose first message is following have lost their
// head, which nothing in this library brings about; it becomes one here.
func (s *Store) Register(ctx context.Context, name string, window time.Duration) (consumer.Registration, error) {
	var r consumer.Registration
	var forgotten, horizon, horizonUntil sql.NullInt64
	at := now()
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		err := s.one(ctx, tx, []any{&r.Consumer, &forgotten, &horizon, &horizonUntil}, `
			INSERT INTO {inbox_consumers} (name, window_us, registered_at, passed_at) VALUES (?1, ?2, ?3, ?3)
			ON CONFLICT (name) DO UPDATE SET window_us = excluded.window_us
			RETURNING id, forgotten_until, horizon_us, horizon_until`, name, micros(window), at)
		if err != nil {
			return err
		}
		_, err = s.exec(ctx, tx, `UPDATE {inbox_parked} AS p SET state = 'retrying', next_attempt_at = ?
			WHERE p.consumer = ? AND p.state = 'following' AND `+isFirst, now(), r.Consumer)
		return err
	})
	if err != nil {
		return consumer.Registration{}, fmt.Errorf("register consumer: %w", &ownError{err})
	}
	r.ForgottenUntil = optional(forgotten)
	if horizonUntil.Int64 > at {
		r.Horizon, r.HorizonUntil = time.Duration(horizon.Int64)*time.Microsecond, optional(horizonUntil)
	}
	return r, nil
}

// NoteHorizon keeps the longest horizon of those that are not over.
func (s *Store) NoteHorizon(ctx context.Context, consumerID int, horizon time.Duration, until time.Time) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, `UPDATE {inbox_consumers}
			SET horizon_until = CASE WHEN horizon_us = ?2 THEN max(horizon_until, ?3) ELSE ?3 END, horizon_us = ?2
			WHERE id = ?1 AND (horizon_us IS NULL OR horizon_us <= ?2 OR horizon_until <= ?4)`,
			consumerID, micros(horizon), until.UnixMicro(), now())
		return err
	})
	if err != nil {
		return fmt.Errorf("note horizon: %w", &ownError{err})
	}
	return nil
}

// Newest reads the dispatch IDs that were applied last.
func (s *Store) Newest(ctx context.Context, consumerID, limit int) ([]consumer.Seen, error) {
	var seen []consumer.Seen
	err := s.each(ctx, s.db, func(rows *sql.Rows) error {
		var id, digest sql.RawBytes
		if err := rows.Scan(&id, &digest); err != nil {
			return err
		}
		v := consumer.Seen{Digest: digestOf(digest)}
		var err error
		v.ID, err = uuid.FromBytes(id)
		seen = append(seen, v)
		return err
	}, `SELECT dispatch_id, digest FROM {inbox} NOT INDEXED WHERE consumer = ? AND applied_at IS NOT NULL
		ORDER BY seq DESC LIMIT ?`, consumerID, limit) // not by the index on stamps: all rows would have to be sorted
	if err != nil {
		return nil, fmt.Errorf("read newest dispatch IDs: %w", &ownError{err})
	}
	slices.Reverse(seen)
	return seen, nil
}

// AdvanceForgotten sets the time up to which a consumer forgets. A step is the
// time since the last pass or the registration: that is what a clock that jumped shows by, while
// the distance between two forgotten times grows by a shorter window as well.
func (s *Store) AdvanceForgotten(ctx context.Context, consumerID int, window, maxStep time.Duration) (time.Time, error) {
	var holds sql.NullInt64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var registered, passed int64
		err := s.one(ctx, tx, []any{&registered, &passed, &holds},
			`SELECT registered_at, passed_at, forgotten_until FROM {inbox_consumers} WHERE id = ?`, consumerID)
		if errors.Is(err, sql.ErrNoRows) {
			return errNotRegistered(consumerID)
		} else if err != nil {
			return err
		}
		at := now()
		if at-passed > micros(maxStep) {
			return consumer.ErrClockJump
		}
		if until := at - micros(window); until > registered && (!holds.Valid || until > holds.Int64) {
			holds = sql.NullInt64{Int64: until, Valid: true}
			_, err := s.exec(ctx, tx, `INSERT INTO {inbox_forgotten} (consumer, set_at, until) VALUES (?, ?, ?) ON CONFLICT DO NOTHING`,
				consumerID, at, until)
			if err != nil {
				return err
			}
		}
		_, err = s.exec(ctx, tx, `UPDATE {inbox_consumers} SET passed_at = ?, forgotten_until = ? WHERE id = ?`, at, holds, consumerID)
		return err
	})
	switch {
	case errors.Is(err, consumer.ErrClockJump):
		return optional(holds), consumer.ErrClockJump
	case err != nil:
		return time.Time{}, fmt.Errorf("advance forgotten time: %w", &ownError{err})
	}
	return optional(holds), nil
}

func errNotRegistered(consumerID int) error {
	return fmt.Errorf("consumer %d is not registered", consumerID)
}

// Forget removes dispatch IDs. The time that it goes by is the latest that was
// set at least grace ago: with the newest one alone, a consumer that advances more often than once
// in grace would never forget anything.
func (s *Store) Forget(ctx context.Context, consumerID int, grace time.Duration, after time.Time, limit int) (consumer.Forgotten, error) {
	var f consumer.Forgotten
	from := int64(-1 << 62)
	if !after.IsZero() {
		from = after.UnixMicro()
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var until sql.NullInt64
		err := s.one(ctx, tx, []any{&until}, `SELECT max(until) FROM {inbox_forgotten} WHERE consumer = ? AND set_at <= ?`,
			consumerID, now()-micros(grace))
		if err != nil {
			return err
		}
		if !until.Valid {
			return errNothing
		}
		f = consumer.Forgotten{}
		err = s.each(ctx, tx, func(rows *sql.Rows) error {
			var stamp int64
			err := rows.Scan(&stamp)
			f.IDs++
			if at := instant(stamp); at.After(f.Through) {
				f.Through = at
			}
			return err
		}, `DELETE FROM {inbox} WHERE seq IN (
			SELECT i.seq FROM {inbox} i WHERE i.consumer = ? AND i.stamp >= ? AND i.stamp < ? AND NOT EXISTS (
				SELECT 1 FROM {inbox_parked} p WHERE p.consumer = i.consumer AND p.dispatch_id = i.dispatch_id AND p.claimed)
			ORDER BY i.stamp LIMIT ?) RETURNING stamp`, consumerID, from, until.Int64, limit)
		if err != nil {
			return err
		}
		// Messages that failed and never came again, and times that later ones have replaced.
		_, err = s.exec(ctx, tx, `DELETE FROM {inbox_attempts} AS a WHERE a.consumer = ? AND a.updated_at < ? AND NOT EXISTS (
			SELECT 1 FROM {inbox_parked} p WHERE p.consumer = a.consumer AND p.dispatch_id = a.dispatch_id)`, consumerID, until.Int64)
		if err != nil {
			return err
		}
		_, err = s.exec(ctx, tx, `DELETE FROM {inbox_forgotten} WHERE consumer = ? AND until < ?`, consumerID, until.Int64)
		return err
	})
	if err != nil && !errors.Is(err, errNothing) {
		return consumer.Forgotten{}, fmt.Errorf("forget: %w", &ownError{err})
	}
	return f, nil
}

// ForgetDiscarded removes messages that were discarded long ago.
func (s *Store) ForgetDiscarded(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	var removed int64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		removed, err = s.exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE seq IN (
			SELECT seq FROM {inbox_parked} WHERE consumer = ? AND state = 'discarded' AND discarded_at < ? LIMIT ?)`,
			consumerID, now()-micros(age), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget discarded messages: %w", &ownError{err})
	}
	return int(removed), nil
}

// InboxStats reads the state of a consumer's inbox.
func (s *Store) InboxStats(ctx context.Context, consumerID int) (consumer.Stats, error) {
	var st consumer.Stats
	err := s.read(ctx, func(ctx context.Context, tx *sql.Tx) error {
		var forgotten, horizon sql.NullInt64
		at := now()
		err := s.one(ctx, tx, []any{&forgotten, &horizon}, `SELECT forgotten_until, CASE WHEN horizon_until > ? THEN horizon_us END
			FROM {inbox_consumers} WHERE id = ?`, at, consumerID)
		if err != nil {
			return err
		}
		st.ForgottenUntil, st.Horizon = optional(forgotten), time.Duration(horizon.Int64)*time.Microsecond
		counts := map[consumer.State]*int64{
			consumer.Retrying: &st.Retrying, consumer.Following: &st.Following, consumer.Dead: &st.Dead,
			consumer.TooOldState: &st.TooOld, consumer.AlteredState: &st.Altered,
		}
		for state, n := range counts {
			var oldest sql.NullInt64
			err := s.one(ctx, tx, []any{n, &oldest}, `SELECT count(*), min(parked_at) FROM {inbox_parked} WHERE consumer = ? AND state = ?`,
				consumerID, state)
			if err != nil {
				return err
			}
			if live := state == consumer.Retrying || state == consumer.Following; live && oldest.Valid {
				st.OldestParked = max(st.OldestParked, time.Duration(at-oldest.Int64)*time.Microsecond)
			}
		}
		return nil
	})
	if err != nil {
		return consumer.Stats{}, fmt.Errorf("read inbox stats: %w", &ownError{err})
	}
	return st, nil
}
