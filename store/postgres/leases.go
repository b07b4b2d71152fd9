package postgres

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/outbox"
)

// farAhead is how far ahead a lease without a known beginning may end. A lease that ends later is
// from before the clock was set back.
const farAhead = time.Hour

func farAheadFor(ttl time.Duration) float64 { return micros(max(2*ttl, farAhead)) }

// heartbeat counts the caller and all other visible relays. As with leases, a relay seen before the
// clock was set back does not count: its share of the shards would have no owner. SKIP LOCKED keeps
// two relays that remove the same rows from waiting for each other.
var heartbeat = statement(`
WITH gone AS (
    DELETE FROM {{outbox_relays}} WHERE id IN (
        SELECT id FROM {{outbox_relays}}
        WHERE id <> $1 AND seen_until < clock_timestamp() - interval '1 hour'
        FOR UPDATE SKIP LOCKED)
), me AS (
    INSERT INTO {{outbox_relays}} (id, seen_at, seen_until) VALUES ($1, clock_timestamp(), clock_timestamp() + $2::float8 * interval '1 us')
    ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, seen_until = excluded.seen_until
)
SELECT 1 + count(*) FROM {{outbox_relays}}
WHERE id <> $1 AND seen_until > clock_timestamp()
  AND coalesce(seen_at >= seen_until OR seen_at - clock_timestamp() <= seen_until - seen_at,
    seen_until <= clock_timestamp() + $3::float8 * interval '1 us')`)

// Heartbeat implements [outbox.RelayStore].
func (s *Store) Heartbeat(ctx context.Context, relay string, ttl time.Duration) (int, error) {
	var live int
	if err := s.queryRow(ctx, heartbeat, relay, micros(ttl), farAheadFor(ttl)).Scan(&live); err != nil {
		return 0, failed("heartbeat", err)
	}
	return live, nil
}

// identity has three parts: the identifier of the cluster, which a restore from a dump changes; the
// timeline, which the promotion of a standby changes; and the start of the statistics, which
// changes with a crash of the server or of a single session. Such a crash loses commits that did
// not wait for the disk (synchronous_commit = off), even without a fail-over. A clean restart keeps
// the statistics.
const identity = `SELECT c.name || ' ' || coalesce(extract(epoch FROM pg_stat_get_bgwriter_stat_reset_time())::text, '') FROM `

// named adds the identifier of the cluster and the timeline to [identity].
const named = `(
SELECT system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS name
FROM pg_control_system()) c`

// hides tells whether err says that a function is not allowed, not there or not supported.
func hides(err error) bool {
	state := sqlState(err)
	return state == "42501" || state == "42883" || state == "0A000"
}

// Identity implements [outbox.Identifier]. Some services hide the identifier and the timeline. The
// identity is then the start of the statistics, which differs on a standby.
func (s *Store) Identity(ctx context.Context) (string, error) {
	var name string
	err := s.pool.QueryRow(ctx, identity+named, s.mode).Scan(&name)
	if hides(err) {
		err = s.pool.QueryRow(ctx, identity+`(SELECT '' AS name) c`, s.mode).Scan(&name)
	}
	if err != nil {
		return "", failed("identify the database", err)
	}
	return name, nil
}

