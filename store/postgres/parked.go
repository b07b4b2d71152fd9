package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/outbox"
)

// fence locks the row of one shard for its owner and epoch. See [mark].
const fence = `
WITH fence AS MATERIALIZED (
    SELECT s.shard FROM {{outbox_shards}} s
    WHERE s.owner = $1 AND s.shard = $2 AND s.epoch = $3
    FOR KEY SHARE
)`

// fenceMany locks the rows of several shards, in their order.
const fenceMany = `
WITH fence AS MATERIALIZED (
    SELECT s.shard, s.epoch FROM {{outbox_shards}} s
    JOIN unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch) ON l.shard = s.shard
    WHERE s.owner = $1 AND s.epoch = l.epoch
    ORDER BY s.shard
    FOR KEY SHARE OF s
)`

// lostLeases ends a statement behind fenceMany.
const lostLeases = `
SELECT DISTINCT l.shard FROM unnest($2::smallint[], $3::bigint[]) AS l (shard, epoch)
WHERE (l.shard, l.epoch) NOT IN (SELECT shard, epoch FROM fence)
ORDER BY l.shard`

// live is the predicate of the indexes on the parked events in the FIFO of a key.
const live = `state IN ('retrying', 'following')`

// alive is live of an event that is looked up by id: it matches no index. By an index on live events, the
// planner would read all of them, once its statistics know few: behind an ANALYZE that saw dead events
// only, which were then redriven.
const alive = `state NOT IN ('dead', 'discarded', 'cancelled')`

// park moves events out of the queue. A queued event that was parked before reuses its old row.
var park = statement(fence + `, failed AS MATERIALIZED (
    SELECT * FROM unnest($4::bigint[], $5::bigint[], $6::integer[], $7::float8[], $8::boolean[], $9::text[], $10::text[])
        AS x (id, round, attempts, retry_in, dead, outcome, error)
), taken AS (
    DELETE FROM {{outbox_queue}} q USING fence f, failed x
    WHERE q.shard = f.shard AND q.id = x.id AND q.round = x.round
    RETURNING q.shard, q.id
), parked AS (
    INSERT INTO {{outbox_parked}} (shard, id, topic, key, state, attempts, next_attempt_at, last_error)
    SELECT t.shard, t.id, e.topic, coalesce(e.key, ''), CASE WHEN x.dead THEN 'dead' ELSE 'retrying' END, x.attempts,
        CASE WHEN NOT x.dead THEN clock_timestamp() + x.retry_in * interval '1 us' END, x.error
    FROM taken t JOIN failed x ON x.id = t.id
    LEFT JOIN LATERAL (SELECT e.topic, e.key FROM {{outbox_events}} e WHERE e.id = t.id OFFSET 0) e ON true
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, attempts = excluded.attempts, parked_at = excluded.parked_at,
        next_attempt_at = excluded.next_attempt_at, last_error = excluded.last_error, reason = NULL
), noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, error, relay)
    SELECT x.id, x.outcome, x.error, $1 FROM taken t JOIN failed x ON x.id = t.id
)
SELECT NOT EXISTS (SELECT FROM fence)`)

// Park implements [outbox.RelayStore]. Events whose queue row has another round stay in the queue.
func (s *Store) Park(ctx context.Context, relay string, lease outbox.Lease, failures []outbox.Failure) (bool, error) {
	if len(failures) == 0 {
		return false, nil
	}
	f := newFailures(failures)
	rounds := make([]int64, len(failures))
	for i := range failures {
		rounds[i] = failures[i].Round
	}
	return s.fenced(ctx, "park events", park, relay, lease,
		f.seqs, rounds, f.attempts, f.retryIn, f.dead, f.outcomes, f.errors)
}

// follow is park without a failure.
var follow = statement(fence + `, taken AS (
    DELETE FROM {{outbox_queue}} q
    USING fence f, unnest($4::bigint[], $5::bigint[]) AS m (id, round)
    WHERE q.shard = f.shard AND q.id = m.id AND q.round = m.round
    RETURNING q.shard, q.id
), parked AS (
    INSERT INTO {{outbox_parked}} (shard, id, topic, key, state)
    SELECT t.shard, t.id, e.topic, coalesce(e.key, ''), 'following'
    FROM taken t LEFT JOIN LATERAL (SELECT e.topic, e.key FROM {{outbox_events}} e WHERE e.id = t.id OFFSET 0) e ON true
    ON CONFLICT (id) DO UPDATE SET state = excluded.state, attempts = 0, parked_at = excluded.parked_at,
        next_attempt_at = NULL, last_error = NULL, reason = NULL
)
SELECT NOT EXISTS (SELECT FROM fence)`)

