package storetest

import (
	"reflect"
	"slices"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
)

func reportTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "relays are listed with their reports while they are visible", run: relaysAreListed[TX]},
		{fact: "report of a relay takes the place of the one before", run: relayReportReplaces[TX]},
		{fact: "times in the report of a relay become times of the database", run: relayReportIsTimed[TX]},
	}
}

// reportOf returns a report of a relay whose clock is an hour behind, with values in all fields.
func reportOf() outbox.RelayReport {
	at := time.Now().UTC().Truncate(time.Microsecond).Add(-time.Hour)
	return outbox.RelayReport{
		At: at, Host: "host-1", Version: "v1.2.3", StartedAt: at.Add(-4 * time.Minute),
		Window: 1000, InFlight: 3, Waiting: 2, Unmarked: 1, OldestInFlight: at.Add(-time.Second), LastConfirm: at.Add(-2 * time.Second),
		Sent: 1 << 40, Failed: 5, SentPerSecond: 12.5, MoreTopics: 7,
		Topics: []outbox.TopicReport{
			{Topic: "ümlaut'\"\\", Route: "queue 'stock' of \"shop\"", State: outbox.RouteRefusing, Since: at.Add(-time.Minute), LastError: "312 NO_ROUTE"},
			{Topic: "topic", Route: "topic", State: outbox.RouteWorking, Sent: 9, SentPerSecond: 0.25, RouteInFlight: 3, RouteWaiting: 2},
		},
	}
}

// tells writes a report of relay that leaves its stalled routes as they are.
func (o *outboxRig[TX]) tells(relay string, r outbox.RelayReport) {
	o.Helper()
	o.ok(o.Store.ReportRelay(o.ctx(), relay, outbox.Report{RelayReport: r}))
}

// relays lists the relays, which must have these names.
func (o *outboxRig[TX]) relays(names ...string) []outbox.Relay {
	o.Helper()
	list, err := o.Store.ListRelays(o.ctx())
	o.ok(err)
	got := make([]string, len(list))
	for i := range list {
		got[i] = list[i].Name
	}
	if !slices.Equal(got, names) {
		o.Fatalf("relays are %q, want %q", got, names)
	}
	return list
}

func relaysAreListed[TX any](o *outboxRig[TX]) {
	o.relays()
	o.tells("unknown", reportOf())
	o.relays()
	o.beat("b", long)
	o.beat("a", long)
	grants, err := o.Store.Acquire(o.ctx(), "b", long, 2)
	o.ok(err)
	shards := make([]int, len(grants))
	for i := range grants {
		shards[i] = grants[i].Shard
	}
	slices.Sort(shards)
	o.tells("b", reportOf())
	list := o.relays("a", "b")
	if a := list[0]; !a.ReportedAt.IsZero() || len(a.Shards) > 0 || !reflect.DeepEqual(a.RelayReport, outbox.RelayReport{}) {
		o.Errorf("relay without a report: %+v", a)
	}
	if b := list[1]; len(shards) != 2 || !slices.Equal(b.Shards, shards) || b.Sent != reportOf().Sent {
		o.Errorf("relay is %+v, want shards %v", b, shards)
	}
	if until := time.Until(list[1].SeenUntil); until <= 0 || until > long+patience {
		o.Errorf("relay is visible for %v, want up to %v", until, long)
	}
	o.ok(o.Store.Release(o.ctx(), "b", nil, true))
	o.relays("a")
	o.beat("killed", soon)
	o.tells("killed", reportOf())
	o.eventually("a killed relay is not listed", func() bool {
		list, err := o.Store.ListRelays(o.ctx())
		o.ok(err)
		return len(list) == 1
	})
	o.beat("b", long)
	if b := o.relays("a", "b")[1]; !b.ReportedAt.IsZero() {
		o.Errorf("relay has the report of an earlier relay of its name: %+v", b)
	}
}

func relayReportReplaces[TX any](o *outboxRig[TX]) {
	o.beat("a", long)
	o.report("a", "topic")
	o.tells("a", reportOf())
	o.expectRoutes("a: topic")
	r := reportOf()
	r.Host, r.Topics = "host-2", r.Topics[1:]
	o.tells("a", r)
	o.beat("a", long)
	if a := o.relays("a")[0]; a.Host != "host-2" || len(a.Topics) != 1 || a.Topics[0].Topic != "topic" {
		o.Errorf("relay is %+v, want the last report", a)
	}
	o.expectRoutes("a: topic")
}

func relayReportIsTimed[TX any](o *outboxRig[TX]) {
	o.beat("a", long)
	want := reportOf()
	o.tells("a", want)
	a := o.relays("a")[0]
	if age := time.Since(a.ReportedAt); age.Abs() > patience {
		o.Errorf("the report is %v old", age)
	}
	if !a.At.Equal(a.ReportedAt) {
		o.Errorf("the report was made at %v, and written at %v", a.At, a.ReportedAt)
	}
	behind := a.ReportedAt.Sub(want.At)
	for _, t := range []*time.Time{&a.At, &a.StartedAt, &a.OldestInFlight, &a.LastConfirm, &a.Topics[0].Since} {
		*t = t.Add(-behind).UTC()
	}
	if !reflect.DeepEqual(a.RelayReport, want) {
		o.Errorf("report is %+v, want %+v", a.RelayReport, want)
	}
}
