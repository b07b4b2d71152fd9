package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
)

// rig is a PostgreSQL database with an outbox and an inbox.
type rig struct {
	t    *testing.T
	url  string
	conn *pgx.Conn
}

func newRig(t *testing.T, events int) *rig {
	t.Helper()
	r := &rig{t: t, url: testenv.Postgres(t)}
	plantEvents(t, r.url, "order.placed", events)
	conn, err := pgx.Connect(t.Context(), r.url)
	ok(t, err)
	t.Cleanup(func() { ok(t, conn.Close(context.WithoutCancel(t.Context()))) })
	r.conn = conn
	return r
}

func (r *rig) exec(statements ...string) {
	r.t.Helper()
	for _, statement := range statements {
		if _, err := r.conn.Exec(r.t.Context(), statement); err != nil {
			r.t.Fatalf("%v in %s", err, statement)
		}
	}
}

// id is the dispatch ID of the nth event that plantEvents writes.
func id(n int) uuid.UUID { return idgen.Of("shop", "order", int64(n), 0) }

// says runs a command, and wants its exit status and texts in its output.
func (r *rig) says(status int, args string, texts ...string) string {
	r.t.Helper()
	got, out, errs := call(r.t, nil, append(strings.Fields(args), "--outbox", r.url, "--inbox", r.url)...)
	if got != status {
		r.t.Errorf("%s: %d, %q, %q", args, got, out, errs)
	}
	whole := strings.ReplaceAll(out, "\n              ", " ") // lines of why are wrapped
	for _, text := range texts {
		if !strings.Contains(whole, text) {
			r.t.Errorf("%s: %q is missing in:\n%s%s", args, text, out, errs)
		}
	}
	return out
}

// relayOwns makes a relay that runs the owner of all shards.
const relayOwns = `WITH r AS (INSERT INTO boxpair.outbox_relays (id, seen_until) VALUES ('relay-1', now() + interval '1 hour'))
	UPDATE boxpair.outbox_shards SET owner = 'relay-1', lease_until = now() + interval '1 hour'`