// Follow implements [outbox.RelayStore]. Only Seq and Round of the marks are used.
func (s *Store) Follow(ctx context.Context, relay string, lease outbox.Lease, marks []outbox.Mark) (bool, error) {
	if len(marks) == 0 {
		return false, nil
	}
	seqs, rounds := make([]int64, len(marks)), make([]int64, len(marks))
	for i, m := range marks {
		seqs[i], rounds[i] = m.Seq, m.Round
	}
	return s.fenced(ctx, "park followers", follow, relay, lease, seqs, rounds)
}

// promote makes the first live event of each key in freed retrying and due, unless the key is on
// hold after a dead event. gone lists the events that the statement removes from their keys; its
// snapshot still shows them. kept lists the newly scheduled events.
const promote = ` promoted AS (
    UPDATE {{outbox_parked}} p
    SET state = 'retrying', next_attempt_at = least(coalesce(p.next_attempt_at, clock_timestamp()), clock_timestamp())
    FROM freed k CROSS JOIN LATERAL (
        SELECT b.id FROM {{outbox_parked}} b
        WHERE b.shard = k.shard AND b.key = k.key AND b.` + live + `
          AND b.id NOT IN (SELECT id FROM gone)
        ORDER BY b.id LIMIT 1
    ) head
    WHERE p.id = head.id AND p.` + alive + ` AND p.id NOT IN (SELECT id FROM kept)
      AND NOT (k.hold AND EXISTS (SELECT FROM {{outbox_parked}} d
                                  WHERE d.shard = k.shard AND d.key = k.key AND d.state = 'dead' AND d.id < head.id))
)`

// retry changes live events only: an event that an operator discarded during the send stays
// discarded. Comparing the attempts makes a repetition harmless, since a dead event may have been
// redriven meanwhile. p.shard + 0 matches no index: by an index on the shard, the planner would
// read all live events of the shard instead of looking a few up by id.
var retry = statement(fence + `, failed AS MATERIALIZED (
    SELECT * FROM unnest($4::bigint[], $5::integer[], $6::float8[], $7::boolean[], $8::text[], $9::text[])
        AS x (id, attempts, retry_in, dead, outcome, error)
), updated AS (
    UPDATE {{outbox_parked}} p
    SET state = CASE WHEN x.dead THEN 'dead' ELSE 'retrying' END,
        attempts = x.attempts,
        next_attempt_at = CASE WHEN NOT x.dead THEN clock_timestamp() + x.retry_in * interval '1 us' END,
        last_error = x.error
    FROM fence f, failed x
    WHERE p.shard + 0 = f.shard AND p.id = x.id AND p.attempts = x.attempts - 1 AND p.` + alive + `
    RETURNING p.shard, p.id, p.key, p.state
), noted AS (
    INSERT INTO {{outbox_attempts}} (event_id, outcome, error, relay)
    SELECT x.id, x.outcome, x.error, $1 FROM updated u JOIN failed x ON x.id = u.id
), gone AS (
    SELECT id FROM updated WHERE state = 'dead'
), kept AS (
    SELECT id FROM updated
), freed AS (
    SELECT DISTINCT shard, key, false AS hold FROM updated WHERE state = 'dead' AND key <> '' AND NOT $10
),` + promote + `
SELECT NOT EXISTS (SELECT FROM fence)`)

// Retry implements [outbox.RelayStore].
func (s *Store) Retry(ctx context.Context, relay string, lease outbox.Lease, failures []outbox.Failure, hold bool) (bool, error) {
	if len(failures) == 0 {
		return false, nil
	}
	f := newFailures(failures)
	return s.fenced(ctx, "retry events", retry, relay, lease,
		f.seqs, f.attempts, f.retryIn, f.dead, f.outcomes, f.errors, hold)
}

