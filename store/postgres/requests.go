package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/store/inbox"
)

var _ inbox.RequestStore[pgx.Tx] = (*Store)(nil)

var (
	// claimRequest waits for a transaction that holds the key. The next statement reads the answer:
	// its snapshot sees the commit of the transaction.
	claimRequest = statement(`
INSERT INTO {{inbox_requests}} (scope, key, fingerprint) VALUES ($1, $2, $3)
ON CONFLICT (scope, key) DO NOTHING`)

	readRequest = statement(`
SELECT fingerprint, status, header, body FROM {{inbox_requests}} WHERE scope = $1 AND key = $2`)

	answerRequest = statement(`
UPDATE {{inbox_requests}} SET status = $3, header = $4, body = $5 WHERE scope = $1 AND key = $2`)

	// forgetRequests uses the index. No replay of a request waits for forgetRequests, since a
	// committed row is never changed.
	forgetRequests = statement(`
DELETE FROM {{inbox_requests}} r
USING (
    SELECT scope, key FROM {{inbox_requests}}
    WHERE claimed_at < clock_timestamp() - $1::interval
    ORDER BY claimed_at LIMIT $2
) old
WHERE r.scope = old.scope AND r.key = old.key`)
)

// ClaimRequest implements [inbox.RequestStore]. It restores the lock timeout of tx.
func (s *Store) ClaimRequest(ctx context.Context, tx pgx.Tx, r inbox.Request, wait time.Duration) (*inbox.Answer, error) {
	var before string
	err := tx.QueryRow(ctx, `SELECT current_setting('lock_timeout')`).Scan(&before)
	if err != nil {
		return nil, failed("claim request", err)
	}
	var batch pgx.Batch
	batch.Queue(`SELECT set_config('lock_timeout', $1, true)`, strconv.FormatInt(max(wait.Milliseconds(), 1), 10))
	batch.Queue(s.sql[claimRequest], r.Scope, r.Key, r.Fingerprint[:])
	batch.Queue(`SELECT set_config('lock_timeout', $1, true)`, before)
	results := tx.SendBatch(ctx, &batch)
	_, err = results.Exec()
	claimed := int64(0)
	if err == nil {
		tag, execErr := results.Exec()
		claimed, err = tag.RowsAffected(), execErr
	}
	err = errors.Join(err, results.Close())
	switch {
	case sqlState(err) == "55P03":
		return nil, fmt.Errorf("claim request: %w", inbox.ErrInProgress)
	case err != nil:
		return nil, failed("claim request", err)
	case claimed > 0:
		return nil, nil
	}
	return s.storedAnswer(ctx, tx, r)
}

func (s *Store) storedAnswer(ctx context.Context, tx pgx.Tx, r inbox.Request) (*inbox.Answer, error) {
	var (
		a      inbox.Answer
		status *int
		sum    []byte
		header []byte
	)
	err := tx.QueryRow(ctx, s.sql[readRequest], r.Scope, r.Key).Scan(&sum, &status, &header, &a.Body)
	if errors.Is(err, pgx.ErrNoRows) { // forgotten since the claim
		return nil, fmt.Errorf("claim request: %w", inbox.ErrInProgress)
	}
	if err != nil {
		return nil, failed("read answer", err)
	}
	if status == nil {
		return nil, fmt.Errorf("read answer: %w", inbox.ErrUnanswered)
	}
	a.Fingerprint, a.Status = [32]byte(sum), *status
	a.Header = make(map[string][]string)
	if err := json.Unmarshal(header, &a.Header); err != nil {
		return nil, errors.New("read answer: the stored header is not JSON")
	}
	return &a, nil
}

// AnswerRequest implements [inbox.RequestStore].
func (s *Store) AnswerRequest(ctx context.Context, tx pgx.Tx, r inbox.Request, a inbox.Answer) error {
	header, err := json.Marshal(a.Header)
	if err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	tag, err := tx.Exec(ctx, s.sql[answerRequest], r.Scope, r.Key, a.Status, string(header), a.Body)
	if err != nil {
		return failed("store answer", err)
	}
	if tag.RowsAffected() != 1 {
		return errors.New("store answer: the request was not claimed in this transaction")
	}
	return nil
}

// ForgetRequests implements [inbox.RequestStore].
func (s *Store) ForgetRequests(ctx context.Context, age time.Duration, limit int) (int, error) {
	tag, err := s.exec(ctx, forgetRequests, age, limit)
	if err != nil {
		return 0, failed("forget requests", err)
	}
	return int(tag.RowsAffected()), nil
}
