package migrations

import (
	"embed"
	"errors"
	"fmt"
	"strings"
)

//go:embed mysql/*.sql
var mysqlFiles embed.FS

// DefaultMySQLPrefix is the default prefix of [MySQLNames].
const DefaultMySQLPrefix = "boxpair_"

// MySQL returns the migrations for MySQL and MariaDB, by ascending number from 1. The SQL of a
// migration is several statements; split it with [Statements]. Each statement may be run again.
func MySQL(names Names) ([]Migration, error) {
	return loadQuoted(mysqlFiles, "mysql", '`', names.mysql)
}

// MySQLNames returns the names for MySQL and MariaDB. The prefix begins the name of every table; it
// has at most 40 bytes and defaults to [DefaultMySQLPrefix]. The prefix may hold any characters
// except NUL and characters beyond U+FFFF, which names in MySQL cannot have. The tables are in the
// connection's database.
func MySQLNames(prefix string) (Names, error) {
	if prefix == "" {
		prefix = DefaultMySQLPrefix
	}
	err := check("prefix", prefix, maxPrefix)
	if strings.ContainsFunc(prefix, func(r rune) bool { return r > '\uffff' }) {
		err = errors.Join(err, errors.New("prefix: contains a character beyond U+FFFF"))
	}
	if err != nil {
		return Names{}, err
	}
	return Names{prefix: prefix, backquoted: true}, nil
}

// mysql maps a name in a MySQL file to the name for n. Backquotes also surround names of columns,
// indexes and subqueries, which have no prefix.
func (n Names) mysql(name string) string {
	if own, ok := strings.CutPrefix(name, DefaultMySQLPrefix); ok {
		return n.prefix + own
	}
	return name
}

// Statements splits the SQL of a [Migration] into statements, without semicolons and comments, for
// drivers that take one statement at a time. It returns an error if the last statement has no end.
func Statements(sql string) ([]string, error) {
	var list []string
	var current strings.Builder
	for {
		i := strings.IndexAny(sql, "`\"'-/;")
		if i < 0 {
			current.WriteString(sql)
			break
		}
		current.WriteString(sql[:i])
		sql = sql[i:]
		if sql[0] == ';' {
			list = append(list, strings.TrimSpace(current.String()))
			current.Reset()
			sql = sql[1:]
			continue
		}
		n := token(sql)
		if comment := strings.HasPrefix(sql, "--") || strings.HasPrefix(sql, "/*"); !comment {
			current.WriteString(sql[:n])
		}
		sql = sql[n:]
	}
	if rest := strings.TrimSpace(current.String()); rest != "" {
		return nil, fmt.Errorf("statement without an end: %.40q", rest)
	}
	return list, nil
}
