package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// reports has two processes report the consumer stock/reserve: one fails at times, the other does not.
func (r *rig) reports() {
	r.t.Helper()
	pool, err := pgxpool.New(r.t.Context(), r.url)
	ok(r.t, err)
	r.t.Cleanup(pool.Close)
	store, err := postgres.New(pool, postgres.Config{})
	ok(r.t, err)
	now := time.Now()
	for _, host := range []string{"south-1", "south-2"} {
		report := inbox.HandlerReport{Consumer: "stock/reserve", Topics: []string{"order.placed"}, Window: 14 * 24 * time.Hour, InFlight: 3, Applied: 9876, Duplicates: 160, LastSuccess: now.Add(-10 * time.Minute)}
		if host == "south-2" {
			report.Waiting = new(54321)
			report.Failed, report.LastFailure, report.LastError = 12, now.Add(-5*time.Minute), "out of\nstock"
		}
		p := inbox.Process{Name: host + "/7/ABCDEFGH", At: now, Host: host, Version: "v1.9.0", StartedAt: now.Add(-3 * time.Hour)}
		ok(r.t, store.ReportHandlers(r.t.Context(), p, time.Hour, []inbox.HandlerReport{report}))
	}
}

func TestStatusTellsWhichProcessesHandleMessages(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days'), ('mail/send', '14 days')`)
	status := func(args ...string) string {
		t.Helper()
		code, out, errs := call(t, nil, append([]string{"status", "--inbox", r.url}, args...)...)
		if code != exitOK {
			t.Errorf("%v: %d, %q", args, code, errs)
		}
		return out
	}
	if out := status(); !strings.Contains(out, "no process reports mail/send, stock/reserve: Inbox.Run does") || strings.Contains(out, "host") {
		t.Errorf("without reports:\n%s", out)
	}
	if out := status("-o", "json"); !strings.Contains(out, `"handlers":[],"unreported":["mail/send","stock/reserve"]`) {
		t.Errorf("without reports: %s", out)
	}
	r.reports()
	out := status()
	for _, text := range []string{
		"no process reports mail/send: ", "\nconsumer       host     waiting  running  applied  copies  failed  last applied\n",
		"\nstock/reserve  south-1        -        3     9876     160       0  10m\nstock/reserve  south-2    54321        3     9876     160      12  10m\n",
		"\nstock/reserve: failed 5m ago at south-2: out of",
	} {
		if !strings.Contains(out, text) {
			t.Errorf("%q is missing in:\n%s", text, out)
		}
	}
	if strings.Count(out, "failed 5m ago") != 1 || strings.Contains(out, "out of\nstock") {
		t.Errorf("the last failure is told wrongly:\n%s", out)
	}
	if out := status("--wide"); !strings.Contains(out, "v1.9.0") || !strings.Contains(out, "14d") || !strings.Contains(out, "south-2/7/ABCDEFGH") || strings.Contains(out, "failed 5m ago") {
		t.Errorf("--wide:\n%s", out)
	}
	if out := status("--consumer", "mail/send"); strings.Contains(out, "south-1") || !strings.Contains(out, "no process reports mail/send: ") {
		t.Errorf("--consumer:\n%s", out)
	}
	got := inboxOf(t, status("-o", "json"))
	if len(got.Handlers) != 2 || !slices.Equal(got.Unreported, []string{"mail/send"}) {
		t.Fatalf("%+v", got)
	}
	h := got.Handlers[1]
	if h.Consumer != "stock/reserve" || h.Name != "south-2/7/ABCDEFGH" || h.Host != "south-2" || h.Version != "v1.9.0" || h.InFlight != 3 || h.Applied != 9876 ||
		h.Failed != 12 || h.LastError != "out of\nstock" || h.LastSuccess.IsZero() || h.LastFailure.IsZero() || h.StartedAt.IsZero() {
		t.Errorf("%+v", h)
	}
}

// TestStatusWithoutTheReportsNamesNoConsumer for a role of an earlier version.
func TestStatusWithoutTheReportsNamesNoConsumer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days')`, `DROP TABLE boxpair.inbox_handlers`)
	code, out, errs := call(t, nil, "status", "--inbox", r.url)
	if !strings.Contains(out, "stock/reserve  healthy") || strings.Contains(out, "no process") {
		t.Errorf("%d, %q, %q", code, out, errs)
	}
}

func TestWhySaysWhatIsKnownOfCopies(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1)
	whole := id(1).String()
	r.exec(`INSERT INTO boxpair.inbox_consumers (name, window_size) VALUES ('stock/reserve', '14 days'), ('mail/send', '14 days')`,
		`INSERT INTO boxpair.inbox (consumer, dispatch_id, stamp, applied_at) SELECT id, '`+whole+`', now(), now() FROM boxpair.inbox_consumers`,
		`DELETE FROM boxpair.outbox_queue`, `INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-1', '{1}')`)
	if out := r.says(exitOK, "why "+whole, "applied     by stock/reserve"); strings.Contains(out, "copies") {
		t.Errorf("copies that nobody knows of:\n%s", out)
	}
	r.exec(`INSERT INTO boxpair.outbox_receipts (relay, event_ids) VALUES ('relay-2', '{1}')`)
	r.reports()
	out := r.says(exitOK, "why "+whole, "copies      the broker has confirmed it 2 times, last ",
		"copies      stock/reserve has suppressed 320, of all its messages together, in 2 processes since 3h; of which messages is not recorded")
	r.exec(`DELETE FROM boxpair.inbox_handlers WHERE process LIKE 'south-2/%'`)
	r.says(exitOK, "why "+id(1).String(), ", of all its messages together, in 1 process since 3h")
	if strings.Contains(out, "copies      mail/send") {
		t.Errorf("copies that nobody knows of:\n%s", out)
	}
	if out := r.says(exitOK, "show "+whole); strings.Contains(out, "suppressed") {
		t.Errorf("show:\n%s", out)
	}
}
