package postgres

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/store/outbox"
)

const (
	defaultScan = 20_000
	// clockSlack is how far times of writing may be out of the order of the log.
	clockSlack = time.Minute
)

// searched is the condition of a search on an event e, whose row may be missing.
const searched = `($3 = '' OR e.topic = $3) AND ($4 = '' OR e.key = $4) AND ($5 = '' OR e.correlation_id = $5) AND ($12 = '' OR e.source = $12)
      AND ($13 = '' OR e.key = $13 OR e.source = $13 OR e.correlation_id = $13)
      AND ($14 = '' OR strpos(lower(e.key), $14) > 0 OR strpos(lower(e.source), $14) > 0 OR strpos(lower(e.correlation_id), $14) > 0)
      AND coalesce(e.created_at, 'epoch') >= $7 AND coalesce(e.created_at, 'epoch') < $8
      AND coalesce(e.dispatch_id, '00000000-0000-0000-0000-000000000000') BETWEEN $9::uuid AND $10::uuid`

// searchPart is followed by the sources of a search: the places of events that may fit, by source.
// A source with as many rows as it may have (most) is cut off.
const searchPart = `
WITH part (source, most, id, shard, fits) AS MATERIALIZED (`

// searchRest follows the sources. Below the horizon, a source that was cut off may have more events.
// Each OFFSET 0 keeps the order of the steps: events are compared before anything looks what became
// of them, one event at a time, until enough are found. What many events have in common is then read
// once: the receipts of events that are near each other, and the first events of the shards, which wait
// for a route. (The view outbox_status goes through the whole queue for those, and through the log
// if the statistics mislead the planner.)
const searchRest = `
), horizon AS MATERIALIZED (
    SELECT coalesce(max(cut.low), 0) AS low FROM (SELECT min(id) AS low FROM part GROUP BY source HAVING count(*) >= max(most)) cut
), found AS MATERIALIZED (
    SELECT e.*, v.*
    FROM (
        SELECT c.id AS seq, c.shard AS of_shard, e.*
        FROM (SELECT id, shard FROM part WHERE fits AND id >= (SELECT low FROM horizon) ORDER BY id DESC OFFSET 0) c
        LEFT JOIN LATERAL (SELECT * FROM {{outbox_events}} e WHERE e.id = c.id OFFSET 0) e ON true
        WHERE ` + searched + `
        ORDER BY c.id DESC OFFSET 0
    ) e
    CROSS JOIN LATERAL (
        SELECT 'pending' AS state, NULL AS why, 0 AS attempts, NULL::timestamptz AS next_attempt_at, NULL AS last_error, NULL::bigint AS waits_for
        FROM {{outbox_queue}} q
        WHERE q.id = e.seq AND q.shard = e.of_shard AND (cardinality($2::text[]) = 0 OR 'pending' = ANY ($2::text[])) AND $6 = ''
        UNION ALL
        SELECT v.state, v.why, v.attempts, v.next_attempt_at, v.last_error, v.waits_for FROM {{outbox_status}} v
        WHERE v.id = e.seq AND v.shard = e.of_shard AND v.state <> 'pending' AND (cardinality($2::text[]) = 0 OR v.state = ANY ($2::text[]))
          AND ($6 = '' OR strpos(coalesce(v.last_error, ''), $6) > 0)
        OFFSET 0
    ) v
    ORDER BY e.seq DESC LIMIT $11
), delivered AS (
    SELECT u.id, max(r.delivered_at) AS at
    FROM (
        SELECT min(seq) AS first, max(seq) AS last, array_agg(seq) AS ids FROM found WHERE state = 'delivered' GROUP BY seq / 4096
    ) near
    CROSS JOIN LATERAL (
        SELECT r.delivered_at, r.event_ids FROM {{outbox_receipts}} r
        WHERE r.first_id <= near.last AND r.last_id >= near.first AND r.event_ids && near.ids OFFSET 0
    ) r
    CROSS JOIN LATERAL unnest(r.event_ids) AS u (id)
    WHERE u.id = ANY (near.ids)
    GROUP BY u.id
), stalled AS MATERIALIZED (
    SELECT n.relay, n.topic, 'route ' || n.route || ' is ' || n.state || ' since ' ||
        to_char(n.since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC: ' || n.last_error AS says
    FROM {{outbox_routes}} n JOIN {{outbox_relays}} l ON l.id = n.relay AND l.seen_until > clock_timestamp()
), ahead AS MATERIALIZED (
    SELECT DISTINCT ON (s.shard, b.key) s.shard, b.key, q.id, b.topic
    FROM {{outbox_shards}} s
    CROSS JOIN LATERAL (SELECT q.id FROM {{outbox_queue}} q WHERE q.shard = s.shard ORDER BY q.id LIMIT 200) q
    CROSS JOIN LATERAL (SELECT b.key, b.topic FROM {{outbox_events}} b WHERE b.id = q.id AND b.key <> '' OFFSET 0) b
    WHERE s.shard IN (SELECT of_shard FROM found WHERE state = 'pending') AND s.owner IN (SELECT relay FROM stalled)
      AND (s.owner, b.topic) IN (SELECT relay, topic FROM stalled)
    ORDER BY s.shard, b.key, q.id
), waiting AS (
    SELECT e.seq, h.id AS waits_for,
        CASE
            WHEN e.id IS NULL THEN 'the log has no such event'
            WHEN h.id IS NOT NULL THEN 'waits for event ' || h.id || ' of its key' || coalesce(', whose ' || r.says, '')
            WHEN s.owner IS NULL THEN 'no relay owns its shard'
            WHEN s.lease_until <= clock_timestamp() THEN 'the lease of relay ' || s.owner || ' has expired'
            WHEN r.says IS NOT NULL THEN 'its ' || r.says
            ELSE 'waits to be sent by relay ' || s.owner
        END AS why
    FROM found e
    LEFT JOIN {{outbox_shards}} s ON s.shard = e.of_shard
    LEFT JOIN LATERAL (
        (SELECT p.id, b.topic FROM {{outbox_parked}} p LEFT JOIN {{outbox_events}} b ON b.id = p.id
         WHERE p.shard = e.of_shard AND p.key = e.key AND p.key <> '' AND p.state IN ('retrying', 'following')
         ORDER BY p.id LIMIT 1)
        UNION ALL
        SELECT a.id, a.topic FROM ahead a
        WHERE a.shard = e.of_shard AND a.key = e.key AND a.id < e.seq
          AND NOT EXISTS (SELECT FROM stalled n WHERE n.relay = s.owner AND n.topic = e.topic)
        LIMIT 1
    ) h ON true
    LEFT JOIN stalled r ON r.relay = s.owner AND r.topic = coalesce(h.topic, e.topic)
    WHERE e.state = 'pending'
)
SELECT h.low, coalesce(e.seq, 0), coalesce(e.of_shard, 0), coalesce(e.state, ''), coalesce(w.why, e.why, ''), coalesce(w.waits_for, e.waits_for, 0),
    coalesce(e.attempts, 0), e.created_at, e.next_attempt_at, p.parked_at, d.at, coalesce(e.last_error, ''), coalesce(p.reason, ''),`

