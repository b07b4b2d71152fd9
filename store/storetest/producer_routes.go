package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/outbox"
)

func routeTests[TX any]() []outboxTest[TX] {
	return []outboxTest[TX]{
		{fact: "relay's stalled routes are listed while it is visible", run: stalledAreListed[TX]},
		{fact: "report takes the place of the one before", run: reportReplaces[TX]},
		{fact: "report removes what relays left that are gone", run: reportRemoves[TX]},
	}
}

// beat makes relay visible.
func (o *outboxRig[TX]) beat(relay string, ttl time.Duration) {
	o.Helper()
	_, err := o.Store.Heartbeat(o.ctx(), relay, ttl)
	o.ok(err)
}

// report makes relay report topics with a common route.
func (o *outboxRig[TX]) report(relay string, topics ...string) {
	o.Helper()
	var routes []outbox.StalledRoute
	for _, topic := range topics {
		routes = append(routes, stalledRoute(topic))
	}
	o.ok(o.Store.ReportRelay(o.ctx(), relay, outbox.Report{Stalled: routes, StalledChanged: true}))
}

func stalledRoute(topic string) outbox.StalledRoute {
	return outbox.StalledRoute{
		Topic: topic, Route: "queue 'stock' of \"shop\"", State: outbox.RouteRefusing, For: time.Hour, LastError: "312 NO_ROUTE",
	}
}

// expectRoutes checks the reported topics, as "relay: topic".
func (o *outboxRig[TX]) expectRoutes(want ...string) []outbox.StalledRoute {
	o.Helper()
	list, err := o.Store.ListRoutes(o.ctx())
	o.ok(err)
	var got []string
	for _, r := range list {
		got = append(got, r.Relay+": "+r.Topic)
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		o.Errorf("routes are %q, want %q", got, want)
	}
	return list
}

func stalledAreListed[TX any](o *outboxRig[TX]) {
	o.expectRoutes()
	o.beat("a", long)
	o.beat("b", long)
	o.report("b", "topic", "ümlaut'\"")
	o.ok(o.Store.ReportRelay(o.ctx(), "a", outbox.Report{StalledChanged: true, Stalled: []outbox.StalledRoute{{
		Topic: "topic", Route: "other", State: outbox.RouteUnavailable, LastError: "connection refused",
	}}}))
	list := o.expectRoutes("a: topic", "b: topic", "b: ümlaut'\"")
	if len(list) != 3 {
		return
	}
	got := list[1]
	if got.For < time.Hour || got.For > time.Hour+patience {
		o.Errorf("the route has not worked for %v, want %v", got.For, time.Hour)
	}
	want := stalledRoute("topic")
	want.Relay, want.For = "b", got.For
	if got != want || list[0].State != outbox.RouteUnavailable {
		o.Errorf("routes are %+v, want %+v", list, want)
	}
	o.ok(o.Store.Release(o.ctx(), "b", nil, true))
	o.expectRoutes("a: topic")
	o.beat("killed", soon)
	o.report("killed", "topic")
	o.eventually("routes of a killed relay are not listed", func() bool {
		list, err := o.Store.ListRoutes(o.ctx())
		o.ok(err)
		return len(list) == 1 && list[0].Relay == "a"
	})
}

func reportReplaces[TX any](o *outboxRig[TX]) {
	o.beat("a", long)
	o.report("a", "one", "two")
	o.report("a", "two", "three")
	o.expectRoutes("a: three", "a: two")
	o.report("a")
	o.expectRoutes()
}

func reportRemoves[TX any](o *outboxRig[TX]) {
	o.beat("gone", long)
	o.report("gone", "topic")
	o.ok(o.Store.Release(o.ctx(), "gone", nil, true))
	o.beat("a", long)
	o.report("a", "topic")
	o.beat("gone", long)
	o.expectRoutes("a: topic")
}

// RouteStatus tests how the view outbox_status of a store shows events on a stalled route. status
// reads one row.
func RouteStatus[TX any](t *testing.T, f OutboxFixture[TX], status func(id uuid.UUID) (state, why string, err error)) {
	t.Helper()
	o := &outboxRig[TX]{rig: rig{t}, OutboxFixture: f}
	want := func(r outbox.Record, wantState, wantWhy string) {
		t.Helper()
		o.eventually(fmt.Sprintf("status of %s is %s (%s)", r.Payload, wantState, wantWhy), func() bool { // a parked event is due in a millisecond
			state, why, err := status(r.ID)
			o.ok(err)
			return state == wantState && strings.Contains(why, wantWhy)
		})
	}
	on := func(topic, key string) outbox.Record {
		r := record(key, topic+" of "+key)
		r.Topic = topic
		return complete(r.Event)
	}
	sick, well, free := on("sick", "key"), on("well", "key"), on("well", "other")
	queued := o.queued(sick, well, free)
	o.beat("relay", long)
	lease := o.lease("relay", sick.Shard)
	for _, r := range []outbox.Record{sick, well, free} {
		want(r, "pending", "waits to be sent by relay relay")
	}
	o.report("relay", "sick")
	held := "of its key, whose route " + stalledRoute("").Route + " is refusing since "
	want(sick, "pending", "its route "+stalledRoute("").Route+" is refusing since ")
	want(sick, "pending", " UTC: 312 NO_ROUTE")
	want(well, "pending", held)
	want(free, "pending", "waits to be sent by relay relay")

	_, err := o.Store.Park(o.ctx(), "relay", lease, []outbox.Failure{failureOf(queued[0], 1, 0)})
	o.ok(err)
	want(sick, "retrying", "its route ")
	want(well, "pending", held)
	_, err = o.Store.Follow(o.ctx(), "relay", lease, []outbox.Mark{markOf(lease, queued[1])})
	o.ok(err)
	want(well, "following", held)

	o.report("relay")
	want(sick, "retrying", "waits to be sent by relay relay")
	o.report("relay", "sick")
	o.ok(o.Store.Release(o.ctx(), "relay", nil, true))
	want(sick, "retrying", "waits to be sent by relay relay")
}
