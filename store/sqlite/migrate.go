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
	return s.commit(ctx, nil, tx)
}

func (s *Store) migrate(ctx context.Context, tx *sql.Tx, known []migrations.Migration) ([]migrations.Applied, error) {
	_, err := s.core.Exec(ctx, tx, `CREATE TABLE IF NOT EXISTS {`+migrations.HistoryTable+`} (
		number     INTEGER PRIMARY KEY,
		name       TEXT    NOT NULL,
		checksum   TEXT    NOT NULL,
		applied_at INTEGER NOT NULL -- microseconds since 1970, UTC
	)`)
	if err != nil {
		return nil, fmt.Errorf("create history: %w", err)
	}
	// A deferred transaction takes the write lock here, before it has read the history.
	if _, err := s.core.Exec(ctx, tx, `DELETE FROM {`+migrations.HistoryTable+`} WHERE false`); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	return s.core.Migrate(ctx, tx, known, func(ctx context.Context, m migrations.Migration) error {
		_, err := tx.ExecContext(ctx, m.SQL)
		return err
	})
}

// CheckSchema reads which migrations the database has, and returns an error that wraps
// [migrations.ErrMissing] if this version of the library needs more, and [migrations.ErrChanged] if
// it has others. Later ones are no error. Where another tool has made the tables, nothing can be
// told, and the answer is nil.
func (s *Store) CheckSchema(ctx context.Context) error {
	known, err := migrations.SQLite(s.names)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	return s.core.CheckSchema(ctx, known)
}
