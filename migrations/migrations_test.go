package migrations

import (
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"
)

func names(t *testing.T, schema, prefix string) Names {
	t.Helper()
	n, err := PostgresNames(schema, prefix)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNamesInFilesFollowTheRules(t *testing.T) {
	t.Parallel()
	all, err := Postgres(names(t, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	quotedName := regexp.MustCompile(`"[^"]*"`)
	for _, m := range all {
		text := regexp.MustCompile(`(?m)--.*$|'[^']*'`).ReplaceAllString(m.SQL, "")
		for _, q := range quotedName.FindAllString(text, -1) {
			name := strings.Trim(q, `"`)
			if name == DefaultSchema || name == "C" {
				continue
			}
			if len(name) > MaxName {
				t.Errorf("%s: %s has more than %d bytes", m.Name, name, MaxName)
			}
			if !regexp.MustCompile(`^((outbox|inbox)(_[a-z]+)*|pauses|rates)$`).MatchString(name) {
				t.Errorf("%s: %s is not a name of a table or of what belongs to one", m.Name, name)
			}
		}
		if strings.Contains(text, "boxpair.") {
			t.Errorf("%s: schema outside double quotes", m.Name)
		}
	}
}

func TestDefaultNamesLeaveTheFileAsItIs(t *testing.T) {
	t.Parallel()
	all, err := Postgres(names(t, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	files, err := postgresFiles.ReadDir("postgres")
	if err != nil {
		t.Fatal(err)
	}
	for i, file := range files {
		text, err := postgresFiles.ReadFile("postgres/" + file.Name())
		if err != nil {
			t.Fatal(err)
		}
		if all[i].SQL != string(text) {
			t.Errorf("%s was changed", file.Name())
		}
	}
}

func TestRewriteTouchesQuotedNamesOnly(t *testing.T) {
	t.Parallel()
	n := names(t, `Ünï"x`, `p_`)
	for _, c := range []struct{ in, want string }{
		{`SELECT "boxpair"."outbox_events"`, `SELECT "Ünï""x"."p_outbox_events"`},
		{`-- "boxpair"` + "\n" + `"inbox_a"`, `-- "boxpair"` + "\n" + `"p_inbox_a"`},
		{`-- it's "boxpair"`, `-- it's "boxpair"`},
		{`/* "inbox" */ "inbox" 'it''s "inbox"' "inbox"`, `/* "inbox" */ "p_inbox" 'it''s "inbox"' "p_inbox"`},
		{`1 - 2 / 3`, `1 - 2 / 3`},
		{`$body$ SELECT "inbox" $body$`, `$body$ SELECT "p_inbox" $body$`},
		{`COLLATE "C"`, `COLLATE "C"`},
		{`"inbox_a""b"`, `"p_inbox_a""b"`},
		{`"`, `"`},
		{``, ``},
	} {
		if got := rewrite(c.in, n.postgres); got != c.want {
			t.Errorf("rewrite(%q) = %q, want %q", c.in, got, c.want)
		}
	}
}

func TestChecksumDoesNotDependOnNames(t *testing.T) {
	t.Parallel()
	a, err := Postgres(names(t, "", ""))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Postgres(names(t, "other", "p_"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range a {
		if a[i].Checksum != b[i].Checksum || a[i].SQL == b[i].SQL {
			t.Errorf("%s: checksum differs, or the SQL does not", a[i].Name)
		}
	}
}

func TestNamesAreChecked(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 41)
	for _, c := range []struct{ schema, prefix, field string }{
		{strings.Repeat("x", 64), "", "schema"}, {"a\x00b", "", "schema"}, {"a\xff", "", "schema"}, {"pg_x", "", "schema"}, {"$boxpair$", "", "schema"},
		{"", long, "prefix"}, {"", "a\x00b", "prefix"}, {"", "a\xff", "prefix"}, {"", "$boxpair$", "prefix"},
	} {
		if _, err := PostgresNames(c.schema, c.prefix); err == nil || !strings.Contains(err.Error(), c.field) {
			t.Errorf("PostgresNames(%q, %q) = %v, want an error that names %s", c.schema, c.prefix, err, c.field)
		}
	}
	for _, prefix := range []string{long, "a\x00b", "a\xff", "SQLite_x"} {
		if _, err := SQLiteNames(prefix); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("SQLiteNames(%q) = %v, want an error that names the prefix", prefix, err)
		}
	}
	n, err := SQLiteNames("")
	if err != nil || n.Table("outbox_events") != `"boxpair_outbox_events"` {
		t.Errorf("default SQLite name is %s, %v", n.Table("outbox_events"), err)
	}
}

func TestPendingRefusesAHistoryOfAnotherVersion(t *testing.T) {
	t.Parallel()
	known := []Migration{{Number: 1, Name: "a", Checksum: "1"}, {Number: 2, Name: "b", Checksum: "2"}}
	first := Applied{Number: 1, Name: "a", Checksum: "1", At: time.Now()}
	second := Applied{Number: 2, Name: "b", Checksum: "2"}
	for _, c := range []struct {
		name    string
		applied []Applied
		pending int
		err     error
	}{
		{"empty database", nil, 2, nil},
		{"one applied", []Applied{first}, 1, nil},
		{"all applied", []Applied{first, second}, 0, nil},
		{"changed checksum", []Applied{{Number: 1, Name: "a", Checksum: "x"}}, 0, ErrChanged},
		{"gap", []Applied{second}, 0, ErrChanged},
		{"newer", []Applied{first, second, {Number: 3, Name: "c"}}, 0, ErrNewer},
	} {
		got, err := Pending(known, c.applied)
		if len(got) != c.pending || !errors.Is(err, c.err) {
			t.Errorf("%s: %d pending and %v, want %d and %v", c.name, len(got), err, c.pending, c.err)
		}
	}
}
