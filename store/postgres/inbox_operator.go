package postgres

import (
	"context"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/inbox"
)

const messageFilter = messageFilterOf + `
ORDER BY p.id LIMIT $7`

const messageFilterOf = `
FROM {{inbox_parked}} p JOIN {{inbox_consumers}} c ON c.id = p.consumer
WHERE ($1 = '' OR c.name = $1)
    AND (cardinality($2::uuid[]) = 0 OR p.dispatch_id = ANY ($2))
    AND (cardinality($3::text[]) = 0 OR p.state = ANY ($3))
    AND ($4 = '' OR p.topic = $4) AND ($5 = '' OR p.key = $5) AND p.id > $6
    AND ($8 = '' OR strpos(coalesce(p.last_error, ''), $8) > 0)
    AND p.parked_at >= $9 AND p.parked_at < $10`

func messageArgs(f *inbox.Filter, states []inbox.State) []any {
	limit := f.Limit
	if limit <= 0 {
		limit = defaultFilterLimit
	}
	return []any{f.Consumer, idValues(f.IDs), texts(states), f.Topic, f.Key, f.After, limit, f.Error, sinceOf(f.Since), untilOf(f.Until)}
}

// texts returns states as a list of strings.
func texts[S ~string](states []S) []string {
	list := make([]string, len(states))
	for i, state := range states {
		list[i] = string(state)
	}
	return list
}

var listMessages = statement(`SELECT ` + messageColumns + messageFilter)

// ListParkedMessages implements [inbox.ParkedStore].
func (s *Store) ListParkedMessages(ctx context.Context, f inbox.Filter) ([]inbox.Parked, error) {
	list, err := readRows(ctx, s, listMessages, messageArgs(&f, f.States), func(row pgx.CollectableRow) (inbox.Parked, error) {
		var r messageRow
		err := r.scan(row)
		return r.Parked, err
	})
	if err != nil {
		return nil, failed("list parked messages", &ownError{err})
	}
	return list, nil
}

// redriveMessages makes the first live message of each key run, and the remaining messages follow.
// If all messages were due, each poll would skip the followers again, once for every handled
// message. A discarded message without a claim may have been altered: without force, its run
// compares it with the claim, and sets it aside again.
var redriveMessages = statement(`
WITH chosen AS MATERIALIZED (
    SELECT id, consumer, key, ordered FROM {{inbox_parked}} WHERE id = ANY ($1::bigint[]) AND state = ANY ($2::text[]) ORDER BY id FOR UPDATE
), heads AS MATERIALIZED (
    SELECT c.consumer, c.key, least(min(c.id), (
        SELECT p.id FROM {{inbox_parked}} p
        WHERE p.consumer = c.consumer AND p.key = c.key AND p.ordered AND p.state IN ('retrying', 'following')
        ORDER BY p.id LIMIT 1)) AS id
    FROM chosen c WHERE c.ordered GROUP BY c.consumer, c.key
), r AS (
    UPDATE {{inbox_parked}} p
    SET state = CASE WHEN h.id < p.id THEN 'following' ELSE 'retrying' END,
        next_attempt_at = CASE WHEN h.id < p.id THEN NULL ELSE clock_timestamp() END,
        attempts = 0, reason = NULL, discarded_at = NULL,
        forced = p.forced OR p.state = 'altered' OR p.state = 'discarded' AND NOT p.claimed AND $4::boolean
    FROM chosen c LEFT JOIN heads h ON c.ordered AND h.consumer = c.consumer AND h.key = c.key
    WHERE p.id = c.id
    RETURNING p.id, p.consumer, p.dispatch_id
), h AS (
    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) SELECT consumer, dispatch_id, 'redriven', $3::text FROM r ORDER BY id
), a AS (
    DELETE FROM {{inbox_attempts}} a USING r WHERE a.consumer = r.consumer AND a.dispatch_id = r.dispatch_id
)
SELECT dispatch_id FROM r ORDER BY id`)

// RedriveMessages implements [inbox.ParkedStore], in one transaction per key. An error comes with
// the messages redriven so far.
func (s *Store) RedriveMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	allowed := []inbox.State{inbox.Dead, inbox.TooOldState}
	if f.Force {
		allowed = append(allowed, inbox.AlteredState)
	}
	if len(f.States)+len(f.IDs) > 0 { // without a filter, messages that are retried anyway are left alone
		allowed = append(allowed, inbox.Retrying)
	}
	if slices.Contains(f.States, inbox.Discarded) {
		allowed = append(allowed, inbox.Discarded)
	}
	return s.changeMessages(ctx, "redrive", &f, allowed, func(b *pgx.Batch, seqs []int64, states []string) *pgx.QueuedQuery {
		return b.Queue(s.sql[redriveMessages], seqs, states, storable(reason), f.Force)
	})
}

