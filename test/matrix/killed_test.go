package matrix

import (
	"testing"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// Without faults a chain works and ends clean; otherwise no cell would prove anything.
func TestUndisturbedChainIsSound(t *testing.T) {
	t.Parallel()
	r := newRig(t, calm, system.Config{})
	r.needed.Faults = 0
	r.chain(child.Producer, "")
	state := r.finish()
	if len(state.Processes) != 3 {
		t.Errorf("reports of %d processes", len(state.Processes))
	}
}

// conditions returns the settings under which a point is reached, and how often it is reached.
func conditions(p fault.Point) (changes []change, when string) {
	switch p {
	case fault.BeforeEvent:
		return []change{func(c *child.Config) { c.Queue = true }}, nth // others have their events written by then
	case fault.BeforeLease, fault.Leased:
		return nil, "" // once, until leases are lost
	case fault.BeforeMark, fault.MarkSent, fault.Marked, fault.AfterMark:
		return nil, "@2" // many marks are one statement
	case fault.BeforePark, fault.Parked:
		return []change{func(c *child.Config) { c.Huge = 10 }}, "@2"
	case fault.BeforeMessageParked, fault.MessageParked:
		return []change{func(c *child.Config) { c.Fail = 10 }}, "@2"
	}
	return nil, nth
}

// points are the points that every chain reaches.
func points() []fault.Point {
	var all []fault.Point
	for _, p := range fault.Points() {
		switch p {
		case fault.BrokerReturned, fault.BrokerBlocked, fault.BeforeDelete, fault.WithinDelete, // need more: see those named after them
			fault.BeforeEffect, fault.EffectTaken, fault.EffectAnswered, fault.BeforeEffectCommit, fault.EffectCommitted: // see package consumer
		default:
			all = append(all, p)
		}
	}
	return all
}

func TestProcessKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	for _, p := range points() {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			changes, when := conditions(p)
			first := r.chain(victim(p), string(p)+"=kill"+when, changes...)[victim(p)]
			ok(t, first.Killed(r.within()))
			r.Injected(0)
			r.start(victim(p), "", changes...)
			r.finish()
		})
	}
}

func optimistic(c *child.Config) { c.Optimistic = true }

// The handler runs before its claim, which is sent with the COMMIT and all other statements.
func TestOptimisticConsumerKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	for _, p := range points() {
		if victim(p) != child.Consumer {
			continue
		}
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			changes, when := conditions(p)
			changes = append(changes, optimistic)
			first := r.chain(child.Consumer, string(p)+"=kill"+when, changes...)[child.Consumer]
			ok(t, first.Killed(r.within()))
			r.Injected(0)
			r.start(child.Consumer, "", changes...)
			r.finish()
		})
	}
}
