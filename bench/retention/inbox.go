package retention

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const days = 14

// forgetting compares removal in batches with removal of partitions.
func forgetting(ctx context.Context, pool *pgxpool.Pool, n int, results map[string]any) error {
	for _, plan := range []struct {
		name   string
		create []string
		forget func() (time.Duration, time.Duration, error)
	}{
		{"batches", []string{
			`CREATE TABLE whole (stamp timestamptz NOT NULL, applied_at timestamptz, dispatch_id uuid NOT NULL, consumer smallint NOT NULL,
				digest bytea, PRIMARY KEY (consumer, dispatch_id))`,
			`CREATE INDEX ON whole (consumer, stamp)`,
		}, func() (time.Duration, time.Duration, error) { return batches(ctx, pool) }},
		{"partitions", partitioned(), func() (time.Duration, time.Duration, error) { return drops(ctx, pool) }},
	} {
		if _, err := timed(ctx, pool, plan.create...); err != nil {
			return err
		}
		table := map[string]string{"batches": "whole", "partitions": "parts"}[plan.name]
		took, err := timed(ctx, pool, fmt.Sprintf(`INSERT INTO %s
			SELECT date '2026-11-01' + i * interval '%d days' / %d, now(), gen_random_uuid(), 1, decode(md5(i::text), 'hex')
			FROM generate_series(0, %d - 1) i`, table, days, n, n), `VACUUM ANALYZE `+table, `CHECKPOINT`)
		if err != nil {
			return err
		}
		claim, err := claims(ctx, pool, table)
		if err != nil {
			return err
		}
		removal, longest, err := plan.forget()
		if err != nil {
			return err
		}
		say("inbox, %s: %d rows made in %v, a claim takes %v; half of them gone in %v, longest step %v",
			plan.name, n, took.Round(time.Second), claim, removal.Round(time.Millisecond), longest.Round(time.Millisecond))
		results[plan.name+"_removal_ms"], results[plan.name+"_longest_ms"] = removal.Milliseconds(), longest.Milliseconds()
		results[plan.name+"_claim_us"] = claim.Microseconds()
	}
	return nil
}

func partitioned() []string {
	// The stamp must be part of the key: each partition may hold a row of one dispatch ID.
	list := []string{`CREATE TABLE parts (stamp timestamptz NOT NULL, applied_at timestamptz, dispatch_id uuid NOT NULL, consumer smallint NOT NULL,
		digest bytea, PRIMARY KEY (consumer, dispatch_id, stamp)) PARTITION BY RANGE (stamp)`}
	for day := range days + 1 {
		list = append(list, fmt.Sprintf(`CREATE TABLE parts_%d PARTITION OF parts FOR VALUES FROM (date '2026-11-01' + %d) TO (date '2026-11-01' + %d)`,
			day, day, day+1))
	}
	return list
}

// claims returns the average duration of an insert, in rounds of 2000 that are rolled back.
func claims(ctx context.Context, pool *pgxpool.Pool, table string) (time.Duration, error) {
	const n, rounds = 2000, 3
	best := time.Duration(1 << 62)
	for range rounds {
		tx, err := pool.Begin(ctx)
		if err != nil {
			return 0, err
		}
		begun := time.Now()
		for range n {
			_, err := tx.Exec(ctx, `INSERT INTO `+table+` (stamp, applied_at, dispatch_id, consumer)
				VALUES (timestamptz '2026-11-14 12:00', now(), gen_random_uuid(), 1) ON CONFLICT DO NOTHING`)
			if err != nil {
				return 0, err
			}
		}
		best = min(best, time.Since(begun))
		if err := tx.Rollback(ctx); err != nil {
			return 0, err
		}
	}
	return best / n, nil
}

const batch = 5000

func batches(ctx context.Context, pool *pgxpool.Pool) (total, longest time.Duration, err error) {
	after := "-infinity"
	for {
		begun := time.Now()
		var n int
		var through *string
		err := pool.QueryRow(ctx, `WITH gone AS (DELETE FROM whole WHERE ctid = ANY (ARRAY(
			SELECT ctid FROM whole WHERE consumer = 1 AND stamp < date '2026-11-01' + $1::int AND stamp >= $2::timestamptz
			ORDER BY stamp LIMIT $3 FOR UPDATE SKIP LOCKED)) RETURNING stamp)
			SELECT count(*), max(stamp)::text FROM gone`, days/2, after, batch).Scan(&n, &through)
		if err != nil {
			return 0, 0, err
		}
		took := time.Since(begun)
		total, longest = total+took, max(longest, took)
		if n < batch {
			return total, longest, nil
		}
		after = *through
	}
}

func drops(ctx context.Context, pool *pgxpool.Pool) (total, longest time.Duration, err error) {
	for day := range days / 2 {
		took, err := timed(ctx, pool, fmt.Sprintf(`DROP TABLE parts_%d`, day))
		if err != nil {
			return 0, 0, err
		}
		total, longest = total+took, max(longest, took)
	}
	return total, longest, nil
}
