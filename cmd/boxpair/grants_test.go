package main

import (
	"context"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/testenv"
)

// TestPrintedGrantsWork runs the printed statements twice, and then reads and writes as two of the
// roles.
func TestPrintedGrantsWork(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	if status, _, errs := call(t, nil, "migrate", "up", "--database", url); status != exitOK {
		t.Fatal(errs)
	}
	conn, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	run := func(statement string) error {
		_, err := conn.Exec(context.WithoutCancel(t.Context()), statement)
		return err
	}
	relaying, archiving := testenv.Name(t)+` "r"`, testenv.Name(t)+"_a"
	t.Cleanup(func() {
		for _, role := range []string{relaying, archiving} {
			quoted := pgx.Identifier{role}.Sanitize()
			ok(t, run("DROP OWNED BY "+quoted+"; DROP ROLE "+quoted))
		}
		ok(t, conn.Close(context.WithoutCancel(t.Context())))
	})
	status, out, errs := call(t, nil, "migrate", "grants", "--create", "--relay-role", relaying, "--archiver-role", archiving)
	if status != exitOK || errs != "" || strings.Contains(out, "boxpair_monitor") {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	for range 2 {
		ok(t, run(out))
	}
	for role, may := range map[string]map[string]bool{
		relaying:  {"DELETE FROM boxpair.outbox_queue": true, "DELETE FROM boxpair.outbox_events": false},
		archiving: {"DELETE FROM boxpair.outbox_queue": false, "DELETE FROM boxpair.outbox_events": true},
	} {
		for statement, allowed := range may {
			err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
				if _, err := tx.Exec(t.Context(), "SET LOCAL ROLE "+pgx.Identifier{role}.Sanitize()); err != nil {
					return err
				}
				_, err := tx.Exec(t.Context(), statement)
				return err
			})
			if (err == nil) != allowed {
				t.Errorf("%s as %s: %v", statement, role, err)
			}
		}
	}
}

func TestGrantsArePrintedWithoutADatabase(t *testing.T) {
	t.Parallel()
	status, out, errs := call(t, nil, "migrate", "grants", "--schema", "other", "--prefix", "p_", "--monitor-role", "watch")
	if status != exitOK || errs != "" || strings.Contains(out, "CREATE ROLE \"") || !strings.Contains(out, `GRANT SELECT ON SEQUENCE "other"."p_outbox_events_id_seq" TO "watch"`) {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	parts := map[string]string{
		"producer": `GRANT INSERT`, "relay": `"boxpair"."outbox_queue"`, "consumer": `"boxpair"."inbox"`, "requests": `"boxpair"."inbox_requests"`,
		"janitor": `"boxpair"."outbox_receipts"`, "archiver": `"boxpair"."outbox_receipts"`, "operator": `"boxpair"."outbox_queue"`, "monitor": `"boxpair"."inbox_forgotten"`,
	}
	for part, want := range parts {
		status, out, errs := call(t, nil, "migrate", "grants", "--"+part+"-role", "x")
		if status != exitOK || errs != "" || !strings.Contains(out, "-- role: "+part+"\n") || !strings.Contains(out, want) || strings.Count(out, "-- role: ") != 1 {
			t.Errorf("%s: %d, %q, %q", part, status, out, errs)
		}
	}
	for want, args := range map[string][]string{
		"want the name of at least one role":       {"migrate", "grants"},
		`relay: "pg_x" is one of the database's`:   {"migrate", "grants", "--relay-role", "pg_x"},
		`monitor: "public" is one of the database`: {"migrate", "grants", "--create", "--monitor-role", "public"},
	} {
		if status, out, errs := call(t, nil, args...); status != exitFailed || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %q, %q", args, status, out, errs)
		}
	}
}
