package mysql

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

// ClaimRequest implements [request.Store]. The wait is rounded up to whole seconds; afterwards the lock wait
// timeout of the session is what it was when the session began.
func (s *Store) ClaimRequest(ctx context.Context, tx *sql.Tx, r request.Request, wait time.Duration) (*request.Answer, error) {
	_, err := tx.ExecContext(ctx, `SET SESSION innodb_lock_wait_timeout = `+seconds(max(wait, time.Second), ""))
	if err != nil {
		return nil, fmt.Errorf("claim request: %w", err)
	}
	claimed, err := s.exec(ctx, tx, `INSERT INTO {inbox_requests} (scope, request_key, fingerprint, claimed_at) VALUES (?, ?, ?, {now})
		ON DUPLICATE KEY UPDATE copies = copies + 1`, []byte(r.Scope), []byte(r.Key), r.Fingerprint[:])
	_, restored := tx.ExecContext(context.WithoutCancel(ctx), restoreLock)
	switch {
	case errorNumber(err) == erLockWaitTimeout:
		return nil, fmt.Errorf("claim request: %w", request.ErrInProgress)
	case err != nil:
		return nil, fmt.Errorf("claim request: %w", err)
	case restored != nil:
		return nil, fmt.Errorf("claim request: %w", restored)
	case claimed == 1:
		return nil, nil
	}
	return s.storedAnswer(ctx, tx, r)
}

// storedAnswer reads an answer. The claim has locked its row; a plain read could be of a snapshot from before.
func (s *Store) storedAnswer(ctx context.Context, tx *sql.Tx, r request.Request) (*request.Answer, error) {
	var (
		a           request.Answer
		sum, header []byte
		status      sql.NullInt64
	)
	err := s.one(ctx, tx, []any{&sum, &status, &header, &a.Body},
		`SELECT fingerprint, status, header, body FROM {inbox_requests} WHERE scope = ? AND request_key = ? FOR UPDATE`, []byte(r.Scope), []byte(r.Key))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case !status.Valid: // claimed in this very transaction
		return nil, fmt.Errorf("claim request: %w", request.ErrInProgress)
	}
	a.Fingerprint, a.Status = [32]byte(sum), int(status.Int64)
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
	var found int
	err = s.one(ctx, tx, []any{&found}, `SELECT COUNT(*) FROM {inbox_requests} WHERE scope = ? AND request_key = ?`, []byte(r.Scope), []byte(r.Key))
	if err == nil && found != 1 {
		return errors.New("store answer: the request was not claimed in this transaction")
	}
	if err == nil {
		_, err = s.exec(ctx, tx, `UPDATE {inbox_requests} SET status = ?, header = ?, body = ? WHERE scope = ? AND request_key = ?`,
			a.Status, header, a.Body, []byte(r.Scope), []byte(r.Key))
	}
	if err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	return nil
}

// ForgetRequests implements [request.Store].
func (s *Store) ForgetRequests(ctx context.Context, age time.Duration, limit int) (int, error) {
	var n int64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		n, err = s.exec(ctx, tx, `DELETE FROM {inbox_requests} WHERE claimed_at < {now} - ? ORDER BY claimed_at LIMIT ?`, micros(age), limit)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("forget requests: %w", err)
	}
	return int(n), nil
}
