package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// TestContextOfBothSidesIsOperated: the settings of a context name an outbox and an inbox, and a command
// takes the side that it is about.
func TestContextOfBothSidesIsOperated(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	ok(t, os.WriteFile(file, []byte("contexts: {shop: {outbox: "+url+", inbox: "+url+"}}\n"), 0o600))
	for _, c := range []struct {
		status    int
		args, out string
		errs      string
	}{
		{exitOK, "pause --topic order.# -m counting", "topic order.# is paused: counting\n", ""},
		{exitOK, "resume --topic order.#", "topic order.# is resumed\n", ""},
		{exitOK, "pause --consumer stock/reserve -m counting", "consumer stock/reserve is paused: counting\n", ""},
		{exitFailed, "pause --topic order.# --consumer stock/reserve -m counting", "", "want exactly one, got 2"},
		{exitOK, "dead redrive " + deadID + " -m mended", deadID + "\n" + deadID + "\n", "1 of 1 selected were redriven\n1 of 1 selected were redriven\n"},
		{exitOK, "dead discard " + deadID + " --consumer stock/reserve -m x", deadID + "\n", "1 of 1 selected were discarded\n"},
		{exitOK, "dead discard --topic order.placed --state retrying -m x", deadID + "\n", "1 of 1 selected were discarded\n"},
		{exitFound, "dead redrive --topic none -m x", "", "no recent event, route or relay has topic none\nnothing of the given databases is selected; nothing was redriven\n"},
		{exitFailed, "dead redrive ffffffff -m x", "", "no dispatch ID begins so in any given database"},
	} {
		status, out, errs := call(t, []string{"BOXPAIR_CONFIG=" + file, "BOXPAIR_CONTEXT=shop"}, strings.Fields(c.args)...)
		if status != c.status || out != c.out || c.status != exitFailed && errs != c.errs || !strings.Contains(errs, c.errs) {
			t.Errorf("%s: %d, %q, %q", c.args, status, out, errs)
		}
	}
}

// TestWhyKnowsTheQueuesOfTheTopic, and explains what the databases know without the broker.
func TestWhyKnowsTheQueuesOfTheTopic(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`DELETE FROM boxpair.outbox_queue`, `INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-1', '{1}')`)
	var consumers atomic.Int64
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch {
		case strings.HasSuffix(q.URL.Path, "/bindings/source"):
			_, _ = w.Write([]byte(`[{"destination": "order.placed_stock", "destination_type": "queue"}]`))
		case strings.HasSuffix(q.URL.Path, "/queues///order.placed_stock"):
			_, _ = w.Write([]byte(`{"messages_ready": 2, "messages_unacknowledged": 0, "consumers": ` + strconv.FormatInt(consumers.Load(), 10) + `}`))
		default:
			http.NotFound(w, q)
		}
	}))
	t.Cleanup(broker.Close)
	args := "why " + id(1).String() + " --management " + broker.URL
	r.says(exitFound, args, "queue order.placed_stock has 2 messages that wait, 0 that are being handled, and 0 consumers",
		"# nobody consumes queue order.placed_stock: start its consumer")
	consumers.Store(1)
	r.says(exitOK, args, "and 1 consumers")
	broker.Close()
	r.says(exitOK, args, "delivered   the broker confirmed it", "broker      could not be asked: no management API at")
}

// TestWhyFollowsTheBindingsOfTheTopic, through exchanges that several topics share and from partitions
// that are bound many times.
func TestWhyFollowsTheBindingsOfTheTopic(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.exec(`DELETE FROM boxpair.outbox_queue`, `INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-1', '{1,2}')`)
	const queue = `{"messages_ready": 2, "messages_unacknowledged": 0, "consumers": 0}`
	answers := map[string]string{
		"/queues//":    `[]`,
		"/exchanges//": `[{"name": "", "type": "direct"}, {"name": "amq.fanout", "type": "fanout"}, {"name": "shop", "type": "topic"}]`,
		"/exchanges///shop/bindings/source": `[
			{"destination": "order.placed_stock", "destination_type": "queue", "routing_key": "order.#"},
			{"destination": "parts.1of2", "destination_type": "queue", "routing_key": "order.placed.0"},
			{"destination": "parts.1of2", "destination_type": "queue", "routing_key": "order.placed.2"},
			{"destination": "copies", "destination_type": "exchange", "routing_key": "order.placed"},
			{"destination": "others", "destination_type": "queue", "routing_key": "payment.#"}]`,
		"/exchanges///copies":                 `{"type": "fanout"}`,
		"/exchanges///copies/bindings/source": `[{"destination": "audit", "destination_type": "queue", "routing_key": ""}, {"destination": "shop", "destination_type": "exchange"}]`,
		"/queues///order.placed_stock":        queue, "/queues///parts.1of2": queue, "/queues///audit": queue, "/queues///others": queue,
	}
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		text, found := answers[strings.TrimPrefix(q.URL.Path, "/api")]
		if !found {
			http.NotFound(w, q)
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(broker.Close)
	args := "why " + id(1).String() + " --management " + broker.URL
	out := r.says(exitFound, args, "queue order.placed_stock has 2 messages", "nobody consumes queue order.placed_stock", "queue audit has 2 messages")
	if strings.Contains(out, "others") || strings.Count(out, "queue parts.1of2 has") != 1 || strings.Count(out, "nobody consumes queue parts.1of2") != 1 {
		t.Error(out)
	}
	r.exec(relayOwns, `UPDATE boxpair.outbox_relays SET report = '{"topics": [{"topic": "order.placed", "route": "relay other/order.placed"}]}', reported_at = now()`)
	r.says(exitOK, args, "no queue takes topic order.placed") // on the route that the relay has reported
}

// TestWhyNamesTheQueueThatIsNotBound, as after an accident at the broker.
func TestWhyNamesTheQueueThatIsNotBound(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(relayOwns, `INSERT INTO boxpair.outbox_routes (relay, topic, route, state, since, last_error) VALUES ('relay-1', 'order.placed', 'shop: order', 'refusing', now(), 'NO_ROUTE')`)
	broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		switch q.URL.Path {
		case "/api/exchanges//":
			_, _ = w.Write([]byte(`[]`))
		case "/api/queues//":
			_, _ = w.Write([]byte(`[{"name": "order.placed_stock", "consumers": 1}, {"name": "order.paid_stock", "consumers": 1}]`))
		default:
			http.NotFound(w, q)
		}
	}))
	t.Cleanup(broker.Close)
	out := r.says(exitFound, "why "+id(1).String()+" --management "+broker.URL, "no queue takes topic order.placed",
		"queue order.placed_stock is there, with 1 consumers, and is not bound to the topic", "boxpair declare --topic order.placed --consumer stock ")
	if strings.Contains(out, "order.paid_stock") {
		t.Error(out)
	}
}

