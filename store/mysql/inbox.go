package mysql

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
)

var (
	_ producer.Store[*sql.Tx] = (*Store)(nil)
	_ consumer.Store[*sql.Tx] = (*Store)(nil)
	_ producer.Identifier     = (*Store)(nil)
)

// claimStmt is the claim: the unique index decides. It locks a row that is there exclusively, where INSERT
// IGNORE would share the lock and two copies that wait for a third could not both go on. Only a
// change tells a row that was there from a new one, whatever the connection counts as affected.
const (
	claimStmt  = `INSERT INTO {inbox} (consumer, dispatch_id, digest, stamp, applied_at) VALUES `
	claimRow   = `(?, ?, ?, COALESCE(?, {now}), CASE WHEN ? THEN {now} END)`
	claimAgain = ` ON DUPLICATE KEY UPDATE copies = copies + 1`
)

// Apply claims a message and runs fn in the transaction of the claim. Claim.LockTimeout and
// Claim.IdleTimeout are rounded up to whole seconds.
func (s *Store) Apply(ctx context.Context, c consumer.Claim, fn func(ctx context.Context, tx *sql.Tx) error) (consumer.Verdict, error) {
	verdicts, err := s.applyGroup(ctx, []consumer.Claim{c}, func(ctx context.Context, tx *sql.Tx, _ []int) error { return fn(ctx, tx) })
	if err != nil {
		return consumer.None, err
	}
	return verdicts[0], nil
}

// ApplyGroup claims messages and runs fn in the transaction of their claims.
func (s *Store) ApplyGroup(ctx context.Context, claims []consumer.Claim, fn func(ctx context.Context, tx *sql.Tx, run []int) error) ([]consumer.Verdict, error) {
	if len(claims) == 0 {
		return nil, nil
	}
	return s.applyGroup(ctx, claims, fn)
}

func (s *Store) applyGroup(ctx context.Context, claims []consumer.Claim, fn func(ctx context.Context, tx *sql.Tx, run []int) error) ([]consumer.Verdict, error) {
	var verdicts []consumer.Verdict
	err := s.transact(ctx, limitsOf(&claims[0]), isolation(claims[0].Isolation), func(ctx context.Context, tx *sql.Tx) (err error) {
		if verdicts, err = s.claimGroup(ctx, tx, claims); err != nil {
			return fmt.Errorf("claim: %w", &ownError{err})
		}
		run := places(verdicts, consumer.Applied)
		if len(run) == 0 && !slices.Contains(verdicts, consumer.Followed) {
			return errNothing
		}
		if len(run) > 0 {
			if err := fn(ctx, tx, run); err != nil {
				return err
			}
		}
		if err := s.settleGroup(ctx, tx, claims, verdicts, run); err != nil {
			return fmt.Errorf("settle: %w", &ownError{err})
		}
		return nil
	})
	if err != nil && !errors.Is(err, errNothing) {
		return nil, err
	}
	return verdicts, nil
}

func limitsOf(c *consumer.Claim) limits { return limits{lock: c.LockTimeout, idle: c.IdleTimeout} }

// isolation returns the options of a transaction; READ COMMITTED is what the sessions have.
func isolation(level consumer.Isolation) *sql.TxOptions {
	switch level {
	case consumer.ReadCommitted:
		return nil
	case consumer.RepeatableRead:
		return &sql.TxOptions{Isolation: sql.LevelRepeatableRead}
	default:
		return &sql.TxOptions{Isolation: sql.LevelSerializable}
	}
}

// places returns the places of a verdict, ascending.
func places(verdicts []consumer.Verdict, v consumer.Verdict) (at []int) {
	for i := range verdicts {
		if verdicts[i] == v {
			at = append(at, i)
		}
	}
	return at
}

// claimGroup takes the locks of the keys, makes the claims in the order of their IDs, which all transactions share, and
// says what follows from them. What it reads comes after that, and so, above READ COMMITTED too,
// sees what the transactions that it waited for have committed. Then the lock timeout is over.
func (s *Store) claimGroup(ctx context.Context, tx *sql.Tx, claims []consumer.Claim) ([]consumer.Verdict, error) {
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
	if claims[0].LockTimeout > 0 {
		if _, err := tx.ExecContext(ctx, restoreLock); err != nil {
			return nil, err
		}
	}
	mine := places(verdicts, consumer.Applied)
	if len(keys) == 0 || len(mine) == 0 {
		return verdicts, nil
	}
	blocked, err := s.blockedKeys(ctx, tx, consumerID, keys)
	for _, i := range mine {
		if blocked[claims[i].Key] {
			verdicts[i] = consumer.Followed
		}
	}
	return verdicts, err
}

