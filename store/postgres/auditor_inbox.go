package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/audit"
)

var auditConsumers = statement(`
SELECT id, name, registered_at, forgotten_until FROM {{inbox_consumers}} ORDER BY id`)

// Consumers implements [audit.Inbox].
func (a *Auditor) Consumers(ctx context.Context) ([]audit.Consumer, error) {
	return collect(ctx, a, "read consumers", auditConsumers, func(rows pgx.Rows, c *audit.Consumer) error {
		return rows.Scan(&c.ID, &c.Name, instantColumn{&c.RegisteredAt}, instantColumn{&c.ForgottenUntil})
	})
}

// The second bound implies the first bound on the stamp, which makes the planner use the index.
var auditClaims = statement(`
SELECT stamp, dispatch_id, digest, applied_at IS NOT NULL FROM {{inbox}}
WHERE consumer = $1 AND stamp >= $2 AND (stamp, dispatch_id) > ($2, $3::uuid) AND stamp < $4
ORDER BY stamp, dispatch_id LIMIT $5`)

// Claims implements [audit.Inbox].
func (a *Auditor) Claims(ctx context.Context, consumer int, after audit.ClaimPlace, before time.Time, limit int) ([]audit.Claim, error) {
	return collect(ctx, a, "read claims", auditClaims, func(rows pgx.Rows, c *audit.Claim) error {
		return rows.Scan(instantColumn{&c.Stamp}, (*[16]byte)(&c.ID), digestColumn{&c.Digest}, &c.Applied)
	}, consumer, after.Stamp, idValue(after.ID), before, limit)
}

var auditFindClaims = statement(`
SELECT w.id, i.dispatch_id IS NOT NULL, i.stamp, i.digest, i.applied_at IS NOT NULL,
    coalesce(p.states, '{}'), coalesce(t.attempts, 0), coalesce(t.last_error, '')
FROM unnest($2::uuid[]) AS w (id)
LEFT JOIN {{inbox}} i ON i.consumer = $1 AND i.dispatch_id = w.id
LEFT JOIN LATERAL (
    SELECT array_agg(p.state) AS states FROM {{inbox_parked}} p WHERE p.consumer = $1 AND p.dispatch_id = w.id) p ON true
LEFT JOIN {{inbox_attempts}} t ON t.consumer = $1 AND t.dispatch_id = w.id
WHERE i.dispatch_id IS NOT NULL OR p.states IS NOT NULL OR t.dispatch_id IS NOT NULL`)

// FindClaims implements [audit.Inbox].
func (a *Auditor) FindClaims(ctx context.Context, consumer int, ids []uuid.UUID) ([]audit.FoundClaim, error) {
	return collect(ctx, a, "find claims", auditFindClaims, func(rows pgx.Rows, c *audit.FoundClaim) error {
		return rows.Scan((*[16]byte)(&c.ID), &c.Claimed, instantColumn{&c.Stamp}, digestColumn{&c.Digest}, &c.Applied,
			&c.States, &c.Attempts, &c.LastError)
	}, consumer, idValues(ids))
}

var auditMessages = statement(`
SELECT id, dispatch_id, topic, coalesce(stamp, parked_at), parked_at, state, attempts,
    coalesce(CASE WHEN state = 'discarded' THEN reason END, last_error, '')
FROM {{inbox_parked}} WHERE id > $2 AND consumer = $1 ORDER BY id LIMIT $3`)

// ParkedMessages implements [audit.Inbox].
func (a *Auditor) ParkedMessages(ctx context.Context, consumer int, after int64, limit int) ([]audit.ParkedMessage, error) {
	return collect(ctx, a, "read parked messages", auditMessages, func(rows pgx.Rows, m *audit.ParkedMessage) error {
		return rows.Scan(&m.Seq, (*[16]byte)(&m.ID), &m.Topic, instantColumn{&m.Stamp}, instantColumn{&m.ParkedAt},
			&m.State, &m.Attempts, &m.Why)
	}, consumer, after, limit)
}