func TestWhySaysWhatAnEventWaitsForAndHowToHealIt(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	whole, short := id(1).String(), id(1).String()[:8]
	r.says(exitFound, "why "+whole, whole+"\n", "event       order.placed, key k, number 1 of", "by shop (order, version 1, index 0)",
		"pending     no relay owns its shard", "heal\n    # start a relay: none looks after this event\n    boxpair relay --outbox ")
	r.says(exitFound, "why "+short, whole+"\n")

	r.exec(relayOwns)
	r.exec(`INSERT INTO boxpair.outbox_routes (relay, topic, route, state, since, last_error)
		VALUES ('relay-1', 'order.placed', 'shop: order', 'refusing', now() - interval '1 hour', '312 NO_ROUTE')`)
	r.says(exitFound, "why "+whole, "pending     its route shop: order is refusing since", "312 NO_ROUTE", "heal\n    # the queue is order.placed_…; its consumer does the same when it starts\n    boxpair declare --topic order.placed --consumer …", "\n    boxpair relay … --drop-unroutable order.placed")
	r.exec(`UPDATE boxpair.outbox_events SET topic = 'order.shipped' WHERE id = 3`)
	r.says(exitFound, "why "+id(3).String(), "waits for event 1 of its key", "312 NO_ROUTE", "--drop-unroutable order.placed")
	r.exec(`DELETE FROM boxpair.outbox_routes`)

	if _, out, _ := call(t, nil, "pause", "--topic", "order.#", "-m", "counting", "--outbox", r.url); !strings.Contains(out, "is paused") {
		t.Error(out)
	}
	r.says(exitFound, "why k", "heal\n    # paused by postgres: counting\n    boxpair resume --topic 'order.#' --outbox ")
	if _, out, _ := call(t, nil, "resume", "--topic", "order.#", "--outbox", r.url); !strings.Contains(out, "is resumed") {
		t.Error(out)
	}

	r.exec(`WITH q AS (DELETE FROM boxpair.outbox_queue WHERE id = 1 RETURNING shard, id)
		INSERT INTO boxpair.outbox_parked (id, shard, key, state, attempts, next_attempt_at, last_error)
		SELECT id, shard, 'k', 'retrying', 4, now() + interval '10 minutes', 'timeout' FROM q`)
	r.says(exitFound, "why "+whole, "retrying    waits for its next attempt", "last error  timeout", "boxpair dead redrive "+whole+" --state retrying --outbox", "# at once, not in ")
	r.says(exitFound, "why "+id(2).String(), "waits for event 1 of its key", "boxpair dead redrive "+whole)
	if out := r.says(exitFound, "why k", "behind it   2 of its key: "+id(2).String()[:8]+" "+id(3).String()[:8]); strings.Count(out, "heal\n") != 1 {
		t.Errorf("a key's events repeat the remedy:\n%s", out)
	}

	r.exec(`UPDATE boxpair.outbox_parked SET state = 'dead', next_attempt_at = NULL`)
	r.says(exitFound, "why "+whole, "dead        its attempts are used up", "boxpair dead redrive "+whole+" --outbox", "boxpair dead discard "+whole+" --outbox")

	r.exec(`DELETE FROM boxpair.outbox_queue WHERE id = 2`, `INSERT INTO boxpair.outbox_receipts (relay, delivered_at, event_ids)
		SELECT 'relay-1', created_at, '{2}' FROM boxpair.outbox_events WHERE id = 2`) // at once, however long this test takes
	r.says(exitOK, "why "+id(2).String(), "delivered   the broker confirmed it", ", to relay relay-1\n", "no consumer of the given databases has it yet")

	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days'), ('mail/send', '14 days')`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '`+id(2).String()+`', now(), now())`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, last_error)
			VALUES (2, '`+id(2).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, false, '{}', '`+payload+`', 'dead', 10, 'no address')`)
	out := r.says(exitFound, "why "+id(2).String(), "applied     by stock/reserve", "dead        at mail/send since", "last error  no address",
		"boxpair dead redrive "+id(2).String()+" --consumer mail/send --inbox 'postgres://")
	if strings.Contains(out, payload) {
		t.Error("a payload is shown")
	}
	// The printed command works, but for its password, which the test's server does not ask for.
	_, command, _ := strings.Cut(out, "heal\n")
	command, _, _ = strings.Cut(strings.TrimSpace(command), "\n")
	args := append(strings.Fields(command)[1:6], "-m", "mended", "--inbox", r.url) // without the URL that lacks the password
	if status, _, errs := call(t, nil, args...); status != exitOK || !strings.HasPrefix(errs, "1 of 1 selected were redriven") {
		t.Errorf("%s: %d, %q", command, status, errs)
	}

	r.says(exitFailed, "why "+uuid.NewString())
	r.says(exitFailed, "why ffffffff")
	r.says(exitFound, "why order", "by shop (order, version 1, index 0)") // by source
	r.says(exitFailed, "why no-such-key")
}

func TestShowHasTheWholeLifeOfAnEvent(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`DELETE FROM boxpair.outbox_queue`,
		`INSERT INTO boxpair.outbox_attempts (event_id, outcome, error, relay) VALUES (1, 'unavailable', 'broker is away', 'relay-1')`,
		`INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-2', '{1}')`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) VALUES (1, '`+id(1).String()+`', now(), now())`,
		`INSERT INTO boxpair.inbox_history (consumer, dispatch_id, outcome, error) VALUES (1, '`+id(1).String()+`', 'failed', 'no stock')`)
	out := r.says(exitOK, "show "+id(1).String(), "outbox          ", "source          order", "unavailable     ", "relay-1 broker is away", "confirmed       ", "relay-2",
		"consumer        stock/reserve in", "failed          ", "no stock")
	if strings.Contains(out, "payload") {
		t.Error(out)
	}
	r.says(exitOK, "show --payload "+id(1).String(), "payload         0\n")
	var got struct{ Found []sight }
	ok(t, json.Unmarshal([]byte(r.says(exitOK, "show -o json "+id(1).String())), &got))
	if len(got.Found) != 1 || len(got.Found[0].Events) != 1 || len(got.Found[0].Events[0].Deliveries) != 1 || len(got.Found[0].Events[0].History) != 1 ||
		len(got.Found[0].Inbox) != 1 || len(got.Found[0].Inbox[0].History) != 1 || !got.Found[0].Done {
		t.Errorf("%+v", got)
	}
}

// TestPoisonMessageIsFoundAndShownByItsInbox, without the database that wrote it.
func TestPoisonMessageIsFoundAndShownByItsInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, last_error)
			SELECT 1, m.id::uuid, decode(repeat('00', 16), 'hex'), 'order.placed', m.key, true, false, m.metadata::jsonb, '`+payload+`', m.state, 10, 'no stock'
			FROM (VALUES ('`+id(1).String()+`', 'customer-42', '{"correlation_id": "request-7", "boxpair-source": "order/1"}', 'dead'),
				('`+id(2).String()+`', 'customer-42', '{}', 'discarded')) m (id, key, metadata, state)`)
	says := func(status int, args string, texts ...string) {
		t.Helper()
		got, out, errs := call(t, nil, append(strings.Fields(args), "--inbox", r.url)...)
		for _, text := range append(texts, id(1).String()+"\n") {
			if got != status || !strings.Contains(out, text) || strings.Contains(out, id(2).String()) || strings.Contains(out, payload) != strings.Contains(args, "--payload") {
				t.Errorf("%s: %d, %q is missing in:\n%s%s", args, got, text, out, errs)
			}
		}
	}
	for _, name := range []string{"customer-42", "request-7", "order/1", id(1).String()[:8], id(1).String()} {
		says(exitFound, "why "+name, "message     order.placed, key customer-42\n", "last error  no stock")
	}
	says(exitOK, "show request-7", "topic           order.placed\n", "key             customer-42\n")
	says(exitOK, "show --payload customer-42", "payload         "+payload+"\n", "metadata correlation_id request-7\n")
	if status, _, errs := call(t, nil, "why", "customer-7", "--inbox", r.url); status != exitFailed || !strings.Contains(errs, "no given database knows") {
		t.Errorf("%d, %q", status, errs)
	}
}