// acquire takes shards over. FOR UPDATE excludes the fenced statements of the former owner, which
// hold FOR KEY SHARE. A shard with a fenced statement under way is skipped, and found again by the
// next call. A shard without an owner was given back.
//
// leased_at: a lease lasts as long as its owner asked for, whatever the ttl of this relay. A lease
// that begins further ahead than its duration is from before the clock was set back. A relay that
// does not know the column leaves the column unchanged or NULL. A beginning in the past, or after
// the end, does not shorten the lease.
//
// low_epoch: a kept low-water mark counts if it belongs to the previous epoch, and then passes to
// this epoch. Numbers that begin anew are below every mark kept before.
var acquire = statement(`
WITH free AS MATERIALIZED (
    SELECT shard, owner IS NOT NULL AS abrupt FROM {{outbox_shards}}
    WHERE owner IS NULL
       OR lease_until <= clock_timestamp()
       OR leased_at < lease_until AND leased_at - clock_timestamp() > lease_until - leased_at -- the clock was set back
       OR leased_at IS NULL AND lease_until > clock_timestamp() + $4::float8 * interval '1 us'
    ORDER BY shard
    LIMIT $3
    FOR UPDATE SKIP LOCKED
)
UPDATE {{outbox_shards}} s
SET owner = $1, epoch = s.epoch + 1, leased_at = clock_timestamp(), lease_until = clock_timestamp() + $2::float8 * interval '1 us',
    low_epoch = CASE WHEN s.low_epoch = s.epoch AND greatest(s.low_water, s.tail) <= (SELECT max(id) FROM {{outbox_events}}) THEN s.epoch + 1 END
FROM free WHERE s.shard = free.shard
RETURNING s.shard, s.epoch, free.abrupt,
    CASE WHEN s.low_epoch = s.epoch THEN greatest(0, least(s.low_water, s.rewind_to - 1)) ELSE 0 END,
    CASE WHEN s.low_epoch = s.epoch AND s.tail > 0 THEN greatest(0, least(s.tail, s.rewind_to - 1)) ELSE 0 END,
    CASE WHEN s.low_epoch = s.epoch THEN s.tail_passed END,
    CASE WHEN s.low_epoch = s.epoch THEN s.low_history ELSE '' END, coalesce(s.rewind_ticket, 0)`)

// Acquire implements [outbox.RelayStore].
func (s *Store) Acquire(ctx context.Context, relay string, ttl time.Duration, n int) ([]outbox.Grant, error) {
	if n <= 0 {
		return nil, nil
	}
	grants, err := readRows(ctx, s, acquire, []any{relay, micros(ttl), n, farAheadFor(ttl)}, func(row pgx.CollectableRow) (g outbox.Grant, err error) {
		err = row.Scan(&g.Shard, &g.Epoch, &g.Abrupt, &g.Low, &g.Tail.Seq, &g.Tail.Passed, &g.History, &g.Ticket)
		return g, err
	})
	if err != nil {
		return nil, failed("acquire shards", err)
	}
	slices.SortFunc(grants, func(a, b outbox.Grant) int { return a.Shard - b.Shard })
	return grants, nil
}

// renew changes no key column, so it waits for no fenced statement. The rows are locked in the
// order of shards before the update, as everywhere. An expired lease that no relay has taken is
// renewed: the epoch is unchanged.
var renew = statement(`
WITH mine AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s
    JOIN unnest($3::smallint[], $4::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch
    ORDER BY s.shard
    FOR NO KEY UPDATE OF s
)
UPDATE {{outbox_shards}} s
SET leased_at = clock_timestamp(), lease_until = clock_timestamp() + $2::float8 * interval '1 us'
FROM mine WHERE s.shard = mine.shard
RETURNING s.shard, s.epoch, s.rewind_to IS NOT NULL, coalesce(s.rewind_to, 0), coalesce(s.rewind_ticket, 0)`)

// Renew implements [outbox.RelayStore].
func (s *Store) Renew(ctx context.Context, relay string, ttl time.Duration, leases []outbox.Lease) ([]outbox.Renewal, error) {
	if len(leases) == 0 {
		return nil, nil
	}
	shards, epochs := split(leases)
	rows, err := s.query(ctx, renew, relay, micros(ttl), shards, epochs)
	if err != nil {
		return nil, failed("renew leases", err)
	}
	list, err := renewals(rows)
	if err != nil {
		return nil, failed("renew leases", err)
	}
	return list, nil
}

// renewals reads the rows of [renew].
func renewals(rows pgx.Rows) ([]outbox.Renewal, error) {
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r outbox.Renewal, err error) {
		err = row.Scan(&r.Shard, &r.Epoch, &r.Rewind, &r.RewindTo, &r.Ticket)
		return r, err
	})
	slices.SortFunc(list, func(a, b outbox.Renewal) int { return a.Shard - b.Shard })
	return list, err
}

