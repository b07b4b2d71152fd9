package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
)

// liveHorizon selects a horizon, or zero and NULL after its end.
const liveHorizon = `
    CASE WHEN horizon_until > clock_timestamp() THEN (extract(epoch FROM horizon) * 1000000)::bigint ELSE 0 END,
    CASE WHEN horizon_until > clock_timestamp() THEN horizon_until END`

var (
	// A conflicting insert would use up one of the 32767 ids each time.
	registerAgain = statement(`
UPDATE {{inbox_consumers}} SET window_size = $2::bigint * interval '1 microsecond' WHERE name = $1
RETURNING id, forgotten_until, ` + liveHorizon)
	registerConsumer = statement(`
INSERT INTO {{inbox_consumers}} (name, window_size) VALUES ($1, $2::bigint * interval '1 microsecond')
ON CONFLICT (name) DO UPDATE SET window_size = excluded.window_size
RETURNING id, forgotten_until, ` + liveHorizon)
	// healMessages gives a head to every key without a head, as after rows were deleted by hand.
	// This package leaves no such keys behind.
	healMessages = statement(`
UPDATE {{inbox_parked}} p SET state = 'retrying', next_attempt_at = clock_timestamp()
WHERE p.consumer = $1 AND p.state = 'following' AND ` + isFirstMessage)
)

// Register implements [inbox.WindowStore].
func (s *Store) Register(ctx context.Context, name string, window time.Duration) (inbox.Registration, error) {
	var r inbox.Registration
	var until, horizonUntil pgtype.Timestamptz
	var horizon int64
	columns := []any{&r.Consumer, &until, &horizon, &horizonUntil}
	err := s.queryRow(ctx, registerAgain, name, window.Microseconds()).Scan(columns...)
	if errors.Is(err, pgx.ErrNoRows) {
		err = s.queryRow(ctx, registerConsumer, name, window.Microseconds()).Scan(columns...)
	}
	if err != nil {
		return inbox.Registration{}, failed("register a consumer", &ownError{err})
	}
	if _, err := s.exec(ctx, healMessages, r.Consumer); err != nil {
		return inbox.Registration{}, failed("heal parked messages", &ownError{err})
	}
	r.ForgottenUntil = timeOf(until)
	r.Horizon, r.HorizonUntil = time.Duration(horizon)*time.Microsecond, timeOf(horizonUntil)
	return r, nil
}

var noteHorizon = statement(`
UPDATE {{inbox_consumers}}
SET horizon_until = CASE WHEN horizon = $2::bigint * interval '1 microsecond' THEN greatest(horizon_until, $3) ELSE $3 END,
    horizon = $2::bigint * interval '1 microsecond'
WHERE id = $1
  AND (horizon IS NULL OR horizon <= $2::bigint * interval '1 microsecond' OR horizon_until <= clock_timestamp())`)

// NoteHorizon implements [inbox.WindowStore].
func (s *Store) NoteHorizon(ctx context.Context, consumerID int, horizon time.Duration, until time.Time) error {
	if _, err := s.exec(ctx, noteHorizon, consumerID, horizon.Microseconds(), until); err != nil {
		return failed("note a horizon", &ownError{err})
	}
	return nil
}

var (
	newestSince = statement(`
SELECT dispatch_id, digest FROM {{inbox}}
WHERE consumer = $1 AND applied_at > clock_timestamp() - $3::bigint * interval '1 microsecond'
ORDER BY applied_at DESC LIMIT $2`)
	newestOfAll = statement(`
SELECT dispatch_id, digest FROM {{inbox}}
WHERE consumer = $1 AND applied_at IS NOT NULL
ORDER BY applied_at DESC LIMIT $2`)
)

// How far Newest looks back at first, the factor of each further step, and the distance from which
// on Newest reads all rows.
const (
	firstLook = time.Minute
	lookMore  = 8
	lastLook  = 90 * 24 * time.Hour
)

// Newest implements [inbox.WindowStore]. A BRIN index on the time is cheap. It finds the rows after
// a given time, but not the newest rows, so Newest looks back further and further.
func (s *Store) Newest(ctx context.Context, consumerID int, limit int) ([]inbox.Seen, error) {
	if limit <= 0 {
		return nil, nil
	}
	for back := firstLook; back < lastLook; back *= lookMore {
		seen, err := s.seen(ctx, newestSince, consumerID, limit, back.Microseconds())
		if err != nil || len(seen) == limit {
			return seen, err
		}
	}
	return s.seen(ctx, newestOfAll, consumerID, limit)
}

