package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/internal/sqlstore"
	"github.com/boxpair/boxpair/store/outbox"
)

var (
	_ outbox.Store[*sql.Tx]       = (*Store)(nil)
	_ outbox.Identifier           = (*Store)(nil)
	_ outbox.ArchiveStore         = (*Store)(nil)
	_ outbox.RemovableCounter     = (*Store)(nil)
	_ inbox.Store[*sql.Tx]        = (*Store)(nil)
	_ inbox.EffectStore[*sql.Tx]  = (*Store)(nil)
	_ inbox.RequestStore[*sql.Tx] = (*Store)(nil)
)

// claimStmt inserts claims: the unique index decides. It locks an existing row exclusively. INSERT
// IGNORE would share the lock, and two copies that wait for a third would deadlock. The upsert
// changes an existing row, so that the number of affected rows tells it from a new row, however the
// connection counts.
const (
	claimStmt  = `INSERT INTO {inbox} (consumer, dispatch_id, digest, stamp, applied_at) VALUES `
	claimRow   = `(?, ?, ?, COALESCE(?, {now}), CASE WHEN ? THEN {now} END)`
	claimAgain = ` ON DUPLICATE KEY UPDATE copies = copies + 1`
)

// Apply implements [inbox.ClaimStore]. Claim.LockTimeout and Claim.IdleTimeout are rounded up to
// whole seconds.
func (s *Store) Apply(ctx context.Context, c inbox.Claim, fn func(ctx context.Context, tx *sql.Tx) error) (inbox.Verdict, error) {
	verdicts, err := s.applyGroup(ctx, []inbox.Claim{c}, func(ctx context.Context, tx *sql.Tx, _ []int) error { return fn(ctx, tx) })
	if err != nil {
		return inbox.None, err
	}
	return verdicts[0], nil
}

// ApplyGroup implements [inbox.ClaimStore].
func (s *Store) ApplyGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx *sql.Tx, run []int) error) ([]inbox.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	return s.applyGroup(ctx, claims, fn)
}

func (s *Store) applyGroup(ctx context.Context, claims []inbox.Claim, fn func(ctx context.Context, tx *sql.Tx, run []int) error) ([]inbox.Verdict, error) {
	var verdicts []inbox.Verdict
	err := s.claiming(ctx, &claims[0], func(ctx context.Context, tx *sql.Tx) (err error) {
		if verdicts, err = s.claimGroup(ctx, tx, claims); err != nil {
			return fmt.Errorf("claim: %w", &sqlstore.OwnError{Err: err})
		}
		run := places(verdicts, inbox.Applied)
		if len(run) == 0 && !slices.Contains(verdicts, inbox.Followed) {
			return sqlstore.ErrNothing
		}
		if len(run) > 0 {
			if err := s.core.RunChecked(ctx, tx, func() error { return fn(ctx, tx, run) }); err != nil {
				return err
			}
		}
		if err := s.settleGroup(ctx, tx, claims, verdicts, run); err != nil {
			return fmt.Errorf("settle: %w", &sqlstore.OwnError{Err: err})
		}
		return nil
	})
	if err != nil && !errors.Is(err, sqlstore.ErrNothing) {
		return nil, err
	}
	return verdicts, nil
}

// isolation returns the options of a transaction. Sessions have READ COMMITTED already.
func isolation(level inbox.Isolation) *sql.TxOptions {
	switch level {
	case inbox.ReadCommitted:
		return nil
	case inbox.RepeatableRead:
		return &sql.TxOptions{Isolation: sql.LevelRepeatableRead}
	default:
		return &sql.TxOptions{Isolation: sql.LevelSerializable}
	}
}

// places returns the indexes of a verdict, ascending.
func places(verdicts []inbox.Verdict, v inbox.Verdict) (at []int) {
	for i := range verdicts {
		if verdicts[i] == v {
			at = append(at, i)
		}
	}
	return at
}