var (
	discardMessages = statement(`
WITH r AS (
    UPDATE {{inbox_parked}} SET state = 'discarded', next_attempt_at = NULL, reason = $3, discarded_at = clock_timestamp()
    WHERE id = ANY ($1::bigint[]) AND state = ANY ($2::text[])
    RETURNING id, consumer, dispatch_id
), h AS (
    INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) SELECT consumer, dispatch_id, 'discarded', $3 FROM r ORDER BY id
)
SELECT dispatch_id FROM r ORDER BY id`)

	// A follower without a head becomes the head. A head that is retrying keeps its backoff.
	promoteFollowing = statement(`
UPDATE {{inbox_parked}} SET state = 'retrying', next_attempt_at = clock_timestamp()
WHERE state = 'following' AND id = (
    SELECT p.id FROM {{inbox_parked}} p
    WHERE p.consumer = $1 AND p.key = $2 AND p.ordered AND p.state IN ('retrying', 'following')
    ORDER BY p.id LIMIT 1)`)
)

// DiscardMessages implements [inbox.ParkedStore], in one transaction per key. DiscardMessages waits
// for a running handler of a message until ctx ends. An error comes with the messages discarded so
// far.
func (s *Store) DiscardMessages(ctx context.Context, f inbox.Filter, reason string) ([]uuid.UUID, error) {
	allowed := []inbox.State{inbox.Retrying, inbox.Following, inbox.Dead, inbox.TooOldState, inbox.AlteredState}
	return s.changeMessages(ctx, "discard", &f, allowed, func(b *pgx.Batch, seqs []int64, states []string) *pgx.QueuedQuery {
		return b.Queue(s.sql[discardMessages], seqs, states, storable(reason))
	})
}

// group is the messages of one key in an operator's selection.
type group struct {
	consumer int
	key      string // "" for messages without order
	seqs     []int64
}

var selectMessages = statement(`SELECT p.id, p.consumer, CASE WHEN p.ordered THEN p.key ELSE '' END` + messageFilter)

// changeMessages changes the selected messages in one of the allowed states, key by key, under the
// lock of the key.
func (s *Store) changeMessages(ctx context.Context, doing string, f *inbox.Filter, allowed []inbox.State,
	change func(b *pgx.Batch, seqs []int64, states []string) *pgx.QueuedQuery,
) ([]uuid.UUID, error) {
	states := wanted(f.States, allowed)
	if len(states) == 0 {
		return nil, nil
	}
	groups, err := s.groups(ctx, messageArgs(f, states))
	if err != nil {
		return nil, failed(doing, &ownError{err})
	}
	names := texts(states)
	var ids []uuid.UUID
	for _, g := range groups {
		changed, err := s.changeGroup(ctx, doing, g, func(b *pgx.Batch) *pgx.QueuedQuery {
			return change(b, g.seqs, names)
		})
		ids = append(ids, changed...)
		if err != nil {
			return ids, err
		}
	}
	return ids, nil
}

// wanted returns the asked states among the allowed states. Without asked states it returns all
// allowed states.
func wanted[S comparable](asked, allowed []S) []S {
	if len(asked) == 0 {
		return allowed
	}
	return slices.DeleteFunc(slices.Clone(allowed), func(state S) bool { return !slices.Contains(asked, state) })
}

// groups reads the messages to change, and keeps the messages of each key together.
func (s *Store) groups(ctx context.Context, args []any) ([]*group, error) {
	rows, err := s.query(ctx, selectMessages, args...)
	if err != nil {
		return nil, err
	}
	type name struct {
		consumer int
		key      string
	}
	var groups []*group
	byName := make(map[name]*group)
	var seq int64
	var n name
	_, err = pgx.ForEachRow(rows, []any{&seq, &n.consumer, &n.key}, func() error {
		g := byName[n]
		if g == nil {
			g = &group{consumer: n.consumer, key: n.key}
			byName[n] = g
			groups = append(groups, g)
		}
		g.seqs = append(g.seqs, seq)
		return nil
	})
	return groups, err
}

func (s *Store) changeGroup(ctx context.Context, doing string, g *group, change func(b *pgx.Batch) *pgx.QueuedQuery) ([]uuid.UUID, error) {
	c := inbox.Claim{Consumer: g.consumer, IdleTimeout: ownIdle}
	t, err := s.open(ctx, s.optionsOf(&c, g.key))
	if err != nil {
		return nil, err
	}
	defer t.end(ctx)
	var ids []uuid.UUID
	b := t.batch()
	change(b).Query(func(rows pgx.Rows) (err error) {
		ids, err = pgx.CollectRows(rows, scanID)
		return err
	})
	if g.key != "" {
		b.Queue(s.sql[promoteFollowing], g.consumer, g.key)
	}
	if err := t.sendAndCommit(ctx, doing, b); err != nil {
		return nil, err
	}
	return ids, nil
}
