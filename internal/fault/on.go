//go:build faults

package fault

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
)

// Enabled tells whether faults can be injected into this build.
const Enabled = true

var plan = struct {
	sync.Mutex
	rules  map[Point]rule
	counts map[Point]int
}{counts: make(map[Point]int)}

func init() {
	if err := Set(os.Getenv(Variable)); err != nil {
		fmt.Fprintln(os.Stderr, "fault:", err)
		os.Exit(2)
	}
}

// Set replaces the plan of faults and resets the counts. On an error, which names the mistake, the
// old plan stays.
func Set(spec string) error {
	rules, err := parse(spec)
	if err != nil {
		return err
	}
	plan.Lock()
	defer plan.Unlock()
	plan.rules = rules
	clear(plan.counts)
	return nil
}

// Count returns how often p was reached since the last Set.
func Count(p Point) int {
	plan.Lock()
	defer plan.Unlock()
	return plan.counts[p]
}

// Reach is Hit for callers without a context.
func Reach(p Point) error { return Hit(context.Background(), p) }

// Hit counts that p was reached, and carries out the plan's action for p.
func Hit(ctx context.Context, p Point) error {
	plan.Lock()
	plan.counts[p]++
	n, r := plan.counts[p], plan.rules[p]
	plan.Unlock()
	if !r.due(n) {
		return nil
	}
	announce := func() { fmt.Fprintf(os.Stderr, "fault: %s %s (time %d)\n", p, r.action, n) }
	if r.action == actWait {
		return wait(ctx, announce)
	}
	announce()
	switch r.action {
	case actKill:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // until the signal arrives
	case actStop:
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
	case actPanic:
		panic(fmt.Sprintf("%s: %v", p, ErrInjected))
	case actGoexit:
		runtime.Goexit()
	case actError:
		return fmt.Errorf("%s: %w", p, ErrInjected)
	}
	return nil
}

// wait listens before it announces itself: the signal may come at once, and would end the process.
func wait(ctx context.Context, announce func()) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)
	announce()
	select {
	case <-signals:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