// release gives shards back. FOR UPDATE waits for running fenced statements, so that no statement
// of this owner runs when the next owner begins. The epoch stays, and the next owner gets a higher
// epoch.
var release = statement(`
WITH mine AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch
    ORDER BY s.shard
    FOR UPDATE OF s
), forgotten AS (
    DELETE FROM {{outbox_relays}} WHERE $4 AND id = $1
)
UPDATE {{outbox_shards}} s SET owner = NULL, lease_until = '-infinity'
FROM mine WHERE s.shard = mine.shard`)

// Release implements [outbox.RelayStore].
func (s *Store) Release(ctx context.Context, relay string, leases []outbox.Lease, forget bool) error {
	shards, epochs := split(leases)
	if _, err := s.exec(ctx, release, relay, shards, epochs, forget); err != nil {
		return failed("release shards", err)
	}
	return nil
}

// clearRewind needs no fence: its predicate compares owner and epoch of the updated row. It moves
// the kept places below the rewind, which the request of the rewind did not. The ticket stays for
// the next owner; earlier versions of the relay removed the ticket.
var clearRewind = statement(`
UPDATE {{outbox_shards}} SET low_water = least(low_water, rewind_to - 1), tail = least(tail, rewind_to - 1), rewind_to = NULL
WHERE shard = $2 AND owner = $1 AND epoch = $3 AND rewind_ticket = $4`)

// ClearRewind implements [outbox.RelayStore].
func (s *Store) ClearRewind(ctx context.Context, relay string, lease outbox.Lease, ticket int64) error {
	if _, err := s.exec(ctx, clearRewind, relay, lease.Shard, lease.Epoch, ticket); err != nil {
		return failed("clear rewind", err)
	}
	return nil
}

// keepLow locks the rows in the order of shards, as everywhere, and its predicate is its fence. A
// requested rewind is ignored, since [acquire] reads the rewind as long as it is requested.
var keepLow = statement(`
WITH mine AS MATERIALIZED (
    SELECT s.shard, l.low, l.tail, l.passed FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[], $4::bigint[], $6::bigint[], $7::bytea[]) AS l (shard, epoch, low, tail, passed)
        ON l.shard = s.shard
    WHERE s.epoch = l.epoch AND s.owner = $1
    ORDER BY s.shard
    FOR NO KEY UPDATE OF s
)
UPDATE {{outbox_shards}} s SET low_water = mine.low, low_epoch = s.epoch, low_history = $5,
    tail = coalesce(mine.tail, s.tail),
    tail_passed = CASE WHEN mine.tail IS NULL THEN s.tail_passed ELSE mine.passed END
FROM mine WHERE s.shard = mine.shard`)

// KeepLow implements [outbox.RelayStore].
func (s *Store) KeepLow(ctx context.Context, relay string, lows []outbox.Low, history string) error {
	n := len(lows)
	shards, epochs, seqs := make([]int16, n), make([]int64, n), make([]int64, n)
	tails, passed := make([]*int64, n), make([][]byte, n)
	for i, low := range lows {
		shards[i], epochs[i], seqs[i] = int16(low.Shard), low.Epoch, low.Seq
		if t := low.Tail; t != nil {
			tails[i], passed[i] = &t.Seq, t.Passed
		}
	}
	if _, err := s.exec(ctx, keepLow, relay, shards, epochs, seqs, history, tails, passed); err != nil {
		return failed("keep low-water marks", err)
	}
	return nil
}

// split returns leases as the arrays that a statement takes.
func split(leases []outbox.Lease) (shards []int16, epochs []int64) {
	shards, epochs = make([]int16, len(leases)), make([]int64, len(leases))
	for i, lease := range leases {
		shards[i], epochs[i] = int16(lease.Shard), lease.Epoch
	}
	return shards, epochs
}

// micros returns d as a factor for an interval of one microsecond.
func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
