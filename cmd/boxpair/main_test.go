package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/audit"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/sqlite"
)

// program is this test binary, which acts as the command if asCommand is set.
var program string

const asCommand = "TEST_RUNS_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	var err error
	if program, err = os.Executable(); err == nil {
		err = os.Setenv(asCommand, "1")
	}
	if err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// call runs the program and returns its exit status and its output.
func call(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), env...), &out, &errs
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.ExitCode(), out.String(), errs.String()
	}
	ok(t, err)
	return 0, out.String(), errs.String()
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const payload = "canary of a payload"

// plant makes a pair with one event that was delivered and applied an hour ago. The statements are
// plain enough for both kinds of databases.
func plant(t *testing.T, exec func(string) error, table func(string) string, bytes func(string) string, hourAgo string) {
	t.Helper()
	id, digest := bytes("0102030405060708090a0b0c0d0e0f10"), bytes("000102030405060708090a0b0c0d0e0f")
	for _, statement := range []string{
		`INSERT INTO ` + table("outbox_events") + ` (dispatch_id, digest, shard, topic, payload, occurred_at, created_at)
			VALUES (` + id + `, ` + digest + `, 1, 'order.placed', '` + payload + `', ` + hourAgo + `, ` + hourAgo + `)`,
		`DELETE FROM ` + table("outbox_queue"),
		`INSERT INTO ` + table("inbox") + ` (consumer, dispatch_id, digest, stamp, applied_at)
			VALUES (1, ` + id + `, ` + digest + `, ` + hourAgo + `, ` + hourAgo + `)`,
	} {
		ok(t, exec(statement))
	}
}

// plantSQLite makes such a pair in a file, and returns the file's URL and a function that changes
// it.
func plantSQLite(t *testing.T) (string, func(string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "shop.db")
	status, out, errs := call(t, nil, "migrate", "up", "--database", "sqlite:"+path)
	if status != exitOK || !strings.Contains(out, "applied 1 (outbox)\n") || errs != "" {
		t.Fatalf("migrate: %d, %q, %q", status, out, errs)
	}
	db, err := sqlite.Open(path)
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	run := func(statement string) error {
		_, err := db.ExecContext(t.Context(), statement)
		return err
	}
	const hourAgo, yesterday = "(unixepoch() - 3600) * 1000000", "(unixepoch() - 86400) * 1000000"
	ok(t, run(`INSERT INTO boxpair_inbox_consumers (name, window_us, registered_at, passed_at)
		VALUES ('stock/reserve', 1, `+yesterday+`, 0)`))
	plant(t, run, func(s string) string { return "boxpair_" + s }, func(s string) string { return "x'" + s + "'" }, hourAgo)
	return "sqlite:" + path, func(statement string) { ok(t, run(statement)) }
}

func TestExitStatusTellsWhatWasFound(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	args := []string{"verify", "--quiet", "--outbox", url, "--inbox=" + url, "--consumer", "stock/reserve=order.*"}
	status, out, errs := call(t, nil, args...)
	if status != exitOK || !strings.Contains(out, "Clean.") || errs != "" {
		t.Fatalf("clean pair: %d, %q, %q", status, out, errs)
	}
	change(`DELETE FROM boxpair_inbox`)
	status, out, errs = call(t, nil, append(args, "--wide")...)
	if status != exitFound || !strings.Contains(out, "Not clean.") || errs != "" ||
		!strings.Contains(out, "not_applied, id 01020304-0506-0708-090a-0b0c0d0e0f10, consumer stock/reserve, in "+url+", number 1, topic order.placed") {
		t.Errorf("lost event: %d, %q, %q", status, out, errs)
	}
	if status, _, _ = call(t, nil, append(args, "--accept", "not_applied")...); status != exitOK {
		t.Errorf("accepted: %d", status)
	}
	status, _, errs = call(t, nil, append(args, "--consumer", "stock/typo=x")...)
	if status != exitFailed || !strings.Contains(errs, `no given inbox knows it`) {
		t.Errorf("unknown consumer: %d, %q", status, errs)
	}
}

func TestJSONIsOneObjectWithoutPayloads(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	change(`INSERT INTO boxpair_outbox_parked (id, shard, key, state, attempts, parked_at, last_error) VALUES (1, 1, '', 'dead', 7, 1, 'no route')`)
	change(`DELETE FROM boxpair_inbox`)
	status, out, _ := call(t, nil, "verify", "-o", "json", "--outbox", url, "--inbox", url, "--consumer", "stock/reserve=#")
	if status != exitFound || strings.Contains(out, payload) {
		t.Fatalf("%d, %q", status, out)
	}
	var report audit.Report
	decoder := json.NewDecoder(strings.NewReader(out))
	decoder.DisallowUnknownFields()
	ok(t, decoder.Decode(&report))
	if decoder.More() {
		t.Error("there is more than one object")
	}
	if report.Clean || report.Findings[audit.Dead] != 1 || report.Findings[audit.NotApplied] != 0 || len(report.Findings) != len(audit.Kinds()) {
		t.Errorf("%+v", report)
	}
	if len(report.Examples) != 1 || report.Examples[0].Why != "no route" || report.Examples[0].Attempts != 7 {
		t.Errorf("%+v", report.Examples)
	}
}