// sent removes delivered events of several shards, as mark does. An event that an operator discarded
// during the send keeps its row with the reason, and gets its receipt. As in retry, no index must match
// the shard; and no row is found by ctid, since an operator may change a row meanwhile.
var sent, sentNoted = sentStatement(""), sentStatement(confirmations("delivered"))

func sentStatement(noted string) *template {
	return statement(fenceMany + `, confirmed AS MATERIALIZED (
    SELECT f.shard, m.id
    FROM fence f JOIN unnest($4::smallint[], $5::bigint[], $6::bigint[]) AS m (shard, epoch, id) ON f.shard = m.shard AND f.epoch = m.epoch
), removed AS (
    DELETE FROM {{outbox_parked}} p USING confirmed c
    WHERE p.shard + 0 = c.shard AND p.id = c.id AND p.state <> 'discarded'
    RETURNING p.shard, p.id, p.key
), delivered AS (
    SELECT id FROM removed
    UNION
    SELECT p.id FROM {{outbox_parked}} p, confirmed c
    WHERE p.shard + 0 = c.shard AND p.id = c.id AND p.state = 'discarded'
),` + noted + ` receipt AS (
    INSERT INTO {{outbox_receipts}} (relay, event_ids)
    SELECT $1, array_agg(id ORDER BY id) FROM delivered HAVING count(*) > 0
), gone AS (
    SELECT id FROM removed
), kept AS (
    SELECT id FROM removed
), freed AS (
    SELECT DISTINCT shard, key, $7::boolean AS hold FROM removed WHERE key <> ''
),` + promote + lostLeases)
}

// Sent implements [outbox.RelayStore]. The whole call writes one receipt.
func (s *Store) Sent(ctx context.Context, relay string, marks []outbox.Mark, hold bool) (lost []int, err error) {
	if len(marks) == 0 {
		return nil, nil
	}
	m := newMarks(marks)
	lost, err = readRows(ctx, s, s.noting(sent, sentNoted), []any{relay, m.leaseShards, m.leaseEpochs, m.shards, s.ints(m.epochs), s.ints(m.seqs), hold},
		pgx.RowTo[int])
	if err != nil {
		return nil, failed("remove sent events", err)
	}
	return lost, nil
}

// heal reads the first live event of each key. heal jumps from key to key, so the cost of a key
// does not depend on the number of its followers.
var heal = statement(fenceMany + `, headless AS MATERIALIZED (
    SELECT head.id FROM fence f
    CROSS JOIN LATERAL (
        WITH RECURSIVE keys (key) AS (
            SELECT '' COLLATE "C"
            UNION ALL
            SELECT (SELECT n.key FROM {{outbox_parked}} n
                    WHERE n.shard = f.shard AND n.key > k.key AND n.` + live + `
                    ORDER BY n.key LIMIT 1)
            FROM keys k WHERE k.key IS NOT NULL
        )
        SELECT key FROM keys WHERE key <> ''
    ) k
    CROSS JOIN LATERAL (
        SELECT b.id, b.state FROM {{outbox_parked}} b
        WHERE b.shard = f.shard AND b.key = k.key AND b.` + live + `
        ORDER BY b.id LIMIT 1
    ) head
    WHERE head.state = 'following'
      AND NOT ($4 AND EXISTS (SELECT FROM {{outbox_parked}} d
                              WHERE d.shard = f.shard AND d.key = k.key AND d.state = 'dead' AND d.id < head.id))
)
UPDATE {{outbox_parked}} p SET state = 'retrying', next_attempt_at = clock_timestamp()
FROM headless h WHERE p.id = h.id AND p.state = 'following'`)

// Heal implements [outbox.RelayStore].
func (s *Store) Heal(ctx context.Context, relay string, leases []outbox.Lease, hold bool) error {
	if len(leases) == 0 {
		return nil
	}
	shards, epochs := split(leases)
	if _, err := s.exec(ctx, heal, relay, shards, epochs, hold); err != nil {
		return failed("heal shards", err)
	}
	return nil
}

