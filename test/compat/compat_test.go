package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestVersionsAreThoseOfTheServersThemselves(t *testing.T) {
	t.Parallel()
	got := parseVersions("mariadb-server 1:11.8.9+ds-0+deb13u1\npostgresql 17+278\npostgresql-15 15.20-0+deb12u1\n" +
		"postgresql-17 17.12-0+deb13u1\npostgresql-common 278\nrabbitmq-server 4.0.5-6+deb13u2\n")
	if want := (versions{postgres: "17.12", rabbitmq: "4.0.5", sql: "MariaDB 11.8.9"}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := parseVersions("mysql-server-core-8.0 8.0.28-0ubuntu4\n"); got.sql != "MySQL 8.0.28" {
		t.Errorf("%+v", got)
	}
}

func TestFailuresHaveTheNamesOfTheTests(t *testing.T) {
	t.Parallel()
	said := []byte("=== RUN   TestA\n--- FAIL: TestA (0.1s)\n    --- FAIL: TestA/part (0.0s)\n--- PASS: TestB (0.0s)\n")
	if got := failures(said, false); !slices.Equal(got, []string{"TestA"}) {
		t.Errorf("%q", got)
	}
	if got := failures([]byte("panic: lost"), false); len(got) != 1 {
		t.Errorf("a panic: %q", got)
	}
	if got := failures(said, true); got != nil {
		t.Errorf("of a run that passed: %q", got)
	}
}

func TestReleaseThatDidNotRunKeepsItsLine(t *testing.T) {
	t.Parallel()
	chosen, err := choose([]string{"trixie", "sid"})
	if err != nil {
		t.Fatal(err)
	}
	passing := make([][]string, len(suites))
	old := []row{
		{release: chosen[0], versions: versions{postgres: "17.1"}, failed: passing},
		{release: chosen[1], versions: versions{postgres: "18.1"}, failed: passing, moves: []move{{title: "PostgreSQL 15 to 18.1"}, {title: "RabbitMQ 4.0 to 4.3"}}},
	}
	path := filepath.Join(t.TempDir(), "document.md")
	if err := os.WriteFile(path, []byte("before\n"+begin+end+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := row{release: chosen[0], versions: versions{postgres: "17.2"}, failed: slices.Clone(passing)}
	again.failed[0] = []string{"TestX"}
	for _, rows := range [][]row{old, {again}} {
		if err := write(path, rows); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		"before\n", "after\n", "| Debian 13 | 17.2 |", "**fails**: TestX", "| Debian, development | 18.1 |", "| PostgreSQL 15 to 18.1 | passes |", "| RabbitMQ 4.0 to 4.3 | passes |",
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("%q is not in\n%s", part, text)
		}
	}
	if strings.Contains(string(text), "17.1") {
		t.Errorf("the line of the run before is there still:\n%s", text)
	}
}

func TestUnknownReleaseIsRefused(t *testing.T) {
	t.Parallel()
	if _, err := choose([]string{"trixie", "nowhere"}); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("%v", err)
	}
}

func TestFiguresStandInATableWithAColumnForEachRelease(t *testing.T) {
	names, values, err := parseFigures([]byte("| a table |\n\n" + `{"relay: of raw":{"value":0.75,"target":0.9,"met":false},"chain: of a chain by hand":{"value":null,"target":1,"met":false}}` + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	old := figures{versions{postgres: "15.20", rabbitmq: "3.10.8"}, names, values}
	got := benchTable([]figures{old, {versions{postgres: "18.6", rabbitmq: "4.3.6"}, names, map[string]float64{"chain: of a chain by hand": 1.0625}}})
	const want = `| target | PostgreSQL 15.20, RabbitMQ 3.10.8 | PostgreSQL 18.6, RabbitMQ 4.3.6 |
|---|---|---|
| relay: of raw | 0.75 | not measured |
| chain: of a chain by hand | not measured | 1.06 |
`
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	for _, broken := range []string{"", "no JSON", `{"a":1}`} {
		if _, _, err := parseFigures([]byte(broken)); err == nil {
			t.Errorf("%q is read", broken)
		}
	}
}
