package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
)

// ForgetAttempts removes the counted attempts and starts of at least one message of a consumer.
func (c *Core) ForgetAttempts(ctx context.Context, tx *sql.Tx, consumerID int, ids ...uuid.UUID) error {
	_, err := c.Exec(ctx, tx, `DELETE FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id IN ?`, consumerID, ids)
	return err
}

// Started implements [inbox.ClaimStore]. Rows are locked in the order of their IDs, so that two
// groups with common messages cannot deadlock.
func (s *Store) Started(ctx context.Context, consumerID int, ids []uuid.UUID, within time.Duration) (starts []int, err error) {
	if len(ids) == 0 {
		return nil, nil
	}
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		starts = make([]int, len(ids))
		free := slices.Clone(ids)
		if within > 0 { // otherwise a start that another process has just recorded could be after {now}
			lately, err := s.startsOf(ctx, tx, consumerID, ids, ` AND updated_at > {now} - ?`, Micros(within))
			if err != nil {
				return err
			}
			free = slices.DeleteFunc(free, func(id uuid.UUID) bool { return lately[id] > 0 })
		}
		if len(free) == 0 {
			return nil
		}
		slices.SortFunc(free, func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) })
		args := make([]any, 0, 2*len(free))
		for i := range free {
			args = append(args, consumerID, free[i][:])
		}
		_, err := s.c.Exec(ctx, tx, `INSERT INTO {inbox_attempts} (consumer, dispatch_id, starts, updated_at) VALUES (?, ?, 1, {now})`+
			strings.Repeat(`, (?, ?, 1, {now})`, len(free)-1)+`
			{again consumer, dispatch_id} starts = starts + 1, updated_at = {now}`, args...)
		if err != nil {
			return err
		}
		counted, err := s.startsOf(ctx, tx, consumerID, free, "")
		for i, id := range ids {
			starts[i] = counted[id]
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("count starts: %w", &OwnError{err})
	}
	return starts, nil
}

// startsOf reads the starts of messages with at least one start, if the condition and holds.
func (s *Store) startsOf(ctx context.Context, tx *sql.Tx, consumerID int, ids []uuid.UUID, and string, args ...any) (map[uuid.UUID]int, error) {
	starts := make(map[uuid.UUID]int, len(ids))
	err := s.c.Each(ctx, tx, func(rows *sql.Rows) error {
		var id sql.RawBytes
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			return err
		}
		starts[uuid.UUID(id)] = n
		return nil
	}, `SELECT dispatch_id, starts FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id IN ? AND starts > 0`+and,
		append([]any{consumerID, ids}, args...)...)
	return starts, err
}

// Unstarted implements [inbox.ClaimStore].
func (s *Store) Unstarted(ctx context.Context, consumerID int, ids []uuid.UUID) error {
	if len(ids) == 0 {
		return nil
	}
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `UPDATE {inbox_attempts} SET starts = starts - 1, updated_at = {now}
			WHERE consumer = ? AND dispatch_id IN ? AND starts > 0`, consumerID, ids)
		return err
	})
	if err != nil {
		return fmt.Errorf("take starts back: %w", &OwnError{err})
	}
	return nil
}

// Failed implements [inbox.ClaimStore].
func (s *Store) Failed(ctx context.Context, consumerID int, id uuid.UUID, lastError string) (attempts int, err error) {
	err = s.write(ctx, func(ctx context.Context, tx *sql.Tx) error {
		_, err := s.c.Exec(ctx, tx, `INSERT INTO {inbox_attempts} (consumer, dispatch_id, attempts, last_error, updated_at) VALUES (?, ?, 1, ?, {now})
			{again consumer, dispatch_id} attempts = attempts + 1, starts = 0, last_error = ?, updated_at = {now}`,
			consumerID, id[:], Text(lastError), Text(lastError))
		if err != nil {
			return err
		}
		err = s.c.One(ctx, tx, []any{&attempts}, `SELECT attempts FROM {inbox_attempts} WHERE consumer = ? AND dispatch_id = ?`, consumerID, id[:])
		if err != nil {
			return err
		}
		return s.c.note(ctx, tx, consumerID, id, "failed", lastError)
	})
	if err != nil {
		return 0, fmt.Errorf("count attempt: %w", &OwnError{err})
	}
	return attempts, nil
}

