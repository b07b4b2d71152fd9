package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxpair/boxpair/producer/archive"
	"github.com/boxpair/boxpair/store/outbox"
)

// delivered makes an outbox with one event that was delivered an hour ago.
func delivered(t *testing.T) (url string) {
	t.Helper()
	url, change := plantSQLite(t)
	change(`INSERT INTO boxpair_outbox_receipts (delivered_at, relay, event_ids)
		SELECT (unixepoch() - 3600) * 1000000, 'relay', json_group_array(id) FROM boxpair_outbox_events`)
	return url
}

// readArchive reads the events of an archive.
func readArchive(t *testing.T, dir string) (list []outbox.Archived) {
	t.Helper()
	for e, err := range archive.Read(dir) {
		ok(t, err)
		list = append(list, e)
	}
	return list
}

func TestJanitorArchivesWhatItRemoves(t *testing.T) {
	t.Parallel()
	url, dir := delivered(t), t.TempDir()
	args := []string{"janitor", "--once", "--outbox", url, "--retention", "30m", "--archive", dir}
	status, out, errs := call(t, nil, args...)
	if status != exitOK || !strings.Contains(out, ": 1 events, 0 attempts and 1 receipts were removed\n") || !strings.Contains(out, ": 1 events were archived\n") {
		t.Fatalf("%d, %q, %q", status, out, errs)
	}
	list := readArchive(t, dir)
	if len(list) != 1 || list[0].Topic != "order.placed" || string(list[0].Payload) != payload || list[0].State != outbox.DeliveredState {
		t.Errorf("archived are %+v", list)
	}
	if status, out, _ := call(t, nil, args...); status != exitOK || !strings.Contains(out, ": 0 events were archived\n") || len(readArchive(t, dir)) != 1 {
		t.Errorf("second pass: %d, %q", status, out)
	}
	if status, out, _ := call(t, nil, args[:6]...); status != exitOK || strings.Contains(out, "archived") {
		t.Errorf("pass without an archive: %d, %q", status, out)
	}
}

func TestDryRunOfAJanitorCountsAndRemovesNothing(t *testing.T) {
	t.Parallel()
	url, dir := delivered(t), t.TempDir()
	dry := func(args, want string) {
		t.Helper()
		status, out, errs := call(t, nil, append([]string{"janitor", "--outbox", url, "--dry-run", "--archive", dir}, strings.Fields(args)...)...)
		if out = strings.ReplaceAll(out, "\n  ", " "); status != exitOK || errs != "" || !strings.HasSuffix(out, want+"\n") {
			t.Errorf("%s: %d, %q, %q, want %q", args, status, out, errs, want)
		}
	}
	const others = "0 discarded and 0 cancelled events, 0 attempts and "
	dry("", ": a pass with --retention 7d would remove 0 delivered, "+others+"0 receipts; nothing was removed")
	for range 2 {
		dry("--retention 30m", ": a pass with --retention 30m would remove 1 delivered, "+others+"1 receipts; nothing was removed")
	}
	dry("--retention 30m --limit 1 --once", " would remove at least 1 delivered, "+others+"1 receipts; nothing was removed")
	dry("--retention 30m --outbox "+url, " would remove 1 delivered, "+others+"1 receipts; nothing was removed") // of several
	dry("--retention 30m -o json", `{"removable":[{"attempts":0,"cancelled":0,"capped":false,"database":"`+url+`","delivered":1,"discarded":0,"receipts":1,"retention_seconds":1800}]}`)
	if list := readArchive(t, dir); len(list) > 0 {
		t.Errorf("archived are %+v", list)
	}
	status, out, errs := call(t, nil, "janitor", "--once", "--outbox", url, "--retention", "30m")
	if status != exitOK || !strings.Contains(out, ": 1 events, 0 attempts and 1 receipts were removed\n") {
		t.Errorf("pass: %d, %q, %q", status, out, errs)
	}
	dry("--retention 30m", " would remove 0 delivered, "+others+"0 receipts; nothing was removed")
}

func TestJanitorOfARelayArchivesWhatItRemoves(t *testing.T) {
	t.Parallel()
	url, dir := delivered(t), t.TempDir()
	s := newSettings(&process{getenv: func(string) string { return "" }}, &secrets{})
	r := newRelaying(s)
	ok(t, s.flags.Parse([]string{"--outbox", url, "--retention", "30m", "--archive", dir}))
	store, end, err := r.open(t.Context(), &r.outboxes[0])
	ok(t, err)
	defer end()
	list, err := r.janitors(&crew{stores: []relayedStore{store}, outboxes: []string{"shop"}}, slog.New(slog.DiscardHandler))
	ok(t, err)
	if report, err := list[0].RunOnce(t.Context()); err != nil || report.Events != 1 || report.Archived != 1 || len(readArchive(t, dir)) != 1 {
		t.Errorf("the pass did %+v, %v", report, err)
	}
}

func TestArchiveThatCannotBeIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	ok(t, os.WriteFile(file, nil, 0o600))
	relaying := []string{"relay", "--outbox", "sqlite:x", "--amqp", "amqp://h/", "--archive"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"janitor", "--outbox", "sqlite:x", "--archive", filepath.Join(dir, "missing")}, "--archive: stat"},
		{[]string{"janitor", "--outbox", "sqlite:x", "--archive", file}, "--archive: is not a directory"},
		{append(relaying, file), "--archive: is not a directory"},
		{append(relaying, dir, "--janitor=false"), "--archive (or BOXPAIR_ARCHIVE): --janitor=false removes nothing"},
	} {
		if status, out, errs := call(t, nil, c.args...); status != exitFailed || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%v: %d, %q, %q, want %q", c.args, status, out, errs, c.want)
		}
	}
}