const searchFrom = `
FROM horizon h
LEFT JOIN found e ON true
LEFT JOIN delivered d ON d.id = e.seq
LEFT JOIN waiting w ON w.seq = e.seq
LEFT JOIN LATERAL (SELECT p.parked_at, p.reason FROM {{outbox_parked}} p WHERE p.id = e.seq AND p.state = e.state OFFSET 0) p ON true
ORDER BY e.seq DESC`

// search is a statement, and the same statement with payloads and headers.
type search struct{ without, with *template }

func newSearch(sources string) search {
	none := strings.ReplaceAll(strings.ReplaceAll(eventColumns, `coalesce(e.headers, '{}')`, `'{}'::json`), `coalesce(e.payload, '')`, `''::bytea`)
	text := searchPart + sources + searchRest
	return search{without: statement(text + none + searchFrom), with: statement(text + eventColumns + searchFrom)}
}

var (
	// searchGiven finds events by indexes of the log: by dispatch ID and by place.
	searchGiven = newSearch(`
    SELECT 0, $15::bigint, e.id, e.shard, true FROM (
        SELECT id, shard FROM {{outbox_events}}
        WHERE id < $1 AND dispatch_id BETWEEN $9 AND $10
          AND (cardinality($16::uuid[]) = 0 OR dispatch_id = ANY ($16::uuid[]))
          AND (cardinality($17::bigint[]) = 0 OR id = ANY ($17::bigint[]))
        LIMIT $15
    ) e`)

	// searchStates finds events that are not delivered by the tables of their states. The queue has
	// its order by shard.
	searchStates = newSearch(`
    SELECT s.shard, $16::bigint, q.id, s.shard, true
    FROM {{outbox_shards}} s
    CROSS JOIN LATERAL (SELECT id FROM {{outbox_queue}} q WHERE q.shard = s.shard AND q.id < $1 ORDER BY q.id DESC LIMIT $16) q
    WHERE 'pending' = ANY ($2::text[])
    UNION ALL
    SELECT 64, $15::bigint, d.id, d.shard, true FROM (
        SELECT id, shard FROM {{outbox_deferred}} WHERE id < $1 AND 'deferred' = ANY ($2::text[]) AND ($4 = '' OR key = $4)
        ORDER BY id DESC LIMIT $15
    ) d
    UNION ALL
    SELECT 65, $15::bigint, p.id, p.shard, true FROM (
        SELECT id, shard FROM {{outbox_parked}}
        WHERE id < $1 AND state = ANY ($2::text[]) AND ($4 = '' OR key = $4) AND ($6 = '' OR strpos(coalesce(last_error, ''), $6) > 0)
        ORDER BY id DESC LIMIT $15
    ) p`)

	// searchKey finds events of a key that are not delivered. They are in one shard, $16.
	searchKey = newSearch(`
    SELECT 0, $15::bigint, q.id, q.shard, true FROM (
        SELECT id, shard FROM {{outbox_queue}} WHERE shard = $16::smallint AND id < $1 AND 'pending' = ANY ($2::text[]) ORDER BY id DESC LIMIT $15
    ) q
    UNION ALL
    SELECT 1, $15::bigint, d.id, d.shard, true FROM (
        SELECT id, shard FROM {{outbox_deferred}} WHERE shard = $16::smallint AND key = $4 AND id < $1 AND 'deferred' = ANY ($2::text[])
        ORDER BY id DESC LIMIT $15
    ) d
    UNION ALL
    SELECT * FROM (` + keyParked(2, `state IN ('retrying', 'following')`, "retrying", "following") + `) live
    UNION ALL
    SELECT * FROM (` + keyParked(3, `state = 'dead'`, "dead") + `) dead
    UNION ALL
    SELECT * FROM (` + keyParked(4, `state IN ('discarded', 'cancelled')`, "discarded", "cancelled") + `) ended`)

	// searchLog goes through the log, newest events first.
	searchLog = newSearch(`
    SELECT 0, $15::bigint, e.id, e.shard, ` + searched + ` FROM (
        SELECT id, shard, topic, key, correlation_id, source, created_at, dispatch_id FROM {{outbox_events}}
        WHERE id < $1 AND id > $16 ORDER BY id DESC LIMIT $15
    ) e`)
)

