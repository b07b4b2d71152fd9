package postgres

import (
	"context"
	"math"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

// The conditions of a search on a parked message p, on an applied message i, and on an effect e that
// is not done. Parked messages and effects of given dispatch IDs are looked up for each consumer.
const (
	searchedParked = `(cardinality($2::uuid[]) = 0 OR p.dispatch_id = ANY ($2::uuid[])) AND p.dispatch_id BETWEEN $9 AND $10
          AND (cardinality($3::text[]) = 0 OR p.state = ANY ($3::text[])) AND ($4 = '' OR p.topic = $4) AND ($5 = '' OR p.key = $5)
          AND ($14 = '' OR p.key = $14 OR ` + namedInMetadata + `)
          AND ($6 = '' OR strpos(coalesce(p.last_error, ''), $6) > 0) AND p.parked_at >= $7 AND p.parked_at < $8`
	searchedApplied = `i.applied_at >= $7 AND i.applied_at < $8
          AND NOT EXISTS (SELECT FROM {{inbox_effects}} e WHERE e.consumer = c.id AND e.dispatch_id = i.dispatch_id AND e.state <> 'done' OFFSET 0)`
	searchedEffect = `(cardinality($2::uuid[]) = 0 OR e.dispatch_id = ANY ($2::uuid[])) AND e.dispatch_id BETWEEN $9 AND $10
          AND ($4 = '' OR e.topic = $4) AND ($5 = '' OR e.key = $5)
          AND ($14 = '' OR e.key = $14 OR ` + namedInMetadata + `)
          AND ($6 = '' OR strpos(coalesce(e.last_error, ''), $6) > 0) AND e.prepared_at >= $7 AND e.prepared_at < $8
          AND (cardinality($3::text[]) = 0 OR 'effect_' || ` + effectState + ` = ANY ($3::text[]))`
)

// looksAtApplied is the part of the condition on an applied message that is the same for all.
const looksAtApplied = `i.consumer = c.id AND i.applied_at IS NOT NULL AND $4 = '' AND $5 = '' AND $6 = '' AND $14 = ''
          AND (cardinality($3::text[]) = 0 OR 'applied' = ANY ($3::text[]))`

// namedInMetadata compares what a message was sent with.
const namedInMetadata = `$14 IN (metadata ->> '` + transport.MetaSource + `', metadata ->> '` + transport.MetaCorrelationID + `')`

const (
	parkedGiven = `
    SELECT c.name, p.* FROM c CROSS JOIN LATERAL (
        SELECT * FROM {{inbox_parked}} p WHERE p.consumer = c.id AND ` + searchedParked + ` OFFSET 0
    ) p ORDER BY p.id DESC LIMIT $11`
	parkedAll = `
    SELECT c.name, p.* FROM {{inbox_parked}} p JOIN c ON c.id = p.consumer WHERE ` + searchedParked + ` ORDER BY p.id DESC LIMIT $11`
	// parkedNamed finds what waits in order by the index on its key.
	parkedNamed = `
    SELECT c.name, p.* FROM (
        SELECT p.id FROM c CROSS JOIN LATERAL (
            SELECT id FROM {{inbox_parked}} p
            WHERE p.consumer = c.id AND p.ordered AND p.state IN ('retrying', 'following') AND p.key = $14 AND ` + searchedParked + `
            ORDER BY p.id DESC LIMIT $11
        ) p
        UNION
        SELECT p.id FROM (SELECT * FROM {{inbox_parked}} ORDER BY id DESC LIMIT $13) p WHERE ` + searchedParked + `
    ) n JOIN {{inbox_parked}} p ON p.id = n.id JOIN c ON c.id = p.consumer ORDER BY p.id DESC LIMIT $11`
	appliedGiven = `
        SELECT dispatch_id, digest, stamp, applied_at FROM {{inbox}} i
        WHERE ` + looksAtApplied + `
          AND (cardinality($2::uuid[]) = 0 OR i.dispatch_id = ANY ($2::uuid[])) AND i.dispatch_id BETWEEN $9 AND $10
        LIMIT $12`
	// appliedNewest goes by stamps, which are nearly in the order of applying.
	appliedNewest = `
        SELECT dispatch_id, digest, stamp, applied_at FROM {{inbox}} i
        WHERE ` + looksAtApplied + `
        ORDER BY i.stamp DESC LIMIT $12`
	effectsGiven = `
        SELECT * FROM {{inbox_effects}} e WHERE e.consumer = c.id AND e.state <> 'done' AND ` + searchedEffect + ` LIMIT $13`
	// effectsNewest finds discarded effects among the newest of all.
	effectsNewest = `
        (SELECT * FROM {{inbox_effects}} e WHERE e.consumer = c.id AND e.state NOT IN ('done', 'discarded') AND ` + searchedEffect + ` LIMIT $13)
        UNION ALL
        SELECT * FROM (SELECT * FROM {{inbox_effects}} e ORDER BY e.id DESC LIMIT $13) e
        WHERE e.consumer = c.id AND e.state = 'discarded' AND ` + searchedEffect
)

// searchInbox returns the text of a search. The view inbox_status says why of each message that is
// found.
func searchInbox(parked, applied, effects string) string {
	return `
WITH c AS MATERIALIZED (
    SELECT id, name FROM {{inbox_consumers}} WHERE $1 = '' OR name = $1
), parked AS MATERIALIZED (` + parked + `
), looked AS MATERIALIZED (
    SELECT c.id AS consumer, c.name, i.*, ` + searchedApplied + ` AS fits FROM c CROSS JOIN LATERAL (` + applied + `
    ) i
), found AS MATERIALIZED (
    SELECT p.id AS seq, NULL::bigint AS effect, p.consumer, p.name, p.dispatch_id, p.digest, p.stamp, p.topic, p.key, p.state, p.ordered, p.attempts,
        p.parked_at AS since, p.parked_at AS viewed, p.next_attempt_at, p.last_error, p.reason
    FROM parked p
    UNION ALL
    (SELECT 0, NULL, i.consumer, i.name, i.dispatch_id, i.digest, i.stamp, '', '', 'applied', false, 0, i.applied_at, i.stamp, NULL, NULL, NULL
     FROM looked i WHERE i.fits ORDER BY i.applied_at DESC LIMIT $11)
    UNION ALL
    (SELECT 0, e.id, e.consumer, c.name, e.dispatch_id, NULL, NULL, e.topic, e.key, 'effect_' || ` + effectState + `, e.ordered, e.attempts,
         e.prepared_at, e.prepared_at, e.due_at, e.last_error, e.reason
     FROM c CROSS JOIN LATERAL (` + effects + `
     ) e ORDER BY e.prepared_at DESC LIMIT $11)
    ORDER BY seq DESC, since DESC LIMIT $11
)
SELECT EXISTS (SELECT FROM looked GROUP BY consumer HAVING count(*) >= $12),
    coalesce(f.seq, -1), f.name, f.dispatch_id, coalesce(f.digest, i.digest), coalesce(f.stamp, i.stamp), f.topic, f.key, f.state, coalesce(v.why, f.state),
    CASE WHEN f.seq > 0 THEN (
        SELECT b.dispatch_id FROM {{inbox_parked}} b
        WHERE b.consumer = f.consumer AND b.key = f.key AND b.ordered AND b.id < f.seq AND f.ordered
          AND f.state IN ('retrying', 'following') AND b.state IN ('retrying', 'following')
        ORDER BY b.id LIMIT 1
    ) WHEN f.effect IS NOT NULL THEN (
        SELECT b.dispatch_id FROM {{inbox_effects}} b
        WHERE b.consumer = f.consumer AND b.key = f.key AND b.ordered AND b.id < f.effect AND f.ordered
          AND f.state IN ('effect_pending', 'effect_answered') AND b.state IN ('pending', 'doing', 'answered', 'uncertain')
        ORDER BY b.id LIMIT 1
    ) END,
    coalesce(v.attempts, f.attempts), f.since, f.next_attempt_at, coalesce(f.last_error, ''), coalesce(f.reason, '')`
}

const (
	messageContent = `,
    p.metadata, p.payload`
	noMessageContent = `,
    NULL::jsonb, NULL::bytea`
	searchInboxFrom = `
FROM (VALUES (1)) one (n)
LEFT JOIN found f ON true
LEFT JOIN parked p ON p.id = f.seq
LEFT JOIN LATERAL (SELECT i.digest, i.stamp FROM {{inbox}} i WHERE i.consumer = f.consumer AND i.dispatch_id = f.dispatch_id AND f.effect IS NOT NULL OFFSET 0) i ON true
LEFT JOIN LATERAL (
    SELECT v.why, v.attempts FROM {{inbox_status}} v
    WHERE v.consumer = f.name AND v.dispatch_id = f.dispatch_id AND v.state = f.state AND v.since = f.viewed LIMIT 1
) v ON true
ORDER BY f.seq DESC, f.since DESC`
)

func newInboxSearch(text string) search {
	return search{without: statement(text + noMessageContent + searchInboxFrom), with: statement(text + messageContent + searchInboxFrom)}
}

var (
	searchInboxGiven  = newInboxSearch(searchInbox(parkedGiven, appliedGiven, effectsGiven))
	searchInboxNewest = newInboxSearch(searchInbox(parkedAll, appliedNewest, effectsNewest))
	searchInboxNamed  = newInboxSearch(searchInbox(parkedNamed, appliedNewest, effectsNewest))

	_ inbox.Searcher = (*Store)(nil)
)

// SearchMessages implements [inbox.Searcher]. Without dispatch IDs, it looks at the applied messages
// of each consumer with the newest stamps.
func (s *Store) SearchMessages(ctx context.Context, q inbox.Query) (inbox.Results, error) {
	q.Limit, q.Scan = orDefault(q.Limit, defaultFilterLimit), orDefault(q.Scan, defaultScan)
	r, err := s.findMessages(ctx, &q)
	if err != nil {
		return inbox.Results{}, failed("search messages", &ownError{err})
	}
	return r, nil
}

func (s *Store) findMessages(ctx context.Context, q *inbox.Query) (inbox.Results, error) {
	switch {
	case len(q.IDs) > 0:
		return s.searchMessages(ctx, searchInboxGiven, q, math.MaxInt64, math.MaxInt64)
	case q.To != uuid.Nil:
		return s.searchMessages(ctx, searchInboxGiven, q, q.Scan, q.Scan)
	case q.Named != "":
		return s.searchMessages(ctx, searchInboxNamed, q, 1, q.Scan)
	case q.Since.IsZero() && q.Until.IsZero(): // every applied message that is looked at fits
		return s.searchMessages(ctx, searchInboxNewest, q, min(q.Scan, q.Limit+1), q.Scan)
	}
	var consumers int
	if err := s.queryRow(ctx, countConsumers, q.Consumer).Scan(&consumers); err != nil {
		return inbox.Results{}, err
	}
	return s.searchMessages(ctx, searchInboxNewest, q, max(1, q.Scan/max(1, consumers)), q.Scan)
}

var countConsumers = statement(`SELECT count(*) FROM {{inbox_consumers}} WHERE $1 = '' OR name = $1`)

// searchMessages looks at a number of applied messages and of effects of each consumer.
func (s *Store) searchMessages(ctx context.Context, t search, q *inbox.Query, applied, effects int) (r inbox.Results, err error) {
	tmpl := t.without
	if q.Content {
		tmpl = t.with
	}
	to := q.To
	if to == uuid.Nil {
		to = uuid.Max
	}
	err = s.lookUp(ctx, searchPlans, tmpl, func(rows pgx.Rows) error {
		for rows.Next() {
			m, err := scanFoundMessage(rows, &r.More)
			if err != nil {
				return err
			}
			if m.Seq >= 0 {
				r.Messages = append(r.Messages, m)
			}
		}
		return nil
	}, q.Consumer, idValues(q.IDs), texts(q.States), q.Topic, q.Key, q.Error, sinceOf(q.Since), untilOf(q.Until),
		idValue(q.From), idValue(to), q.Limit+1, applied, effects, q.Named)
	if len(r.Messages) > q.Limit {
		r.Messages, r.More = r.Messages[:q.Limit], true
	}
	return r, err
}

func scanFoundMessage(rows pgx.Rows, more *bool) (m inbox.Found, err error) {
	var consumer, topic, key, state, why, lastError, reason pgtype.Text
	var id, waits pgtype.UUID
	var digest, metadata []byte
	var attempts pgtype.Int4
	var stamp, since, next pgtype.Timestamptz
	err = rows.Scan(more, &m.Seq, &consumer, &id, &digest, &stamp, &topic, &key, &state, &why, &waits, &attempts, &since, &next,
		&lastError, &reason, &metadata, &m.Payload)
	if err != nil {
		return m, err
	}
	m.Consumer, m.ID, m.Digest, m.Stamp, m.Topic, m.Key = consumer.String, id.Bytes, digestOf(digest), timeOf(stamp), topic.String, key.String
	m.State, m.Why, m.WaitsFor, m.Attempts = inbox.State(state.String), why.String, waits.Bytes, int(attempts.Int32)
	m.Since, m.NextAttemptAt, m.LastError, m.Reason = timeOf(since), timeOf(next), lastError.String, reason.String
	if metadata != nil {
		m.Metadata, _ = decodeMetadata(metadata) // nil if it cannot be read
	}
	return m, nil
}

var searchMessageCauses = statement(`
SELECT c.name, g.state, g.topic, g.error, g.n, g.first, g.last, p.dispatch_id
FROM (
    SELECT p.consumer, p.state, p.topic, coalesce(p.last_error, '') AS error, count(*) AS n,
        min(p.parked_at) AS first, max(p.parked_at) AS last, max(p.id) AS id
    FROM (SELECT p.*` + messageFilterOf + `) p
    GROUP BY 1, 2, 3, 4 ORDER BY n DESC, id DESC LIMIT $7
) g JOIN {{inbox_consumers}} c ON c.id = g.consumer JOIN {{inbox_parked}} p ON p.id = g.id
ORDER BY g.n DESC, g.id DESC`)

// MessageCauses implements [inbox.Searcher].
func (s *Store) MessageCauses(ctx context.Context, f inbox.Filter) (list []inbox.Cause, err error) {
	f.After = 0
	err = s.lookUp(ctx, groupPlans, searchMessageCauses, func(rows pgx.Rows) error {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (c inbox.Cause, err error) {
			err = row.Scan(&c.Consumer, (*string)(&c.State), &c.Topic, &c.Error, &c.Count, &c.First, &c.Last, (*[16]byte)(&c.Example))
			c.First, c.Last = c.First.UTC(), c.Last.UTC()
			return c, err
		})
		return err
	}, messageArgs(&f, f.States)...)
	if err != nil {
		return nil, failed("count causes", &ownError{err})
	}
	return list, nil
}