// note adds an entry to the history of a message.
func (c *Core) note(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID, outcome, text string) error {
	_, err := c.Exec(ctx, tx, `INSERT INTO {inbox_history} (consumer, dispatch_id, at, outcome, error) VALUES (?, ?, {now}, ?, ?)`,
		consumerID, id[:], outcome, Text(text))
	if err != nil {
		return fmt.Errorf("note what became of a message: %w", &OwnError{err})
	}
	return nil
}

// noteRetry notes a counted attempt, or that a message became dead without a counted attempt.
func (c *Core) noteRetry(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID, counted, dead bool, text string) error {
	switch {
	case counted:
		return c.note(ctx, tx, consumerID, id, "failed", text)
	case dead:
		return c.note(ctx, tx, consumerID, id, "dead", text)
	}
	return nil
}

// NoteApplied notes that a message was applied, if AllAttempts is set.
func (c *Core) NoteApplied(ctx context.Context, tx *sql.Tx, consumerID int, id uuid.UUID) error {
	if !c.AllAttempts {
		return nil
	}
	return c.note(c.d.StatementContext(ctx), tx, consumerID, id, "applied", "")
}

// MessageAttempts implements [inbox.HistoryStore].
func (s *Store) MessageAttempts(ctx context.Context, name string, id uuid.UUID, limit int) ([]inbox.Attempt, error) {
	list, err := collect(ctx, s.c, s.c.DB, func(rows *sql.Rows) (a inbox.Attempt, err error) {
		var at int64
		err = rows.Scan(&at, &a.Consumer, &a.Outcome, &a.Error)
		a.At = Instant(at)
		return a, err
	}, `SELECT h.at, c.name, h.outcome, h.error FROM {inbox_history} h JOIN {inbox_consumers} c ON c.id = h.consumer
		WHERE h.dispatch_id = ? AND (? = '' OR c.name = ?) ORDER BY h.id LIMIT ?`, id[:], Text(name), Text(name), limit)
	if err != nil {
		return nil, fmt.Errorf("read the attempts of a message: %w", &OwnError{err})
	}
	return list, nil
}

// oldRows are the rows of table for which where holds, in the order of the column first.
type oldRows struct {
	table, key, where, first string
}

// forget removes at most limit old rows.
func (s *Store) forget(ctx context.Context, o oldRows, limit int, args ...any) (int, error) {
	rows := `FROM ` + o.table + ` WHERE ` + o.where + ` ORDER BY ` + o.first + ` LIMIT ?`
	query := `DELETE ` + rows
	if !s.c.d.DeleteLimit {
		query = `DELETE FROM ` + o.table + ` WHERE (` + o.key + `) IN (SELECT ` + o.key + ` ` + rows + `)`
	}
	var removed int64
	err := s.write(ctx, func(ctx context.Context, tx *sql.Tx) (err error) {
		removed, err = s.c.Exec(ctx, tx, query, append(args, limit)...)
		return err
	})
	return int(removed), err
}

// ForgetHistory implements [inbox.HistoryStore].
func (s *Store) ForgetHistory(ctx context.Context, consumerID int, age time.Duration, limit int) (int, error) {
	n, err := s.forget(ctx, oldRows{table: `{inbox_history}`, key: "id", where: "consumer = ? AND at < {now} - ?", first: "at"},
		limit, consumerID, Micros(age))
	if err != nil {
		return 0, fmt.Errorf("forget old attempts: %w", &OwnError{err})
	}
	return n, nil
}