// keyParked returns the source of a search for parked events of a key, by the index with a condition. Nothing is
// read unless one of the states is wanted.
func keyParked(source int, condition string, states ...string) string {
	return fmt.Sprintf(`
        SELECT %d, $15::bigint, id, shard, true FROM {{outbox_parked}}
        WHERE shard = $16::smallint AND key = $4 AND id < $1 AND %s AND state = ANY ($2::text[]) AND ARRAY['%s'] && $2::text[]
          AND ($6 = '' OR strpos(coalesce(last_error, ''), $6) > 0)
        ORDER BY id DESC LIMIT $15`, source, condition, strings.Join(states, "', '"))
}

// findWritten returns the last place in the log of an event that was written before a time.
var findWritten = statement(halving + `
SELECT max(low) FROM s`)

var _ outbox.Searcher = (*Store)(nil)

// Search implements [outbox.Searcher]. Dispatch IDs from a range that has more than q.Scan of them
// are compared event by event.
func (s *Store) Search(ctx context.Context, q outbox.Query) (outbox.Results, error) {
	q.Limit, q.Scan = orDefault(q.Limit, defaultFilterLimit), orDefault(q.Scan, defaultScan)
	if q.Before <= 0 {
		q.Before = math.MaxInt64
	}
	if q.Error != "" { // only parked events have one
		q.States = wanted(q.States, []outbox.State{outbox.Retrying, outbox.Following, outbox.Dead, outbox.Discarded, outbox.Cancelled})
		if len(q.States) == 0 {
			return outbox.Results{}, nil
		}
	}
	r, err := s.find(ctx, &q)
	if err != nil {
		return outbox.Results{}, failed("search events", err)
	}
	return r, nil
}

