package sqlite

import (
	"context"
	"database/sql"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
)

// removeEvents implements sqlstore.Dialect. With one writer at a time, no event is queued again
// meanwhile.
func (s *Store) removeEvents(ctx context.Context, tx *sql.Tx, ids []int64, before int64) ([]int64, error) {
	return s.core.IDs(ctx, tx, `DELETE FROM {outbox_events} AS e WHERE e.id IN ? AND `+sqlstore.Delivered+` RETURNING id`, ids, before)
}

// forgetIDs implements sqlstore.Dialect.
func (s *Store) forgetIDs(ctx context.Context, tx *sql.Tx, consumerID int, from, until int64, limit int, f *inbox.Forgotten) error {
	return s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var stamp int64
		err := rows.Scan(&stamp)
		f.IDs++
		if at := sqlstore.Instant(stamp); at.After(f.Through) {
			f.Through = at
		}
		return err
	}, `DELETE FROM {inbox} WHERE seq IN (
		SELECT i.seq FROM {inbox} i WHERE i.consumer = ? AND i.stamp >= ? AND i.stamp < ? AND NOT EXISTS (
			SELECT 1 FROM {inbox_parked} p WHERE p.consumer = i.consumer AND p.dispatch_id = i.dispatch_id AND p.claimed)
		ORDER BY i.stamp LIMIT ?) RETURNING stamp`, consumerID, from, until, limit)
}
