package main

import (
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/testenv"
)

func TestWhatIsPausedIsSaidUntilItIsResumed(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	said := func(want string, args ...string) {
		t.Helper()
		if status, out, errs := call(t, nil, args...); status != exitOK || out != want || errs != "" && !strings.Contains(want, "analytics") {
			t.Errorf("%v: %d, %q, %q, want %q", args, status, out, errs, want)
		}
	}
	said("downstream analytics is paused by alice: the broker moves\n",
		"pause", "--outbox", url, "--downstream", "analytics", "--reason", "the broker moves", "--as", "alice")
	said("topic order.# is paused until 2126-01-31T12:00:00Z: wrong prices\n",
		"pause", "--outbox", url, "--topic", "order.#", "--reason", "wrong prices", "--until", "2126-01-31T12:00:00Z")
	said("consumer stock/reserve is paused: stock is counted\n",
		"pause", "--inbox", url, "--consumer", "stock/reserve", "--reason", "stock is counted")
	said("consumer stock/* is paused until 2126-01-31T00:00:00Z: stock is counted\n",
		"pause", "--inbox", url, "--consumer", "stock/*", "--reason", "stock is counted", "--until", "2126-01-31")

	status, out, errs := call(t, nil, "status", "--wide", "--outbox", url)
	if status != exitOK || strings.Contains(out, "consumer") || errs != "" ||
		!strings.Contains(out, "\npaused      name       since                 until                 by     reason\ndownstream  analytics  2") ||
		!strings.Contains(out, "-                     alice  the broker moves\n") || !strings.Contains(out, "2126-01-31T12:00:00Z  -      wrong prices\n") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "status", "--outbox", url, "-o", "json")
	outbox := outboxOf(t, out)
	if p := outbox.Pauses; status != exitOK || len(p) != 2 || p[0].Kind != "downstream" || p[0].By != "alice" || p[0].Until != nil || p[0].Since.IsZero() ||
		p[1].Name != "order.#" || p[1].Reason != "wrong prices" || p[1].Until == nil || p[1].Until.Year() != 2126 {
		t.Errorf("%d, %+v, %q", status, p, errs)
	}
	status, out, errs = call(t, nil, "status", "--inbox", url, "--consumer", "stock/reserve", "-o", "json")
	inbox := inboxOf(t, out)
	if p := inbox.Pauses; status != exitOK || len(p) != 2 || p[0].Name != "stock/*" || p[1].Name != "stock/reserve" {
		t.Errorf("%d, %+v, %q", status, p, errs)
	}
	if status, out, errs = call(t, nil, "status", "--inbox", url); status != exitOK || !strings.Contains(out, "\npaused    name           since") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}

	said("topic order.# is resumed\n", "resume", "--outbox", url, "--topic", "order.#")
	said("consumer stock/* is resumed\n", "resume", "--inbox", url, "--consumer", "stock/*")
	status, out, errs = call(t, nil, "resume", "--outbox", url, "--topic", "order.#")
	if status != exitFound || out != "" || !strings.HasPrefix(errs, "topic order.# is not paused, but:\npaused ") || !strings.Contains(errs, "\ndownstream  analytics  ") ||
		strings.Contains(errs, "stock") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "resume", "--outbox", url, "--downstream", "analytics", "-m", "it has moved", "--as", "bob")
	if status != exitOK || out != "downstream analytics is resumed\n" || !strings.Contains(errs, `level=INFO msg="pause ended" kind=downstream name=analytics reason="it has moved" by=bob`) {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "resume", "--outbox", url, "--downstream", "analytics")
	if status != exitFound || out != "" || errs != "downstream analytics is not paused; nothing is\n" {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	if status, out, errs = call(t, nil, "status", "--outbox", url); status != exitOK || strings.Contains(out, "paused") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	if status, out, errs = call(t, nil, "status", "--outbox", url, "-o", "json"); status != exitOK || !strings.Contains(out, `"pauses":[]`) {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}

// TestPauseOfPostgresNamesTheDatabasesUser and ends after the given time.
func TestPauseOfPostgresNamesTheDatabasesUser(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	plantEvents(t, url, "order.placed", 1)
	status, out, errs := call(t, nil, "pause", "--outbox", url, "--topic", "order.*", "--for", "1h", "--reason", "wrong prices")
	if status != exitOK || !strings.HasPrefix(out, "topic order.* is paused until ") || !strings.Contains(out, "Z by ") || errs != "" {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "status", "--outbox", url, "-o", "json")
	got := outboxOf(t, out)
	if p := got.Pauses; status != exitOK || len(p) != 1 || p[0].By == "" || p[0].Until == nil || time.Until(*p[0].Until) > time.Hour || time.Until(*p[0].Until) < 50*time.Minute {
		t.Errorf("%d, %+v, %q", status, p, errs)
	}
	if status, out, errs = call(t, nil, "resume", "--outbox", url, "--topic", "order.*"); status != exitOK || out != "topic order.* is resumed\n" {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}

func TestPauseOfAConsumerThatNobodyKnowsIsSaid(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	for _, name := range []string{"stock/resrve", "stok/reserve"} {
		status, out, errs := call(t, nil, "pause", "--inbox", url, "--consumer", name, "--reason", "x")
		if status != exitOK || !strings.HasPrefix(out, "consumer "+name+" is paused") || errs != "see that the name is right: no consumer "+name+" has registered yet; did you mean stock/reserve?\n" {
			t.Errorf("%d, %q, %q", status, out, errs)
		}
	}
}

// The trigger is a database whose clock is ahead of the operator's.
func TestPauseThatIsOverByTheDatabasesClockFails(t *testing.T) {
	t.Parallel()
	url, run := plantSQLite(t)
	run(`CREATE TRIGGER ahead AFTER INSERT ON boxpair_pauses WHEN NEW.paused_until IS NOT NULL
		BEGIN UPDATE boxpair_pauses SET paused_until = 1; END`)
	status, out, errs := call(t, nil, "pause", "--outbox", url, "--topic", "order.#", "--for", "30m", "--reason", "wrong prices")
	if status != exitFailed || out != "" || !strings.Contains(errs, "--for, --until: nothing is paused under the name") || !strings.Contains(errs, "is over by the database's clock") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	if status, out, errs := call(t, nil, "pause", "--inbox", url, "--consumer", "stock/reserve", "--for", "30m", "--reason", "x"); status != exitFailed || out != "" {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}

func TestFaultyPauseNamesTheSetting(t *testing.T) {
	t.Parallel()
	url, _ := plantSQLite(t)
	for _, c := range []struct{ want, args string }{
		{"want exactly one, got 0", "pause --topic a --reason x"},
		{"want exactly one, got 2", "pause --outbox URL --outbox URL --topic a --reason x"},
		{"--topic, --downstream: want exactly one", "pause --outbox URL --reason x"},
		{"--topic, --downstream: want exactly one", "pause --outbox URL --topic a --downstream b --reason x"},
		{"--topic, --downstream: belong to an outbox", "pause --inbox URL --consumer stock/* --topic a --reason x"},
		{"--consumer: is missing", "resume --inbox URL"},
		{"--consumer: belongs to an inbox", "pause --outbox URL --topic a --consumer stock/* --reason x"},
		{"--reason: is missing", "pause --outbox URL --topic a"},
		{"--for, --until: want at most one", "pause --outbox URL --topic a --reason x --for 1h --until 2126-01-31"},
		{"--until: this time is over", "pause --outbox URL --topic a --reason x --until 2026-01-31"},
		{"--until: want a time such as", "pause --outbox URL --topic a --reason x --until 1h"},
		{"--for: want a duration such as", "pause --outbox URL --topic a --reason x --for ever"},
		{"--topic: in \"a*\", * and # stand for whole words", "pause --outbox URL --topic a* --reason x"},
		{"--as: want 1 to 255 bytes of text", "pause --outbox URL --topic a --reason x --as " + strings.Repeat("x", 256)},
		{"pause: Name: \"stock\" is not of the form", "pause --inbox URL --consumer stock --reason x"},
		{"--downstream: want 1 to 255 bytes of text", "resume --outbox URL --downstream " + strings.Repeat("x", 256)},
	} {
		status, out, errs := call(t, nil, strings.Fields(strings.ReplaceAll(c.args, "URL", url))...)
		if status != exitFailed || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%s: %d, %q, %q, want %q", c.args, status, out, errs, c.want)
		}
	}
	if status, out, errs := call(t, nil, "status", "--outbox", url); status != exitOK || strings.Contains(out, "paused") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
}