func (s *Store) find(ctx context.Context, q *outbox.Query) (outbox.Results, error) {
	given := len(q.IDs)+len(q.Seqs) > 0
	if given || q.To != uuid.Nil {
		most := math.MaxInt64
		if !given {
			most = q.Scan + 1
		}
		r, cut, err := s.search(ctx, searchGiven, q, most, idValues(q.IDs), append([]int64{}, q.Seqs...))
		if err != nil || !cut {
			return r, err
		}
	}
	look := q.Scan
	delivered := len(q.States) == 0 || slices.Contains(q.States, outbox.DeliveredState)
	if all := len(q.States) == 0 || !delivered; all && q.Topic+q.Key+q.CorrelationID+q.Source+q.Named+q.Part+q.Error == "" && q.To == uuid.Nil && q.Since.IsZero() && q.Until.IsZero() {
		look = min(look, q.Limit+1) // every event that is looked at fits
	}
	switch {
	case !delivered && q.Key != "":
		r, _, err := s.search(ctx, searchKey, q, look, idgen.Shard(q.Key, uuid.Nil))
		return r, err
	case !delivered:
		r, _, err := s.search(ctx, searchStates, q, look, max(min(look, q.Limit+1), look/idgen.Shards))
		return r, err
	}
	floor, err := s.between(ctx, q)
	if err != nil {
		return outbox.Results{}, err
	}
	r, _, err := s.search(ctx, searchLog, q, look, floor)
	return r, err
}

// between narrows a search through the log to the part in which q.Since and q.Until are. Times of
// writing ascend with places, except between concurrent transactions.
func (s *Store) between(ctx context.Context, q *outbox.Query) (after int64, err error) {
	place := func(at time.Time) (place int64) {
		if err == nil {
			err = s.queryRow(ctx, findWritten, at).Scan(&place)
		}
		return place
	}
	if !q.Since.IsZero() {
		after = place(q.Since.Add(-clockSlack))
	}
	if !q.Until.IsZero() {
		q.Before = min(q.Before, place(q.Until.Add(clockSlack))+1)
	}
	return after, err
}

// searchPlans precedes a search. Each event is looked up in each table: statistics of the small tables
// are those of another time, and without them the planner would read all of the log for the reasons
// of a few events. The plan is made for the arguments, which say which sources there are.
const searchPlans = `SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_seqscan', 'off', true),
    set_config('enable_hashjoin', 'off', true), set_config('enable_mergejoin', 'off', true), set_config('jit', 'off', true)`

// groupPlans precedes a count of groups. The planner takes each row for a group of its own, and would sort
// them all on disk. Workers take longer to start than the count of 100,000 rows takes.
const groupPlans = `SELECT set_config('plan_cache_mode', 'force_custom_plan', true), set_config('enable_sort', 'off', true),
    set_config('max_parallel_workers_per_gather', '0', true), set_config('jit', 'off', true)`

// lookUp runs a statement behind the settings of its plan, outside any transaction; read gets the rows.
func (s *Store) lookUp(ctx context.Context, plans string, t *template, read func(pgx.Rows) error, args ...any) error {
	b := &pgx.Batch{}
	b.Queue(plans)
	b.Queue(s.sql[t], args...).Query(read)
	return s.pool.SendBatch(ctx, b).Close()
}