// claimGroup locks the keys, makes the claims in the order of their IDs, as all transactions do,
// and returns the verdicts. It reads only after all locks are taken: above READ COMMITTED too, the
// snapshot then has the changes of the transactions it waited for. After the claims, the lock
// timeout ends.
func (s *Store) claimGroup(ctx context.Context, tx *sql.Tx, claims []inbox.Claim) ([]inbox.Verdict, error) {
	var keys []string
	for i := range claims {
		if claims[i].Key != "" {
			keys = append(keys, claims[i].Key)
		}
	}
	consumerID := claims[0].Consumer
	if err := s.lockMessageKeys(ctx, tx, consumerID, keys...); err != nil {
		return nil, err
	}
	verdicts, err := s.insertClaims(ctx, tx, claims, true)
	if err != nil {
		return nil, err
	}
	if err := endLockTimeout(ctx, tx, &claims[0]); err != nil {
		return nil, err
	}
	mine := places(verdicts, inbox.Applied)
	if len(keys) == 0 || len(mine) == 0 {
		return verdicts, nil
	}
	blocked, err := s.blockedKeys(ctx, tx, consumerID, keys)
	for _, i := range mine {
		if blocked[claims[i].Key] {
			verdicts[i] = inbox.Followed
		}
	}
	return verdicts, err
}

// lockMessageKeys locks keys of a consumer until the end of tx.
func (s *Store) lockMessageKeys(ctx context.Context, tx *sql.Tx, consumerID int, keys ...string) error {
	return s.lockSlots(ctx, tx, "{inbox_keys}", strconv.Itoa(consumerID), keys)
}

// insertClaims claims messages that are applied now, or parked, and returns verdicts other than
// Followed.
func (s *Store) insertClaims(ctx context.Context, tx *sql.Tx, claims []inbox.Claim, applied bool) ([]inbox.Verdict, error) {
	sorted := make([]int, len(claims))
	for i := range sorted {
		sorted[i] = i
	}
	slices.SortFunc(sorted, func(a, b int) int { return bytes.Compare(claims[a].ID[:], claims[b].ID[:]) })
	rows := make([]string, len(claims))
	var args []any
	for n, i := range sorted {
		c := &claims[i]
		rows[n] = claimRow
		args = append(args, c.Consumer, c.ID[:], c.Digest[:], sqlstore.Stamp(c.Stamp), applied)
	}
	n, err := s.core.Exec(ctx, tx, claimStmt+strings.Join(rows, ", ")+claimAgain, args...)
	if err != nil {
		return nil, err
	}
	verdicts := make([]inbox.Verdict, len(claims))
	if n == int64(len(claims)) { // an existing row counts twice
		for i := range verdicts {
			verdicts[i] = inbox.Applied
		}
	} else if err := s.compare(ctx, tx, claims, verdicts); err != nil {
		return nil, err
	}
	mine := places(verdicts, inbox.Applied)
	if len(mine) == 0 {
		return verdicts, nil
	}
	return verdicts, s.check(ctx, tx, claims, mine, verdicts)
}

// compare sets the verdicts on claims of which some existed already.
func (s *Store) compare(ctx context.Context, tx *sql.Tx, claims []inbox.Claim, verdicts []inbox.Verdict) error {
	places := make(map[uuid.UUID]int, len(claims))
	ids := make([]uuid.UUID, len(claims))
	for i := range claims {
		places[claims[i].ID], ids[i] = i, claims[i].ID
	}
	return s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var id, digest sql.RawBytes
		var copies int64
		if err := rows.Scan(&id, &digest, &copies); err != nil {
			return err
		}
		i, ok := places[uuid.UUID(id)]
		switch {
		case !ok:
			return errors.New("the database has returned an unexpected claim")
		case copies == 0:
			verdicts[i] = inbox.Applied
		case claims[i].Digest.Matches(sqlstore.Digest(digest)):
			verdicts[i] = inbox.Duplicate
		default:
			verdicts[i] = inbox.Altered
		}
		return nil
	}, `SELECT dispatch_id, digest, copies FROM {inbox} FORCE INDEX (PRIMARY) WHERE consumer = ? AND dispatch_id IN `+numbers(ids)+` FOR UPDATE`,
		claims[0].Consumer)
}

