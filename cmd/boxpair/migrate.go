package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

var migrate = command{
	name:    "migrate",
	summary: "make the tables, or print the SQL that does",
	details: `Brings the tables of a database up to this version, in one transaction, under a lock; a
database that is up to date is only read. A SQLite file is created if there is none.
With -print nothing is changed, and no database is reached: the SQL of all migrations is
printed, for another tool to apply.

    boxpair migrate -database postgres://owner@host/shop
    boxpair migrate -database sqlite:shop.db -print`,
	define: func(s *settings) func(context.Context, *process) (int, error) {
		m := &migration{}
		s.urls(&m.databases, "database", "the database.")
		s.on(&m.print, "print", "print the SQL instead of running it.")
		m.places.define(s)
		return m.run
	},
}

// migration is the settings of migrate.
type migration struct {
	databases []target
	print     bool
	places    places
}

func (m *migration) run(ctx context.Context, p *process) (int, error) {
	if len(m.databases) != 1 {
		return exitFailed, fmt.Errorf("-database (or %s_URL): want one, there are %d", envOf("database"), len(m.databases))
	}
	t := &m.databases[0]
	if m.print {
		return exitOK, m.printSQL(p, t)
	}
	applied, err := m.apply(ctx, t)
	if err != nil {
		return exitFailed, fmt.Errorf("-database %s: %w", t.name, err)
	}
	for _, a := range applied {
		fmt.Fprintf(p.stdout, "applied %d (%s)\n", a.Number, a.Name)
	}
	if len(applied) == 0 {
		fmt.Fprintln(p.stdout, "up to date")
	}
	return exitOK, nil
}

func (m *migration) apply(ctx context.Context, t *target) ([]migrations.Applied, error) {
	schema, prefix := m.places.of(t)
	if t.pool == nil {
		db, err := sqlite.Open(t.path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = db.Close() }()
		return sqlite.Migrate(ctx, db, sqlite.Config{Prefix: prefix})
	}
	pool, err := pgxpool.NewWithConfig(ctx, t.pool)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return postgres.Migrate(ctx, pool, postgres.Config{Schema: schema, Prefix: prefix})
}

func (m *migration) printSQL(p *process, t *target) error {
	schema, prefix := m.places.of(t)
	list, err := sqlOf(t, schema, prefix)
	if err != nil {
		return err
	}
	for _, one := range list {
		if _, err := fmt.Fprintf(p.stdout, "-- Migration %d: %s\n%s\n", one.Number, one.Name, one.SQL); err != nil {
			return err
		}
	}
	return nil
}

func sqlOf(t *target, schema, prefix string) ([]migrations.Migration, error) {
	if t.pool == nil {
		names, err := migrations.SQLiteNames(prefix)
		if err != nil {
			return nil, err
		}
		return migrations.SQLite(names)
	}
	names, err := migrations.PostgresNames(schema, prefix)
	if err != nil {
		return nil, err
	}
	return migrations.Postgres(names)
}
