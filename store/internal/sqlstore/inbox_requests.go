package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

// StoredAnswer reads the answer of a request whose row the claim has locked. It reads with a lock:
// on MySQL a plain read could see an older snapshot.
func (c *Core) StoredAnswer(ctx context.Context, tx *sql.Tx, r inbox.Request) (*inbox.Answer, error) {
	var (
		a           inbox.Answer
		sum, header []byte
		status      sql.NullInt64
	)
	err := c.One(ctx, tx, []any{&sum, &status, &header, &a.Body},
		`SELECT fingerprint, status, header, body FROM {inbox_requests} WHERE scope = ? AND {request_key} = ? {lock}`, Text(r.Scope), Text(r.Key))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read answer: %w", err)
	case !status.Valid:
		return nil, fmt.Errorf("read answer: %w", inbox.ErrUnanswered)
	}
	a.Fingerprint, a.Status = [32]byte(sum), int(status.Int64)
	a.Header = make(map[string][]string)
	if err := json.Unmarshal(header, &a.Header); err != nil {
		return nil, errors.New("read answer: the header is not valid JSON")
	}
	return &a, nil
}

// AnswerRequest implements [inbox.RequestStore].
func (s *Store) AnswerRequest(ctx context.Context, tx *sql.Tx, r inbox.Request, a inbox.Answer) error {
	header, err := json.Marshal(a.Header)
	if err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	var found int
	err = s.c.One(ctx, tx, []any{&found}, `SELECT COUNT(*) FROM {inbox_requests} WHERE scope = ? AND {request_key} = ?`, Text(r.Scope), Text(r.Key))
	if err == nil && found != 1 {
		return errors.New("store answer: the request was not claimed in this transaction")
	}
	if err == nil {
		_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_requests} SET status = ?, header = ?, body = ? WHERE scope = ? AND {request_key} = ?`,
			a.Status, Text(header), a.Body, Text(r.Scope), Text(r.Key))
	}
	if err != nil {
		return fmt.Errorf("store answer: %w", err)
	}
	return nil
}

// ForgetRequests implements [inbox.RequestStore].
func (s *Store) ForgetRequests(ctx context.Context, age time.Duration, limit int) (int, error) {
	n, err := s.forget(ctx, oldRows{table: `{inbox_requests}`, key: "scope, {request_key}", where: "claimed_at < {now} - ?", first: "claimed_at"},
		limit, Micros(age))
	if err != nil {
		return 0, fmt.Errorf("forget requests: %w", err)
	}
	return n, nil
}
