package postgres

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/migrations"
)

// outside applies a migration whose statements cannot run in a transaction. A second connection
// meanwhile holds a lock against migrating processes. The lock has a name of its own: older
// versions of the library wait for the lock of other migrations with a snapshot, and the index
// would wait for the end of the snapshot.
func (m *migrator) outside(ctx context.Context, p *migrations.Migration) (applied []migrations.Applied, err error) {
	if n := m.pool.Config().MaxConns; n < 2 {
		return nil, fmt.Errorf("an index is built concurrently on a second connection, and the pool's MaxConns is %d", n)
	}
	err = m.within(ctx, "migrate concurrently", func(tx pgx.Tx) error {
		pending, err := m.pending(ctx, tx)
		if err != nil {
			return err
		}
		if len(pending) == 0 || pending[0].Number != p.Number {
			return nil // another process has applied p
		}
		if _, err := tx.Exec(ctx, "SELECT"); err != nil { // ends the snapshot of the last statement, see [migrator.lock]
			return err
		}
		m.announce(ctx, pending[:1])
		for _, index := range p.Concurrent() {
			if err := m.build(ctx, index); err != nil {
				return fmt.Errorf("%w: the next call does it again", err)
			}
		}
		a, err := m.record(ctx, tx, p)
		applied = append(applied, a)
		return err
	})
	if err != nil {
		return nil, err
	}
	return applied, nil
}

// build builds an index unless the index exists. An unfinished index is removed first.
func (m *migrator) build(ctx context.Context, index migrations.ConcurrentIndex) error {
	if index.Name != "" {
		name := migrations.Quote(m.names.Schema()) + "." + index.Name
		var there, valid bool
		err := m.pool.QueryRow(ctx, `SELECT count(*) > 0, coalesce(bool_and(indisvalid), false) FROM pg_index WHERE indexrelid = to_regclass($1)`,
			name).Scan(&there, &valid)
		if err != nil || valid {
			return err
		}
		if there {
			if _, err := m.pool.Exec(ctx, "DROP INDEX CONCURRENTLY "+name); err != nil {
				return err
			}
		}
	}
	_, err := m.pool.Exec(ctx, index.SQL)
	return err
}

// rename corrects the functions of a renamed schema, whose bodies are text and name the old schema.
func (m *migrator) rename(ctx context.Context, tx pgx.Tx) error {
	stale, err := staleFunctions(ctx, tx, m.names)
	if err != nil {
		return err
	}
	for _, f := range stale {
		if _, err := tx.Exec(ctx, f.corrected(m.names)); err != nil {
			return err
		}
		m.log.WarnContext(ctx, "function of a renamed schema is corrected", "function", f.name, "schema", m.names.Schema(), "was", f.schema)
	}
	return nil
}

// function is a function whose body names schema, a different schema than the function's own.
type function struct{ name, definition, schema string }

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// staleFunctions returns the functions of the outbox that name a different schema.
func staleFunctions(ctx context.Context, q querier, names migrations.Names) ([]function, error) {
	rows, err := q.Query(ctx, `
		SELECT p.proname, pg_get_functiondef(p.oid), p.prosrc
		FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
		WHERE n.nspname = $1 AND starts_with(p.proname, $2) AND p.prokind = 'f'
		ORDER BY p.proname`, names.Schema(), names.Prefix()+"outbox_")
	if err != nil {
		return nil, err
	}
	qualified := regexp.MustCompile(`"((?:[^"]|"")+)"\.` + regexp.QuoteMeta(strings.TrimSuffix(names.Bare("outbox_"), `"`)))
	var list []function
	var f function
	var body string
	_, err = pgx.ForEachRow(rows, []any{&f.name, &f.definition, &body}, func() error {
		if found := qualified.FindStringSubmatch(body); found != nil {
			f.schema = strings.ReplaceAll(found[1], `""`, `"`)
			if f.schema != names.Schema() {
				list = append(list, f)
			}
		}
		return nil
	})
	return list, err
}

// corrected returns a statement after which f names its present schema. Owner, privileges and
// settings stay.
func (f *function) corrected(names migrations.Names) string {
	tables := "." + strings.TrimSuffix(names.Bare("outbox_"), `"`)
	return strings.ReplaceAll(f.definition, migrations.Quote(f.schema)+tables, migrations.Quote(names.Schema())+tables)
}

// CheckSchema compares the migrations of the database with this version of the library. The error
// wraps [migrations.ErrMissing] if a migration is missing, and [migrations.ErrChanged] if a known
// migration differs. Later migrations are no error. Functions that name a different schema, as
// after ALTER SCHEMA ... RENAME, are an error. Without knowledge, CheckSchema returns nil: if a
// different tool has created the tables, or if the role may not read the applied migrations.
func (s *Store) CheckSchema(ctx context.Context) error {
	known, err := migrations.Postgres(s.names)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	history, err := readHistory(ctx, s.pool, s.names)
	switch sqlState(err) {
	case "42P01", "3F000": // undefined table, schema
		var others bool
		if err = s.pool.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", s.names.Table("outbox_events")).Scan(&others); others {
			return nil
		}
	case "42501", "42703": // insufficient privilege, undefined column
		return nil
	}
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	if err := migrations.Check(known, history); err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	stale, err := staleFunctions(ctx, s.pool, s.names)
	if err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	for _, f := range stale {
		err = errors.Join(err, fmt.Errorf("check the schema: function %s writes into schema %q, from which its own was renamed: run \"boxpair migrate up\", or call Migrate",
			f.name, f.schema))
	}
	return err
}