// lockMessageKeys locks keys of a consumer to the end of tx.
func (s *Store) lockMessageKeys(ctx context.Context, tx *sql.Tx, consumerID int, keys ...string) error {
	return s.lockSlots(ctx, tx, "{inbox_keys}", strconv.Itoa(consumerID), keys)
}

// insertClaims makes claims of messages that are applied now, or parked, and gives the verdicts but Followed.
func (s *Store) insertClaims(ctx context.Context, tx *sql.Tx, claims []consumer.Claim, applied bool) ([]consumer.Verdict, error) {
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
		args = append(args, c.Consumer, c.ID[:], c.Digest[:], stampOf(c.Stamp), applied)
	}
	n, err := s.exec(ctx, tx, claimStmt+strings.Join(rows, ", ")+claimAgain, args...)
	if err != nil {
		return nil, err
	}
	verdicts := make([]consumer.Verdict, len(claims))
	if n == int64(len(claims)) { // each that was known counts twice
		for i := range verdicts {
			verdicts[i] = consumer.Applied
		}
	} else if err := s.compare(ctx, tx, claims, verdicts); err != nil {
		return nil, err
	}
	mine := places(verdicts, consumer.Applied)
	if len(mine) == 0 {
		return verdicts, nil
	}
	return verdicts, s.check(ctx, tx, claims, mine, verdicts)
}

// compare gives verdicts on claims some of which were known.
func (s *Store) compare(ctx context.Context, tx *sql.Tx, claims []consumer.Claim, verdicts []consumer.Verdict) error {
	places := make(map[uuid.UUID]int, len(claims))
	ids := make([]uuid.UUID, len(claims))
	for i := range claims {
		places[claims[i].ID], ids[i] = i, claims[i].ID
	}
	return s.each(ctx, tx, func(rows *sql.Rows) error {
		var id, digest sql.RawBytes
		var copies int64
		if err := rows.Scan(&id, &digest, &copies); err != nil {
			return err
		}
		i, ok := places[uuid.UUID(id)]
		switch {
		case !ok:
			return errors.New("the database has returned a claim that was not asked for")
		case copies == 0:
			verdicts[i] = consumer.Applied
		case claims[i].Digest.Matches(digestOf(digest)):
			verdicts[i] = consumer.Duplicate
		default:
			verdicts[i] = consumer.Altered
		}
		return nil
	}, `SELECT dispatch_id, digest, copies FROM {inbox} FORCE INDEX (PRIMARY) WHERE consumer = ? AND dispatch_id IN `+hexes(ids)+` FOR UPDATE`,
		claims[0].Consumer)
}

// check looks which of the claims that were made are too old, and forgets the attempts of the others.
func (s *Store) check(ctx context.Context, tx *sql.Tx, claims []consumer.Claim, mine []int, verdicts []consumer.Verdict) error {
	ids := make([]uuid.UUID, len(mine))
	for n, i := range mine {
		ids[n] = claims[i].ID
	}
	var forgotten sql.NullInt64
	var attempted bool
	err := s.one(ctx, tx, []any{&forgotten, &attempted}, `
		SELECT c.forgotten_until, EXISTS (SELECT 1 FROM {inbox_attempts} a WHERE a.consumer = c.id AND a.dispatch_id IN `+hexes(ids)+`)
		FROM {inbox_consumers} c WHERE c.id = ?`, claims[0].Consumer)
	if errors.Is(err, sql.ErrNoRows) {
		return errNotRegistered(claims[0].Consumer)
	} else if err != nil {
		return err
	}
	kept := ids[:0]
	for _, i := range mine {
		if stamp := claims[i].Stamp; forgotten.Valid && !stamp.IsZero() && stamp.UnixMicro() < forgotten.Int64 {
			verdicts[i] = consumer.TooOld
			continue
		}
		kept = append(kept, claims[i].ID)
	}
	if !attempted || len(kept) == 0 {
		return nil
	}
	return s.forgetAttempts(ctx, tx, claims[0].Consumer, kept...)
}

// blockedKeys returns those of keys that live messages are parked of.
func (s *Store) blockedKeys(ctx context.Context, tx *sql.Tx, consumerID int, keys []string) (map[string]bool, error) {
	args := []any{consumerID}
	for _, key := range keys {
		args = append(args, []byte(key))
	}
	blocked := make(map[string]bool)
	err := s.each(ctx, tx, func(rows *sql.Rows) error {
		var key string
		err := rows.Scan(&key)
		blocked[key] = true
		return err
	}, `SELECT DISTINCT message_key FROM {inbox_parked} WHERE consumer = ? AND live = 1 AND message_key IN `+marks(len(keys)), args...)
	return blocked, err
}

