package migrations

import (
	"embed"
	"strings"
)

//go:embed sqlite/*.sql
var sqliteFiles embed.FS

// SQLite returns the migrations for SQLite, by ascending number from 1.
func SQLite(names Names) ([]Migration, error) {
	return load(sqliteFiles, "sqlite", names.sqlite)
}

// sqlite maps a name in a SQLite file to the name for n.
func (n Names) sqlite(name string) string {
	return n.prefix + strings.TrimPrefix(name, DefaultSQLitePrefix)
}
