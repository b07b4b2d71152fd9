package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/outbox"
)

// countTopics reads the queue up to the limit, or the first events of each shard if there are more.
// ids follow the order of writing, so these have the oldest events. The log is asked for one event
// after the other: the planner knows nothing of the size of the queue, and could read all of the log.
var countTopics = statement(`
WITH size AS MATERIALIZED (
    SELECT count(*) AS n FROM (
        SELECT FROM {{outbox_shards}} s CROSS JOIN LATERAL (SELECT FROM {{outbox_queue}} q WHERE q.shard = s.shard LIMIT $1::bigint + 1) q LIMIT $1 + 1
    ) q
), waiting AS MATERIALIZED (
    SELECT q.id, q.round <= 0 AS timed
    FROM {{outbox_shards}} s CROSS JOIN LATERAL (
        SELECT q.id, q.round FROM {{outbox_queue}} q WHERE q.shard = s.shard ORDER BY q.id
        LIMIT (SELECT CASE WHEN n > $1 THEN greatest($1 / 64, 1) ELSE $1 END FROM size)
    ) q
), parked AS MATERIALIZED (
    SELECT id FROM {{outbox_parked}} WHERE ` + live + ` AND shard >= 0 ORDER BY id LIMIT $1 + 1
), dead AS MATERIALIZED (
    SELECT p.id, p.topic FROM {{outbox_parked}} p WHERE p.state = 'dead' ORDER BY p.shard, p.key, p.id LIMIT $1 + 1
), counted AS (
    SELECT coalesce(e.topic, '') AS topic, count(*) AS waiting, 0 AS dead, min(` + stamp + `) FILTER (WHERE w.timed) AS oldest
    FROM (SELECT id, timed FROM waiting UNION ALL SELECT id, true FROM parked) w
    LEFT JOIN LATERAL (SELECT e.topic, e.created_at, e.due_at FROM {{outbox_events}} e WHERE e.id = w.id OFFSET 0) e ON true
    GROUP BY 1
    UNION ALL
    SELECT ` + causeTopic + `, 0, count(*), NULL FROM dead p GROUP BY 1
)
SELECT topic, sum(waiting)::bigint, sum(dead)::bigint,
    coalesce((extract(epoch FROM clock_timestamp() - min(oldest)) * 1000000)::bigint, 0),
    (SELECT n > $1 FROM size) OR (SELECT count(*) > $1 FROM parked),
    (SELECT count(*) > $1 FROM dead)
FROM counted GROUP BY topic ORDER BY topic`)

var _ outbox.TopicCounter = (*Store)(nil)

// CountTopics implements [outbox.TopicCounter].
func (s *Store) CountTopics(ctx context.Context, limit int) (c outbox.TopicCounts, err error) {
	limit = orDefault(limit, outbox.DefaultCountLimit)
	c.Topics, err = readRows(ctx, s, countTopics, []any{limit}, func(row pgx.CollectableRow) (t outbox.TopicCount, err error) {
		var oldest int64
		err = row.Scan(&t.Topic, &t.Waiting, &t.Dead, &oldest, &c.WaitingCapped, &c.DeadCapped)
		t.Oldest = max(0, time.Duration(oldest)*time.Microsecond)
		return t, err
	})
	if err != nil {
		return outbox.TopicCounts{}, failed("count topics", err)
	}
	return c, nil
}
