package postgres

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
)

var (
	// insertGroup is insertClaim for many messages. The rows are inserted in the order of their
	// IDs, so two groups cannot wait for each other's claims.
	insertGroup = statement(`
INSERT INTO {{inbox}} (consumer, dispatch_id, digest, stamp, applied_at)
SELECT $1::smallint, c.id, c.digest, coalesce(c.stamp, clock_timestamp()), clock_timestamp()
FROM unnest($2::uuid[], $3::bytea[], $4::timestamptz[]) WITH ORDINALITY AS c (id, digest, stamp, n)
ORDER BY c.n
ON CONFLICT DO NOTHING
RETURNING dispatch_id`)

	checkGroup       = statement(checkGroupText)
	checkGroupShared = statement(checkGroupText + " FOR SHARE OF c")

	readClaims   = statement(`SELECT dispatch_id, digest FROM {{inbox}} WHERE consumer = $1 AND dispatch_id = ANY ($2::uuid[])`)
	deleteClaims = statement(`DELETE FROM {{inbox}} WHERE consumer = $1 AND dispatch_id = ANY ($2::uuid[])`)
)

// checkGroupText is checkClaim for many messages. It returns the places of the messages that are
// too old, and of the keys that are blocked.
const checkGroupText = `
SELECT ARRAY(SELECT s.n - 1 FROM unnest($2::timestamptz[]) WITH ORDINALITY AS s (stamp, n) WHERE s.stamp < c.forgotten_until),
       ARRAY(SELECT k.n - 1 FROM unnest($3::text[]) WITH ORDINALITY AS k (key, n)
           WHERE EXISTS (
               SELECT FROM {{inbox_parked}} p
               WHERE p.consumer = c.id AND p.key = k.key AND p.ordered AND p.state IN ('retrying', 'following'))),
       ` + restoreLockTimeout + `, ` + restoreSeqscan + `
FROM {{inbox_consumers}} c WHERE c.id = $1`

// groupClaims are the claims of one transaction.
type groupClaims struct {
	claims   []inbox.Claim
	sorted   []int    // places of claims, by ID
	keys     []string // the keys with an order, without duplicates
	verdicts []inbox.Verdict
}

// newGroup returns a group of at least one claim.
func newGroup(claims []inbox.Claim) *groupClaims {
	g := &groupClaims{claims: claims, sorted: make([]int, len(claims)), verdicts: make([]inbox.Verdict, len(claims))}
	for i := range claims {
		g.sorted[i] = i
		if key := claims[i].Key; key != "" {
			g.keys = append(g.keys, key)
		}
	}
	slices.SortFunc(g.sorted, func(a, b int) int { return bytes.Compare(claims[a].ID[:], claims[b].ID[:]) })
	slices.Sort(g.keys)
	g.keys = slices.Compact(g.keys)
	return g
}

// ApplyGroup implements [inbox.ClaimStore]. The claims take one round trip, or two if some dispatch
// IDs are known, and the commit takes another.
func (s *Store) ApplyGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx pgx.Tx, run []int) error) ([]inbox.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	g := newGroup(claims)
	o := s.optionsOf(&claims[0], "")
	for _, key := range g.keys {
		o.keys = append(o.keys, s.keyLock(claims[0].Consumer, key))
	}
	slices.Sort(o.keys)
	o.keys = slices.Compact(o.keys) // two keys may share a lock
	t, err := s.open(ctx, o)
	if err != nil {
		return nil, err
	}
	defer t.end(ctx)
	if err := t.claimGroup(ctx, g); err != nil {
		return nil, err
	}
	if err := t.compareGroup(ctx, g); err != nil {
		return nil, err
	}
	if !slices.Contains(g.verdicts, inbox.Applied) && !slices.Contains(g.verdicts, inbox.Followed) {
		return g.verdicts, nil // end rolls back
	}
	if run := g.places(inbox.Applied); len(run) > 0 {
		if err := t.run(ctx, func(tx pgx.Tx) error { return fn(ctx, tx, run) }); err != nil {
			return nil, err
		}
		ids, started := make([]uuid.UUID, len(run)), []int(nil)
		for n, at := range run {
			ids[n] = claims[at].ID
			if claims[at].Started {
				started = append(started, at)
			}
		}
		t.noteApplied(claims[0].Consumer, ids...)
		if len(started) > 0 {
			if err := t.forgetStarts(ctx, claims[0].Consumer, g.ids(started)...); err != nil {
				return nil, err
			}
		}
	}
	if err := t.setGroupAside(ctx, g); err != nil {
		return nil, err
	}
	if err := t.commitClaim(ctx); err != nil {
		return nil, err
	}
	return g.verdicts, nil
}

