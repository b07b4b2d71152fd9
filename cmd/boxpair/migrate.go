package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/mysql"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/sqlite"
)

const migrateName = "migrate"

// migrateCommand returns a command about migrations.
func migrateCommand(verb, summary, details string, more func(m *migration, s *settings), run func(ctx context.Context, m *migration, p *process, t *target) (int, error)) command {
	return command{
		name: migrateName + " " + verb, summary: summary, details: details, group: setUp,
		define: func(s *settings) func(context.Context, *process) (int, error) {
			m := &migration{}
			s.urls(&m.databases, "database", "the database with the tables.")
			if more != nil {
				more(m, s)
			}
			m.places.define(s)
			return func(ctx context.Context, p *process) (int, error) {
				if len(m.databases) != 1 {
					return exitFailed, fmt.Errorf("--database (or %s_URL): want exactly one, got %d", envOf("database"), len(m.databases))
				}
				t := &m.databases[0]
				status, err := run(ctx, m, p, t)
				if err != nil {
					return exitFailed, fmt.Errorf("--database %s: %w", t.name, err)
				}
				return status, nil
			}
		},
	}
}

var migrateCommands = []command{
	migrateCommand("up", "create or update the tables",
		`Brings the tables of a database up to this version, in one transaction, under a lock; only indexes
that are built concurrently are outside of it. A database that is up to date is only read. A
missing SQLite file is created. In PostgreSQL, the locks are logged beforehand, and a lock that is
not granted within --lock-timeout ends the command without a change.

    boxpair migrate up --database postgres://owner@host/shop`,
		func(m *migration, s *settings) {
			m.out.define(s)
			s.duration(&m.lockTimeout, "lock-timeout", "how long a migration waits for a lock of a table, and other transactions wait behind it, in PostgreSQL. Defaults to 5s.")
		}, runMigrations),
	migrateCommand("status", "print the missing migrations",
		`Prints the missing migrations and changes nothing. The exit status is 1 if any is missing.

    boxpair migrate status --database postgres://monitor@host/shop`,
		func(m *migration, s *settings) { m.out.define(s) }, missingMigrations),
	migrateCommand("sql", "print the SQL of all migrations",
		`Prints the SQL of all migrations, for another tool to apply, and connects to no database.

    boxpair migrate sql --database sqlite:shop.db`, nil,
		func(_ context.Context, m *migration, p *process, t *target) (int, error) {
			return exitOK, m.printSQL(p, t)
		}),
}

// migration holds the settings of the commands about migrations.
type migration struct {
	databases   []target
	lockTimeout time.Duration
	places      places
	out         form
}

func runMigrations(ctx context.Context, m *migration, p *process, t *target) (int, error) {
	applied, err := m.apply(ctx, slog.New(slog.NewTextHandler(p.stderr, nil)), t)
	if m.out.json() {
		all := []map[string]any{}
		for _, a := range applied {
			all = append(all, map[string]any{"number": a.Number, "name": a.Name})
		}
		return exitOK, errors.Join(err, m.out.encode(p.stdout, map[string]any{"applied": all}))
	}
	for _, a := range applied {
		fmt.Fprintf(p.stdout, "applied %d (%s)\n", a.Number, a.Name)
	}
	if len(applied) == 0 && err == nil {
		fmt.Fprintln(p.stdout, "up to date")
	}
	return exitOK, err
}

func missingMigrations(ctx context.Context, m *migration, p *process, t *target) (int, error) {
	s, end, err := operate(ctx, t, &m.places)
	if err != nil {
		return exitFailed, err
	}
	defer end()
	err = s.schema.CheckSchema(ctx)
	switch {
	case err == nil:
		return exitOK, m.out.result(p, "up to date\n", map[string]any{"up_to_date": true})
	case errors.Is(err, migrations.ErrMissing):
		return exitFound, m.out.result(p, err.Error()+"\n", map[string]any{"up_to_date": false, "missing": err.Error()})
	}
	return exitFailed, err
}

func (m *migration) apply(ctx context.Context, log *slog.Logger, t *target) ([]migrations.Applied, error) {
	schema, prefix := m.places.of(t)
	if t.server != nil {
		_, db, end, err := openMySQL(t, &m.places)
		if err != nil {
			return nil, err
		}
		defer end()
		return mysql.Migrate(ctx, db, mysql.Config{Prefix: prefix, MigrateLockTimeout: m.lockTimeout})
	}
	if t.pool == nil {
		db, err := sqlite.Open(t.path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = db.Close() }()
		return sqlite.Migrate(ctx, db, sqlite.Config{Prefix: prefix})
	}
	t.pool.MaxConns = 2 // one connection holds the lock while the other builds an index
	pool, err := pgxpool.NewWithConfig(ctx, t.pool)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	if err := reachable(ctx, pool); err != nil {
		return nil, err
	}
	return postgres.Migrate(ctx, pool, postgres.Config{Schema: schema, Prefix: prefix, MigrateLockTimeout: m.lockTimeout, Logger: log})
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
	if t.server != nil {
		names, err := migrations.MySQLNames(prefix)
		if err != nil {
			return nil, err
		}
		return migrations.MySQL(names)
	}
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
