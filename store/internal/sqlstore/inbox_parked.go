package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// isFirst holds for a parked message p without an earlier live message of its key.
const isFirst = `(p.ordered = 0 OR p.{message_key} = '' OR NOT EXISTS (
	SELECT 1 FROM {inbox_parked} h
	WHERE h.consumer = p.consumer AND {first h} AND h.{message_key} = p.{message_key} AND h.seq < p.seq))`

// DueMessages implements [inbox.ParkedStore]. The next due time is read before the due messages: a
// message that changes in between is either due or found by the next call.
func (s *Store) DueMessages(ctx context.Context, consumerID, limit int) (seqs []int64, next time.Duration, err error) {
	var then int64
	at, err := s.c.Now(ctx, s.c.DB)
	if err == nil {
		err = s.c.One(ctx, s.c.DB, []any{&then}, `SELECT p.next_attempt_at FROM {inbox_parked} p
			WHERE p.consumer = ? AND p.state = 'retrying' AND p.next_attempt_at > ? AND `+isFirst+`
			ORDER BY p.next_attempt_at LIMIT 1`, consumerID, at)
	}
	switch {
	case err == nil:
		next = time.Duration(then-at) * time.Microsecond
	case !errors.Is(err, sql.ErrNoRows):
		return nil, 0, fmt.Errorf("read when messages are due: %w", &OwnError{err})
	}
	seqs, err = s.c.IDs(ctx, s.c.DB, `SELECT p.seq FROM {inbox_parked} p
		WHERE p.consumer = ? AND p.state = 'retrying' AND p.next_attempt_at <= ? AND `+isFirst+`
		ORDER BY p.next_attempt_at, p.seq LIMIT ?`, consumerID, at, limit)
	if err != nil {
		return nil, 0, fmt.Errorf("read due messages: %w", &OwnError{err})
	}
	return seqs, next, nil
}

// parkedColumns are the columns that scanParked reads.
const parkedColumns = `p.seq, n.name, p.dispatch_id, p.digest, p.topic, p.{message_key}, p.stamp, p.metadata, p.payload,
p.state, p.attempts, p.parked_at, p.next_attempt_at, p.last_error, p.reason, p.consumer, p.ordered, p.claimed, p.forced`

// parkedMessage is a parked message with the columns that only the store uses.
type parkedMessage struct {
	inbox.Parked
	place
	claimed, forced bool
}

// place names the consumer and the key of a parked message. Neither ever changes.
type place struct {
	consumer int
	key      string
	ordered  bool
}

// keys returns the key to lock, or nothing for a message without order.
func (p place) keys() []string {
	if !p.ordered || p.key == "" {
		return nil
	}
	return []string{p.key}
}

// scanParked reads a row of parkedColumns and of the columns for more.
func scanParked(rows *sql.Rows, more ...any) (m parkedMessage, err error) {
	var id, digest, metadata, payload sql.RawBytes
	var stamp, next sql.NullInt64
	var parked int64
	err = rows.Scan(append([]any{&m.Seq, &m.Consumer, &id, &digest, &m.Topic, &m.Key, &stamp, &metadata, &payload,
		&m.State, &m.Attempts, &parked, &next, &m.LastError, &m.Reason, &m.consumer, &m.ordered, &m.claimed, &m.forced}, more...)...)
	if err != nil {
		return m, err
	}
	if m.ID, err = uuid.FromBytes(id); err != nil {
		return m, fmt.Errorf("parked message %d: dispatch ID: %w", m.Seq, err)
	}
	m.Metadata, m.Unreadable = decodeMetadata(metadata)
	m.Digest, m.Payload, m.key = Digest(digest), slices.Clone([]byte(payload)), m.Key
	m.Stamp, m.ParkedAt, m.NextAttemptAt = Optional(stamp), Instant(parked), Optional(next)
	return m, nil
}

// place reads the place of a parked message. ok is false if the message does not exist.
func (s *Store) place(ctx context.Context, seq int64) (p place, ok bool, err error) {
	err = s.c.One(ctx, s.c.DB, []any{&p.consumer, &p.key, &p.ordered},
		`SELECT consumer, {message_key}, ordered FROM {inbox_parked} WHERE seq = ?`, seq)
	if errors.Is(err, sql.ErrNoRows) {
		return place{}, false, nil
	}
	if err != nil {
		return place{}, false, fmt.Errorf("read parked message: %w", &OwnError{err})
	}
	return p, true, nil
}

