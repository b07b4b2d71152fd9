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

// outside applies a migration whose statements no transaction may hold, on another connection than
// the one that holds the lock of processes that migrate. The lock is not that of other migrations:
// for its own, versions without such migrations wait with a snapshot, which the index would wait
// for.
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
			return nil // another process has done it
		}
		if _, err := tx.Exec(ctx, "SELECT"); err != nil { // which ends the snapshot of the last one, see [migrator.lock]
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

// build runs a statement, unless the index is there. One that was not finished is removed before.
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

// rename corrects the functions of a schema that was renamed: their bodies are text, and name the
// schema as it was.
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

// function is one whose body names another schema than its own.
type function struct{ name, definition, schema string }

// querier is a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// staleFunctions returns the outbox's functions that name another schema.
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

// corrected returns the statement that has f name the schema that it is in. Its owner, its
// privileges and its settings stay.
func (f *function) corrected(names migrations.Names) string {
	tables := "." + strings.TrimSuffix(names.Bare("outbox_"), `"`)
	return strings.ReplaceAll(f.definition, migrations.Quote(f.schema)+tables, migrations.Quote(names.Schema())+tables)
}

// CheckSchema reads which migrations the database has, and returns an error that wraps
// [migrations.ErrMissing] if this version of the library needs more, and [migrations.ErrChanged] if
// it has others. Later ones are no error. Where another tool has made the tables, or the role may
// not read which migrations were applied, nothing can be told, and the answer is nil. Functions
// that name another schema, as after ALTER SCHEMA ... RENAME, are an error as well.
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
		err = errors.Join(err, fmt.Errorf("check the schema: function %s writes into schema %q, from which its own was renamed: run \"boxpair migrate\", or call Migrate",
			f.name, f.schema))
	}
	return err
}
