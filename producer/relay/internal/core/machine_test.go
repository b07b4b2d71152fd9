package core

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/statement"
	"github.com/boxpair/boxpair/transport"
)

func TestRelayDeliversEverything(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 500 {
		r.store.Add("topic", fmt.Sprint("key", i%37))
		if i%5 == 0 {
			r.store.Add("topic", "")
		}
	}
	rel := r.start(Options{Window: 50, MaxPerKey: 5})
	r.run(2 * time.Second)
	r.drained()
	if got := len(r.sends); got != 600 {
		t.Errorf("%d sends for 600 events", got)
	}
	if rel.core.report.Delivered != 600 {
		t.Errorf("report: %+v", rel.core.report)
	}
}

func TestEventsOfOneKeyAreSentOneByOneInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var want []int64
	for range 50 {
		want = append(want, r.store.Add("topic", "key"))
	}
	most := 0
	r.broker = func(s rigSend) transport.Result {
		most = max(most, s.inflight)
		return confirmAll(s)
	}
	r.start(Options{MaxPerKey: 7})
	r.run(2 * time.Second)
	r.drained()
	if got := r.sent(); !slices.Equal(got, want) {
		t.Errorf("sent %v", got)
	}
	if most != 1 {
		t.Errorf("%d of one key in flight at once", most)
	}
}

func TestHealthTellsHowLongReadsTook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rel := r.start(Options{})
	r.run(time.Second)
	before := rel.core.State(time.Time{})
	rel.hold = func(cl *Call) bool { return cl.Op() == statement.OpFetch }
	r.run(5 * time.Second)
	rel.free()
	after := rel.core.State(time.Time{})
	if n := after.Reads - before.Reads; n < 1 {
		t.Errorf("%d reads", n)
	}
	if took := after.ReadTime - before.ReadTime; took < 4*time.Second || took > 5*time.Second {
		t.Errorf("the reads took %v", took)
	}
}