func TestEnvironmentStandsInForFlags(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	change(`DELETE FROM boxpair_inbox`)
	env := []string{"BOXPAIR_OUTBOX_URL=" + url, "BOXPAIR_INBOX_URL= " + url + " ", "BOXPAIR_CONSUMER=stock/reserve=order.placed", "BOXPAIR_OUTPUT=json"}
	if status, out, errs := call(t, env, "verify"); status != exitFound || !strings.HasPrefix(out, "{") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	if status, out, errs := call(t, env, "verify", "--consumer", "stock/reserve=payment.*", "--output=text"); status != exitOK || strings.HasPrefix(out, "{") {
		t.Errorf("flags do not go first: %d, %q, %q", status, out, errs)
	}
}

func TestWrongSettingsAreNamed(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	for _, c := range []struct {
		env  []string
		args []string
		want string
	}{
		{nil, []string{"frobnicate"}, `unknown command "frobnicate"`},
		{nil, []string{"dead", "lst"}, `unknown command "lst", did you mean list?`},
		{nil, []string{"verfy"}, `unknown command "verfy", did you mean verify?`},
		{nil, []string{"status", "-outbox", url}, "-outbox: write --outbox"},
		{nil, []string{"status", "--outbo", url}, "unknown flag --outbo, did you mean --outbox or --output?"},
		{nil, []string{"verify"}, "--outbox (or BOXPAIR_OUTBOX_URL): is missing"},
		{nil, []string{"verify", "--outbox", url, "--inbox", url}, "--consumer (or BOXPAIR_CONSUMER): is missing"},
		{nil, []string{"verify", "--outbox", url, "--consumer", "a=b"}, "--inbox (or BOXPAIR_INBOX_URL): is missing"},
		{nil, []string{"verify", "--outbox", "mysql://x"}, "--outbox: want postgres://"},
		{nil, []string{"verify", "--outbox", "sqlite:/no/such/file"}, "--outbox sqlite:/no/such/file: "},
		{nil, []string{"verify", "--outbox", url + "?prefix=x"}, `--outbox: sqlite: unknown parameter "prefix"`},
		{nil, []string{"verify", "--outbox", url + "?boxpair_prefix=x_"}, `run "boxpair migrate up", or call Migrate`},
		{nil, []string{"verify", "--outbox", url, "--grace", "5"}, "--grace: want a duration"},
		{nil, []string{"verify", "--outbox", url, "--limit", "0"}, "--limit: want a number"},
		{nil, []string{"verify", "--outbox", url, "--from", "yesterday"}, "--from: want a time"},
		{nil, []string{"verify", "--outbox", url, "--from", "1h", "--until", "2h"}, "--until: is not after --from"},
		{nil, []string{"verify", "--outbox", url, "--accept", "lost"}, `--accept: unknown kind "lost"`},
		{nil, []string{"verify", "--outbox", url, "--partial", "x"}, `--partial: consumer "x"`},
		{nil, []string{"verify", "--outbox", url, "--consumer", "x"}, "--consumer: want NAME=TOPIC"},
		{nil, []string{"verify", "--outbox", url, "more"}, "unexpected arguments"},
		{nil, []string{"verify", "--frobnicate"}, "unknown flag --frobnicate"},
		{[]string{"BOXPAIR_GRACE=x"}, []string{"verify", "--outbox", url}, "BOXPAIR_GRACE: want a duration"},
		{[]string{"BOXPAIR_LEESE=5s", "BOXPAIR_LEASE=5s"}, []string{"verify", "--outbox", url}, "BOXPAIR_LEESE: is not a setting of any command"},
		{[]string{"BOXPAIR_RELAY_PORT=tcp://10.0.0.1:80", "BOXPAIR_RELAY_PORT_80_TCP_ADDR=10.0.0.1", "BOXPAIR_RELAY_SERVICE_PORT_HEALTH=80"},
			[]string{"verify", "--outbox", url, "--grace", "x"}, "boxpair verify: --grace: want a duration"},
		{[]string{"BOXPAIR_OUTPUT=x"}, []string{"verify", "--outbox", url}, "BOXPAIR_OUTPUT: want text or json"},
		{nil, []string{"migrate", "up"}, "--database (or BOXPAIR_DATABASE_URL): want exactly one"},
	} {
		status, out, errs := call(t, c.env, c.args...)
		if status != exitFailed || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d, %q, %q, want %q", c.args, status, out, errs, c.want)
		}
	}
}

