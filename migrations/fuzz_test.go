package migrations

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// FuzzNames: a file keeps its statements under any names. The text outside quotes is unchanged, and
// the quoted names are the requested ones.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"", "boxpair", `a"; DROP TABLE x; --`, `"`, `\`, "'", "$$", "$body$", "/*", "*/", "--", "é\n", "outbox_", "{{inbox}}"} {
		f.Add(seed, seed)
		f.Add("schema", seed)
	}
	f.Fuzz(func(t *testing.T, schema, prefix string) {
		if n, err := PostgresNames(schema, prefix); err == nil {
			plain, err := PostgresNames("", "")
			if err != nil {
				t.Fatal(err)
			}
			sameStatements(t, Postgres, plain, n, n.postgres)
			sameName(t, n.Table("outbox_events"), n.Schema(), prefix+"outbox_events")
		}
		if n, err := SQLiteNames(prefix); err == nil {
			plain, err := SQLiteNames("")
			if err != nil {
				t.Fatal(err)
			}
			sameStatements(t, SQLite, plain, n, n.sqlite)
			sameName(t, n.Table("inbox"), n.Prefix()+"inbox")
		}
	})
}

func sameStatements(t *testing.T, files func(Names) ([]Migration, error), plain, n Names, rename func(string) string) {
	t.Helper()
	want, err := files(plain)
	if err != nil {
		t.Fatal(err)
	}
	got, err := files(n)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		skeleton, before := taken(want[i].SQL)
		changed, after := taken(got[i].SQL)
		if changed != skeleton {
			t.Fatalf("%s: statements are changed by %q, %q", want[i].Name, n.Schema(), n.Prefix())
		}
		for k := range before {
			before[k] = rename(before[k])
		}
		if !slices.Equal(before, after) {
			t.Fatalf("%s: names are %q, want %q", want[i].Name, after, before)
		}
	}
}

// lexeme matches one token of PostgreSQL and SQLite: a quoted name, a string, a body between dollar
// quotes, a comment. It does not use the code of package migrations.
var lexeme = regexp.MustCompile(`(?s)"(?:[^"]|"")*"|'(?:[^']|'')*'|--[^\n]*|/\*.*?\*/`)

// taken returns sql without its quoted names, and the names.
func taken(sql string) (skeleton string, names []string) {
	skeleton = lexeme.ReplaceAllStringFunc(sql, func(found string) string {
		if found[0] != '"' {
			return found
		}
		names = append(names, strings.ReplaceAll(found[1:len(found)-1], `""`, `"`))
		return "?"
	})
	return skeleton, names
}

func sameName(t *testing.T, quoted string, want ...string) {
	t.Helper()
	if skeleton, names := taken(quoted); strings.Trim(skeleton, "?.") != "" || !slices.Equal(names, want) {
		t.Errorf("%s is read as %q, want %q", quoted, names, want)
	}
}

// FuzzRewrite: no file makes rewrite panic or loop, and a file without double quotes stays as it
// is.
func FuzzRewrite(f *testing.F) {
	f.Add(`SELECT "boxpair"."inbox" -- "inbox"`)
	f.Add(`'it''s "inbox"' /* "inbox`)
	f.Add(`"inbox`)
	f.Fuzz(func(t *testing.T, sql string) {
		same := rewrite(sql, func(name string) string { return name })
		if same != sql {
			t.Errorf("%q becomes %q", sql, same)
		}
	})
}
