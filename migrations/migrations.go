package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
	"time"
)

//go:embed postgres/*.sql
var postgresFiles embed.FS

// HistoryTable is the name of the table that records the applied migrations.
const HistoryTable = "schema_migrations"

var (
	// ErrChanged is wrapped if an applied migration differs from this version's migration of the
	// same number.
	ErrChanged = errors.New("applied migration is not the one of this version")
	// ErrNewer is wrapped if a database has migrations that this version of the library does not
	// know.
	ErrNewer = errors.New("database was migrated by a newer version")
	// ErrMissing is wrapped if a database lacks migrations that this version of the library needs.
	ErrMissing = errors.New("migrations are missing: run \"boxpair migrate up\", or call Migrate")
)

// Migration is one step from one state of the tables to the next.
type Migration struct {
	Number int
	Name   string
	// SQL is one or more statements, with the requested names.
	SQL string
	// Checksum is the SHA-256 of the file, in hexadecimal. It does not depend on the names.
	Checksum string
}

// Applied is a migration that was applied to a database.
type Applied struct {
	Number   int
	Name     string
	Checksum string
	At       time.Time
}

// Postgres returns the migrations for PostgreSQL, by ascending number from 1.
func Postgres(names Names) ([]Migration, error) {
	list, err := load(postgresFiles, "postgres", names.postgres)
	if err != nil {
		return nil, err
	}
	for i := range list {
		err = errors.Join(err, list[i].check())
	}
	return list, err
}

// Pending returns the migrations of known that are missing in applied, in their order. Both lists
// begin at number 1 and have no gaps. Errors wrap [ErrChanged] or [ErrNewer].
func Pending(known []Migration, applied []Applied) ([]Migration, error) {
	for i, a := range applied {
		if i >= len(known) {
			return nil, fmt.Errorf("migration %d (%s): %w", a.Number, a.Name, ErrNewer)
		}
		k := known[i]
		if a.Number != k.Number || a.Name != k.Name || a.Checksum != k.Checksum {
			return nil, fmt.Errorf("migration %d (%s) where %d (%s) is expected: %w",
				a.Number, a.Name, k.Number, k.Name, ErrChanged)
		}
	}
	return known[len(applied):], nil
}

// Check returns nil if applied holds all migrations of known. applied may hold later migrations,
// since older versions of the library can use their tables. Errors wrap [ErrMissing] or
// [ErrChanged].
func Check(known []Migration, applied []Applied) error {
	pending, err := Pending(known, applied[:min(len(applied), len(known))])
	switch {
	case err != nil:
		return err
	case len(pending) == 0:
		return nil
	}
	list := make([]string, len(pending))
	for i, m := range pending {
		list[i] = fmt.Sprintf("%d (%s)", m.Number, m.Name)
	}
	return fmt.Errorf("%s: %w", strings.Join(list, ", "), ErrMissing)
}

var fileName = regexp.MustCompile(`^([0-9]{4})_([a-z0-9_]+)\.sql$`)

func load(files fs.FS, dir string, rename func(string) string) ([]Migration, error) {
	return loadQuoted(files, dir, '"', rename)
}

// loadQuoted is load for files with another quote around names.
func loadQuoted(files fs.FS, dir string, quote byte, rename func(string) string) ([]Migration, error) {
	entries, err := fs.ReadDir(files, dir) // sorted by name, so by number
	if err != nil {
		return nil, err
	}
	list := make([]Migration, 0, len(entries))
	for _, entry := range entries {
		parts := fileName.FindStringSubmatch(entry.Name())
		if parts == nil {
			return nil, fmt.Errorf("%s/%s: not named like 0001_name.sql", dir, entry.Name())
		}
		number, err := strconv.Atoi(parts[1])
		if err != nil {
			return nil, err
		}
		if number != len(list)+1 {
			return nil, fmt.Errorf("%s/%s: number %d is expected", dir, entry.Name(), len(list)+1)
		}
		text, err := fs.ReadFile(files, dir+"/"+entry.Name())
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		list = append(list, Migration{
			Number: number, Name: parts[2],
			SQL: rewriteQuoted(string(text), quote, rename), Checksum: hex.EncodeToString(sum[:]),
		})
	}
	return list, nil
}

// postgres maps a name in a PostgreSQL file to the name for n. Other quoted names, such as the
// collation "C", stay as they are.
func (n Names) postgres(name string) string {
	switch {
	case name == DefaultSchema:
		return n.schema
	case strings.HasPrefix(name, "outbox_"), strings.HasPrefix(name, "inbox_"), name == "inbox",
		name == "pauses", name == "rates", name == HistoryTable:
		return n.prefix + name
	}
	return name
}

// rewrite replaces the names in double quotes by the results of rename.
func rewrite(sql string, rename func(string) string) string { return rewriteQuoted(sql, '"', rename) }

// rewriteQuoted is rewrite for names in the given quotes.
func rewriteQuoted(sql string, quote byte, rename func(string) string) string {
	var out strings.Builder
	for {
		i := strings.IndexAny(sql, `"'-/`+string(quote))
		if i < 0 {
			out.WriteString(sql)
			return out.String()
		}
		out.WriteString(sql[:i])
		sql = sql[i:]
		n := token(sql)
		if q := sql[:1]; sql[0] == quote && n >= len(`""`) {
			name := strings.ReplaceAll(sql[1:n-1], q+q, q)
			out.WriteString(quoteWith(q, rename(name)))
		} else {
			out.WriteString(sql[:n])
		}
		sql = sql[n:]
	}
}

// token returns the length of the quoted text or comment at the beginning of sql, or 1 if sql
// begins with neither.
func token(sql string) int {
	switch {
	case sql[0] == '"', sql[0] == '\'', sql[0] == '`':
		return quoted(sql)
	case strings.HasPrefix(sql, "--"):
		return until(sql, "\n")
	case strings.HasPrefix(sql, "/*"):
		return until(sql, "*/")
	}
	return 1
}

// quoted returns the length of the quoted text at the beginning of sql, or 1 if the text has no
// end. A doubled quote stands for a quote within the text.
func quoted(sql string) int {
	quote := sql[:1]
	n := 1
	for {
		i := strings.Index(sql[n:], quote)
		if i < 0 {
			return 1
		}
		n += i + 1
		if !strings.HasPrefix(sql[n:], quote) {
			return n
		}
		n++
	}
}

func until(sql, end string) int {
	if i := strings.Index(sql, end); i >= 0 {
		return i + len(end)
	}
	return len(sql)
}
