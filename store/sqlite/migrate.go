package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/boxpair/boxpair/migrations"
)

// Migrate brings the tables that cfg names up to this version of the library, in one
// transaction, and returns what it applied: nothing, if they were. Processes
// that call it at the same time take turns. A database that a newer version has
// migrated, or in which a migration is not the one of this version, is left
// alone; the error wraps [migrations.ErrNewer] or [migrations.ErrChanged].
func Migrate(ctx context.Context, db *sql.DB, cfg Config) ([]migrations.Applied, error) {
	s, err := New(db, cfg)
	if err != nil {
		return nil, err
	}
	known, err := migrations.SQLite(s.names)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	var applied []migrations.Applied
	err = s.migration(ctx, func(ctx context.Context, tx *sql.Tx) error {
		applied, err = s.migrate(ctx, tx, known)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

// migration is [Store.Transact], for a database that may have none of the tables yet.
func (s *Store) migration(ctx context.Context, fn func(context.Context, *sql.Tx) error) error {
	if s.gate != nil {
		return s.Transact(ctx, fn)
	}
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := fn(ctx, tx); err != nil {
		return err
	}
	return s.commit(ctx, tx)
}

func (s *Store) migrate(ctx context.Context, tx *sql.Tx, known []migrations.Migration) ([]migrations.Applied, error) {
	_, err := s.exec(ctx, tx, `CREATE TABLE IF NOT EXISTS {`+migrations.HistoryTable+`} (
		number     INTEGER PRIMARY KEY,
		name       TEXT    NOT NULL,
		checksum   TEXT    NOT NULL,
		applied_at INTEGER NOT NULL -- microseconds since 1970, UTC
	)`)
	if err != nil {
		return nil, fmt.Errorf("create history: %w", err)
	}
	// A deferred transaction takes the write lock here, before it has read the history.
	if _, err := s.exec(ctx, tx, `DELETE FROM {`+migrations.HistoryTable+`} WHERE false`); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	var history []migrations.Applied
	err = s.each(ctx, tx, func(rows *sql.Rows) error {
		var a migrations.Applied
		var at int64
		err := rows.Scan(&a.Number, &a.Name, &a.Checksum, &at)
		a.At = instant(at)
		history = append(history, a)
		return err
	}, `SELECT number, name, checksum, applied_at FROM {`+migrations.HistoryTable+`} ORDER BY number`)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	pending, err := migrations.Pending(known, history)
	if err != nil {
		return nil, err
	}
	applied := make([]migrations.Applied, 0, len(pending))
	for _, m := range pending {
		if _, err := tx.ExecContext(ctx, m.SQL); err != nil {
			return nil, fmt.Errorf("apply %d (%s): %w", m.Number, m.Name, err)
		}
		at := now()
		_, err := s.exec(ctx, tx, `INSERT INTO {`+migrations.HistoryTable+`} (number, name, checksum, applied_at) VALUES (?, ?, ?, ?)`,
			m.Number, m.Name, m.Checksum, at)
		if err != nil {
			return nil, fmt.Errorf("record %d (%s): %w", m.Number, m.Name, err)
		}
		applied = append(applied, migrations.Applied{Number: m.Number, Name: m.Name, Checksum: m.Checksum, At: instant(at)})
	}
	return applied, nil
}