// search runs one statement. cut tells that a source was cut off.
func (s *Store) search(ctx context.Context, t search, q *outbox.Query, of ...any) (r outbox.Results, cut bool, err error) {
	tmpl := t.without
	if q.Content {
		tmpl = t.with
	}
	to := q.To
	if to == uuid.Nil {
		to = uuid.Max
	}
	args := append([]any{q.Before, texts(q.States), q.Topic, q.Key, q.CorrelationID, q.Error,
		sinceOf(q.Since), untilOf(q.Until), idValue(q.From), idValue(to), q.Limit + 1, q.Source, q.Named, strings.ToLower(q.Part)}, of...)
	err = s.lookUp(ctx, searchPlans, tmpl, func(rows pgx.Rows) error {
		for rows.Next() {
			e, low, err := scanFound(rows, q.Content)
			if err != nil {
				return err
			}
			r.Before, cut = low, low > 0
			if e.Seq > 0 {
				r.Events = append(r.Events, e)
			}
		}
		return nil
	}, args...)
	if len(r.Events) > q.Limit {
		r.Events = r.Events[:q.Limit]
		r.Before = r.Events[q.Limit-1].Seq
	}
	return r, cut, err
}

func scanFound(rows pgx.Rows, content bool) (e outbox.Found, low int64, err error) {
	var written, next, parked, delivered pgtype.Timestamptz
	var missing bool
	columns := append([]any{&low, &e.Seq, &e.Shard, (*string)(&e.State), &e.Why, &e.WaitsFor, &e.Attempts, &written, &next, &parked, &delivered,
		&e.LastError, &e.Reason, &missing}, into(&e.Record, new(string))...)
	if err := rows.Scan(columns...); err != nil {
		return e, 0, err
	}
	e.WrittenAt, e.NextAttemptAt, e.ParkedAt, e.DeliveredAt = timeOf(written), timeOf(next), timeOf(parked), timeOf(delivered)
	if !content {
		e.Payload = nil
	}
	if missing {
		e.Record = outbox.Record{Shard: e.Shard}
	}
	return e, low, nil
}

func orDefault(n, otherwise int) int {
	if n <= 0 {
		return otherwise
	}
	return n
}

// causeTopic is the topic of a parked event p. The log is asked only for events that were cancelled, or
// that an earlier version has parked.
const causeTopic = `coalesce(p.topic, (SELECT e.topic FROM {{outbox_events}} e WHERE e.id = p.id), '')`

// searchCauses is selected, without a look at the log for each event.
var searchCauses = statement(`
SELECT c.state, c.topic, c.error, c.n, c.first, c.last, coalesce(e.dispatch_id, '00000000-0000-0000-0000-000000000000')
FROM (
    SELECT p.state, ` + causeTopic + ` AS topic, coalesce(p.last_error, '') AS error, count(*) AS n,
        min(p.parked_at) AS first, max(p.parked_at) AS last, max(p.id) AS id
    FROM {{outbox_parked}} p
    WHERE (cardinality($1::uuid[]) = 0 OR p.id IN (SELECT e.id FROM {{outbox_events}} e WHERE e.dispatch_id = ANY ($1::uuid[])))
      AND p.state = ANY ($2::text[])
      AND ($3 = '' OR ` + causeTopic + ` = $3)
      AND ($4 = '' OR p.key = $4)
      AND ($6 = '' OR strpos(coalesce(p.last_error, ''), $6) > 0)
      AND p.parked_at >= $7 AND p.parked_at < $8
    GROUP BY 1, 2, 3 ORDER BY n DESC, id DESC LIMIT $5
) c LEFT JOIN LATERAL (SELECT e.dispatch_id FROM {{outbox_events}} e WHERE e.id = c.id OFFSET 0) e ON true
ORDER BY c.n DESC, c.id DESC`)

// Causes implements [outbox.Searcher].
func (s *Store) Causes(ctx context.Context, f outbox.Filter) (list []outbox.Cause, err error) {
	states := chosen(f, outbox.Retrying, outbox.Following, outbox.Dead, outbox.Discarded, outbox.Cancelled)
	args := slices.Delete(filterArgs(f, states), 4, 5) // all places
	err = s.lookUp(ctx, groupPlans, searchCauses, func(rows pgx.Rows) error {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c outbox.Cause, err error) {
			err = row.Scan((*string)(&c.State), &c.Topic, &c.Error, &c.Count, &c.First, &c.Last, (*[16]byte)(&c.Example))
			c.First, c.Last = c.First.UTC(), c.Last.UTC()
			return c, err
		})
		return err
	}, args...)
	if err != nil {
		return nil, failed("count causes", err)
	}
	return list, nil
}
