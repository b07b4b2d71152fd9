package sqlstore

import (
	"testing"
)

var (
	postgresText = Syntax{Dollars: true}
	sqliteText   = Syntax{}
	mysqlText    = Syntax{Backslashes: true, Implicit: true}
)

func TestStatementsThatEndATransactionAreSeen(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		dialect Syntax
		text    string
		ends    string
	}{
		{postgresText, "commit", "COMMIT"},
		{postgresText, " -- a comment\n /* and /* another */ */ Commit and chain", "COMMIT"},
		{postgresText, "ROLLBACK AND CHAIN", "ROLLBACK"},
		{postgresText, "ROLLBACK WORK", "ROLLBACK"},
		{postgresText, "abort", "ABORT"},
		{postgresText, "END", "END"},
		{postgresText, "PREPARE TRANSACTION 'x'", "PREPARE TRANSACTION"},
		{postgresText, "SELECT ';', 'it''s', E'\\'', $$;commit$$, $a$;$$;$a$, \";\"; COMMIT", "COMMIT"},
		{postgresText, "SELECT 1; ; (ROLLBACK)", "ROLLBACK"},
		{postgresText, "SELECT $1; COMMIT; SELECT $2", "COMMIT"},
		{sqliteText, "INSERT INTO t VALUES (1); COMMIT; BEGIN", "COMMIT"},
		{sqliteText, "end transaction", "END"},
		{mysqlText, "/*!50000 COMMIT */", "COMMIT"},
		{mysqlText, "# comment\ncommit", "COMMIT"},
		{mysqlText, "SELECT 1--1; COMMIT", "COMMIT"},
		{mysqlText, `SELECT '\''; ROLLBACK`, "ROLLBACK"},
		{mysqlText, "START TRANSACTION", "START"},
		{mysqlText, "CREATE TABLE t (id INT)", "CREATE"},
		{mysqlText, "set @@autocommit = 1", "SET"},
		{mysqlText, "TRUNCATE t", "TRUNCATE"},
		{mysqlText, "IMPORT TABLE FROM 't.sdi'", "IMPORT"},
		{mysqlText, "SET PASSWORD = 'x'", "SET"},
		{mysqlText, "set default\nrole NONE", "SET"},
	} {
		if r := x.dialect.Read(x.text); r.Ends != x.ends {
			t.Errorf("%q ends with %q, want %q", x.text, r.Ends, x.ends)
		}
	}
}

func TestSavepointsAreSeen(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"savepoint a": true, "SELECT 1; /* then */ SAVEPOINT a": true,
		"SELECT 'x; SAVEPOINT a'": false, "RELEASE SAVEPOINT a": false, "INSERT INTO savepoint VALUES (1)": false,
	} {
		if r := postgresText.Read(text); r.Savepoint != want {
			t.Errorf("%q sets a savepoint: %v, want %v", text, r.Savepoint, want)
		}
	}
}

func TestStatementsThatEndNothingAreLetThrough(t *testing.T) {
	t.Parallel()
	for dialect, texts := range map[Syntax][]string{
		postgresText: {
			"", ";", "SELECT 'COMMIT; COMMIT'", "SELECT $$; COMMIT$$", "ROLLBACK TO SAVEPOINT a", "rollback work to a", "SELECT 1 -- ; commit",
			"INSERT INTO commit VALUES ($1)", "WITH a AS (SELECT 1) SELECT CASE WHEN true THEN 1 END", "PREPARE p AS SELECT 1", "DO $x$ BEGIN COMMIT; END $x$",
			"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END", "unfinished 'text", "$", "BEGIN",
		},
		sqliteText: {"SAVEPOINT a", "RELEASE a", "ROLLBACK TRANSACTION TO a", "CREATE TRIGGER x AFTER INSERT ON t BEGIN SELECT 1; END"},
		mysqlText:  {"CREATE TEMPORARY TABLE t (id INT)", "SELECT \"; commit\"", "SELECT `;`, 1", `SELECT '\'; COMMIT'`, "SET @a = 1", "SET default_week_format = 1", "LOAD DATA INFILE 'x' INTO TABLE t"},
	} {
		for _, text := range texts {
			if r := dialect.Read(text); r.Ends != "" {
				t.Errorf("%q is said to end by %s", text, r.Ends)
			}
		}
	}
}