func TestHelpAndVersion(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"help"}, {"--help"}, {}, {"help", "verify"}, {"verify", "-h"}, {"dead", "-h"}, {"effects"}, {"dead"}, {"help", "effects"}, {"version"}, {"--version"}, {"completion", "zsh"}, {"completion", "bash"}, {"completion", "fish"}, {"completion", "powershell"}} {
		status, out, errs := call(t, nil, args...)
		if status != exitOK || !strings.Contains(out, "boxpair ") || errs != "" {
			t.Errorf("%v: %d, %q, %q", args, status, out, errs)
		}
	}
}

func TestMigrationsArePrintedWithoutADatabase(t *testing.T) {
	t.Parallel()
	status, out, errs := call(t, nil, "migrate", "sql", "--database", "postgres://nobody@nowhere.invalid/x?boxpair_prefix=p_", "--schema", "other")
	if status != exitOK || !strings.Contains(out, `CREATE TABLE "other"."p_outbox_events"`) || errs != "" {
		t.Errorf("%d, %.200q, %q", status, out, errs)
	}
	if status, out, _ := call(t, nil, "migrate", "sql", "--database", "sqlite:x"); status != exitOK || !strings.Contains(out, `CREATE TABLE "boxpair_inbox"`) {
		t.Errorf("%d, %.200q", status, out)
	}
}

// TestRoleWithTheDocumentedGrantsSuffices runs verify as a role with exactly the grants of
// docs/audit.md. The role's password must not be printed.
func TestRoleWithTheDocumentedGrantsSuffices(t *testing.T) {
	t.Parallel()
	owner := testenv.Postgres(t)
	const password = "canary-of-a-password"
	if status, _, errs := call(t, nil, "migrate", "up", "--database", owner); status != exitOK {
		t.Fatal(errs)
	}
	if status, out, _ := call(t, nil, "migrate", "up", "--database", owner); status != exitOK || out != "up to date\n" {
		t.Errorf("second migrate: %d, %q", status, out)
	}
	conn, err := pgx.Connect(t.Context(), owner)
	ok(t, err)
	role := testenv.Name(t)
	run := func(statement string) error {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), statement)
		return err
	}
	ok(t, run(`CREATE ROLE `+role+` LOGIN PASSWORD '`+password+`'`))
	t.Cleanup(func() {
		ok(t, run(`DROP OWNED BY `+role))
		ok(t, run(`DROP ROLE `+role))
		ok(t, conn.Close(context.WithoutCancel(t.Context())))
	})
	for _, grant := range documentedGrants(t) {
		ok(t, run(strings.ReplaceAll(grant, "auditor", role)))
	}
	const hourAgo, yesterday = "now() - interval '1 hour'", "now() - interval '1 day'"
	ok(t, run(`INSERT INTO boxpair.inbox_consumers (name, window_size, registered_at) VALUES ('stock/reserve', '7 days', `+yesterday+`)`))
	plant(t, run, func(s string) string { return "boxpair." + s }, func(s string) string {
		if len(s) == 32 && strings.HasPrefix(s, "01") {
			return "'" + s + "'::uuid"
		}
		return `'\x` + s + `'::bytea`
	}, hourAgo)

	u, err := url.Parse(owner)
	ok(t, err)
	u.User = url.UserPassword(role, password)
	args := []string{"verify", "--outbox", u.String(), "--inbox", u.String(), "--consumer", "stock/reserve=#"}
	status, out, errs := call(t, nil, args...)
	if status != exitOK || !strings.Contains(out, "Clean.") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	all := out + errs
	u.Path = "/no_such_database"
	for _, broken := range [][]string{
		{"verify", "--outbox", u.String()},
		{"verify", "--outbox", strings.Replace(u.String(), "@", "@@/", 1)},
		{"verify", "--outbox", strings.Replace(u.String(), "postgres:", "mysql:", 1)},
		{"verify", "--outbox", strings.Replace(u.String(), "postgres://", "postgres://%zz", 1)},
		{"verify", "-outbx", u.String()}, {"verify", "-outbx=" + u.String()}, {"verify", "-=" + u.String()},
		{"verify", "--wide=" + u.String()}, {"verify", "--grace", u.String()}, {"verify", "--consumer", u.String()},
		{"verify", "--accept", u.String()}, {"verify", "--partial", u.String(), "--outbox", "sqlite:x"},
		{"verify", u.String()}, {u.String()}, {"migrate", "up", "--database", u.String()},
	} {
		status, out, errs := call(t, nil, broken...)
		if status != exitFailed {
			t.Errorf("%v: %d, %q", broken[:2], status, errs)
		}
		all += out + errs
	}
	if strings.Contains(all, password) {
		t.Errorf("the password is shown: %s", all)
	}
}

// documentedGrants returns the GRANT statements of docs/audit.md.
func documentedGrants(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/audit.md")
	ok(t, err)
	var grants []string
	for statement := range strings.SplitSeq(string(text), ";") {
		if i := strings.Index(statement, "GRANT "); i >= 0 {
			grants = append(grants, statement[i:])
		}
	}
	if len(grants) < 3 {
		t.Fatalf("docs/audit.md has %d grants: has the format changed?", len(grants))
	}
	return grants
}
