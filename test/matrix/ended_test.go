package matrix

import (
	"syscall"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/system"
)

// at starts a chain in which one process waits at p until it is released.
func (r *rig) at(p fault.Point, more ...change) *child.Process {
	r.t.Helper()
	_, when := conditions(p)
	return r.atNth(p, when, more...)
}

// atNth is at with another count of p.
func (r *rig) atNth(p fault.Point, when string, more ...change) *child.Process {
	r.t.Helper()
	changes, _ := conditions(p)
	// A context that ends would be a second fault beside the injected one.
	changes = append(changes, func(c *child.Config) {
		c.LeaseTTL, c.SendTimeout, c.Timeout = patience, patience, patience
	})
	v := r.chain(victim(p), string(p)+"=wait"+when, append(changes, more...)...)[victim(p)]
	ok(r.t, v.Fault(r.within(), 1))
	return v
}

// restart restarts the ended process.
func (r *rig) restart(p fault.Point) {
	r.t.Helper()
	changes, _ := conditions(p)
	r.start(victim(p), "", changes...)
}

// SIGTERM arrives at a point. The process ends in order without leaked goroutines, and the next
// process does its unfinished work.
func TestProcessToldToEndAtAnyPointEndsInGoodOrder(t *testing.T) {
	t.Parallel()
	for _, p := range points() {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			v := r.at(p)
			ok(t, v.Signal(syscall.SIGTERM))
			r.eventually("the end of the process", func() (bool, error) {
				select {
				case <-v.Ended():
					return true, nil
				case <-time.After(50 * time.Millisecond):
					return false, v.Release() // a point outside of all contexts
				}
			})
			report, err := v.Stop(r.within())
			ok(t, err)
			r.Reported(v, report)
			r.Injected(1)
			r.restart(p)
			r.finish()
		})
	}
}

// A step of the library returns an error or loses its answer. The step is repeated, or is known to
// have happened.
func TestErrorAtAnyPointLosesAndDoublesNothing(t *testing.T) {
	t.Parallel()
	for _, p := range points() {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			changes, when := conditions(p)
			r.chain(victim(p), string(p)+"=error"+when, changes...)
			r.finish()
		})
	}
}

// A panic in a caller's or a handler's transaction is rolled back. A panic in a process's own
// goroutines ends the process, like a crash.
func TestPanicAtAnyPointIsRolledBackOrACrash(t *testing.T) {
	t.Parallel()
	for _, p := range points() {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			changes, when := conditions(p)
			v := r.chain(victim(p), string(p)+"=panic"+when, changes...)[victim(p)]
			ok(t, v.Fault(r.within(), 1))
			r.Injected(0)
			if !p.OfProducer() && !p.OfConsumer() || p == fault.BeforeAck {
				if err := v.Wait(r.within()); err == nil {
					t.Fatal("a process that panicked ended with status 0")
				}
				r.restart(p)
			}
			r.finish()
		})
	}
}

// A Goexit in the caller's or the handler's function is rolled back, and the function is called
// again.
func TestGoexitInAFunctionOfTheUserIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, p := range []fault.Point{fault.BeforeEvent, fault.BeforeCommit, fault.Claimed, fault.BeforeHandler, fault.BeforeClaimCommit} {
		cell(t, string(p), calm, system.Config{}, func(t *testing.T, r *rig) {
			r.chain(victim(p), string(p)+"=goexit"+nth)
			r.finish()
		})
	}
}

// Every third handler fails, every seventh swallows the error of a statement, and every eleventh
// refuses for ever. Refused messages are set aside, and the others are applied in order.
func TestFailingHandlersApplyTheRestInOrder(t *testing.T) {
	t.Parallel()
	cell(t, "before-claim-commit", calm, system.Config{}, func(t *testing.T, r *rig) {
		r.Injected(1)
		r.chain("", "", func(c *child.Config) { c.Fail, c.Swallow, c.Doom = 3, 7, 11 })
		state := r.finish()
		if n := len(state.Consumers[0].Aside); n != orders/11 {
			t.Errorf("%d messages are set aside", n)
		}
	})
}
