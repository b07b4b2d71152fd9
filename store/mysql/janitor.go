package mysql

import (
	"context"
	"database/sql"
	"slices"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// removeEvents implements sqlstore.Dialect. It locks the rows of the events, as Requeue does, so
// that no event is queued again meanwhile.
func (s *Store) removeEvents(ctx context.Context, tx *sql.Tx, ids []int64, before int64) ([]int64, error) {
	_, err := s.core.IDs(ctx, tx, `SELECT id FROM {outbox_events} FORCE INDEX (PRIMARY) WHERE id IN ? ORDER BY id FOR UPDATE`, ids)
	if err != nil {
		return nil, err
	}
	gone, err := s.core.IDs(ctx, tx, `SELECT e.id FROM {outbox_events} e WHERE e.id IN ? AND `+sqlstore.Delivered, ids, before)
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	_, err = s.core.Exec(ctx, tx, `DELETE FROM {outbox_events} WHERE id IN ?`, gone)
	return gone, err
}

// forgetIDs implements sqlstore.Dialect. It skips IDs that a copy has just locked.
func (s *Store) forgetIDs(ctx context.Context, tx *sql.Tx, consumerID int, from, until int64, limit int, f *inbox.Forgotten) error {
	var ids []uuid.UUID
	err := s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var id sql.RawBytes
		var stamp int64
		if err := rows.Scan(&id, &stamp); err != nil {
			return err
		}
		ids = append(ids, uuid.UUID(id))
		if at := sqlstore.Instant(stamp); at.After(f.Through) {
			f.Through = at
		}
		return nil
	}, `SELECT i.dispatch_id, i.stamp FROM {inbox} i FORCE INDEX (stamp) WHERE i.consumer = ? AND i.stamp >= ? AND i.stamp < ? AND NOT EXISTS (
			SELECT 1 FROM {inbox_parked} p WHERE p.consumer = i.consumer AND p.dispatch_id = i.dispatch_id AND p.claimed = 1)
		ORDER BY i.stamp LIMIT ? FOR UPDATE SKIP LOCKED`, consumerID, from, until, limit)
	if err != nil {
		return err
	}
	f.IDs = len(ids)
	for part := range slices.Chunk(ids, maxListed) {
		if _, err := s.core.Exec(ctx, tx, `DELETE FROM {inbox} WHERE consumer = ? AND dispatch_id IN `+numbers(part), consumerID); err != nil {
			return err
		}
	}
	return nil
}
