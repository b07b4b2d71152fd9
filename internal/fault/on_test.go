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
	plant(t, "before-claim-commit=error@2; before-mark=error@2+")
	for n, want := range []struct{ c6, r6 bool }{{false, false}, {true, true}, {false, true}} {
		if err := Hit(t.Context(), BeforeClaimCommit); errors.Is(err, ErrInjected) != want.c6 {
			t.Errorf("before-claim-commit, time %d: %v", n+1, err)
		}
		if err := Hit(t.Context(), BeforeMark); errors.Is(err, ErrInjected) != want.r6 {
			t.Errorf("before-mark, time %d: %v", n+1, err)
		}
	}
	if n := Count(BeforeClaimCommit); n != 3 {
		t.Errorf("before-claim-commit was counted %d times", n)
	}
}

func TestPanicAndGoexitEndTheirGoroutine(t *testing.T) {
	plant(t, "claimed=panic;before-handler=goexit")
	for _, p := range []Point{Claimed, BeforeHandler} {
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
	plant(t, "before-publish=wait")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Hit(ctx, BeforePublish); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestBadPlanIsRefusedAndChangesNothing(t *testing.T) {
	plant(t, "received=error@1+")
	for _, spec := range []string{"X1=kill", "received", "received=explode", "received=kill@0", "received=kill@x", "received=kill;received=stop"} {
		if err := Set(spec); err == nil || !strings.Contains(err.Error(), Variable) {
			t.Errorf("%s: %v", spec, err)
		}
	}
	if err := Hit(t.Context(), Received); !errors.Is(err, ErrInjected) {
		t.Error("the plan before is lost")
	}
}