func (s *Store) seen(ctx context.Context, t *template, args ...any) ([]inbox.Seen, error) {
	seen, err := readRows(ctx, s, t, args, func(row pgx.CollectableRow) (inbox.Seen, error) {
		var id pgtype.UUID
		var digest []byte
		err := row.Scan(&id, &digest)
		return inbox.Seen{ID: id.Bytes, Digest: digestOf(digest)}, err
	})
	if err != nil {
		return nil, failed("read the newest dispatch IDs", &ownError{err})
	}
	slices.Reverse(seen)
	return seen, nil
}

// advanceForgotten advances the forgotten time of a consumer, unless the clock has advanced by more
// than maxStep since the last pass. The step of the clock shows a jump; the step of the forgotten
// time does not, since a shorter window increases that step as well.
var advanceForgotten = statement(`
WITH c AS MATERIALIZED (
    SELECT id, registered_at, passed_at, forgotten_until FROM {{inbox_consumers}} WHERE id = $1 FOR NO KEY UPDATE
), n AS MATERIALIZED (
    SELECT c.*, clock_timestamp() AS now FROM c
), d AS MATERIALIZED (
    SELECT n.*, now - $2::bigint * interval '1 microsecond' AS until,
        now - passed_at > $3::bigint * interval '1 microsecond' AS jumped
    FROM n
), e AS MATERIALIZED (
    SELECT d.*, NOT jumped AND until > registered_at AND until > coalesce(forgotten_until, '-infinity') AS ahead FROM d
), h AS (
    INSERT INTO {{inbox_forgotten}} (consumer, until, set_at) SELECT id, until, now FROM e WHERE ahead
), u AS (
    UPDATE {{inbox_consumers}} k
    SET passed_at = e.now, forgotten_until = CASE WHEN e.ahead THEN e.until ELSE k.forgotten_until END
    FROM e WHERE k.id = e.id AND NOT e.jumped
)
SELECT jumped, CASE WHEN ahead THEN until ELSE forgotten_until END, passed_at FROM e`)

// AdvanceForgotten implements [inbox.WindowStore]. A step is the time since the last pass, or since
// the registration of the consumer.
func (s *Store) AdvanceForgotten(ctx context.Context, consumerID int, window, maxStep time.Duration) (time.Time, error) {
	var jumped bool
	var until, passed pgtype.Timestamptz
	err := s.queryRow(ctx, advanceForgotten, consumerID, window.Microseconds(), maxStep.Microseconds()).Scan(&jumped, &until, &passed)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return time.Time{}, errNotRegistered(consumerID)
	case err != nil:
		return time.Time{}, failed("advance the forgotten time", &ownError{err})
	case jumped:
		return timeOf(until), &inbox.ClockJumpError{Since: timeOf(passed)}
	}
	return timeOf(until), nil
}

func errNotRegistered(consumerID int) error {
	return fmt.Errorf("consumer %d is not registered", consumerID)
}

var (
	// forgottenSince reads the latest forgotten time that was set long enough ago. The time is
	// committed already: a copy that waits for a deletion of its ID and then claims the ID reads
	// this time or a later time.
	forgottenSince = statement(`
SELECT max(until) FROM {{inbox_forgotten}}
WHERE consumer = $1 AND set_at <= clock_timestamp() - $2::bigint * interval '1 microsecond'`)

	// The lower bound keeps the scan from stepping over rows that earlier batches have deleted,
	// however long vacuum is held up.
	forgetIDs = statement(`
WITH gone AS (
    DELETE FROM {{inbox}} WHERE ctid = ANY (ARRAY(
        SELECT i.ctid FROM {{inbox}} i
        WHERE i.consumer = $1 AND i.stamp < $2 AND i.stamp >= $4 AND NOT EXISTS (
            SELECT FROM {{inbox_parked}} p WHERE p.consumer = i.consumer AND p.dispatch_id = i.dispatch_id)
        ORDER BY i.stamp LIMIT $3
        FOR UPDATE OF i SKIP LOCKED))
    RETURNING stamp
)
SELECT count(*), max(stamp) FROM gone`)

	// The counters of messages that never came back are of no use any more.
	forgetAttempts = statement(`
WITH a AS (
    DELETE FROM {{inbox_attempts}} WHERE consumer = $1 AND changed_at < $2
)
DELETE FROM {{inbox_forgotten}} WHERE consumer = $1 AND until < $2`)
)

