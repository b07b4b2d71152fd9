//go:build !race

package producer

import "testing"

// The simulation has to find a store that breaks its contract, or it finds nothing.
func TestSimulationFindsStoresThatBreakTheirContract(t *testing.T) {
	t.Parallel()
	for name, flaw := range map[string]fakeFlaws{
		"a mark that ignores the round":  {anyRound: true},
		"writers that are not told":      {noWriters: true},
		"blocked keys that are not told": {noBlocked: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5000) {
				s := newSimulation(t, seed)
				s.store.flaws = flaw
				if s.play(); len(s.broken) > 0 {
					t.Logf("found by schedule %d: %s", seed+1, s.broken[0])
					return
				}
			}
			t.Error("not found")
		})
	}
}
