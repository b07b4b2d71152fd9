//go:build faults

package fault

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
)

func plant(t *testing.T, spec string) {
	t.Helper()
	if err := Set(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = Set("") })
}

func TestErrorComesAtItsTimeOnly(t *testing.T) {
	plant(t, "C6=error@2; R6=error@2+")
	for n, want := range []struct{ c6, r6 bool }{{false, false}, {true, true}, {false, true}} {
		if err := Hit(t.Context(), C6); errors.Is(err, ErrInjected) != want.c6 {
			t.Errorf("C6, time %d: %v", n+1, err)
		}
		if err := Hit(t.Context(), R6); errors.Is(err, ErrInjected) != want.r6 {
			t.Errorf("R6, time %d: %v", n+1, err)
		}
	}
	if n := Count(C6); n != 3 {
		t.Errorf("C6 was counted %d times", n)
	}
}

func TestPanicAndGoexitEndTheirGoroutine(t *testing.T) {
	plant(t, "C4=panic;C5=goexit")
	for _, p := range []Point{C4, C5} {
		var wg sync.WaitGroup
		var returned bool
		wg.Go(func() {
			defer func() { _ = recover() }()
			_ = Hit(t.Context(), p)
			returned = true
		})
		wg.Wait()
		if returned {
			t.Errorf("%s returned", p)
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	plant(t, "R3=wait")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Hit(ctx, R3); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestBadPlanIsRefusedAndChangesNothing(t *testing.T) {
	plant(t, "C1=error@1+")
	for _, spec := range []string{"X1=kill", "C1", "C1=explode", "C1=kill@0", "C1=kill@x", "C1=kill;C1=stop"} {
		if err := Set(spec); err == nil || !strings.Contains(err.Error(), Variable) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	if err := Hit(t.Context(), C1); !errors.Is(err, ErrInjected) {
		t.Error("the plan before is lost")
	}
}
