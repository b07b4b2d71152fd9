package migrations

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Lock is a lock of migrations on a table. Other transactions may wait for the lock.
type Lock struct {
	// Table is the name of the table as written in SQL, or of a removed index with an unknown table.
	Table string
	// Mode is PostgreSQL's name of the strongest lock, such as "ACCESS EXCLUSIVE".
	Mode string
}

// String returns the lock in words.
func (l Lock) String() string { return l.Mode + " on " + l.Table }

// modes are the lock modes that block a reader, a writer or a migration, weakest first.
var modes = []string{"ROW EXCLUSIVE", "SHARE UPDATE EXCLUSIVE", "SHARE", "SHARE ROW EXCLUSIVE", "EXCLUSIVE", "ACCESS EXCLUSIVE"}

// identifier matches a name in a file, with or without a schema, and table captures an identifier.
const (
	name       = `"(?:[^"]|"")+"`
	identifier = name + `(?:\.` + name + `)?`
	table      = `(` + identifier + `)`
)

var (
	created = regexp.MustCompile(`^CREATE (?:UNLOGGED )?TABLE (?:IF NOT EXISTS )?` + table)
	indexed = regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX (?:CONCURRENTLY )?(?:IF NOT EXISTS )?(` + name + `) ON (?:ONLY )?((` + name + `\.)?` + name + `)`)
	// changes are the statements that lock a table, with the mode. The first match of a statement
	// counts.
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

// Locks returns the table locks for which other transactions in PostgreSQL wait while the migrations
// in list run: the strongest lock of each table, in the order of first use. Tables that list creates
// are left out: no other transaction uses a new table. The removal of an index locks its table, which
// list or before has indexed.
func Locks(list []Migration, before ...Migration) []Lock {
	var locks []Lock
	own, indexes := make(map[string]bool), make(map[string]string)
	index := func(statement string) {
		if made := indexed.FindStringSubmatch(statement); made != nil { // an index is in the schema of its table
			indexes[made[3]+made[1]] = made[2]
		}
	}
	for i := range before {
		for _, statement := range before[i].lines() {
			index(statement)
		}
	}
	for i := range list {
		for _, statement := range list[i].lines() {
			index(statement)
			if made := created.FindStringSubmatch(statement); made != nil {
				own[made[1]] = true
				continue
			}
			for _, c := range changes {
				if found := c.pattern.FindStringSubmatch(statement); found != nil {
					on := cmp.Or(indexes[found[1]], found[1])
					if !own[on] {
						locks = strengthen(locks, Lock{on, c.mode})
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

// lines returns the statements of m, each as one line, without comments and the bodies of
// functions. It returns nil also if the statements cannot be split; check refuses the file.
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
		if i%2 == 0 { // odd parts are bodies of functions
			bare.WriteString(part)
		}
	}
	list, err := Statements(bare.String())
	for i := range list {
		// A regular expression for the spaces takes 20 times as long under -race, in each Migrate
		// of each test.
		list[i] = strings.Join(strings.Fields(list[i]), " ")
	}
	return list, err
}

// ConcurrentIndex is a statement of a [Migration] that runs outside a transaction.
type ConcurrentIndex struct {
	// SQL is the statement.
	SQL string
	// Name is the name of the built index as written in SQL, without the schema; "" if an index is
	// removed.
	Name string
}

// Concurrent returns the statements of a migration that builds or removes indexes with
// CONCURRENTLY, while other transactions write. These statements must run outside of transactions.
// For all other migrations, which run in a transaction, Concurrent returns no statements. A statement
// may run again after an invalid index of the same name, left by a failure, is removed.
func (m *Migration) Concurrent() []ConcurrentIndex {
	var list []ConcurrentIndex
	for _, statement := range m.lines() {
		if found := concurrent.FindStringSubmatch(statement); found != nil {
			list = append(list, ConcurrentIndex{statement, found[1]})
		}
	}
	return list
}

// check refuses a file for PostgreSQL if its statements cannot be split, or if some statements need
// a transaction while others must have none.
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