// check marks the new claims that are too old, and removes the counted attempts of the other new
// claims.
func (s *Store) check(ctx context.Context, tx *sql.Tx, claims []inbox.Claim, mine []int, verdicts []inbox.Verdict) error {
	ids := make([]uuid.UUID, len(mine))
	for n, i := range mine {
		ids[n] = claims[i].ID
	}
	var forgotten sql.NullInt64
	var attempted bool
	err := s.core.One(ctx, tx, []any{&forgotten, &attempted}, `
		SELECT c.forgotten_until, EXISTS (SELECT 1 FROM {inbox_attempts} a WHERE a.consumer = c.id AND a.dispatch_id IN `+numbers(ids)+`)
		FROM {inbox_consumers} c WHERE c.id = ?`, claims[0].Consumer)
	if errors.Is(err, sql.ErrNoRows) {
		return sqlstore.ErrNotRegistered(claims[0].Consumer)
	} else if err != nil {
		return err
	}
	kept := ids[:0]
	for _, i := range mine {
		if stamp := claims[i].Stamp; forgotten.Valid && !stamp.IsZero() && stamp.UnixMicro() < forgotten.Int64 {
			verdicts[i] = inbox.TooOld
			continue
		}
		kept = append(kept, claims[i].ID)
	}
	if !attempted || len(kept) == 0 {
		return nil
	}
	return s.core.ForgetAttempts(ctx, tx, claims[0].Consumer, kept...)
}

// blockedKeys returns the keys with live parked messages.
func (s *Store) blockedKeys(ctx context.Context, tx *sql.Tx, consumerID int, keys []string) (map[string]bool, error) {
	texts := make([]any, len(keys))
	for i, key := range keys {
		texts[i] = []byte(key)
	}
	blocked := make(map[string]bool)
	err := s.core.Each(ctx, tx, func(rows *sql.Rows) error {
		var key string
		err := rows.Scan(&key)
		blocked[key] = true
		return err
	}, `SELECT DISTINCT message_key FROM {inbox_parked} WHERE consumer = ? AND live = 1 AND message_key IN (?`+strings.Repeat(",?", len(keys)-1)+`)`,
		append([]any{consumerID}, texts...)...)
	return blocked, err
}

// settleGroup deletes the claims of messages that are too old, parks following messages in the
// order of the claims, and notes applied messages.
func (s *Store) settleGroup(ctx context.Context, tx *sql.Tx, claims []inbox.Claim, verdicts []inbox.Verdict, run []int) error {
	for i := range claims {
		c := &claims[i]
		var err error
		switch verdicts[i] {
		case inbox.TooOld:
			err = s.core.Unclaim(ctx, tx, c)
		case inbox.Followed:
			err = s.core.Follow(ctx, tx, c)
		}
		if err != nil {
			return err
		}
	}
	for _, i := range run {
		if err := s.core.NoteApplied(ctx, tx, claims[i].Consumer, claims[i].ID); err != nil {
			return err
		}
	}
	return nil
}

// claimToPark claims a message that is about to be parked.
func (s *Store) claimToPark(ctx context.Context, tx *sql.Tx, c *inbox.Claim) (inbox.Verdict, error) {
	verdicts, err := s.insertClaims(ctx, tx, []inbox.Claim{*c}, false)
	if err != nil {
		return inbox.None, err
	}
	return verdicts[0], nil
}

// ClaimRequest implements [inbox.RequestStore]. The wait is rounded up to whole seconds, at least
// one. Afterwards the lock wait timeout of the session has its initial value again.
func (s *Store) ClaimRequest(ctx context.Context, tx *sql.Tx, r inbox.Request, wait time.Duration) (*inbox.Answer, error) {
	wait = max(wait, time.Second)
	// The connection notes the timeout to restore: after a lock wait timeout the transaction is
	// lost and runs no statement.
	_, err := tx.ExecContext(withLimits(ctx, limits{lock: wait}), `SET SESSION innodb_lock_wait_timeout = `+seconds(wait, ""))
	if err != nil {
		return nil, fmt.Errorf("claim request: %w", err)
	}
	claimed, err := s.core.Exec(ctx, tx, `INSERT INTO {inbox_requests} (scope, request_key, fingerprint, claimed_at) VALUES (?, ?, ?, {now})
		ON DUPLICATE KEY UPDATE copies = copies + 1`, []byte(r.Scope), []byte(r.Key), r.Fingerprint[:])
	_, restored := tx.ExecContext(context.WithoutCancel(ctx), restoreLock)
	switch {
	case errorNumber(err) == erLockWaitTimeout:
		return nil, fmt.Errorf("claim request: %w", inbox.ErrInProgress)
	case err != nil:
		return nil, fmt.Errorf("claim request: %w", err)
	case restored != nil:
		return nil, fmt.Errorf("claim request: %w", restored)
	case claimed == 1:
		return nil, nil
	}
	return s.core.StoredAnswer(ctx, tx, r)
}
