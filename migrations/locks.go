package migrations

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Lock is a table that migrations lock against others.
type Lock struct {
	// Table is its name as it is written in SQL. Where an index is removed, it is that of the
	// index.
	Table string
	// Mode is the strongest lock by PostgreSQL's name, as "ACCESS EXCLUSIVE".
	Mode string
}

// String returns the lock in words.
func (l Lock) String() string { return l.Mode + " on " + l.Table }

// modes are those of the locks that a reader, a writer or a migration may have to wait for, weakest
// first.
var modes = []string{"ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"}

// identifier is a name in a file, with its schema or without, and table is one that is remembered.
const (
	identifier = `"(?:[^"]|"")+"(?:\."(?:[^"]|"")+")?`
	table      = `(` + identifier + `)`
)

var (
	created = regexp.MustCompile(`^CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?` + table)
	// changes say which statements lock a table, and how. The first that fits a statement counts.
	changes = []struct {
		pattern *regexp.Regexp
		mode    string
	}{
		{regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX CONCURRENTLY .*? ON (?:ONLY )?` + table), "SHARE UPDATE EXCLUSIVE"},
		{regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX .*? ON (?:ONLY )?` + table), "SHARE"},
		{regexp.MustCompile(`^DROP INDEX CONCURRENTLY (?:IF EXISTS )?` + table), "SHARE UPDATE EXCLUSIVE"},
		{regexp.MustCompile(`^ALTER TABLE (?:IF EXISTS )?(?:ONLY )?` + table + ` (?:VALIDATE CONSTRAINT|SET \(|RESET \(|ALTER \S+ SET STATISTICS)`), "SHARE UPDATE EXCLUSIVE"},
		{regexp.MustCompile(`^(?:ALTER|DROP) (?:TABLE|INDEX|VIEW) (?:IF EXISTS )?(?:ONLY )?` + table), "ACCESS EXCLUSIVE"},
		{regexp.MustCompile(`^TRUNCATE (?:TABLE )?(?:ONLY )?` + table), "ACCESS EXCLUSIVE"},
		{regexp.MustCompile(`^CREATE (?:OR REPLACE )?(?:CONSTRAINT )?TRIGGER .*? ON ` + table), "SHARE ROW EXCLUSIVE"},
		{regexp.MustCompile(`^(?:INSERT INTO|UPDATE(?: ONLY)?|DELETE FROM(?: ONLY)?) ` + table), "ROW EXCLUSIVE"},
	}
	concurrent = regexp.MustCompile(`^(?:CREATE (?:UNIQUE )?INDEX CONCURRENTLY (` + identifier + `) ON|DROP INDEX CONCURRENTLY IF EXISTS) `)
)

// Locks returns what the statements of list, in PostgreSQL, lock so that others wait: the tables
// that are there before, each with the strongest of its locks, by first use. What they create
// themselves is nobody else's yet.
func Locks(list []Migration) []Lock {
	var locks []Lock
	own := make(map[string]bool)
	for i := range list {
		for _, statement := range list[i].lines() {
			if made := created.FindStringSubmatch(statement); made != nil {
				own[made[1]] = true
				continue
			}
			for _, c := range changes {
				if found := c.pattern.FindStringSubmatch(statement); found != nil {
					if !own[found[1]] {
						locks = strengthen(locks, Lock{found[1], c.mode})
					}
					break
				}
			}
		}
	}
	return locks
}

func strengthen(locks []Lock, l Lock) []Lock {
	i := slices.IndexFunc(locks, func(o Lock) bool { return o.Table == l.Table })
	if i < 0 {
		return append(locks, l)
	}
	if slices.Index(modes, l.Mode) > slices.Index(modes, locks[i].Mode) {
		locks[i].Mode = l.Mode
	}
	return locks
}

// lines returns the statements of m without comments and the bodies of functions, each as one line.
// None means also that they cannot be told apart, which check has refused.
func (m *Migration) lines() []string {
	list, err := m.split()
	if err != nil {
		return nil
	}
	return list
}

func (m *Migration) split() ([]string, error) {
	var bare strings.Builder
	for i, part := range strings.Split(m.SQL, bodyQuote) {
		if i%2 == 0 { // the others are bodies
			bare.WriteString(part)
		}
	}
	list, err := Statements(bare.String())
	for i := range list {
		// A pattern for the spaces takes 20 times as long as this under -race, in each Migrate of
		// each test.
		list[i] = strings.Join(strings.Fields(list[i]), " ")
	}
	return list, err
}

// ConcurrentIndex is a statement of a [Migration] that runs outside a transaction.
type ConcurrentIndex struct {
	// SQL is the statement.
	SQL string
	// Name is the index that it builds, as it is written in SQL, without the schema; "" where one
	// is removed.
	Name string
}

// Concurrent returns the statements of a migration that builds or removes indexes while others
// write, with CONCURRENTLY, which no transaction may hold. None means that the migration is run in
// a transaction, as all others are. Each statement may be run again, once an index of that name
// which a failure has left invalid is removed.
func (m *Migration) Concurrent() []ConcurrentIndex {
	var list []ConcurrentIndex
	for _, statement := range m.lines() {
		if found := concurrent.FindStringSubmatch(statement); found != nil {
			list = append(list, ConcurrentIndex{statement, found[1]})
		}
	}
	return list
}

// check refuses a file for PostgreSQL whose statements cannot be told apart, or of which some need
// a transaction and some must have none.
func (m *Migration) check() error {
	lines, err := m.split()
	if n := len(m.Concurrent()); err == nil && n > 0 && n != len(lines) {
		err = errors.New("indexes are built concurrently in a migration of their own")
	}
	if err != nil {
		return fmt.Errorf("migration %d (%s): %w", m.Number, m.Name, err)
	}
	return nil
}