func TestEventsAreListedInAnyState(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(relayOwns, `DELETE FROM boxpair.outbox_queue WHERE id = 2`, `INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-1', '{2}')`)
	events := func(args string) string {
		t.Helper()
		status, out, errs := call(t, nil, append([]string{"events", "--outbox", r.url}, strings.Fields(args)...)...)
		if status != exitOK {
			t.Errorf("%s: %d, %q, %q", args, status, out, errs)
		}
		return out
	}
	all := events("")
	if lines := strings.Split(all, "\n"); len(lines) != 5 || !strings.HasPrefix(lines[1], id(3).String()[:8]+"  pending ") || !strings.Contains(lines[2], " delivered ") {
		t.Errorf("%s", all)
	}
	if out := events("--state delivered -o json"); !strings.Contains(out, id(2).String()) || strings.Contains(out, id(1).String()) {
		t.Error(out)
	}
	if out := events("--key other"); out != "" {
		t.Error(out)
	}
	if out := events(id(1).String()[:8]); strings.Count(out, "\n") != 2 {
		t.Error(out)
	}
}

// TestListsFitIntoATerminal of 80 columns.
func TestListsFitIntoATerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	const long = "a-name-that-is-much-longer-than-anybody-would-like-it-to-be"
	r.exec(relayOwns,
		`INSERT INTO boxpair.outbox_routes (relay, topic, route, state, since, last_error) VALUES ('relay-1', '`+long+`', '`+long+long+`', 'refusing', now(), '`+long+` `+long+`')`,
		`WITH q AS (DELETE FROM boxpair.outbox_queue WHERE id = 1 RETURNING shard, id)
			INSERT INTO boxpair.outbox_parked (id, shard, key, state, attempts, last_error) SELECT id, shard, 'k', 'dead', 4, '`+long+` `+long+`' FROM q`,
		`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/`+long+`', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, last_error)
			VALUES (1, '`+id(2).String()+`', decode(repeat('00', 16), 'hex'), '`+long+`', '`+long+`', true, false, '{}', '', 'dead', 10, '`+long+`')`)
	r.exec(`INSERT INTO boxpair.inbox_effects (consumer, dispatch_id, effect_key, ordered, metadata, intent, topic, key, state, uncertain, attempts, last_error)
		VALUES (1, '` + id(2).String() + `', '` + id(1).String() + `', true, '{}', '{}', '` + long + `', '` + long + `', 'uncertain', true, 1, '` + long + `')`)
	for _, c := range []struct {
		args       string
		out, in    bool // the databases
		whole, cut bool // with --wide, texts are whole; without, none is longer than the terminal
	}{
		{"dead list", true, true, true, true}, {"dead list --each", true, true, true, true}, {"events", true, false, false, true},
		{"status --topics", true, true, true, true}, {"effects list", false, true, true, true},
		{"verify --quiet --grace 1ms --consumer stock/" + long + "=#", true, true, true, false},
	} {
		var list []string
		if c.out {
			list = append(list, "--outbox", r.url)
		}
		if c.in {
			list = append(list, "--inbox", r.url)
		}
		_, out, errs := call(t, nil, append(strings.Fields(c.args), list...)...)
		for line := range strings.Lines(out) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > narrowWidth && c.cut {
				t.Errorf("%s: %d columns: %s", c.args, n, line)
			}
		}
		if strings.Count(out, "\n") < 2 {
			t.Errorf("%s: %q, %q", c.args, out, errs)
		}
		if _, out, _ = call(t, nil, append(strings.Fields(c.args+" --wide"), list...)...); !strings.Contains(out, long) && c.whole {
			t.Errorf("%s --wide cuts off: %s", c.args, out)
		}
	}
}

