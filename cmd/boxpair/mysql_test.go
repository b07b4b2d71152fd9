package main

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	driver "github.com/go-sql-driver/mysql"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/store/mysql"
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
		{"janitor --dry-run --outbox", exitOK, ": a pass with --retention 7d"},
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

// TestMySQLIsSentFromAndLookedInto has a relay of its own and a drain send from MySQL, and the commands
// tell what became of the events.
func TestMySQLIsSentFromAndLookedInto(t *testing.T) {
	t.Parallel()
	dsn, err := driver.ParseDSN(testenv.MySQL(t))
	ok(t, err)
	at := url.URL{Scheme: "mysql", User: url.UserPassword(dsn.User, dsn.Passwd), Host: dsn.Addr, Path: dsn.DBName}
	url, broker, topic := at.String(), testenv.AMQPURL(t), testenv.Name(t)
	says := func(status int, args, want string) {
		t.Helper()
		got, out, errs := call(t, nil, append(strings.Fields(args), "--outbox", url)...)
		if got != status || !strings.Contains(out+errs, want) {
			t.Errorf("%s: %d, %q, %q, want %d, %q", args, got, out, errs, status, want)
		}
	}
	if status, _, errs := call(t, nil, "migrate", "up", "--database", url); status != exitOK {
		t.Fatal(errs)
	}
	db := openDB(t, dsn)
	store, err := mysql.New(db, mysql.Config{})
	ok(t, err)
	outbox, err := producer.New(store, producer.Config{Name: "shop"})
	ok(t, err)
	write := func(version int64) {
		t.Helper()
		ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[*sql.Tx]) error {
			_, err := w.Write(ctx, producer.Event{Topic: topic, Key: "k", Source: "order", Version: version, Payload: []byte("x")})
			return err
		}))
	}
	write(1)
	one := id(1).String()
	says(exitFound, "why "+one, "no relay owns its shard")
	says(exitOK, "events --topic "+topic, one[:8])
	says(exitOK, "status --topics", topic)
	relay := start(t, "--outbox", url, "--amqp", broker, "--drop-unroutable", "#")
	await(t, func() error {
		if status, out, errs := call(t, nil, "show", one, "--outbox", url); status != exitOK || !strings.Contains(out, "confirmed") {
			return fmt.Errorf("%d, %q, %q", status, out, errs)
		}
		return nil
	})
	relay.stop(t)
	says(exitOK, "tree "+one, one[:8])
	says(exitOK, "replay --topic "+topic, "1 ")
	says(exitFound, "why "+one, "pending")
	write(2)
	says(exitOK, "drain --within 2m --drop-unroutable # --amqp "+broker, "2 delivered, 0 attempts failed, 0 dead, 0 left")
	write(3)
	_, err = db.ExecContext(t.Context(), "INSERT INTO boxpair_outbox_parked (id, shard, event_key, state, parked_at, last_error) "+
		"SELECT q.id, q.shard, 'k', 'dead', 1, 'no route' FROM boxpair_outbox_queue q")
	ok(t, err)
	_, err = db.ExecContext(t.Context(), "DELETE FROM boxpair_outbox_queue")
	ok(t, err)
	says(exitOK, "dead show "+id(3).String(), "no route")
	says(exitOK, "dead redrive -m mended "+id(3).String(), "1 of 1 selected were redriven")
	says(exitOK, "drain --within 2m --drop-unroutable # --amqp "+broker, "1 delivered")
}

func openDB(t *testing.T, c *driver.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(c)
	ok(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { ok(t, db.Close()) })
	return db
}
