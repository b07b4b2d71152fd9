package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/consumer/request"
)

var _ request.Store[*sql.Tx] = (*Store)(nil)

// ClaimRequest implements [request.Store]. Transactions that write come one after another,
// so there is nobody to wait for.
func (s *Store) ClaimRequest(ctx context.Context, tx *sql.Tx, r request.Request, _ time.Duration) (*request.Answer, error) {
	claimed, err := s.exec(ctx, tx, `
INSERT INTO {inbox_requests} (scope, key, fingerprint, claimed_at) VALUES (?, ?, ?, ?)
ON CONFLICT (scope, key) DO NOTHING`, r.Scope, r.Key, r.Fingerprint[:], now())
	if err != nil {
		return nil, fmt.Errorf("claim request: %w", err)
	}
	if claimed > 0 {
		return nil, nil
	}
	var (
		a           request.Answer
		sum, header []byte
	)
	err = s.one(ctx, tx, []any{&sum, &a.Status, &header, &a.Body},
		`SELECT fingerprint, status, header, body FROM {inbox_requests} WHERE scope = ? AND key = ?`, r.Scope, r.Key)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	a.Fingerprint = [32]byte(sum)
	a.Header = make(map[string][]string)
	if err := json.Unmarshal(header, &a.Header); err != nil {
		return nil, errors.New("read answer: its header is no JSON")
	}
	return &a, nil
}

// AnswerRequest implements [request.Store].
func (s *Store) AnswerRequest(ctx context.Context, tx *sql.Tx, r request.Request, a request.Answer) error {
	header, err := json.Marshal(a.Header)
	if err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	n, err := s.exec(ctx, tx, `UPDATE {inbox_requests} SET status = ?, header = ?, body = ? WHERE scope = ? AND key = ?`,
		a.Status, string(header), a.Body, r.Scope, r.Key)
	if err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	if n != 1 {
		return errors.New("store answer: the request was not claimed in this transaction")
	}
	return nil
}

// ForgetRequests implements [request.Store].
func (s *Store) ForgetRequests(ctx context.Context, age time.Duration, limit int) (int, error) {
	var n int64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		n, err = s.exec(ctx, tx, `
DELETE FROM {inbox_requests} WHERE (scope, key) IN
    (SELECT scope, key FROM {inbox_requests} WHERE claimed_at < ? ORDER BY claimed_at LIMIT ?)`,
			now()-micros(age), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget requests: %w", err)
	}
	return int(n), nil
}