func TestSavepointsSettingsAndDoubtsAreSeen(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`ROLLBACK TO "b"`, "RELEASE SAVEPOINT c", "SET LOCAL x = 1", "RESET x", "SELECT Set_Config('x', '1', true)"} {
		if !postgresText.Read(text).Separates(text) {
			t.Errorf("%q would be shared", text)
		}
	}
	for _, text := range []string{"SAVEPOINT a", "ROLLBACK TO SAVEPOINT boxpair_sp", "UPDATE t SET a = 1"} {
		if postgresText.Read(text).Separates(text) {
			t.Errorf("%q would not be shared", text)
		}
	}
	for text, dialect := range map[string]Syntax{
		"CALL p()": mysqlText,
		"SET STATEMENT max_statement_time = 1 FOR COMMIT": mysqlText, // of MariaDB, as the next one
		"REPEAT COMMIT; UNTIL 1 END REPEAT":               mysqlText,
		"CREATE TABLE t (id INT); COMMIT":                 sqliteText,
	} {
		if !dialect.Read(text).Doubtful {
			t.Errorf("%q leaves no doubt", text)
		}
	}
	if postgresText.Read("CALL p()").Doubtful {
		t.Error("a procedure of PostgreSQL cannot end the transaction of its caller")
	}
}

func TestSettingsThatOutlastATransactionAreSeen(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"SET x = 1", "set session x = 1", "/* a */ SET ROLE a", "RESET ALL", "DISCARD PLANS", "SET TIME ZONE 'UTC'", "SELECT 1; SET x = 1",
		"SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY", "SELECT set_config('x', '1', true), SET_CONFIG('y', $1, False )",
	} {
		if !postgresText.Read(text).Stays(text) {
			t.Errorf("%q would outlast its transaction unseen", text)
		}
	}
	for _, text := range []string{
		"SET LOCAL x = 1", "SET CONSTRAINTS ALL DEFERRED", "set transaction read only", "SELECT set_config('x', $1, true)", "UPDATE t SET set_config = 1",
		"SELECT set_config('x', '1', $1)", "_",
	} {
		if postgresText.Read(text).Stays(text) {
			t.Errorf("%q does not outlast its transaction", text)
		}
	}
	for text, dialect := range map[string]Syntax{
		"SET SESSION x = 1": mysqlText, "SET @@x = 1": mysqlText, "SET NAMES utf8mb4": mysqlText, "SET ROLE NONE": mysqlText,
		"PRAGMA query_only = ON": sqliteText, "PRAGMA query_only(1)": sqliteText,
	} {
		if !dialect.Read(text).Outlasts {
			t.Errorf("%q would outlast its transaction unseen", text)
		}
	}
	for text, dialect := range map[string]Syntax{"SET @a = 1": mysqlText, "PRAGMA query_only": sqliteText} {
		if dialect.Read(text).Outlasts {
			t.Errorf("%q sets nothing", text)
		}
	}
	if !mysqlText.Read("USE a").Elsewhere {
		t.Error("USE changes the database")
	}
}

func FuzzReadOfStatements(f *testing.F) {
	for _, text := range []string{"SELECT 'a'; COMMIT", "$a$ $a$", "E'\\'", "/*", "--", "`", "ROLLBACK TO", "/*!"} {
		f.Add(text)
	}
	f.Fuzz(func(_ *testing.T, text string) {
		for _, d := range []Syntax{postgresText, sqliteText, mysqlText} {
			d.Read(text).Stays(text) // comes to an end, and does not panic
		}
	})
}
