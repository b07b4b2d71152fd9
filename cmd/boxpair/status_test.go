package main

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/health"
	"github.com/boxpair/boxpair/internal/testenv"
)

// outboxOf returns the state of the only outbox in the output of status.
func outboxOf(t *testing.T, out string) outboxStatus {
	t.Helper()
	var got report
	ok(t, json.Unmarshal([]byte(out), &got))
	if len(got.Outboxes) != 1 || len(got.Inboxes) != 0 || got.State != got.Outboxes[0].State {
		t.Fatalf("%s", out)
	}
	return got.Outboxes[0]
}

// inboxOf returns the state of the only inbox in the output of status.
func inboxOf(t *testing.T, out string) inboxStatus {
	t.Helper()
	var got report
	ok(t, json.Unmarshal([]byte(out), &got))
	if len(got.Inboxes) != 1 || len(got.Outboxes) != 0 {
		t.Fatalf("%s", out)
	}
	return got.Inboxes[0]
}

func TestStatusCounts(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	status, out, errs := call(t, nil, "status", "--outbox", url, "-o", "json")
	got := outboxOf(t, out)
	if status != exitOK || got.Dead != 1 || got.Pending != 0 || got.Relays != 0 || got.State != health.Degraded ||
		!slices.Equal(got.Problems, []string{"degraded: dead events: 1", "degraded: no relay runs"}) {
		t.Errorf("%d, %+v, %q", status, got, errs)
	}
	if len(got.Causes) != 1 || got.Causes[0].Topic != "order.placed" || got.Causes[0].Error != "no route" || got.Causes[0].Count != 1 {
		t.Errorf("of the dead one, the causes are %v", got.Causes)
	}
	status, out, _ = call(t, nil, "status", "--outbox", url)
	if status != exitOK || !strings.Contains(out, "; dead 1\n") || !strings.Contains(out, " is degraded\n  dead events: 1\n  no relay runs\n") ||
		!strings.Contains(out, "dead: 1 of topic order.placed: no route\n") {
		t.Errorf("%d, %q", status, out)
	}
	status, out, errs = call(t, nil, "status", "--inbox", url, "-o", "json")
	inbox := inboxOf(t, out)
	if status != exitOK || inbox.State != health.Degraded || len(inbox.Consumers) != 1 || inbox.Consumers[0].Dead != 1 ||
		inbox.Consumers[0].Consumer != "stock/reserve" || inbox.Consumers[0].State != health.Degraded {
		t.Errorf("%d, %+v, %q", status, inbox, errs)
	}
	status, out, _ = call(t, nil, "status", "--inbox", url, "--consumer", "stock/reserve")
	if status != exitOK || !strings.Contains(out, "stock/reserve  degraded") || !strings.Contains(out, "dead: stock/reserve: 1 of topic order.placed: no stock\n") {
		t.Errorf("%d, %q", status, out)
	}
}

func TestExitStatusTellsWhetherAnOutboxIsWell(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	for args, want := range map[string]int{
		"--outbox":                 exitOK, // degraded
		"--fail=degraded --outbox": exitFound,
		"--fail=degraded --degraded-dead=2 --outbox": exitFound, // no relay runs
		"--unhealthy-dead=1 --outbox":                exitFound,
		"--unhealthy-dead=1 --fail=never --outbox":   exitOK,
		"--inbox":                                 exitOK,
		"--fail=degraded --inbox":                 exitFound,
		"--unhealthy-dead=1 --inbox":              exitFound,
		"--unhealthy-dead=1 --fail=never --inbox": exitOK,
		"--fail=degraded --degraded-dead=2 --consumer=stock/reserve --inbox":    exitOK,
		"--fail=degraded --degraded-dead=2 --config=none-of-these.yaml --inbox": exitFailed,
	} {
		if status, out, errs := call(t, nil, append(append([]string{"status"}, strings.Fields(args)...), url)...); status != want {
			t.Errorf("%s: %d, %q, %q, want %d", args, status, out, errs, want)
		}
	}
}

func TestStateThatCannotBeReadIsNotHealthy(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	for want, args := range map[string][]string{
		"--outbox or --inbox (or BOXPAIR_OUTBOX_URL or BOXPAIR_INBOX_URL): is missing": {},
		`no consumer "stock/typo" has registered`:                                      {"--inbox", url, "--consumer", "stock/typo"},
		"--fail: want degraded, unhealthy or never":                                    {"--outbox", url, "--fail", "sick"},
		"UnhealthyAge: 1s is shorter":                                                  {"--outbox", url, "--unhealthy-age", "1s"},
		"--outbox sqlite:/none/of/these.db":                                            {"--outbox", "sqlite:/none/of/these.db"},
	} {
		if status, out, errs := call(t, nil, append([]string{"status"}, args...)...); status != exitFailed || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %q, %q, want %q", args, status, out, errs, want)
		}
	}
}