// places returns the places of the claims with a verdict, ascending.
func (g *groupClaims) places(v inbox.Verdict) (at []int) {
	for i := range g.verdicts {
		if g.verdicts[i] == v {
			at = append(at, i)
		}
	}
	return at
}

// claimGroup makes the claims, and sets the verdicts of the made claims.
func (t *transaction) claimGroup(ctx context.Context, g *groupClaims) error {
	c := &g.claims[0]
	n := len(g.claims)
	ids, digests, stamps := make([]pgtype.UUID, n), make([][]byte, n), make([]pgtype.Timestamptz, n)
	for to, from := range g.sorted {
		claim := &g.claims[from]
		ids[to], digests[to], stamps[to] = idValue(claim.ID), digestValue(claim.Digest), timeValue(claim.Stamp)
	}
	mine := make(map[uuid.UUID]struct{}, n)
	b := t.batch()
	b.Queue(t.store.sql[insertGroup], c.Consumer, ids, digests, stamps).Query(func(rows pgx.Rows) error {
		var id pgtype.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			mine[id.Bytes] = struct{}{}
			return nil
		})
		return err
	})
	var old, blocked []int
	t.queueCheck(b, c, func(row pgx.Row) error { return row.Scan(&old, &blocked, nil, nil) },
		checkGroup, checkGroupShared, stamps, g.keys)
	if err := t.sendOwn(ctx, "claim a group", b); err != nil {
		return err
	}
	for i := range g.claims {
		if _, ok := mine[g.claims[i].ID]; ok {
			g.verdicts[i] = inbox.Applied
			if at, ok := slices.BinarySearch(g.keys, g.claims[i].Key); ok && slices.Contains(blocked, at) {
				g.verdicts[i] = inbox.Followed
			}
		}
	}
	for _, at := range old {
		if i := g.sorted[at]; g.verdicts[i] != inbox.None {
			g.verdicts[i] = inbox.TooOld
		}
	}
	return nil
}

// compareGroup sets the verdicts of the remaining claims.
func (t *transaction) compareGroup(ctx context.Context, g *groupClaims) error {
	missing := g.places(inbox.None)
	if len(missing) == 0 {
		return nil
	}
	known := make(map[uuid.UUID]transport.Digest, len(missing))
	// Planned for the present size of the table, not for its size when the connection was new.
	rows, err := t.tx.Query(ctx, t.store.sql[readClaims], t.store.mode, g.claims[0].Consumer, g.ids(missing))
	if err == nil {
		var id pgtype.UUID
		var digest []byte
		_, err = pgx.ForEachRow(rows, []any{&id, &digest}, func() error {
			known[id.Bytes] = digestOf(digest)
			return nil
		})
	}
	if err != nil {
		return failed("read the claims of a group", &ownError{err})
	}
	for _, i := range missing {
		g.verdicts[i] = inbox.Duplicate // also if the ID was forgotten in this moment
		if digest, ok := known[g.claims[i].ID]; ok && !g.claims[i].Digest.Matches(digest) {
			g.verdicts[i] = inbox.Altered
		}
	}
	return nil
}

func (g *groupClaims) ids(places []int) []pgtype.UUID {
	ids := make([]pgtype.UUID, len(places))
	for n, i := range places {
		ids[n] = idValue(g.claims[i].ID)
	}
	return ids
}

// setGroupAside parks the messages that follow, in the order of the claims, and deletes the claims
// of the messages that are too old.
func (t *transaction) setGroupAside(ctx context.Context, g *groupClaims) error {
	old, followers := g.places(inbox.TooOld), g.places(inbox.Followed)
	if len(old) == 0 && len(followers) == 0 {
		return nil
	}
	if err := t.sendQueued(ctx); err != nil { // under the settings of the handlers
		return err
	}
	b := t.batch()
	b.Queue(indexesOnly)
	if len(old) > 0 {
		b.Queue(t.store.sql[deleteClaims], g.claims[0].Consumer, g.ids(old))
	}
	for _, i := range followers {
		if err := t.queueFollower(b, &g.claims[i]); err != nil {
			return err
		}
	}
	return t.sendOwn(ctx, "set messages of a group aside", b)
}

// queueFollower queues the statements that park a newly claimed message behind the parked messages
// of its key.
func (t *transaction) queueFollower(b *pgx.Batch, c *inbox.Claim) error {
	if c.Message == nil {
		return errors.New("the claim has a key, but no message to park")
	}
	b.Queue(t.store.sql[unapplied], c.Consumer, idValue(c.ID))
	p := inbox.Parking{Consumer: c.Consumer, Message: c.Message, State: inbox.Following, Ordered: true}
	return t.store.queueParked(b, &p)
}
