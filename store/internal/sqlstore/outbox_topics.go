package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

// firstOfShards selects the first events of each shard's queue. It has an argument for each shard: the
// greatest number of its events.
var firstOfShards = func() string {
	parts := make([]string, idgen.Shards)
	for shard := range parts {
		parts[shard] = fmt.Sprintf("SELECT * FROM (SELECT id, round FROM {outbox_queue} WHERE shard = %d ORDER BY id LIMIT ?) s%d", shard, shard)
	}
	return strings.Join(parts, " UNION ALL ")
}()

// CountTopics implements [outbox.TopicCounter]. Events that are sent or parked between its statements
// may be counted twice or not at all.
func (s *Store) CountTopics(ctx context.Context, limit int) (outbox.TopicCounts, error) {
	if limit <= 0 {
		limit = outbox.DefaultCountLimit
	}
	c, err := s.countTopics(ctx, limit)
	if err != nil {
		return outbox.TopicCounts{}, fmt.Errorf("count topics: %w", err)
	}
	return c, nil
}

func (s *Store) countTopics(ctx context.Context, limit int) (c outbox.TopicCounts, err error) {
	var queued, live int
	if err := s.c.One(ctx, s.c.DB, []any{&queued}, `SELECT COUNT(*) FROM (SELECT 1 FROM {outbox_queue} LIMIT ?) q`, limit+1); err != nil {
		return c, err
	}
	each := limit
	if queued > limit {
		each = max(1, limit/idgen.Shards)
	}
	first := make([]any, idgen.Shards)
	for i := range first {
		first[i] = each
	}
	topics := make(map[string]*outbox.TopicCount)
	// The events of a source are found first, and looked up in the log one by one.
	add := func(source string, args []any, count func(t *outbox.TopicCount, n int64)) (sum int, err error) {
		err = s.c.Each(ctx, s.c.DB, func(rows *sql.Rows) error {
			var topic string
			var n int64
			var age sql.NullInt64
			if err := rows.Scan(&topic, &n, &age); err != nil {
				return err
			}
			if topics[topic] == nil {
				topics[topic] = &outbox.TopicCount{Topic: topic}
			}
			count(topics[topic], n)
			topics[topic].Oldest = max(topics[topic].Oldest, elapsed(age))
			sum += int(n)
			return nil
		}, `SELECT COALESCE(e.topic, ''), COUNT(*), {now} - MIN(CASE WHEN w.round <= 0 THEN `+StampOf+` END)
			FROM (`+source+`) w LEFT JOIN {outbox_events} e ON e.id = w.id GROUP BY COALESCE(e.topic, '')`, args...)
		return sum, err
	}
	waiting := func(t *outbox.TopicCount, n int64) { t.Waiting += n }
	if _, err := add(firstOfShards, first, waiting); err != nil {
		return c, err
	}
	live, err = add(`SELECT p.id, 0 AS round FROM {outbox_parked} p WHERE {live p} ORDER BY p.id LIMIT ?`, []any{limit + 1}, waiting)
	if err != nil {
		return c, err
	}
	dead, err := add(`SELECT p.id, 1 AS round FROM {outbox_parked} p WHERE p.state = 'dead' LIMIT ?`, []any{limit + 1},
		func(t *outbox.TopicCount, n int64) { t.Dead += n })
	if err != nil {
		return c, err
	}
	c.WaitingCapped, c.DeadCapped = queued > limit || live > limit, dead > limit
	for _, topic := range slices.Sorted(maps.Keys(topics)) {
		c.Topics = append(c.Topics, *topics[topic])
	}
	return c, nil
}
