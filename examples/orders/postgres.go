package main

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/postgres"
)

// schemaPrefix begins the names of the schemas, one for each service.
const schemaPrefix = "boxpair_example_"

// onPostgres is a service's database: a schema of its own, with the library's tables beside the
// service's.
type onPostgres struct {
	pool  *pgxpool.Pool
	cfg   postgres.Config
	store *postgres.Store
}

func openPostgres(ctx context.Context, opts options, service string) (database[pgx.Tx], error) {
	cfg, err := pgxpool.ParseConfig(opts.DatabaseURL)
	if err != nil {
		return nil, errors.New("DATABASE_URL is not a valid PostgreSQL URL") // the error may show the password
	}
	d := &onPostgres{cfg: postgres.Config{Schema: schemaPrefix + service}}
	cfg.ConnConfig.RuntimeParams["search_path"] = d.cfg.Schema
	cfg.ConnConfig.RuntimeParams["application_name"] = "boxpair example " + service
	cfg.MaxConns = 12
	if d.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
		return nil, err
	}
	if d.store, err = postgres.New(d.pool, d.cfg); err != nil {
		d.pool.Close()
		return nil, err
	}
	return d, nil
}

func (d *onPostgres) Store() store[pgx.Tx] { return d.store }

func (d *onPostgres) Exec(ctx context.Context, tx pgx.Tx, query string, args ...any) (int64, error) {
	tag, err := tx.Exec(ctx, query, args...)
	return tag.RowsAffected(), err
}

func (d *onPostgres) Row(ctx context.Context, tx pgx.Tx, query string, args []any, dest ...any) error {
	return tx.QueryRow(ctx, query, args...).Scan(dest...)
}

func (d *onPostgres) Query(ctx context.Context, query string, each func(scan func(...any) error) error) error {
	rows, err := d.pool.Query(ctx, query)
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

func (d *onPostgres) Table(name string) string { return pgx.Identifier{d.cfg.Schema, name}.Sanitize() }

func (d *onPostgres) IDs(query string) string {
	return strings.ReplaceAll(query, "{id}", "dispatch_id::text")
}

func (d *onPostgres) Migrate(ctx context.Context, schema []string) error {
	if _, err := postgres.Migrate(ctx, d.pool, d.cfg); err != nil {
		return err
	}
	for _, statement := range schema {
		if _, err := d.pool.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

func (d *onPostgres) Close() { d.pool.Close() }
