package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/boxpair/boxpair/migrations"
)

// Migrate applies the pending migrations to the tables that cfg names, in one transaction, and
// returns the applied migrations. Processes that migrate at the same time take turns. A database
// that a newer version has migrated, or whose migrations differ from this version, is not changed;
// the error wraps [migrations.ErrNewer] or [migrations.ErrChanged].
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

// migration is [Store.Transact] for a database that may have no tables yet.
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

// CheckSchema compares the migrations of the database with this version of the library. The error
// wraps [migrations.ErrMissing] if the database lacks a migration, and [migrations.ErrChanged] if a
// migration differs. Later migrations are no error. If another tool has made the tables,
// CheckSchema cannot tell and returns nil.
func (s *Store) CheckSchema(ctx context.Context) error {
	known, err := migrations.SQLite(s.names)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	return s.core.CheckSchema(ctx, known)
}
