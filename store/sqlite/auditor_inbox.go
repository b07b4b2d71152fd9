package sqlite

import (
	"context"
	"database/sql"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// Consumers implements [audit.Inbox].
func (a *Auditor) Consumers(ctx context.Context) ([]audit.Consumer, error) {
	var list []audit.Consumer
	err := a.each(ctx, "read consumers", func(rows *sql.Rows) error {
		var c audit.Consumer
		var registered int64
		var forgotten sql.NullInt64
		err := rows.Scan(&c.ID, &c.Name, &registered, &forgotten)
		c.RegisteredAt, c.ForgottenUntil = sqlstore.Instant(registered), sqlstore.Optional(forgotten)
		list = append(list, c)
		return err
	}, `SELECT id, name, registered_at, forgotten_until FROM {inbox_consumers} ORDER BY id`)
	return list, err
}

// Claims implements [audit.Inbox].
func (a *Auditor) Claims(ctx context.Context, consumer int, after audit.ClaimPlace, before time.Time, limit int) ([]audit.Claim, error) {
	var list []audit.Claim
	stamp := after.Stamp.UnixMicro()
	err := a.each(ctx, "read claims", func(rows *sql.Rows) error {
		var c audit.Claim
		var at int64
		var id, digest sql.RawBytes
		err := rows.Scan(&at, &id, &digest, &c.Applied)
		copy(c.ID[:], id)
		c.Stamp, c.Digest = sqlstore.Instant(at), sqlstore.Digest(digest)
		list = append(list, c)
		return err
	}, `SELECT stamp, dispatch_id, digest, applied_at IS NOT NULL FROM {inbox}
		WHERE consumer = ? AND stamp >= ? AND (stamp, dispatch_id) > (?, ?) AND stamp < ?
		ORDER BY stamp, dispatch_id LIMIT ?`, consumer, stamp, stamp, after.ID[:], before.UnixMicro(), limit)
	return list, err
}

// FindClaims implements [audit.Inbox].
func (a *Auditor) FindClaims(ctx context.Context, consumer int, ids []uuid.UUID) ([]audit.FoundClaim, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var list []audit.FoundClaim
	err := a.each(ctx, "look claims up", func(rows *sql.Rows) error {
		var c audit.FoundClaim
		var id, digest sql.RawBytes
		var stamp sql.NullInt64
		var states sql.NullString
		err := rows.Scan(&id, &c.Claimed, &stamp, &digest, &c.Applied, &states, &c.Attempts, &c.LastError)
		copy(c.ID[:], id)
		c.Stamp, c.Digest = sqlstore.Optional(stamp), sqlstore.Digest(digest)
		if states.Valid {
			c.States = strings.Split(states.String, ",")
		}
		list = append(list, c)
		return err
	}, `WITH wanted (id) AS (SELECT * FROM ?), known AS (
		SELECT w.id, i.dispatch_id IS NOT NULL AS claimed, i.stamp, i.digest, i.applied_at IS NOT NULL AS applied,
			(SELECT group_concat(p.state, ',') FROM {inbox_parked} p WHERE p.consumer = ? AND p.dispatch_id = w.id) AS states,
			t.attempts, t.last_error
		FROM wanted w
		LEFT JOIN {inbox} i ON i.consumer = ? AND i.dispatch_id = w.id
		LEFT JOIN {inbox_attempts} t ON t.consumer = ? AND t.dispatch_id = w.id)
		SELECT id, claimed, stamp, digest, applied, states, coalesce(attempts, 0), coalesce(last_error, '') FROM known
		WHERE claimed OR states IS NOT NULL OR attempts IS NOT NULL`, ids, consumer, consumer, consumer)
	return list, err
}

// ParkedMessages implements [audit.Inbox].
func (a *Auditor) ParkedMessages(ctx context.Context, consumer int, after int64, limit int) ([]audit.ParkedMessage, error) {
	var list []audit.ParkedMessage
	err := a.each(ctx, "read parked messages", func(rows *sql.Rows) error {
		var m audit.ParkedMessage
		var id sql.RawBytes
		var stamp, parked int64
		err := rows.Scan(&m.Seq, &id, &m.Topic, &stamp, &parked, &m.State, &m.Attempts, &m.Why)
		copy(m.ID[:], id)
		m.Stamp, m.ParkedAt = sqlstore.Instant(stamp), sqlstore.Instant(parked)
		list = append(list, m)
		return err
	}, `SELECT seq, dispatch_id, topic, coalesce(stamp, parked_at), parked_at, state, attempts,
		CASE WHEN state = 'discarded' THEN reason ELSE last_error END
		FROM {inbox_parked} WHERE seq > ? AND consumer = ? ORDER BY seq LIMIT ?`, after, consumer, limit)
	return list, err
}
