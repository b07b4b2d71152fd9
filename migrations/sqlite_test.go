package migrations

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestNamesInSQLiteFilesFollowTheRules(t *testing.T) {
	t.Parallel()
	n, err := SQLiteNames("")
	if err != nil {
		t.Fatal(err)
	}
	all, err := SQLite(n)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there are no migrations")
	}
	for _, m := range all {
		text, err := sqliteFiles.ReadFile(fmt.Sprintf("sqlite/%04d_%s.sql", m.Number, m.Name))
		if err != nil {
			t.Fatal(err)
		}
		if m.SQL != string(text) {
			t.Errorf("%s: the default names change the file", m.Name)
		}
		code := regexp.MustCompile(`(?m)--.*$|'[^']*'`).ReplaceAllString(m.SQL, "")
		for _, name := range regexp.MustCompile(`"[^"]*"`).FindAllString(code, -1) {
			bare, ok := strings.CutPrefix(strings.Trim(name, `"`), DefaultSQLitePrefix)
			if !ok || len(bare) > MaxName || !regexp.MustCompile(`^((outbox|inbox)(_[a-z]+)*|pauses|rates)$`).MatchString(bare) {
				t.Errorf("%s: %s is not a name of a table or of what belongs to one", m.Name, name)
			}
		}
		if strings.Contains(regexp.MustCompile(`"[^"]*"`).ReplaceAllString(code, ""), DefaultSQLitePrefix) {
			t.Errorf("%s: a name outside double quotes", m.Name)
		}
	}
}

func TestSQLitePrefixReplacesTheDefault(t *testing.T) {
	t.Parallel()
	n, err := SQLiteNames(`my "shop" `)
	if err != nil {
		t.Fatal(err)
	}
	all, err := SQLite(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		code := regexp.MustCompile(`(?m)--.*$`).ReplaceAllString(m.SQL, "")
		if strings.Contains(code, DefaultSQLitePrefix) {
			t.Errorf("%s: keeps the default prefix", m.Name)
		}
	}
	if !strings.Contains(all[0].SQL, `CREATE TABLE "my ""shop"" outbox_events"`) {
		t.Error("the table of events is not called by the prefix")
	}
}