// Forget implements [inbox.WindowStore].
func (s *Store) Forget(ctx context.Context, consumerID int, grace time.Duration, after time.Time, limit int) (inbox.Forgotten, error) {
	var f inbox.Forgotten
	var until, through pgtype.Timestamptz
	if err := s.queryRow(ctx, forgottenSince, consumerID, max(0, grace.Microseconds())).Scan(&until); err != nil {
		return f, failed("read the forgotten time", &ownError{err})
	}
	if !until.Valid {
		return f, nil
	}
	if err := s.queryRow(ctx, forgetIDs, consumerID, until, limit, sinceOf(after)).Scan(&f.IDs, &through); err != nil {
		return f, failed("forget dispatch IDs", &ownError{err})
	}
	f.Through = timeOf(through)
	if f.IDs < limit {
		if _, err := s.exec(ctx, forgetAttempts, consumerID, until); err != nil {
			return f, failed("forget attempts", &ownError{err})
		}
	}
	return f, nil
}

// sinceOf returns a time as a lower bound. A zero time is no bound.
func sinceOf(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

// untilOf returns a time as an upper bound. A zero time is no bound.
func untilOf(t time.Time) pgtype.Timestamptz {
	if t.IsZero() {
		return pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true}
	}
	return pgtype.Timestamptz{Time: t, Valid: true}
}

var forgetDiscarded = statement(`
DELETE FROM {{inbox_parked}} WHERE id IN (
    SELECT id FROM {{inbox_parked}}
    WHERE consumer = $1 AND state = 'discarded' AND discarded_at < clock_timestamp() - $2::bigint * interval '1 microsecond'
    LIMIT $3) AND state = 'discarded'`)

// ForgetDiscarded implements [inbox.WindowStore].
func (s *Store) ForgetDiscarded(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	tag, err := s.exec(ctx, forgetDiscarded, consumerID, age.Microseconds(), limit)
	if err != nil {
		return 0, failed("forget discarded messages", &ownError{err})
	}
	return int(tag.RowsAffected()), nil
}

// inboxStats counts each state by itself: a comparison of each row with each state takes longer than the
// count. The oldest rows are the first ones of an index.
var inboxStats = statement(`
SELECT (SELECT count(*) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'retrying'),
       (SELECT count(*) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'following'),
       (SELECT count(*) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'dead'),
       (SELECT count(*) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'too_old'),
       (SELECT count(*) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'altered'),
       coalesce(greatest(0, extract(epoch FROM clock_timestamp() - least(
           (SELECT min(parked_at) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'retrying'),
           (SELECT min(parked_at) FROM {{inbox_parked}} WHERE consumer = $1 AND state = 'following')))) * 1000000, 0)::bigint,
       (SELECT forgotten_until FROM {{inbox_consumers}} WHERE id = $1),
       coalesce((SELECT (extract(epoch FROM horizon) * 1000000)::bigint FROM {{inbox_consumers}}
                 WHERE id = $1 AND horizon_until > clock_timestamp()), 0)`)

// InboxStats implements [inbox.WindowStore]. It counts the parked messages, so its time grows with
// their number.
func (s *Store) InboxStats(ctx context.Context, consumerID int) (inbox.Stats, error) {
	var st inbox.Stats
	var age, horizon int64
	var until pgtype.Timestamptz
	err := s.queryRow(ctx, inboxStats, consumerID).Scan(
		&st.Retrying, &st.Following, &st.Dead, &st.TooOld, &st.Altered, &age, &until, &horizon)
	if err != nil {
		return inbox.Stats{}, failed("read the state of an inbox", &ownError{err})
	}
	st.OldestParked, st.ForgottenUntil = time.Duration(age)*time.Microsecond, timeOf(until)
	st.Horizon = time.Duration(horizon) * time.Microsecond
	return st, nil
}

var parkedConsumers = statement(`
SELECT c.name FROM {{inbox_consumers}} c
WHERE EXISTS (SELECT FROM {{inbox_parked}} p WHERE p.consumer = c.id AND p.state IN ('retrying', 'following', 'dead', 'too_old', 'altered'))
ORDER BY c.name LIMIT 100`)

// ParkedConsumers implements [inbox.ParkedNamer]. The index of states answers the query.
func (s *Store) ParkedConsumers(ctx context.Context) ([]string, error) {
	names, err := readRows(ctx, s, parkedConsumers, nil, pgx.RowTo[string])
	if err != nil {
		return nil, failed("list consumers with parked messages", &ownError{err})
	}
	return names, nil
}

var findConsumer = statement(`SELECT coalesce(min(id), 0) FROM {{inbox_consumers}} WHERE name = $1`)

// FindConsumer implements [inbox.ConsumerFinder].
func (s *Store) FindConsumer(ctx context.Context, name string) (consumer int, err error) {
	if err := s.queryRow(ctx, findConsumer, name).Scan(&consumer); err != nil {
		return 0, failed("find a consumer", &ownError{err})
	}
	if consumer == 0 {
		return 0, inbox.ErrNoConsumer
	}
	return consumer, nil
}
