package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/store/sqlite"
)

const deadID = "01020304-0506-0708-090a-0b0c0d0e0f10"

// plantDead makes a pair with one dead event and one dead message.
func plantDead(t *testing.T) (url string, count func(query string) int) {
	t.Helper()
	url, change := plantSQLite(t)
	change(`INSERT INTO boxpair_outbox_parked (id, shard, key, state, attempts, parked_at, last_error)
		SELECT id, shard, key, 'dead', 7, 1, 'no route' FROM boxpair_outbox_events`)
	change(`INSERT INTO boxpair_inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, payload, stamp, state, attempts, parked_at, last_error)
		SELECT 1, dispatch_id, digest, 'order.placed', 'k', 1, 1, '` + payload + `', stamp, 'dead', 3, 1, 'no stock' FROM boxpair_inbox`)
	db, err := sqlite.Open(strings.TrimPrefix(url, "sqlite:"))
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	return url, func(query string) (n int) {
		ok(t, db.QueryRowContext(t.Context(), query).Scan(&n))
		return n
	}
}

func TestDeadEventsAreListedRedrivenAndDiscarded(t *testing.T) {
	t.Parallel()
	url, count := plantDead(t)
	status, out, errs := call(t, nil, "dead", "list", "--wide", "--each", "--outbox", url)
	if status != exitOK || !strings.Contains(out, deadID+"  dead") || !strings.Contains(out, "no route") || strings.Contains(out, payload) {
		t.Fatalf("list: %d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "dead", "redrive", "--outbox", url, "--error", "no route", "--dry-run")
	if status != exitOK || out != deadID+"\n" || errs != "1 selected; nothing was redriven\n" || count(`SELECT count(*) FROM boxpair_outbox_parked WHERE state = 'dead'`) != 1 {
		t.Fatalf("redrive, dry: %d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "dead", "redrive", "--outbox", url, "--error", "no route", "--force", "--reason", "queue exists", "--as", "night shift")
	if status != exitOK || out != deadID+"\n" || count(`SELECT count(*) FROM boxpair_outbox_parked WHERE state = 'dead'`) != 0 {
		t.Fatalf("redrive: %d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "dead", "discard", "--outbox", url, "--id", deadID, "--reason", "a test", "-o", "json")
	if status != exitOK || out != `{"ids":["`+deadID+`"]}`+"\n" {
		t.Fatalf("discard: %d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "dead", "show", deadID, "--outbox", url, "-o", "json")
	var shown struct{ Parked []parked }
	ok(t, json.Unmarshal([]byte(out), &shown))
	if status != exitOK || len(shown.Parked) != 1 || !strings.HasPrefix(shown.Parked[0].Reason, "a test (by ") || len(shown.Parked[0].History) != 2 ||
		shown.Parked[0].History[0].Outcome != "redriven" || shown.Parked[0].History[0].Error != "queue exists (by night shift)" {
		t.Errorf("show: %d, %q, %q", status, out, errs)
	}
	long := strings.Repeat("no route to the queue ", 9) + "at all"
	if _, out, _ = call(t, nil, "dead", "redrive", deadID, "--state", "discarded", "--outbox", url, "-m", long, "--force"); out != deadID+"\n" {
		t.Errorf("redrive of a discarded event: %q", out)
	}
	if _, out, _ = call(t, nil, "dead", "show", deadID, "--outbox", url); !strings.Contains(strings.Join(strings.Fields(out), " "), long) {
		t.Errorf("show cuts a long text off:\n%s", out)
	}
	if status, _, errs = call(t, nil, "dead", "show", "--outbox", url, "--id", "00000000-0000-0000-0000-000000000001"); status != exitFailed ||
		!strings.Contains(errs, "--id: nothing with this dispatch ID is parked") {
		t.Errorf("show of another: %d, %q", status, errs)
	}
}

func TestDeadMessagesAreListedAndRedriven(t *testing.T) {
	t.Parallel()
	url, count := plantDead(t)
	status, out, errs := call(t, nil, "dead", "list", "--wide", "--each", "--inbox", url, "--consumer", "stock/reserve")
	if status != exitOK || !strings.Contains(out, "stock/reserve") || !strings.Contains(out, "no stock") || strings.Contains(out, payload) {
		t.Fatalf("list: %d, %q, %q", status, out, errs)
	}
	if _, out, _ = call(t, nil, "dead", "list", "--each", "--inbox", url, "--consumer", "other/one", "-o", "json"); out != `{"parked":[]}`+"\n" {
		t.Errorf("list of another consumer: %q", out)
	}
	status, out, errs = call(t, nil, "dead", "redrive", "--inbox", url, "--all", "--reason", "stock came")
	if status != exitOK || out != deadID+"\n" || count(`SELECT count(*) FROM boxpair_inbox_parked WHERE state = 'dead'`) != 0 {
		t.Errorf("redrive: %d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "dead", "discard", "--inbox", url, "--state", "retrying", "--reason", "a test")
	if status != exitOK || out != deadID+"\n" {
		t.Errorf("discard: %d, %q, %q", status, out, errs)
	}
	status, out, errs = call(t, nil, "dead", "show", "--inbox", url, "--id", deadID, "-o", "json")
	var shown struct{ Parked []parked }
	ok(t, json.Unmarshal([]byte(out), &shown))
	if status != exitOK || len(shown.Parked) != 1 || len(shown.Parked[0].History) != 2 ||
		shown.Parked[0].History[0].Outcome != "redriven" || !strings.HasPrefix(shown.Parked[0].History[0].Error, "stock came (by ") || !strings.HasPrefix(shown.Parked[0].History[1].Error, "a test (by ") {
		t.Errorf("show: %d, %q, %q", status, out, errs)
	}
}

// TestDiscardIsTakenBack, since a discard may be a mistake.
func TestDiscardIsTakenBack(t *testing.T) {
	t.Parallel()
	url, count := plantDead(t)
	for _, side := range []string{"--outbox", "--inbox"} {
		table := "boxpair_outbox_parked"
		if side == "--inbox" {
			table = "boxpair_inbox_parked"
		}
		if status, _, errs := call(t, nil, "dead", "discard", deadID, side, url, "-m", "a mistake"); status != exitOK {
			t.Fatal(errs)
		}
		if status, out, errs := call(t, nil, "dead", "redrive", deadID, "--state", "discarded", side, url, "-m", "needed after all"); status != exitOK || out != deadID+"\n" {
			t.Errorf("%s: %d, %q, %q", side, status, out, errs)
		}
		if n := count(`SELECT count(*) FROM ` + table + ` WHERE state = 'retrying' AND coalesce(reason, '') = ''`); n != 1 {
			t.Errorf("%s: %d are retrying", side, n)
		}
	}
}

func TestDeadLetterIsEdited(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`WITH q AS (DELETE FROM boxpair.outbox_queue RETURNING shard, id)
		INSERT INTO boxpair.outbox_parked (id, shard, key, state, attempts, last_error) SELECT id, shard, 'k', 'dead', 4, 'refused' FROM q`)
	mended := filepath.Join(t.TempDir(), "mended")
	ok(t, os.WriteFile(mended, []byte("mended"), 0o600))
	args := []string{"dead", "edit", id(1).String()[:8], "--outbox", r.url, "--payload-file", mended, "--header", "by=hand", "-m", "price was missing"}
	status, out, errs := call(t, nil, args...)
	if status != exitOK || errs != "" {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	copied := strings.TrimSpace(out)
	if _, again, errs := call(t, nil, args...); again != out {
		t.Errorf("the same edit again: %q, %q", again, errs)
	}
	r.says(exitOK, "show --payload "+copied, "payload         mended\n", "header by       hand", "state           pending")
	r.says(exitOK, "show "+id(1).String(), "state           discarded", "edited as "+copied)
	for want, args := range map[string][]string{
		"--payload-file or --header: is missing": {"--outbox", r.url, id(1).String(), "-m", "x"},
		"--reason: is missing":                   {"--outbox", r.url, id(1).String(), "--header", "a=b"},
		"--consumer: is required with --inbox":   {"--inbox", r.url, id(1).String(), "--header", "a=b", "-m", "x"},
		"ID: want exactly one, got 0":            {"--outbox", r.url, "--header", "a=b", "-m", "x"},
		"--header: want NAME=VALUE":              {"--outbox", r.url, "--header", "a"},
		"--payload-file: open ":                  {"--outbox", r.url, id(1).String(), "--payload-file", mended + "x", "-m", "x"},
	} {
		if status, _, errs := call(t, nil, append([]string{"dead", "edit"}, args...)...); status != exitFailed || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %q", args, status, errs)
		}
	}
}

func TestNothingIsChangedUnlessItIsSelected(t *testing.T) {
	t.Parallel()
	url, count := plantDead(t)
	for want, args := range map[string][]string{
		"--all: no filter given":                            {"redrive", "--outbox", url, "--reason", "a test"},
		"add one, or pass --all\n--reason: is missing":      {"redrive", "--inbox", url},
		"--reason: is missing":                              {"discard", "--outbox", url, "--all"},
		"dead redrive: --reason: is missing":                {"redrive", "--outbox", url, "--all"},
		"--reason: want at most 1 KiB of text":              {"redrive", "--inbox", url, "--all", "--reason", strings.Repeat("x", 1025)},
		"--outbox or --inbox (or BOXPAIR_OUTBOX_URL":        {"redrive", "--all", "--reason", "a test"},
		"--id: want a UUID, or at least its first 8 digits": {"redrive", "--outbox", url, "--id", "x"},
		"--state: unknown state \"too_old\"":                {"redrive", "--outbox", url, "--state", "too_old", "--reason", "a test"},
		"--consumer: an outbox has no consumers":            {"redrive", "--outbox", url, "--consumer", "a/b", "--reason", "a test"},
		"--id: is missing":                                  {"show", "--inbox", url},
		"unknown command \"bury\"":                          {"bury"},
		"--since: want a time such as":                      {"list", "--inbox", url, "--since", "1w"},
		"--until: want a time such as":                      {"list", "--inbox", url, "--until", "d"},
	} {
		status, out, errs := call(t, nil, append([]string{"dead"}, args...)...)
		if status != exitFailed || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%v: %d, %q, %q, want %q", args, status, out, errs, want)
		}
	}
	if n := count(`SELECT (SELECT count(*) FROM boxpair_outbox_parked WHERE state = 'dead') + (SELECT count(*) FROM boxpair_inbox_parked WHERE state = 'dead')`); n != 2 {
		t.Errorf("%d are dead", n)
	}
}

// TestReasonThatLeavesNoRoomForTheNameIsRefused, since the history has to name the operator.
func TestReasonThatLeavesNoRoomForTheNameIsRefused(t *testing.T) {
	t.Parallel()
	url, count := plantDead(t)
	const want = "--reason: has 1014 bytes, want at most 1013: the history also names the operator night"
	for _, args := range []string{"dead redrive --all", "dead discard --all", "dead edit --header a=b " + deadID} {
		status, out, errs := call(t, nil, append(strings.Fields(args), "--outbox", url, "--as", "night", "-m", strings.Repeat("x", 1014))...)
		if status != exitFailed || out != "" || !strings.Contains(errs, want) {
			t.Errorf("%s: %d, %q, %q", args, status, out, errs)
		}
	}
	if n := count(`SELECT count(*) FROM boxpair_outbox_parked WHERE state = 'dead'`); n != 1 {
		t.Errorf("%d are dead", n)
	}
}

// TestDeclinedChangeChangesNothing, and says so.
func TestDeclinedChangeChangesNothing(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	for _, state := range []string{"deferred", "dead", "delivered"} {
		change(`WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3)
			INSERT INTO boxpair_outbox_events (dispatch_id, digest, shard, topic, payload, occurred_at, created_at)
			SELECT randomblob(16), digest, 1, '` + state + `', '', 1, created_at FROM boxpair_outbox_events, n WHERE topic = 'order.placed'`)
	}
	change(`DELETE FROM boxpair_outbox_queue`)
	change(`INSERT INTO boxpair_outbox_deferred (id, due_at, shard, key) SELECT id, (unixepoch() + 86400) * 1000000, 1, '' FROM boxpair_outbox_events WHERE topic = 'deferred'`)
	change(`INSERT INTO boxpair_outbox_parked (id, shard, key, state, attempts, parked_at, last_error)
		SELECT id, 1, '', 'dead', 7, 1, 'no route' FROM boxpair_outbox_events WHERE topic = 'dead'`)
	for _, args := range []string{
		"dead discard --topic dead -m mistake", "dead redrive --topic dead -m mended", "deferred move --topic deferred --at 0s", "deferred cancel --topic deferred -m paid", "replay --topic delivered",
	} {
		words := append(strings.Fields(args), "--outbox", url)
		question := strings.Fields(strings.TrimPrefix(strings.TrimPrefix(args, "dead "), "deferred "))[0] + " 3 of "
		for _, answer := range []string{"n\n", "\n", "", "no\n"} {
			status, out, errs := typed(t, answer, words...)
			if status != exitFailed || out != "" || !strings.Contains(errs, question) || !strings.Contains(errs, "? [y/N] ") || !strings.Contains(errs, "declined; nothing was changed") {
				t.Errorf("%s, %q: %d, %q, %q", args, answer, status, out, errs)
			}
		}
		if strings.HasPrefix(args, "dead discard") { // so that they can be redriven
			continue
		}
		if status, _, errs := typed(t, "Y\n", words...); status != exitOK || !strings.Contains(errs, "3 ") {
			t.Errorf("%s, accepted: %d, %q", args, status, errs)
		}
	}
}

func TestWhatIsNotChangedIsSaid(t *testing.T) {
	t.Parallel()
	url, _ := plantDead(t)
	const other = "00000000-0000-0000-0000-000000000001"
	for _, c := range []struct {
		status     int
		out, says  string
		side, args string
	}{
		{exitFound, "", "0 of 0 selected were redriven\n", "--outbox", "redrive --topic no.such.topic --reason x"},
		{exitFound, "", other + " is not parked here\n", "--inbox", "discard --id " + other + " --reason x"},
		{exitFound, "", "0 of 0 selected were discarded\n", "--outbox", "discard --since 2020-01-31 --until 1d --reason x"}, // parked in 1970
		{exitOK, deadID + "\n", "1 of 1 selected were discarded\n", "--outbox", "discard --all --reason x"},
		{exitFound, "", deadID + " stays discarded\n", "--outbox", "redrive --id " + deadID + " --reason x"},
		{exitOK, deadID + "\n", "1 of 1 selected were redriven\n", "--inbox", "redrive --all --reason x"},
		{exitOK, deadID + "\n", "1 of 1 selected were redriven\n", "--inbox", "redrive --id " + deadID + " --reason x"},
		{exitFound, "", "0 of 0 selected were redriven\n", "--inbox", "redrive --all --reason x"},
	} {
		args := strings.Fields(c.args)
		status, out, errs := call(t, nil, append([]string{"dead", args[0], c.side, url}, args[1:]...)...)
		if status != c.status || out != c.out || !strings.Contains(errs, c.says) {
			t.Errorf("%s: %d, %q, %q, want %d, %q, %q", c.args, status, out, errs, c.status, c.out, c.says)
		}
	}
	if status, _, errs := call(t, nil, "dead", "list", "--wide", "--each", "--outbox", url); status != exitOK || errs != "nothing matches the filter\n" {
		t.Errorf("list: %d, %q", status, errs)
	}
}

// TestAllThatIsSelectedIsChangedInBatches selects more letters than one batch holds.
func TestAllThatIsSelectedIsChangedInBatches(t *testing.T) {
	t.Parallel()
	url, change := plantSQLite(t)
	change(`WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 250)
		INSERT INTO boxpair_inbox_parked (consumer, dispatch_id, digest, topic, key, ordered, claimed, payload, stamp, state, attempts, parked_at, last_error)
		SELECT 1, randomblob(16), digest, 'order.placed', 'k', 1, 1, '', stamp, 'dead', 3, 1, 'no stock' FROM boxpair_inbox, n`)
	if _, out, errs := call(t, nil, "dead", "list", "--each", "--inbox", url); strings.Count(out, "\n") != 101 || errs != "100 of 250 are shown: pass --limit 250 to see all\n" {
		t.Errorf("list: %d lines, %q", strings.Count(out, "\n"), errs)
	}
	for args, lines := range map[string]int{"": 20, "--limit 20": 20, "--limit 21 --wide": 21, "--wide": 250, "-o json": 1} {
		_, out, errs := call(t, nil, append([]string{"dead", "redrive", "--inbox", url, "--all", "--dry-run"}, strings.Fields(args)...)...)
		if strings.Count(out, "\n") != lines || strings.Contains(errs, "of the first 20; --wide prints all") != (args == "") {
			t.Errorf("dry %s: %d lines, %q", args, strings.Count(out, "\n"), errs)
		}
	}
	_, out, errs := call(t, nil, "dead", "redrive", "--inbox", url, "--all", "--limit", "7", "--reason", "x")
	if strings.Count(out, "\n") != 7 || errs != "7 of 7 selected were redriven\n" {
		t.Errorf("some: %d, %q", strings.Count(out, "\n"), errs)
	}
	_, out, errs = call(t, nil, "dead", "redrive", "--inbox", url, "--all", "--reason", "x")
	if strings.Count(out, "\n") != 243 || !strings.HasSuffix(errs, "243 of 243 selected were redriven\n") {
		t.Errorf("all: %d, %q", strings.Count(out, "\n"), errs)
	}
}
