package migrations

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"
)

// The defaults of [PostgresNames] and [SQLiteNames].
const (
	DefaultSchema       = "boxpair"
	DefaultSQLitePrefix = "boxpair_"
)

const (
	// maxIdentifier is PostgreSQL's limit for an identifier in bytes; a longer one is cut off
	// without an error.
	maxIdentifier = 63
	// maxPrefix leaves room for the longest name in the files.
	maxPrefix = 40
	// bodyQuote surrounds the bodies of functions in the files; a name must not contain it.
	bodyQuote = "$boxpair$"
	// MaxName is the maximal length of a name in the files, in bytes.
	MaxName = maxIdentifier - maxPrefix
)

// Names maps the names in the files to the names of the tables in a database. The zero value is not
// valid.
type Names struct {
	schema     string // "" in SQLite and MySQL
	prefix     string
	backquoted bool // in MySQL
}

// PostgresNames returns the names for PostgreSQL. The schema has at most 63 bytes and defaults to
// [DefaultSchema]. The prefix begins the name of every table; it has at most 40 bytes and defaults
// to "". Both may hold any characters except NUL.
func PostgresNames(schema, prefix string) (Names, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	err := errors.Join(check("schema", schema, maxIdentifier), check("prefix", prefix, maxPrefix))
	if strings.HasPrefix(schema, "pg_") {
		err = errors.Join(err, errors.New("schema: names that begin with pg_ are the database's own"))
	}
	if err != nil {
		return Names{}, err
	}
	return Names{schema: schema, prefix: prefix}, nil
}

// SQLiteNames returns the names for SQLite. The prefix begins the name of every table; it has at
// most 40 bytes and defaults to [DefaultSQLitePrefix]. The prefix may hold any characters except
// NUL.
func SQLiteNames(prefix string) (Names, error) {
	if prefix == "" {
		prefix = DefaultSQLitePrefix
	}
	err := check("prefix", prefix, maxPrefix)
	if strings.HasPrefix(strings.ToLower(prefix), "sqlite_") {
		err = errors.Join(err, errors.New("prefix: names that begin with sqlite_ are the database's own"))
	}
	if err != nil {
		return Names{}, err
	}
	return Names{prefix: prefix}, nil
}

func check(field, name string, limit int) error {
	switch {
	case len(name) > limit:
		return fmt.Errorf("%s: %d bytes, at most %d are allowed", field, len(name), limit)
	case !utf8.ValidString(name):
		return fmt.Errorf("%s: not valid UTF-8", field)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%s: contains NUL", field)
	case strings.Contains(name, bodyQuote):
		return fmt.Errorf("%s: contains %s, which quotes the bodies of functions", field, bodyQuote)
	}
	return nil
}

// Schema returns the schema without quotes, or "" in SQLite and MySQL.
func (n Names) Schema() string { return n.schema }

// Prefix returns the prefix without quotes.
func (n Names) Prefix() string { return n.prefix }

// Table returns the name of a table, view, sequence or function as written in SQL: prefixed,
// quoted, and with its schema in PostgreSQL.
func (n Names) Table(name string) string {
	if n.schema == "" {
		return n.Bare(name)
	}
	return Quote(n.schema) + "." + n.Bare(name)
}

// Bare is Table without the schema, for places where the grammar allows no schema.
func (n Names) Bare(name string) string {
	if n.backquoted {
		return quoteWith("`", n.prefix+name)
	}
	return Quote(n.prefix + name)
}

// Quote returns name as an identifier in standard SQL, in double quotes.
func Quote(name string) string { return quoteWith(`"`, name) }

func quoteWith(quote, name string) string {
	return quote + strings.ReplaceAll(name, quote, quote+quote) + quote
}