// TestStatusOfPostgresAgrees counts both sides of a PostgreSQL database.
func TestStatusOfPostgresAgrees(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	plantEvents(t, url, "order.placed", 3)
	conn, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	defer func() { ok(t, conn.Close(t.Context())) }()
	for _, statement := range []string{
		`UPDATE boxpair.outbox_events SET created_at = now() - interval '1 hour' WHERE id = (SELECT min(id) FROM boxpair.outbox_events)`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days'), ('stock/count', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, parked_at, next_attempt_at)
			SELECT id, gen_random_uuid(), decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, true, '{}', '', 'retrying', 3, now() - interval '2 minutes', now()
			FROM boxpair.inbox_consumers WHERE name = 'stock/reserve'`,
	} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%v in %s", err, statement)
		}
	}
	status, out, errs := call(t, nil, "status", "--outbox", url, "-o", "json")
	outbox := outboxOf(t, out)
	if status != exitFound || outbox.State != health.Unhealthy || outbox.Pending != 3 || outbox.OldestSeconds < 3600 ||
		len(outbox.Problems) != 2 || outbox.Problems[1] != "degraded: no relay runs" {
		t.Errorf("%d, %+v, %q", status, outbox, errs)
	}
	status, out, errs = call(t, nil, "status", "--inbox", url)
	count, reserve, _ := strings.Cut(out, "\nstock/reserve")
	if status != exitOK || !strings.Contains(count, "stock/count    healthy") || !strings.Contains(reserve, "  degraded         1 ") ||
		!strings.Contains(reserve, "\nstock/reserve: the oldest message that is retried or waits for one is 2m") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	if status, out, errs = call(t, nil, "status", "--inbox", url, "--consumer", "stock/count", "--fail", "degraded"); status != exitOK {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}

// TestStatusNamesTheRoutesThatDoNotWork: in a typical outage a queue is missing, and only the relay
// sees the failure.
func TestStatusNamesTheRoutesThatDoNotWork(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	if status, out, errs := call(t, nil, "status", "--outbox", url, "-o", "json"); status != exitOK || !strings.Contains(out, `"routes":[]`) {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	change(`INSERT INTO boxpair_outbox_relays (id, seen_until) VALUES ('relay-1', (unixepoch() + 3600) * 1000000)`)
	change(`INSERT INTO boxpair_outbox_routes (relay, topic, route, state, since, last_error)
		VALUES ('relay-1', 'order.placed', 'shop: order', 'refusing', (unixepoch() - 3600) * 1000000, '312 NO_ROUTE')`)
	status, out, errs := call(t, nil, "status", "--outbox", url, "--degraded-dead", "10", "--degraded-age", "1000h", "--fail", "degraded")
	if status != exitFound || !strings.Contains(out, "routes that do not work: 1") ||
		!strings.Contains(out, "order.placed  refusing  1h   312 NO_ROUTE") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "status", "--outbox", url, "-o", "json")
	got := outboxOf(t, out)
	if status != exitOK || len(got.Routes) != 1 || got.Routes[0].Topic != "order.placed" || got.Routes[0].State != "refusing" || got.Routes[0].ForSeconds < 3600 {
		t.Errorf("%d, %+v, %q", status, got, errs)
	}
}

func TestStatusSaysWhatIsMissingOfTheTables(t *testing.T) {
	t.Parallel()
	sqlite, change := plantSQLite(t)
	change(`DELETE FROM boxpair_schema_migrations WHERE number > 2`)
	url := testenv.Postgres(t)
	plantEvents(t, url, "order.placed", 3)
	conn, err := pgx.Connect(t.Context(), url)
	ok(t, err)
	defer func() { ok(t, conn.Close(t.Context())) }()
	_, err = conn.Exec(t.Context(), `DELETE FROM boxpair.schema_migrations WHERE number > 2`)
	ok(t, err)
	for _, args := range [][]string{{"--outbox", sqlite}, {"--inbox", sqlite}, {"--outbox", url}, {"--inbox", url, "-o", "json"}} {
		status, out, errs := call(t, nil, append([]string{"status"}, args...)...)
		out = strings.Join(strings.Fields(out), " ") // lines are wrapped
		if status != exitFound || !strings.Contains(out, "migrations are missing") || !strings.Contains(out, "boxpair migrate") {
			t.Errorf("%v: %d, %q, %q", args, status, out, errs)
		}
	}
	if status, out, errs := call(t, nil, "migrate", "status", "--database", sqlite); status != exitFound || !strings.Contains(out, "3 (requests)") {
		t.Errorf("check: %d, %q, %q", status, out, errs)
	}
	if status, out, errs := call(t, nil, "migrate", "status", "--database", testenv.Postgres(t)); status != exitFound || !strings.Contains(out, "1 (outbox)") {
		t.Errorf("check of an empty database: %d, %q, %q", status, out, errs)
	}
	whole := testenv.Postgres(t)
	plantEvents(t, whole, "order.placed", 3)
	if status, out, errs := call(t, nil, "migrate", "status", "--database", whole); status != exitOK || out != "up to date\n" {
		t.Errorf("check of one that is up to date: %d, %q, %q", status, out, errs)
	}
	other, err := pgx.Connect(t.Context(), whole)
	ok(t, err)
	defer func() { ok(t, other.Close(t.Context())) }()
	_, err = other.Exec(t.Context(), `ALTER SEQUENCE boxpair.outbox_events_id_seq RESTART`)
	ok(t, err)
	if status, out, errs := call(t, nil, "status", "--outbox", whole); status != exitFound || !strings.Contains(out, "SELECT setval(") {
		t.Errorf("a sequence below the events: %d, %q, %q", status, out, errs)
	}
}

// TestStatusDoesNotWaitForAServerThatSaysNothing even if the server accepts every connection.
func TestStatusDoesNotWaitForAServerThatSaysNothing(t *testing.T) {
	t.Parallel()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	ok(t, err)
	defer func() { ok(t, listener.Close()) }()
	url := "postgres://monitor@" + listener.Addr().String() + "/shop?connect_timeout=1"
	for _, side := range []string{"--outbox", "--inbox"} {
		begun := time.Now()
		status, out, errs := call(t, nil, "status", side, url)
		if status != exitFailed || out != "" || !strings.Contains(errs, "the server gave no answer within 1s") {
			t.Errorf("%d, %q, %q", status, out, errs)
		}
		if took := time.Since(begun); took > time.Minute {
			t.Errorf("it took %v", took)
		}
	}
}
