package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/transport"
)

func TestTheDatabaseKnowsWhichRoutesDoNotWork(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.store.Routes["relay1"] = []outbox.StalledRoute{{Topic: "left by a relay that was killed"}}
	r.broker = on("sick/a", transport.Returned)
	for i := range 3 {
		r.store.Add("sick/a", fmt.Sprint("sick", i))
		r.store.Add("well/a", fmt.Sprint("well", i))
	}
	rel := r.start(Options{LeaseTTL: 6 * time.Second})
	r.run(time.Second)
	if got := r.store.Routes[rel.name]; len(got) != 0 || r.store.Calls["ReportRelay"] != 1 {
		t.Errorf("%d reports at the start, of %+v", r.store.Calls["ReportRelay"], got)
	}
	r.run(5 * time.Second)
	got := r.store.Routes[rel.name]
	if len(got) != 1 {
		t.Fatalf("reported are %+v", got)
	}
	if got[0].For < time.Second || got[0].For > 4*time.Second {
		t.Errorf("the route has not worked for %v", got[0].For)
	}
	got[0].For = 0
	if want := (outbox.StalledRoute{Topic: "sick/a", Route: "sick", State: outbox.RouteRefusing, LastError: errRefused.Error()}); got[0] != want {
		t.Errorf("reported is %+v, want %+v", got[0], want)
	}
	r.run(time.Minute)
	routes := r.store.Routes[rel.name]
	before := r.store.Calls["ReportRelay"]
	r.run(time.Minute)
	if n := r.store.Calls["ReportRelay"] - before; n > 31 {
		t.Errorf("%d reports in 30 heartbeats", n)
	}
	if after := r.store.Routes[rel.name]; &after[0] != &routes[0] {
		t.Error("the routes were written again, though they have not changed")
	}
	r.broker = confirmAll
	r.run(10 * time.Second)
	if got := r.store.Routes[rel.name]; len(got) != 0 {
		t.Errorf("reported are %+v, and the route works", got)
	}
	r.drained()
}

func TestAReportThatFailsCostsNoLease(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Unavailable)
	r.store.Add("sick", "key")
	fails := true
	r.store.Fail = func(method string) error {
		if fails && method == "ReportRelay" {
			return errors.New("relation does not exist")
		}
		return nil
	}
	rel := r.start(Options{})
	r.run(time.Minute)
	if n := rel.core.leases.held; n != 64 || rel.noted("lease lost") != 0 {
		t.Errorf("%d shards are held", n)
	}
	if n := r.store.Calls["ReportRelay"]; n > 8 {
		t.Errorf("%d reports that failed in a minute", n)
	}
	if n := rel.noted("the relay cannot write its report for operators, and goes on without it; are all migrations applied, and may this user update the relay's row?"); n != 1 {
		t.Errorf("the log says it %d times", n)
	}
	if err := rel.core.health.callErr; err != "" {
		t.Errorf("the relay counts as ill: %s", err)
	}
	fails = false
	r.run(time.Minute)
	if got := r.store.Routes[rel.name]; len(got) != 1 || got[0].State != outbox.RouteUnavailable {
		t.Errorf("reported are %+v", got)
	}
}

func TestAHundredTopicsAreReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = func(rigSend) transport.Result { return transport.Result{Outcome: transport.Returned} }
	for i := range 150 {
		r.store.Add(fmt.Sprint("topic", i), fmt.Sprint("key", i))
	}
	rel := r.start(Options{})
	r.run(time.Minute)
	if n := len(rel.core.routes.stalled); n != 150 {
		t.Fatalf("%d routes are stalled", n)
	}
	if n := len(r.store.Routes[rel.name]); n != reportedRoutes {
		t.Errorf("%d topics are reported", n)
	}
}