// settleGroup does what messages need besides: claims of those that are too old are taken back, and those that
// follow are parked, in the order of the claims.
func (s *Store) settleGroup(ctx context.Context, tx *sql.Tx, claims []consumer.Claim, verdicts []consumer.Verdict, run []int) error {
	for i := range claims {
		c := &claims[i]
		var err error
		switch verdicts[i] {
		case consumer.TooOld:
			err = s.unclaim(ctx, tx, c)
		case consumer.Followed:
			err = s.follow(ctx, tx, c)
		}
		if err != nil {
			return err
		}
	}
	if !s.allAttempts {
		return nil
	}
	for _, i := range run {
		if err := s.note(ctx, tx, claims[i].Consumer, claims[i].ID, "applied", ""); err != nil {
			return err
		}
	}
	return nil
}

// follow parks the message of c behind others of its key.
func (s *Store) follow(ctx context.Context, tx *sql.Tx, c *consumer.Claim) error {
	if c.Message == nil {
		return errors.New("message has to follow another one of its key and was not given")
	}
	_, err := s.exec(ctx, tx, `UPDATE {inbox} SET applied_at = NULL WHERE consumer = ? AND dispatch_id = ?`, c.Consumer, c.ID[:])
	if err != nil {
		return err
	}
	return s.parkClaimed(ctx, tx, parkedRow{
		consumer: c.Consumer, message: c.Message, key: c.Key, ordered: true, state: consumer.Following,
	})
}

func (s *Store) forgetAttempts(ctx context.Context, tx *sql.Tx, consumerID int, ids ...uuid.UUID) error {
	_, err := s.exec(ctx, tx, `DELETE FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id IN `+hexes(ids), consumerID)
	return err
}

// Started counts a start.
func (s *Store) Started(ctx context.Context, consumerID int, id uuid.UUID) (starts int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, `INSERT INTO {inbox_attempts} (consumer, dispatch_id, starts, updated_at) VALUES (?, ?, 1, {now})
			ON DUPLICATE KEY UPDATE starts = starts + 1, updated_at = {now}`, consumerID, id[:])
		if err != nil {
			return err
		}
		return s.one(ctx, tx, []any{&starts}, `SELECT starts FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id = ?`, consumerID, id[:])
	})
	if err != nil {
		return 0, fmt.Errorf("count start: %w", &ownError{err})
	}
	return starts, nil
}

// Unstarted takes a start back.
func (s *Store) Unstarted(ctx context.Context, consumerID int, id uuid.UUID) error {
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, `UPDATE {inbox_attempts} SET starts = starts - 1, updated_at = {now}
			WHERE consumer = ? AND dispatch_id = ? AND starts > 0`, consumerID, id[:])
		return err
	})
	if err != nil {
		return fmt.Errorf("take a start back: %w", &ownError{err})
	}
	return nil
}

// Failed counts a failed attempt and forgets the recorded starts.
func (s *Store) Failed(ctx context.Context, consumerID int, id uuid.UUID, lastError string) (attempts int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.exec(ctx, tx, `INSERT INTO {inbox_attempts} (consumer, dispatch_id, attempts, last_error, updated_at) VALUES (?, ?, 1, ?, {now})
			ON DUPLICATE KEY UPDATE attempts = attempts + 1, starts = 0, last_error = ?, updated_at = {now}`,
			consumerID, id[:], []byte(lastError), []byte(lastError))
		if err != nil {
			return err
		}
		err = s.one(ctx, tx, []any{&attempts}, `SELECT attempts FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id = ?`, consumerID, id[:])
		if err != nil {
			return err
		}
		return s.note(ctx, tx, consumerID, id, "failed", lastError)
	})
	if err != nil {
		return 0, fmt.Errorf("count attempt: %w", &ownError{err})
	}
	return attempts, nil
}

// encodeMetadata returns names and values, each behind its length, so that they may
// hold any bytes; nil for none.
func encodeMetadata(metadata map[string]string) []byte {
	var out []byte
	for _, name := range slices.Sorted(maps.Keys(metadata)) {
		for _, text := range []string{name, metadata[name]} {
			out = binary.AppendUvarint(out, uint64(len(text)))
			out = append(out, text...)
		}
	}
	return out
}

func decodeMetadata(b []byte) (map[string]string, error) {
	metadata := make(map[string]string)
	next := func() (string, error) {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return "", errors.New("metadata is cut off")
		}
		text := string(b[size : size+int(n)])
		b = b[size+int(n):]
		return text, nil
	}
	for len(b) > 0 {
		name, err := next()
		if err != nil {
			return nil, err
		}
		if metadata[name], err = next(); err != nil {
			return nil, err
		}
	}
	return metadata, nil
}

// due returns in how many microseconds a message is due.
func due(in time.Duration) sql.NullInt64 {
	return sql.NullInt64{Int64: micros(max(0, in)), Valid: true}
}
