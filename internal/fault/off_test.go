//go:build !faults

package fault

import "testing"

func TestNothingIsInjectedIntoAnOrdinaryBuild(t *testing.T) {
	t.Setenv(Variable, "received=panic@1+")
	for _, p := range Points() {
		if err := Hit(t.Context(), p); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _ = Hit(t.Context(), BeforeMark) }); n != 0 {
		t.Errorf("a point costs %v allocations", n)
	}
}
