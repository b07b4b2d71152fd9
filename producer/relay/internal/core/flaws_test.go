//go:build !race

package core

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/producer/relay/internal/memstore"
)

// The simulation has to find a store that breaks its contract, or it finds nothing.
func TestSimulationFindsStoresThatBreakTheirContract(t *testing.T) {
	t.Parallel()
	for name, flaw := range map[string]memstore.Flaws{
		"a mark that ignores the round":         {AnyRound: true},
		"writers that are not told":             {NoWriters: true},
		"blocked keys that are not told":        {NoBlocked: true},
		"a move that leaves the event deferred": {KeepsDeferred: true},
		"the same first round for all events":   {SameRound: true},
		"leases judged by who wants them":       {OwnTTL: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5000) {
				s := newSimulation(t, seed)
				s.store.Flaws = flaw
				s.wild.deferrals = flaw.KeepsDeferred
				s.wild.failOvers, s.wild.ttls = flaw.SameRound, flaw.OwnTTL
				if flaw.KeepsDeferred { // it keeps the relay busy for ever, which is given up the sooner
					s.cfg.Window, s.cfg.FetchSize = 8, 100
				}
				if flaw.NoWriters { // what has everything looked through finds what is missed
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