// TestHelpFitsIntoATerminal of 80 columns, but for commands to copy.
func TestHelpFitsIntoATerminal(t *testing.T) {
	t.Parallel()
	names := []string{"", "dead", "effects", "deferred", "migrate", "man", "completion"}
	for i := range commands {
		names = append(names, commands[i].name)
	}
	for _, name := range names {
		_, out, _ := call(t, nil, append(strings.Fields(name), "--help")...)
		for line := range strings.Lines(out) {
			if n := len([]rune(strings.TrimRight(line, "\n"))); n > narrowWidth && !strings.HasPrefix(line, "    ") {
				t.Errorf("%s --help: %d columns: %s", name, n, line)
			}
		}
	}
}

func TestContextNamesTheDatabases(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	other, _ := plantSQLite(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	ok(t, os.WriteFile(file, []byte("context: shop\ncontexts:\n  shop:\n    outbox: ["+url+", "+other+"]\n    inbox: "+url+"\n    consumer: stock/reserve\n    lease: 3s\n  none: {}\n"), 0o600))
	env := []string{"BOXPAIR_CONFIG=" + file}
	status, out, errs := call(t, env, "status", "-o", "json")
	var got report
	ok(t, json.Unmarshal([]byte(out), &got))
	if status != exitOK || len(got.Outboxes) != 2 || len(got.Inboxes) != 1 || errs != "" {
		t.Errorf("%d, %s, %q", status, out, errs)
	}
	if status, out, _ = call(t, env, "why", deadID); status != exitFound || !strings.Contains(out, "boxpair dead redrive "+deadID+" --context shop --outbox "+url+" -m") ||
		!strings.Contains(out, "boxpair dead redrive "+deadID+" --consumer stock/reserve --context shop -m") {
		t.Errorf("%d, %s", status, out)
	}
	if status, _, errs = call(t, env, "status", "--context", "none"); status != exitFailed || !strings.Contains(errs, "--outbox or --inbox") {
		t.Errorf("%d, %q", status, errs)
	}
	if status, out, _ = call(t, env, "status", "--outbox", url, "-o", "json"); status != exitOK || strings.Count(out, `"pending_capped"`) != 1 {
		t.Errorf("%d, %s", status, out)
	}
}

func TestDeferredEventsAreListedMovedAndCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(`WITH q AS (DELETE FROM boxpair.outbox_queue RETURNING shard, id)
		INSERT INTO boxpair.outbox_deferred (id, due_at, shard, key) SELECT id, now() + interval '1 day', shard, 'k' FROM q`)
	deferred := func(status int, args string, texts ...string) string {
		t.Helper()
		got, out, errs := call(t, nil, append([]string{"deferred"}, append(strings.Fields(args), "--outbox", r.url)...)...)
		for _, text := range texts {
			if got != status || !strings.Contains(out+errs, text) {
				t.Errorf("%s: %d, %q, %q", args, got, out, errs)
			}
		}
		return out
	}
	deferred(exitOK, "list", id(1).String()[:8]+"  in 23h", "order.placed")
	deferred(exitOK, "move "+id(1).String()+" --at 0s", id(1).String()+"\n", "1 of 1 selected were moved")
	deferred(exitOK, "move "+id(3).String()+" --at 2h -m customer --as night", "level=INFO", `msg="deferred events moved" events=1 first_dispatch_id=`+id(3).String(), " reason=customer by=night\n")
	deferred(exitFailed, "move --all --at 2h -m "+strings.Repeat("x", 1025), "--reason: want at most 1 KiB")
	deferred(exitOK, "cancel "+id(2).String()[:8]+" -m paid", id(2).String()+"\n", "1 of 1 selected were cancelled")
	deferred(exitOK, "cancel --all --dry-run", "2 selected; nothing was cancelled")
	deferred(exitFound, "cancel --topic none -m paid", "0 of 0 selected were cancelled")
	deferred(exitFailed, "cancel -m paid", "--all: no filter given")
	deferred(exitFailed, "cancel --all", "--reason: is missing")
	deferred(exitFailed, "move --all", "--at: is missing")
	if out := r.says(exitOK, "show "+id(2).String()); !strings.Contains(out, "paid (by ") {
		t.Errorf("nobody knows who cancelled it: %s", out)
	}
}

