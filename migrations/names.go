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
	// maxIdentifier is what PostgreSQL keeps of an identifier; it cuts off the rest without an
	// error.
	maxIdentifier = 63
	// maxPrefix leaves room for the longest name in the files.
	maxPrefix = 40
	// bodyQuote stands around the bodies of functions in the files, which no name may end.
	bodyQuote = "$boxpair$"
	// MaxName is how long the names in the files may be.
	MaxName = maxIdentifier - maxPrefix
)

// Names says where the tables are and how they are called. The zero value is not valid.
type Names struct {
	schema     string // "" in SQLite and MySQL
	prefix     string
	backquoted bool // in MySQL
}

// PostgresNames returns the names for PostgreSQL. The schema defaults to
// [DefaultSchema]; it has at most 63 bytes. The prefix is put before the name of every
// table; it has at most 40 bytes and defaults to none. Both may hold any
// characters except NUL.
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

// SQLiteNames returns the names for SQLite. The prefix is put before the name
// of every table; it has at most 40 bytes and defaults to [DefaultSQLitePrefix]. It may
// hold any characters except NUL.
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
		return fmt.Errorf("%s: contains %s, which the bodies of functions are quoted with", field, bodyQuote)
	}
	return nil
}

// Schema returns the schema as it is, or "" in SQLite and MySQL.
func (n Names) Schema() string { return n.schema }

// Prefix returns the prefix as it is.
func (n Names) Prefix() string { return n.prefix }

// Table returns the name of a table, view, sequence or function as it is
// written in SQL: prefixed, quoted, and with its schema if there is one.
func (n Names) Table(name string) string {
	if n.schema == "" {
		return n.Bare(name)
	}
	return Quote(n.schema) + "." + n.Bare(name)
}

// Bare is Table without the schema, for where the grammar allows none.
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
