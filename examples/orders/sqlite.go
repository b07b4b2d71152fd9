package main

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"

	"github.com/boxpair/boxpair/store/sqlite"
)

// onSQLite is a service's database in a file of its own.
type onSQLite struct {
	db    *sql.DB
	store *sqlite.Store
}

func openSQLite(_ context.Context, opts options, service string) (database[*sql.Tx], error) {
	db, err := sqlite.Open(filepath.Join(opts.Dir, service+".db"))
	if err != nil {
		return nil, err
	}
	store, err := sqlite.New(db, sqlite.Config{})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &onSQLite{db, store}, nil
}

func (d *onSQLite) Store() store[*sql.Tx] { return d.store }

func (d *onSQLite) Exec(ctx context.Context, tx *sql.Tx, query string, args ...any) (int64, error) {
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

func (d *onSQLite) Row(ctx context.Context, tx *sql.Tx, query string, args []any, dest ...any) error {
	return tx.QueryRowContext(ctx, query, args...).Scan(dest...)
}

func (d *onSQLite) Query(ctx context.Context, query string, each func(scan func(...any) error) error) error {
	rows, err := d.db.QueryContext(ctx, query)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := each(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (d *onSQLite) Table(name string) string { return `"boxpair_` + name + `"` }

// IDs turns the 16 bytes of a dispatch ID into text.
func (d *onSQLite) IDs(query string) string {
	return strings.ReplaceAll(query, "{id}", `lower(substr(hex(dispatch_id), 1, 8) || '-' || substr(hex(dispatch_id), 9, 4) || '-' ||
		substr(hex(dispatch_id), 13, 4) || '-' || substr(hex(dispatch_id), 17, 4) || '-' || substr(hex(dispatch_id), 21))`)
}

func (d *onSQLite) Migrate(ctx context.Context, schema []string) error {
	if _, err := sqlite.Migrate(ctx, d.db, sqlite.Config{}); err != nil {
		return err
	}
	for _, statement := range schema {
		if _, err := d.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (d *onSQLite) Close() { _ = d.db.Close() }