func TestReplaySendsAgainWhatIsSelected(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	r.exec(`DELETE FROM boxpair.outbox_queue`)
	again := func(status int, args, text string) {
		t.Helper()
		if got, out, errs := call(t, nil, append(strings.Fields("replay "+args), "--outbox", r.url)...); got != status || !strings.Contains(out+errs, text) {
			t.Errorf("%s: %d, %q, %q", args, got, out, errs)
		}
	}
	again(exitFailed, "", "--all: no filter given")
	again(exitOK, "--all --dry-run", "3 selected; nothing was replayed")
	again(exitOK, "--key k --limit 2", "2 replayed")
	again(exitOK, id(3).String()+" -m newcomer --as night", "1 replayed")
	again(exitFailed, "--all --as night -m "+strings.Repeat("x", 1020), "--reason: has 1020 bytes, want at most 1013: the history also names the operator night")
	r.says(exitOK, "show "+id(3).String(), "Z newcomer (by night)\n")
	r.says(exitOK, "show "+id(1).String(), "Z by ")
	again(exitFound, "--topic none", "0 replayed")
}

func TestDrainSendsWhatWaitsAndEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	broker := testenv.AMQPURL(t)
	topic := testenv.Name(t)
	r.exec(`UPDATE boxpair.outbox_events SET topic = '` + topic + `'`)
	drained := func(status int, args, text string) {
		t.Helper()
		if got, out, errs := call(t, nil, append(strings.Fields("drain --within 2m "+args), "--outbox", r.url, "--amqp", broker)...); got != status || !strings.Contains(out, text) {
			t.Errorf("%s: %d, %q, %q", args, got, out, errs)
		}
	}
	drained(exitOK, "--drop-unroutable #", "3 delivered, 0 attempts failed, 0 dead, 0 left")
	drained(exitOK, "--drop-unroutable #", "0 delivered, 0 attempts failed, 0 dead, 0 left")
	await(t, func() error { // the retention has to pass
		if _, out, _ := call(t, nil, "janitor", "--dry-run", "--retention", "1s", "--outbox", r.url); !strings.Contains(out, " 3 delivered,") {
			return fmt.Errorf("%q", out)
		}
		return nil
	})
	await(t, func() error {
		status, out, errs := call(t, nil, "janitor", "--once", "--retention", "1s", "--outbox", r.url)
		if status != exitOK || !strings.Contains(out, " events, ") {
			t.Errorf("%d, %q, %q", status, out, errs)
		}
		var left int
		if err := r.conn.QueryRow(t.Context(), `SELECT count(*) FROM boxpair.outbox_events`).Scan(&left); err != nil {
			return err
		}
		if left > 0 {
			return fmt.Errorf("%d events are left", left)
		}
		return nil
	})
}

func TestIDsAreComputedWithoutADatabase(t *testing.T) {
	t.Parallel()
	cause := id(1)
	for args, want := range map[string]string{
		"--producer shop --source order --version-number 1":                  id(1).String(),
		"--producer shop --source order --idempotency-key x --index 2":       idgen.OfKey("shop", "order", "x", 2).String(),
		"--consumer stock/reserve --cause " + cause.String() + " --index 1":  idgen.Child("stock/reserve", cause, 1).String(),
		"--consumer stock/reserve --producer shop --cause " + cause.String(): "--consumer: goes with --cause",
		"--source order":                      "--producer or --consumer: is missing",
		"--producer shop --cause x":           "--cause: want a UUID",
		"--producer shop --version-number -1": "--version-number: want a number",
	} {
		if _, out, errs := call(t, nil, append([]string{"id"}, strings.Fields(args)...)...); !strings.Contains(out+errs, want) {
			t.Errorf("%s: %q, %q, want %q", args, out, errs, want)
		}
	}
}

// TestManualPagesAndCompletionAreWritten for every command.
func TestManualPagesAndCompletionAreWritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if status, _, errs := call(t, nil, "man", dir); status != exitOK {
		t.Fatal(errs)
	}
	pages, err := os.ReadDir(dir)
	ok(t, err)
	if len(pages) < len(commands) {
		t.Errorf("%d pages for %d commands", len(pages), len(commands))
	}
	if _, out, _ := call(t, nil, "__complete", "dead", "list", "--state", ""); !strings.Contains(out, "retrying\n") {
		t.Errorf("states are not completed: %q", out)
	}
}
