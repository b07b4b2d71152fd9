package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
)

// Migrate brings the tables that cfg names up to this version of the library,
// in one transaction, and returns what it applied: nothing, if they were. It makes the
// schema if there is none. Processes that call it at the same time take turns. A
// database that a newer version has migrated, or in which a migration is not the
// one of this version, is left alone; the error wraps [migrations.ErrNewer] or
// [migrations.ErrChanged].
//
// An up-to-date database is only read. To change it, the role needs CREATE on the schema
// and, if that does not exist, on the database.
func Migrate(ctx context.Context, pool *pgxpool.Pool, cfg Config) ([]migrations.Applied, error) {
	names, err := cfg.names()
	if err != nil {
		return nil, fmt.Errorf("postgres store config: %w", err)
	}
	known, err := migrations.Postgres(names)
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	var applied []migrations.Applied
	// READ COMMITTED whatever the default is: what is read after the lock must be
	// what the process that held it before has committed.
	options := pgx.TxOptions{IsoLevel: pgx.ReadCommitted}
	err = pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) error {
		applied, err = migrate(ctx, tx, names, known)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	return applied, nil
}

func migrate(ctx context.Context, tx pgx.Tx, names migrations.Names, known []migrations.Migration) ([]migrations.Applied, error) {
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", lockID(names, "migrate")); err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := makeHistory(ctx, tx, names); err != nil {
		return nil, err
	}
	history, err := readHistory(ctx, tx, names)
	if err != nil {
		return nil, fmt.Errorf("read history: %w", err)
	}
	pending, err := migrations.Pending(known, history)
	if err != nil {
		return nil, err
	}
	applied := make([]migrations.Applied, 0, len(pending))
	for _, m := range pending {
		if _, err := tx.Exec(ctx, m.SQL); err != nil {
			return nil, fmt.Errorf("apply %d (%s): %w", m.Number, m.Name, err)
		}
		a := migrations.Applied{Number: m.Number, Name: m.Name, Checksum: m.Checksum}
		err := tx.QueryRow(ctx, "INSERT INTO "+names.Table(migrations.HistoryTable)+
			" (number, name, checksum) VALUES ($1, $2, $3) RETURNING applied_at",
			a.Number, a.Name, a.Checksum).Scan(&a.At)
		if err != nil {
			return nil, fmt.Errorf("record %d (%s): %w", m.Number, m.Name, err)
		}
		applied = append(applied, a)
	}
	return applied, nil
}

// makeHistory makes the schema and the table of applied migrations. It looks
// first, since CREATE … IF NOT EXISTS asks for privileges also when there is
// nothing to create.
func makeHistory(ctx context.Context, tx pgx.Tx, names migrations.Names) error {
	var schema, table bool
	err := tx.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = $1),
		       EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		               WHERE n.nspname = $1 AND c.relname = $2)`,
		names.Schema(), names.Prefix()+migrations.HistoryTable).Scan(&schema, &table)
	if err != nil {
		return fmt.Errorf("look for the schema: %w", err)
	}
	if !schema {
		if _, err := tx.Exec(ctx, "CREATE SCHEMA "+migrations.Quote(names.Schema())); err != nil {
			return fmt.Errorf("create schema: %w", err)
		}
	}
	if !table {
		_, err := tx.Exec(ctx, "CREATE TABLE "+names.Table(migrations.HistoryTable)+` (
			number     integer     NOT NULL PRIMARY KEY,
			name       text        NOT NULL,
			checksum   text        NOT NULL,
			applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
		)`)
		if err != nil {
			return fmt.Errorf("create history: %w", err)
		}
	}
	return nil
}

func readHistory(ctx context.Context, tx pgx.Tx, names migrations.Names) ([]migrations.Applied, error) {
	rows, err := tx.Query(ctx, "SELECT number, name, checksum, applied_at FROM "+
		names.Table(migrations.HistoryTable)+" ORDER BY number")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (a migrations.Applied, err error) {
		err = row.Scan(&a.Number, &a.Name, &a.Checksum, &a.At)
		return a, err
	})
}
