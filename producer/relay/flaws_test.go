//go:build !race

package relay

import (
	"testing"
	"time"
)

// The simulation has to find a store that breaks its contract, or it finds nothing.
func TestSimulationFindsStoresThatBreakTheirContract(t *testing.T) {
	t.Parallel()
	for name, flaw := range map[string]fakeFlaws{
		"a mark that ignores the round":         {anyRound: true},
		"writers that are not told":             {noWriters: true},
		"blocked keys that are not told":        {noBlocked: true},
		"a move that leaves the event deferred": {keepsDeferred: true},
		"the same first round for all events":   {sameRound: true},
		"leases judged by who wants them":       {ownTTL: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5000) {
				s := newSimulation(t, seed)
				s.store.flaws = flaw
				s.wild.deferrals = flaw.keepsDeferred
				s.wild.failOvers, s.wild.ttls = flaw.sameRound, flaw.ownTTL
				if flaw.noWriters { // what has everything looked through finds what is missed
					s.wild.late, s.wild.storeErrors, s.limits.sweep = true, false, 20*time.Minute
				}
				if s.play(); len(s.broken) > 0 {
					t.Logf("found by schedule %d: %s", seed+1, s.broken[0])
					return
				}
			}
			t.Error("not found")
		})
	}
}
