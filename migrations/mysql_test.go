package migrations

import (
	"regexp"
	"strings"
	"testing"
)

func TestNamesInMySQLFilesFollowTheRules(t *testing.T) {
	t.Parallel()
	n, err := MySQLNames("")
	if err != nil {
		t.Fatal(err)
	}
	all, err := MySQL(n)
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there are no migrations")
	}
	for _, m := range all {
		statements, err := Statements(m.SQL)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range statements {
			if !regexp.MustCompile("^(CREATE TABLE IF NOT EXISTS|ALTER TABLE `[a-z_]+` (ALTER COLUMN `[a-z_]+` SET DEFAULT|ADD COLUMN)|CREATE OR REPLACE SQL SECURITY INVOKER VIEW|INSERT INTO) ").MatchString(s) {
				t.Errorf("%s: cannot be run again: %.60s", m.Name, s)
			}
			if strings.HasPrefix(s, "INSERT") && !strings.Contains(s, "WHERE") {
				t.Errorf("%s: would insert again: %.60s", m.Name, s)
			}
			code := regexp.MustCompile("`[^`]*`|'[^']*'").ReplaceAllString(s, "")
			if strings.Contains(code, DefaultMySQLPrefix) {
				t.Errorf("%s: a name outside backquotes", m.Name)
			}
		}
	}
}

func TestMySQLPrefixReplacesTheDefault(t *testing.T) {
	t.Parallel()
	n, err := MySQLNames("my `shop` ")
	if err != nil {
		t.Fatal(err)
	}
	all, err := MySQL(n)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		statements, err := Statements(m.SQL)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(strings.Join(statements, ""), DefaultMySQLPrefix) {
			t.Errorf("%s: keeps the default prefix", m.Name)
		}
	}
	if !strings.Contains(all[0].SQL, "CREATE TABLE IF NOT EXISTS `my ``shop`` outbox_events`") {
		t.Error("the table of events is not called by the prefix")
	}
	for _, prefix := range []string{strings.Repeat("x", 41), "a\x00", "\xff", "😀"} {
		if _, err := MySQLNames(prefix); err == nil || !strings.Contains(err.Error(), "prefix") {
			t.Errorf("prefix %q gives %v", prefix, err)
		}
	}
}

func TestStatementsAreTakenApart(t *testing.T) {
	t.Parallel()
	got, err := Statements("-- a; comment\nSELECT ';', `a;b`, 1-1 /* ; */;\n\nSELECT \"x;\" ;\n")
	if err != nil || len(got) != 2 || got[0] != "SELECT ';', `a;b`, 1-1" || got[1] != `SELECT "x;"` {
		t.Errorf("statements are %q, %v", got, err)
	}
	if _, err := Statements("SELECT 1; SELECT 2"); err == nil {
		t.Error("a statement without an end is taken")
	}
}
