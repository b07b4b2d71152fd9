package postgres

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/boxpair/boxpair/store/inbox"
)

var (
	noteAttempt = statement(`
INSERT INTO {{inbox_history}} (consumer, dispatch_id, outcome, error) SELECT $1, id, $3, $4 FROM unnest($2::uuid[]) AS id`)

	messageAttempts = statement(`
SELECT h.at, c.name, h.outcome, h.error
FROM {{inbox_history}} h JOIN {{inbox_consumers}} c ON c.id = h.consumer
WHERE h.dispatch_id = $2 AND ($1 = '' OR c.name = $1)
ORDER BY h.n LIMIT $3`)

	forgetHistory = statement(`
DELETE FROM {{inbox_history}} h
USING (
    SELECT dispatch_id, n FROM {{inbox_history}}
    WHERE consumer = $1 AND at < clock_timestamp() - $2::bigint * interval '1 microsecond'
    ORDER BY at LIMIT $3
) old
WHERE h.dispatch_id = old.dispatch_id AND h.consumer = $1 AND h.n = old.n`)
)

// noteApplied records with the COMMIT that messages were applied, for Config.AllAttempts.
func (t *transaction) noteApplied(consumerID int, ids ...uuid.UUID) {
	if !t.store.allAttempts {
		return
	}
	values := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		values[i] = idValue(id)
	}
	t.queue(t.store.sql[noteAttempt], consumerID, values, "applied", "")
}

// MessageAttempts implements [inbox.HistoryStore].
func (s *Store) MessageAttempts(ctx context.Context, name string, id uuid.UUID, limit int) ([]inbox.Attempt, error) {
	list, err := readRows(ctx, s, messageAttempts, []any{name, idValue(id), limit}, func(row pgx.CollectableRow) (a inbox.Attempt, err error) {
		err = row.Scan(&a.At, &a.Consumer, &a.Outcome, &a.Error)
		a.At = a.At.UTC()
		return a, err
	})
	if err != nil {
		return nil, failed("read the attempts of a message", &ownError{err})
	}
	return list, nil
}

// ForgetHistory implements [inbox.HistoryStore].
func (s *Store) ForgetHistory(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	tag, err := s.exec(ctx, forgetHistory, consumerID, age.Microseconds(), limit)
	if err != nil {
		return 0, failed("forget old attempts", &ownError{err})
	}
	return int(tag.RowsAffected()), nil
}
