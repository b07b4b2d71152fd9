package storetest

import (
	"reflect"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/inbox"
)

func handlerReportTests[TX any]() []inboxTest[TX] {
	return []inboxTest[TX]{
		{"handlers are listed by consumer and process", handlersAreListed[TX]},
		{"reports of a process take the place of the ones before", handlerReportsReplace[TX]},
		{"reports of handlers that are not renewed are listed no longer", handlerReportsEnd[TX]},
		{"times in the report of a handler become times of the database", handlerReportIsTimed[TX]},
	}
}

// process returns a process whose clock is an hour behind.
func process(name string) inbox.Process {
	at := time.Now().UTC().Truncate(time.Microsecond).Add(-time.Hour)
	return inbox.Process{Name: name, At: at, Host: "host-1", Version: "v1.2.3", StartedAt: at.Add(-time.Minute)}
}

func (i *inboxRig[TX]) reporter() inbox.Reporter {
	i.Helper()
	r, ok := i.Store.(inbox.Reporter)
	if !ok {
		i.Fatalf("%T is no inbox.Reporter", i.Store)
	}
	return r
}

// reports makes a process report consumers for ttl.
func (i *inboxRig[TX]) reports(name string, ttl time.Duration, consumers ...string) {
	i.Helper()
	var reports []inbox.HandlerReport
	for _, c := range consumers {
		reports = append(reports, inbox.HandlerReport{Consumer: c})
	}
	i.ok(i.reporter().ReportHandlers(i.ctx(), process(name), ttl, reports))
}

// handlers lists the running handlers, as "consumer of process".
func (i *inboxRig[TX]) handlers() []string {
	i.Helper()
	list, err := i.reporter().ListHandlers(i.ctx())
	i.ok(err)
	var got []string
	for j := range list {
		got = append(got, list[j].Consumer+" of "+list[j].Name)
	}
	return got
}

func (i *inboxRig[TX]) expectHandlers(want ...string) {
	i.Helper()
	if got := i.handlers(); !slices.Equal(got, want) {
		i.Errorf("handlers are %q, want %q", got, want)
	}
}

func handlersAreListed[TX any](i *inboxRig[TX]) {
	i.expectHandlers()
	i.reports("q", long, "stock/reserve", "mail/send")
	i.reports("p", long, "stock/reserve")
	i.expectHandlers("mail/send of q", "stock/reserve of p", "stock/reserve of q")
}

func handlerReportsReplace[TX any](i *inboxRig[TX]) {
	i.reports("p", long, "a", "b")
	i.reports("q", long, "a")
	i.reports("p", long, "b", "c")
	i.expectHandlers("a of q", "b of p", "c of p")
	i.reports("p", long)
	i.expectHandlers("a of q")
}

func handlerReportsEnd[TX any](i *inboxRig[TX]) {
	i.reports("killed", soon, "a")
	i.eventually("handlers of a killed process are not listed", func() bool { return len(i.handlers()) == 0 })
	i.reports("p", long, "a")
	i.expectHandlers("a of p")
	i.reports("killed", long, "b")
	i.expectHandlers("a of p", "b of killed")
}

func handlerReportIsTimed[TX any](i *inboxRig[TX]) {
	p := process("p")
	want := inbox.HandlerReport{
		Consumer: "stock/ümlaut'\"\\", Topics: []string{"topic", "other"}, Waiting: new(7), Window: time.Hour, InFlight: 2, Applied: 1 << 40, Duplicates: 3, Failed: 4,
		LastSuccess: p.At.Add(-time.Second), LastFailure: p.At.Add(-2 * time.Second), LastError: "out of 'stock'",
		CacheSize: 100, CacheEntries: 50, CacheHits: 2, Paused: "until noon, by ann: counting",
	}
	i.ok(i.reporter().ReportHandlers(i.ctx(), p, long, []inbox.HandlerReport{want}))
	list, err := i.reporter().ListHandlers(i.ctx())
	i.ok(err)
	if len(list) != 1 {
		i.Fatalf("handlers are %+v", list)
	}
	h := list[0]
	if age := time.Since(h.ReportedAt); age.Abs() > patience || h.ListedUntil.Sub(h.ReportedAt).Round(time.Second) != long {
		i.Errorf("the report is %v old, and listed until %v", age, h.ListedUntil)
	}
	if !h.At.Equal(h.ReportedAt) {
		i.Errorf("the report was made at %v, and written at %v", h.At, h.ReportedAt)
	}
	behind := h.ReportedAt.Sub(p.At)
	for _, t := range []*time.Time{&h.At, &h.StartedAt, &h.LastSuccess, &h.LastFailure} {
		*t = t.Add(-behind).UTC()
	}
	if h.Process != p || !reflect.DeepEqual(h.HandlerReport, want) {
		i.Errorf("handler is %+v %+v, want %+v %+v", h.Process, h.HandlerReport, p, want)
	}
}