// TestOverdueRetryIsNotHealedByARedrive: no process takes the message up, so another time changes
// nothing.
func TestOverdueRetryIsNotHealedByARedrive(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, next_attempt_at)
			VALUES (1, '`+id(1).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, true, '{}', '', 'retrying', 3, now() - interval '1 hour')`)
	if out := r.says(exitFound, "why "+id(1).String(), "# no process of stock/reserve takes it up: start the consumer"); strings.Contains(out, "--state retrying") {
		t.Error(out)
	}
	r.exec(`UPDATE boxpair.inbox_parked SET next_attempt_at = now() + interval '1 hour'`)
	r.says(exitFound, "why "+id(1).String(), "--state retrying --consumer stock/reserve",
		"boxpair dead edit "+id(1).String()+" --payload-file FILE --consumer stock/reserve", "boxpair dead discard "+id(1).String()+" --consumer stock/reserve")
}

// TestPoisonMessageIsEditedWhileItIsRetried, as why says.
func TestPoisonMessageIsEditedWhileItIsRetried(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts, next_attempt_at)
			VALUES (1, '`+id(1).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, true, '{}', '24O', 'retrying', 3, now() + interval '1 hour')`)
	mended := filepath.Join(t.TempDir(), "mended")
	ok(t, os.WriteFile(mended, []byte("240"), 0o600))
	status, out, errs := call(t, nil, "dead", "edit", id(1).String(), "--payload-file", mended, "--consumer", "stock/reserve", "--inbox", r.url, "-m", "a letter")
	if status != exitOK || errs != "" {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	r.says(exitOK, "dead show "+id(1).String()+" --consumer stock/reserve", "discarded", "edited as "+strings.TrimSpace(out))
}

// TestHealLooksAtAllDatabases, since a window is too short only for the events of an outbox.
func TestHealLooksAtAllDatabases(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`,
		`INSERT INTO boxpair.inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, metadata, payload, state, attempts)
			VALUES (1, '`+id(1).String()+`', decode(repeat('00', 16), 'hex'), 'order.placed', 'k', true, false, '{}', '', 'too_old', 0)`)
	target, err := parseTarget(r.url)
	ok(t, err)
	shown := quoted(target.shown)
	r.says(exitFound, "why "+id(1).String(), "boxpair doctor --outbox "+shown+" --inbox "+shown+"\n",
		"# only if it was not applied before: the consumer no longer remembers", "boxpair dead redrive "+id(1).String()+" --consumer stock/reserve")
	if _, out, errs := call(t, nil, "why", id(1).String(), "--inbox", r.url); !strings.Contains(out, "boxpair doctor --inbox "+shown+" --outbox …\n") {
		t.Errorf("%s%s", out, errs)
	}
	if _, out, errs := call(t, []string{"BOXPAIR_INBOX_URL=" + r.url, "BOXPAIR_OUTBOX_URL=" + r.url}, "why", id(1).String()); !strings.Contains(out, "boxpair doctor\n") {
		t.Errorf("%s%s", out, errs)
	}
	r.exec(`INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-1', '{1}'), ('relay-2', '{1}')`)
	out := r.says(exitFound, "why "+id(1).String(), "it was sent 2 times: the consumer has probably applied an earlier copy")
	if strings.Index(out, "dead discard") > strings.Index(out, "dead redrive") {
		t.Errorf("a copy is to be redriven first:\n%s", out)
	}
	if status, out, errs := call(t, nil, "dead", "redrive", id(1).String(), "--inbox", r.url, "-m", "not posted"); status != exitOK {
		t.Errorf("a too old message is redriven by its ID: %d, %q, %q", status, out, errs)
	}
}

// TestStateOfADatabaseThatCannotBeReadIsUnknown, beside others that can.
func TestStateOfADatabaseThatCannotBeReadIsUnknown(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	status, out, errs := call(t, nil, "status", "-o", "json", "--outbox", url, "--outbox", "sqlite:/none/of/these.db")
	var got report
	ok(t, json.Unmarshal([]byte(out), &got))
	if status != exitFailed || got.State != unknown || len(got.Outboxes) != 1 || len(got.Errors) != 1 || !strings.Contains(errs, "/none/of/these.db") {
		t.Errorf("%d, %s, %q", status, out, errs)
	}
}
