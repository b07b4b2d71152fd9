package boxpairtest

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
)

const (
	sqliteTables = `SELECT '', name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\_%' ESCAPE '\'`
	otherTables  = `SELECT table_schema, table_name FROM information_schema.tables
		WHERE table_type = 'BASE TABLE' AND table_schema NOT IN ('pg_catalog', 'information_schema', 'mysql', 'performance_schema', 'sys')`
)

// Tables returns a function that reads all tables of a database, as [Subject].State: of SQLite,
// PostgreSQL (stdlib.OpenDBFromPool makes a sql.DB of a pgx pool), MySQL or MariaDB. The tables of
// the library under their default names are left out, as are the tables ("visits") and columns
// ("created_at", "visits.id") in except: a time, or a number from a sequence, differs from run to
// run. An unknown name is an error.
func Tables(db *sql.DB, except ...string) func(ctx context.Context) (any, error) {
	return func(ctx context.Context) (any, error) {
		names, quote, err := tables(ctx, db)
		if err != nil {
			return nil, fmt.Errorf("list tables: %w", err)
		}
		state, used := []string{}, make(map[string]bool)
		for _, n := range names {
			used[n.table] = true
		}
		for _, n := range names {
			if n.schema == "boxpair" || strings.HasPrefix(n.table, "boxpair_") || slices.Contains(except, n.table) {
				continue
			}
			rows, err := rowsOf(ctx, db, n, quote, except, used)
			if err != nil {
				return nil, fmt.Errorf("read table %s: %w", n.table, err)
			}
			state = append(state, rows...)
		}
		for _, name := range except {
			if !used[name] {
				return nil, fmt.Errorf("there is no table or column %q to leave out", name)
			}
		}
		return state, nil
	}
}

type tableName struct{ schema, table string }

func (n tableName) quoted(quote string) string {
	q := func(s string) string { return quote + strings.ReplaceAll(s, quote, quote+quote) + quote }
	if n.schema == "" {
		return q(n.table)
	}
	return q(n.schema) + "." + q(n.table)
}

// tables lists the tables of a database, and returns the quote around its names.
func tables(ctx context.Context, db *sql.DB) (names []tableName, quote string, err error) {
	quote = `"`
	rows, err := db.QueryContext(ctx, sqliteTables)
	if err != nil {
		if db.QueryRowContext(ctx, `SELECT '1' FROM information_schema.engines LIMIT 1`).Scan(new(string)) == nil {
			quote = "`" // only MySQL has engines
		}
		rows, err = db.QueryContext(ctx, otherTables)
	}
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var n tableName
		if err := rows.Scan(&n.schema, &n.table); err != nil {
			return nil, "", err
		}
		names = append(names, n)
	}
	return names, quote, rows.Err()
}

// rowsOf reads the rows of a table as text, sorted. It adds the names of the columns to used.
func rowsOf(ctx context.Context, db *sql.DB, table tableName, quote string, except []string, used map[string]bool) (list []string, err error) {
	rows, err := db.QueryContext(ctx, `SELECT * FROM `+table.quoted(quote)) //nolint:gosec // a quoted name from the catalog
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	for _, name := range columns {
		used[name], used[table.table+"."+name] = true, true
	}
	values, places := make([]any, len(columns)), make([]any, len(columns))
	for i := range values {
		places[i] = &values[i]
	}
	for rows.Next() {
		if err := rows.Scan(places...); err != nil {
			return nil, err
		}
		var fields []string
		for i, name := range columns {
			if slices.Contains(except, name) || slices.Contains(except, table.table+"."+name) {
				continue
			}
			if b, ok := values[i].([]byte); ok {
				values[i] = string(b)
			}
			fields = append(fields, fmt.Sprintf("%s=%v", name, values[i]))
		}
		list = append(list, table.table+": "+strings.Join(fields, " "))
	}
	slices.Sort(list)
	return list, rows.Err()
}
