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

// sqlite returns what a name in an SQLite file is for n.
func (n Names) sqlite(name string) string {
	return n.prefix + strings.TrimPrefix(name, DefaultSQLitePrefix)
}
