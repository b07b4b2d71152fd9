package main

import (
	"net/url"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/boxpair/boxpair/internal/testenv"
)

// TestMySQLIsOperatedToo by all commands but verify and doctor, which name what does.
func TestMySQLIsOperatedToo(t *testing.T) {
	t.Parallel()
	dsn, err := driver.ParseDSN(testenv.MySQL(t))
	ok(t, err)
	u := url.URL{Scheme: "mysql", User: url.UserPassword(dsn.User, dsn.Passwd), Host: dsn.Addr, Path: dsn.DBName}
	url := u.String()
	for _, c := range []struct {
		args   string
		status int
		want   string
	}{
		{"migrate status --database", exitFound, "1 (outbox)"},
		{"migrate up --database", exitOK, "applied 1 (outbox)"},
		{"migrate status --database", exitOK, "up to date"},
		{"migrate sql --database", exitOK, "CREATE TABLE IF NOT EXISTS `boxpair_outbox_events`"},
		{"status --outbox", exitOK, "is degraded"}, // no relay runs
		{"status --inbox", exitOK, "no consumer has registered"},
		{"dead list --each --outbox", exitOK, ""},
		{"dead redrive --all -m x --inbox", exitFound, ""},
		{"pause --topic order.# -m x --outbox", exitOK, "topic order.# is paused"},
		{"resume --topic order.# --outbox", exitOK, "is resumed"},
		{"janitor --once --outbox", exitOK, "0 events"},
	} {
		status, out, errs := call(t, nil, append(strings.Fields(c.args), url)...)
		if status != c.status || !strings.Contains(out, c.want) {
			t.Errorf("%s: %d, %.300q, %q", c.args, status, out, errs)
		}
	}
	for _, command := range []string{"verify", "doctor"} {
		if status, out, errs := call(t, nil, command, "--outbox", url); status != exitFailed || out != "" ||
			!strings.Contains(errs, command+" does not support MySQL") || !strings.Contains(errs, "boxpair status") {
			t.Errorf("%s: %d, %q", command, status, errs)
		}
	}
	for bad, want := range map[string]string{"mysql://u:pw@h:1/": "want postgres://", "mysql://u:pw@h:1/db?x=1": `unknown parameter "x"`, "mysql://u:pw@/db": "want postgres://"} {
		if status, _, errs := call(t, nil, "status", "--outbox", bad); status != exitFailed || !strings.Contains(errs, want) || strings.Contains(errs, "pw") {
			t.Errorf("%s: %d, %q", bad, status, errs)
		}
	}
}