// fenced runs a statement that begins with fence and tells whether the shard is lost.
func (s *Store) fenced(ctx context.Context, doing string, t *template, relay string, lease outbox.Lease, args ...any) (lost bool, err error) {
	args = append([]any{relay, lease.Shard, lease.Epoch}, args...)
	if err := s.queryRow(ctx, t, args...).Scan(&lost); err != nil {
		return false, failed(doing, err)
	}
	return lost, nil
}

// blocked jumps from key to key within each shard, as heal does.
var blocked = statement(`
SELECT s.shard, k.key
FROM (SELECT u.shard FROM unnest($1::smallint[]) AS u (shard) WHERE u.shard >= $2 ORDER BY u.shard OFFSET 0) s
CROSS JOIN LATERAL (
    WITH RECURSIVE keys (key, n) AS (
        SELECT CASE WHEN s.shard = $2 THEN $3::text ELSE '' END COLLATE "C", 0
        UNION ALL
        SELECT (
            SELECT min(x.key) FROM (
                (SELECT a.key FROM {{outbox_parked}} a
                 WHERE a.shard = s.shard AND a.key > k.key AND a.` + live + ` ORDER BY a.key LIMIT 1)
                UNION ALL
                (SELECT d.key FROM {{outbox_parked}} d
                 WHERE $4 AND d.shard = s.shard AND d.key > k.key AND d.state = 'dead' ORDER BY d.key LIMIT 1)
            ) x
        ), k.n + 1
        FROM keys k WHERE k.key IS NOT NULL AND k.n < $5
    )
    SELECT key FROM keys WHERE n > 0 AND key IS NOT NULL
) k
ORDER BY s.shard, k.key
LIMIT $5`)

// Blocked implements [outbox.RelayStore]. Keys come in the order of their bytes.
func (s *Store) Blocked(ctx context.Context, shards []int, hold bool, after outbox.BlockedKey, limit int) ([]outbox.BlockedKey, error) {
	keys, err := readRows(ctx, s, blocked, []any{shards, after.Shard, after.Key, hold, limit}, func(row pgx.CollectableRow) (k outbox.BlockedKey, err error) {
		err = row.Scan(&k.Shard, &k.Key)
		return k, err
	})
	if err != nil {
		return nil, failed("read blocked keys", err)
	}
	return keys, nil
}

// isHead is the predicate for p being the first live event of its key. After a redrive, two live
// events of a key may be retrying; only the first counts.
const isHead = `(p.key = '' OR NOT EXISTS (
    SELECT FROM {{outbox_parked}} b
    WHERE b.shard = p.shard AND b.key = p.key AND b.` + live + ` AND b.id < p.id))`

// unheld is the predicate for an event p without an earlier dead event of its key, if dead events
// hold their keys.
const unheld = `(NOT $6 OR p.key = '' OR NOT EXISTS (
    SELECT FROM {{outbox_parked}} d WHERE d.shard = p.shard AND d.key = p.key AND d.state = 'dead' AND d.id < p.id))`

// due returns at least one row, for the time of the next due event. Both halves compare with one
// moment, so that no event falls between them.
var due = statement(`
SELECT coalesce((extract(epoch FROM n.at - statement_timestamp()) * 1000000)::bigint, 0), d.id IS NOT NULL,
    coalesce(d.next_attempt_at, 'epoch'), coalesce(d.shard, 0), coalesce(d.id, 0), 0, coalesce(d.attempts, 0), 'retrying', ` + eventColumns + `
FROM (
    SELECT min(p.next_attempt_at) AS at
    FROM unnest($1::smallint[]) AS s (shard)
    CROSS JOIN LATERAL (
        SELECT p.next_attempt_at FROM {{outbox_parked}} p
        WHERE p.shard = s.shard AND p.state = 'retrying' AND p.next_attempt_at > statement_timestamp()
          AND p.next_attempt_at <= statement_timestamp() + $5::bigint * interval '1 us' AND ` + isHead + ` AND ` + unheld + `
        ORDER BY p.next_attempt_at LIMIT 1
    ) p
) n
LEFT JOIN (
    SELECT p.* FROM unnest($1::smallint[]) AS s (shard)
    CROSS JOIN (
        VALUES ('-infinity', statement_timestamp()), (statement_timestamp() + $5::bigint * interval '1 us', 'infinity')
    ) AS r (above, through)
    CROSS JOIN LATERAL (
        SELECT p.shard, p.id, p.attempts, p.next_attempt_at FROM {{outbox_parked}} p
        WHERE p.shard = s.shard AND p.state = 'retrying' AND p.next_attempt_at > r.above AND p.next_attempt_at <= r.through
          AND (p.next_attempt_at, p.id) > ($3, $4) AND ` + isHead + ` AND ` + unheld + `
        ORDER BY p.next_attempt_at, p.id LIMIT $2
    ) p
    ORDER BY p.next_attempt_at, p.id LIMIT $2
) d ON true
LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = d.id OFFSET 0) e ON true
ORDER BY d.next_attempt_at, d.id`)