// ApplyParked implements [inbox.ParkedStore]. A message without a claim runs in two cases: if it
// was too old and no copy has claimed its ID since, or if it was altered and forced. Any other
// message without a claim is removed or becomes altered, without running.
func (s *Store) ApplyParked(ctx context.Context, c inbox.Claim, seq int64,
	fn func(ctx context.Context, tx *sql.Tx, m *inbox.Parked) error,
) (bool, error) {
	at, ok, err := s.place(ctx, seq)
	if err != nil || !ok || at.consumer != c.Consumer {
		return false, err
	}
	ran := false
	err = s.c.d.Claiming(ctx, &c, func(ctx context.Context, tx *sql.Tx) error {
		m, run, err := s.take(ctx, tx, &c, at, seq)
		if err != nil || !run {
			return err
		}
		if err := s.c.RunChecked(ctx, tx, func() error { return fn(ctx, tx, &m.Parked) }); err != nil {
			return err
		}
		ran = true
		if err := s.remove(s.c.d.StatementContext(ctx), tx, m); err != nil {
			return fmt.Errorf("remove parked message: %w", &OwnError{err})
		}
		return s.c.NoteApplied(ctx, tx, m.consumer, m.ID)
	})
	switch {
	case errors.Is(err, ErrNothing):
		return false, nil
	case err != nil:
		return false, err
	}
	return ran, nil
}

// take locks a parked message and then its key. It skips a message that another process has locked,
// but waits for the key. run tells whether the message has to run. If the message is gone, or not
// due yet, take returns ErrNothing.
func (s *Store) take(ctx context.Context, tx *sql.Tx, c *inbox.Claim, at place, seq int64) (m *parkedMessage, run bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, err
	}
	ctx = s.c.d.StatementContext(ctx)
	if s.c.d.RowLocks {
		err = s.lockParked(ctx, tx, at, seq)
	}
	var found []parkedMessage
	if err == nil {
		found, err = collect(ctx, s.c, tx, func(rows *sql.Rows) (parkedMessage, error) { return scanParked(rows) }, `SELECT `+parkedColumns+` FROM {inbox_parked} p JOIN {inbox_consumers} n ON n.id = p.consumer
			WHERE p.seq = ? AND p.state = 'retrying' AND p.next_attempt_at <= {now} AND `+isFirst, seq)
	}
	switch {
	case errors.Is(err, ErrNothing):
		return nil, false, ErrNothing
	case err != nil:
		return nil, false, fmt.Errorf("lock parked message: %w", &OwnError{err})
	case len(found) == 0:
		return nil, false, ErrNothing
	}
	m = &found[0]
	run = true
	if !m.claimed {
		run, err = s.claimParked(ctx, tx, m)
	}
	if err == nil {
		err = s.c.d.EndLockTimeout(ctx, tx, c)
	}
	if err != nil {
		return nil, false, fmt.Errorf("claim parked message: %w", &OwnError{err})
	}
	return m, run, nil
}

// lockParked locks a retrying message and its key. If the message is gone or locked, it returns
// ErrNothing.
func (s *Store) lockParked(ctx context.Context, tx *sql.Tx, at place, seq int64) error {
	found, err := s.c.IDs(ctx, tx, `SELECT seq FROM {inbox_parked} WHERE seq = ? AND state = 'retrying' {lock_free}`, seq)
	if err == nil && len(found) == 0 {
		return ErrNothing
	}
	if err != nil {
		return err
	}
	return s.c.d.LockKeys(ctx, tx, at.consumer, at.keys()...)
}

