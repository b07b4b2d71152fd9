package core

import (
	"fmt"
	"testing"
	"time"

	"github.com/boxpair/boxpair/transport"
)

// manySick is a relay with so many routes on which nothing succeeds, for a minute and ten seconds.
func manySick(t *testing.T, routes int) (*rig, *rigRelay) {
	t.Helper()
	r := newRig(t)
	r.broker = func(rigSend) transport.Result { return transport.Result{Outcome: transport.Returned, Err: errRefused} }
	for i := range routes {
		for k := range 5 {
			r.store.Add(fmt.Sprint("sick", i), fmt.Sprint("key", i, "-", k))
		}
	}
	rel := r.start(Options{})
	r.run(70 * time.Second)
	return r, rel
}

// TestProbesOfManyRoutesShareABudget in turns, and do not delay the moment at which the routes work
// again.
func TestProbesOfManyRoutesShareABudget(t *testing.T) {
	t.Parallel()
	const routes = 500
	r, rel := manySick(t, routes)
	if n := len(rel.core.routes.stalled); n != routes {
		t.Fatalf("%d routes are stalled", n)
	}
	if n := rel.core.keys.buffered; n > 2*routes+rel.core.cfg.Window {
		t.Errorf("%d events in memory", n)
	}
	probes, last := 0, make(map[string]time.Duration)
	for _, s := range r.sends {
		if s.at < 10*time.Second {
			continue
		}
		probes++
		if before, ok := last[s.topic]; ok && s.at-before > 2*routes/probesPerSecond*time.Second {
			t.Errorf("%s is probed at %v and at %v", s.topic, before, s.at)
		}
		last[s.topic] = s.at
	}
	if most := 61 * probesPerSecond; probes > most || probes < most*9/10 {
		t.Errorf("%d probes in a minute", probes)
	}
	if len(last) != routes {
		t.Errorf("%d routes were probed", len(last))
	}
	r.broker = confirmAll
	works := r.now
	for len(rel.core.routes.stalled) > 0 {
		if r.now > works+10*time.Second {
			t.Fatalf("%d routes wait for a probe still", len(rel.core.routes.stalled))
		}
		r.run(100 * time.Millisecond)
	}
	r.run(time.Minute)
	r.drained()
}

func TestAFewRoutesAreProbedAtTheirInterval(t *testing.T) {
	t.Parallel()
	const routes = 5
	r, rel := manySick(t, routes)
	last := make(map[string]time.Duration)
	for _, s := range r.sends {
		if before, ok := last[s.topic]; ok && s.at > 10*time.Second && s.at-before > rel.core.cfg.RouteProbeInterval+100*time.Millisecond {
			t.Errorf("%s is probed at %v and at %v", s.topic, before, s.at)
		}
		last[s.topic] = s.at
	}
	if rel.noted("many routes do not work") != 0 || rel.noted("route stalled: nothing on it succeeds") != routes {
		t.Error("routes have no record of their own")
	}
}

// TestRecordsAboutManyRoutesAreSummedUp, none of them lost without a count.
func TestRecordsAboutManyRoutesAreSummedUp(t *testing.T) {
	t.Parallel()
	r, rel := manySick(t, 500)
	if n := len(rel.notes); n > 250 {
		t.Errorf("%d records for %d sends", n, len(r.sends))
	}
	if rel.noted("many routes do not work") == 0 || rel.attr("many routes do not work", "omitted").Int64() == 0 {
		t.Error("they are not summed up")
	}
	if len(rel.core.reports.stalled()) != reportedRoutes {
		t.Errorf("%d topics are reported", len(rel.core.reports.stalled()))
	}
}

func TestTroubleOfARouteIsRecordedAtGrowingIntervals(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.broker = on("sick", transport.Refused)
	r.store.Add("sick", "a")
	r.store.Add("sick", "b")
	rel := r.start(Options{})
	r.run(10 * time.Minute)
	const msg = "event not taken by the transport"
	written, omitted := 0, 0
	for _, n := range rel.notes {
		if n.Msg != msg {
			continue
		}
		written++
		for _, a := range n.Attrs {
			if a.Key == "omitted" {
				omitted += int(a.Value.Int64())
			}
		}
	}
	if written < 5 || written > 12 {
		t.Errorf("%d records in ten minutes", written)
	}
	if left := rel.core.routes.byName["sick"].trouble.omitted; written+omitted+left != len(r.sends) {
		t.Errorf("%d records, %d and %d omitted, of %d", written, omitted, left, len(r.sends))
	}
	if rel.noted("route stalled: nothing on it succeeds") != 1 {
		t.Error("the route is not said to be paused, once")
	}
}
