package postgres

import (
	"context"
	"math"
	"math/rand/v2"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/outbox"
)

// newWitness takes a witness for the session of conn: the key of an advisory lock that the server holds
// for as long as the session lasts. The key is random, so it is never taken a second time. Through a
// pooler, the session may outlive this process, and end while this process goes on without being
// told. So the witness is 0 if the number of the session, as told at its beginning, is not that of
// the session that runs statements: a pooler gives its clients numbers of its own.
func newWitness(ctx context.Context, conn *pgx.Conn) (int64, error) {
	mode := planEach(conn.Config())
	var session uint32
	if err := conn.QueryRow(ctx, "SELECT pg_backend_pid()::bigint", mode).Scan(&session); err != nil {
		return 0, err
	}
	if session != conn.PgConn().PID() {
		return 0, nil
	}
	key := 1 + rand.Int64N(math.MaxInt64)
	var taken bool
	if err := conn.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", mode, key).Scan(&taken); err != nil || !taken {
		return 0, err
	}
	return key, nil
}

// attest needs the fence: the lease of another owner is not this relay's to vouch for. A witness
// that has ended is not recorded: the statement may be late, and the relay may have recorded since
// that it has none. The rows are locked in the order of shards, as everywhere.
var attest = statement(`
WITH mine AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch
    ORDER BY s.shard
    FOR NO KEY UPDATE OF s
)
UPDATE {{outbox_shards}} s
SET witness = CASE WHEN $4::bigint <> 0 AND NOT pg_try_advisory_xact_lock_shared($4) THEN $4 END, witness_epoch = s.epoch
FROM mine WHERE s.shard = mine.shard`)

// Attest implements [outbox.Witnesser].
func (s *Store) Attest(ctx context.Context, relay string, leases []outbox.Lease, witness int64) error {
	shards, epochs := split(leases)
	if _, err := s.exec(ctx, attest, relay, shards, epochs, witness); err != nil {
		return failed("attest leases", err)
	}
	return nil
}

// endedWitnesses tries the locks of witnesses. A lock that is free stays taken for this statement,
// which disturbs nobody: only its session, which has ended, would ask for it. An expired lease counts
// too: another relay may have ended it and taken only some of the owner's shards.
var endedWitnesses = statement(`
WITH recorded AS MATERIALIZED (
    SELECT DISTINCT witness FROM {{outbox_shards}} WHERE owner IS NOT NULL AND witness_epoch = epoch AND witness IS NOT NULL
)
SELECT witness FROM recorded WHERE pg_try_advisory_xact_lock_shared(witness)`)

// EndedWitnesses implements [outbox.Witnesser].
func (s *Store) EndedWitnesses(ctx context.Context) ([]int64, error) {
	ended, err := readRows(ctx, s, endedWitnesses, nil, pgx.RowTo[int64])
	if err != nil {
		return nil, failed("look at witnesses", err)
	}
	return ended, nil
}

// expire ends leases and leaves their owners, so that the next owners learn that the shards were not
// given back. An owner that is alive after all renews its expired leases, unless others have taken
// them. The shards are locked in their order before the rows of relays, as by [release].
var expire = statement(`
WITH ended AS MATERIALIZED (
    SELECT shard, owner FROM {{outbox_shards}}
    WHERE owner IS NOT NULL AND witness_epoch = epoch AND witness = ANY($1::bigint[]) AND lease_until > clock_timestamp()
    ORDER BY shard
    FOR NO KEY UPDATE
), invisible AS (
    UPDATE {{outbox_relays}} SET seen_until = clock_timestamp()
    WHERE id IN (SELECT owner FROM ended) AND seen_until > clock_timestamp()
)
UPDATE {{outbox_shards}} s SET lease_until = clock_timestamp()
FROM ended WHERE s.shard = ended.shard`)

// Expire implements [outbox.Witnesser].
func (s *Store) Expire(ctx context.Context, witnesses []int64) error {
	if _, err := s.exec(ctx, expire, witnesses); err != nil {
		return failed("end leases", err)
	}
	return nil
}