// claimParked claims a message that was set aside without a claim, and tells whether the message
// has to run. The dispatch ID is remembered from now on, not from its stamp, which is forgotten
// already.
func (s *Store) claimParked(ctx context.Context, tx *sql.Tx, m *parkedMessage) (run bool, err error) {
	n, err := s.c.Exec(ctx, tx, `INSERT INTO {inbox} (consumer, dispatch_id, digest, stamp, applied_at) VALUES (?, ?, ?, {now}, {now})
		{once consumer, dispatch_id}`, m.consumer, m.ID[:], m.Digest[:])
	if err != nil || n == 1 {
		return err == nil, err
	}
	verdict, err := s.c.Compare(ctx, tx, &inbox.Claim{Consumer: m.consumer, ID: m.ID, Digest: m.Digest})
	switch {
	case err != nil:
		return false, err
	case verdict != inbox.Altered:
		return false, s.remove(ctx, tx, m)
	case m.forced:
		return true, nil
	}
	// The message was redriven as too old, not as altered.
	_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'altered', next_attempt_at = NULL WHERE seq = ?`, m.Seq)
	if err != nil {
		return false, err
	}
	return false, s.promoteMessage(ctx, tx, m.place, m.Seq)
}

// Compare compares a message with an earlier claim of its ID: the verdict is Duplicate or Altered.
func (c *Core) Compare(ctx context.Context, tx *sql.Tx, claim *inbox.Claim) (verdict inbox.Verdict, err error) {
	err = c.Each(ctx, tx, func(rows *sql.Rows) error {
		var known sql.RawBytes
		if err := rows.Scan(&known); err != nil {
			return err
		}
		verdict = inbox.Altered
		if claim.Digest.Matches(Digest(known)) {
			verdict = inbox.Duplicate
		}
		return nil
	}, `SELECT digest FROM {inbox} WHERE consumer = ? AND dispatch_id = ? {lock}`, claim.Consumer, claim.ID[:])
	return verdict, err
}

// remove deletes a parked message, marks its claim as the newest applied claim, and makes the next
// message of the key retrying.
func (s *Store) remove(ctx context.Context, tx *sql.Tx, m *parkedMessage) error {
	if _, err := s.c.Exec(ctx, tx, `DELETE FROM {inbox_parked} WHERE seq = ?`, m.Seq); err != nil {
		return err
	}
	if m.claimed {
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox} SET applied_at = {now}{be_newest} WHERE consumer = ? AND dispatch_id = ?`, m.consumer, m.ID[:])
		if err != nil {
			return err
		}
	}
	if err := s.c.ForgetAttempts(ctx, tx, m.consumer, m.ID); err != nil {
		return err
	}
	return s.promoteMessage(ctx, tx, m.place, m.Seq)
}

// firstMessage returns the Seq of the first live message of a key, or 0.
func (s *Store) firstMessage(ctx context.Context, tx *sql.Tx, at place) (int64, error) {
	first, err := s.c.IDs(ctx, tx, `SELECT p.seq FROM {inbox_parked} p {by live} WHERE p.consumer = ? AND {first p} AND p.{message_key} = ?
		ORDER BY p.seq LIMIT 1`, at.consumer, Text(at.key))
	if err != nil || len(first) == 0 {
		return 0, err
	}
	return first[0], nil
}

// promoteMessage makes the first live message of a key retrying and due, if it comes after the
// message gone. The caller has locked the key.
func (s *Store) promoteMessage(ctx context.Context, tx *sql.Tx, at place, gone int64) error {
	if len(at.keys()) == 0 {
		return nil // no message waits
	}
	first, err := s.firstMessage(ctx, tx, at)
	if err != nil || first <= gone {
		return err
	}
	_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = 'retrying', next_attempt_at = {now} WHERE seq = ?`, first)
	return err
}

// RetryMessage implements [inbox.ParkedStore].
func (s *Store) RetryMessage(ctx context.Context, seq int64, attempts int, retryIn time.Duration, dead bool, lastError string) error {
	at, ok, err := s.place(ctx, seq)
	if err != nil || !ok {
		return err
	}
	state, due := inbox.Retrying, dueIn(retryIn)
	if dead {
		state, due = inbox.Dead, sql.NullInt64{}
	}
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		if dead {
			if err := s.c.d.LockKeys(ctx, tx, at.consumer, at.keys()...); err != nil {
				return err
			}
		}
		var id []byte
		var was int
		err := s.c.One(ctx, tx, []any{&id, &was}, `SELECT dispatch_id, attempts FROM {inbox_parked} WHERE seq = ? AND state = 'retrying' {lock}`, seq)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		} else if err != nil {
			return err
		}
		_, err = s.c.Exec(ctx, tx, `UPDATE {inbox_parked} SET state = ?, attempts = {greatest}(attempts, ?), next_attempt_at = {now} + ?, last_error = ?
			WHERE seq = ?`, string(state), attempts, due, Text(lastError), seq)
		if err != nil {
			return err
		}
		if err := s.c.noteRetry(ctx, tx, at.consumer, uuid.UUID(id), attempts > was, dead, lastError); err != nil {
			return err
		}
		if err := s.c.ForgetAttempts(ctx, tx, at.consumer, uuid.UUID(id)); err != nil || !dead {
			return err
		}
		return s.promoteMessage(ctx, tx, at, seq)
	})
	if err != nil {
		return fmt.Errorf("retry parked message: %w", &OwnError{err})
	}
	return nil
}