// Due implements [outbox.RelayStore].
func (s *Store) Due(
	ctx context.Context, shards []int, hold bool, after outbox.DuePoint, longest time.Duration, limit int,
) ([]outbox.Queued, time.Duration, error) {
	rows, err := s.query(ctx, due, shards, limit, after.At, after.Seq, longest.Microseconds(), hold)
	if err != nil {
		return nil, 0, failed("read due events", err)
	}
	defer rows.Close()
	var events []outbox.Queued
	var next int64
	var found bool
	var at time.Time
	for scan := newQueuedScan(&next, &found, &at); rows.Next(); {
		q, err := scan.row(rows)
		if err != nil {
			return nil, 0, failed("read due events", err)
		}
		if found {
			q.DueAt = at
			events = append(events, q)
		}
	}
	if err := rows.Err(); err != nil {
		return nil, 0, failed("read due events", err)
	}
	return events, time.Duration(next) * time.Microsecond, nil
}

var fetchParked = statement(`
SELECT k.n, p.shard, p.id, 0, p.attempts, p.state, ` + eventColumns + `
FROM unnest($1::smallint[], $2::text[]) WITH ORDINALITY AS k (shard, key, n)
CROSS JOIN LATERAL (
    SELECT * FROM (
        (SELECT * FROM {{outbox_parked}} p WHERE p.shard = k.shard AND p.key = k.key AND p.` + live + ` ORDER BY p.id LIMIT $4)
        UNION ALL
        (SELECT * FROM {{outbox_parked}} p WHERE p.shard = k.shard AND p.key = k.key AND p.state = 'dead' AND $3 ORDER BY p.id LIMIT 1)
    ) p
    ORDER BY p.id LIMIT $4
) p
LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = p.id OFFSET 0) e ON true
ORDER BY k.n, p.id`)

// FetchParked implements [outbox.RelayStore].
func (s *Store) FetchParked(ctx context.Context, keys []outbox.BlockedKey, hold bool, limit int) ([][]outbox.Queued, error) {
	shards, names, found := make([]int16, len(keys)), make([]string, len(keys)), make([][]outbox.Queued, len(keys))
	for i, k := range keys {
		shards[i], names[i] = int16(k.Shard), k.Key
	}
	err := s.kept(ctx, func(rows pgx.Rows) error {
		var n int
		for scan := newQueuedScan(&n); rows.Next(); {
			q, err := scan.row(rows)
			if err != nil {
				return err
			}
			found[n-1] = append(found[n-1], q)
		}
		return nil
	}, fetchParked, shards, names, hold, limit)
	if err != nil {
		return nil, failed("fetch parked events", err)
	}
	return found, nil
}

// failures are the arrays of failures that a statement takes.
type failures struct {
	seqs             []int64
	attempts         []int32
	retryIn          []float64
	dead             []bool
	outcomes, errors []string
}

func newFailures(list []outbox.Failure) failures {
	n := len(list)
	f := failures{
		seqs: make([]int64, n), attempts: make([]int32, n), retryIn: make([]float64, n), dead: make([]bool, n),
		outcomes: make([]string, n), errors: make([]string, n),
	}
	for i := range list {
		f.seqs[i], f.attempts[i], f.dead[i] = list[i].Seq, int32(list[i].Attempts), list[i].Dead
		f.retryIn[i] = micros(list[i].RetryIn)
		f.outcomes[i], f.errors[i] = list[i].Outcome.String(), storable(list[i].Error)
	}
	return f
}
