package upgrade

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/invariant"
	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

// orders is how many orders a test places.
const orders = 300

// What all tests share: the servers, and the older state.
var (
	start = sync.OnceValues(func() (*servers.Servers, error) {
		return servers.Start(context.Background(), servers.Config{Settings: []string{"max_connections=500"}})
	})
	build = sync.OnceValues(func() (*Old, error) { return Build(context.Background()) })
)

func TestMain(m *testing.M) {
	child.Main()
	code := m.Run()
	s, err := start()
	if err == nil {
		err = s.Close()
	}
	old, buildErr := build()
	if buildErr == nil {
		buildErr = old.Remove()
	}
	if err := errors.Join(err, buildErr); err != nil {
		fmt.Fprintln(os.Stderr, "upgrade:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// rig is one chain of processes of both states.
type rig struct {
	*system.System
	t       *testing.T
	ctx     context.Context
	old     *Old
	started int
}

func newRig(t *testing.T, oldTables bool) *rig {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	old, err := build()
	ok(t, err)
	s, err := start()
	ok(t, err)
	dir, err := os.MkdirTemp("", "boxpair-upgrade-") //nolint:usetesting // kept if the test fails
	ok(t, err)
	cfg := system.Config{Dir: dir, DrainLimit: time.Minute}
	if oldTables {
		cfg.Install = old.Install
	}
	r := &rig{t: t, ctx: ctx, old: old}
	r.System, err = system.New(ctx, s, cfg)
	ok(t, err)
	t.Cleanup(func() {
		ok(t, r.Close(context.WithoutCancel(ctx)))
		if t.Failed() {
			r.tellLogs(dir)
			return
		}
		ok(t, os.RemoveAll(dir))
	})
	return r
}

// tellLogs says where the logs are, and what the children said last on standard error.
func (r *rig) tellLogs(dir string) {
	r.t.Logf("logs are in %s", dir)
	files, _ := filepath.Glob(filepath.Join(dir, "*.err"))
	for _, name := range files {
		if text, _ := os.ReadFile(name); len(text) > 0 {
			r.t.Logf("%s:\n%s", filepath.Base(name), text[max(0, len(text)-2000):])
		}
	}
}

// age is which of the two states a process is of.
type age bool

const (
	older age = false
	newer age = true
)

func (a age) String() string {
	if a == older {
		return "older"
	}
	return "newer"
}

// start starts a process of one role. Its handler fails for some messages, and some of its events
// are too large for the relay's publisher, so that each state meets what the other has parked.
func (r *rig) start(role child.Role, of age) *child.Process {
	r.t.Helper()
	r.started++
	cfg := child.Config{
		Name: fmt.Sprintf("%s-%v-%d", role, of, r.started), Roles: []child.Role{role},
		Huge: 50, Fail: 7, Keys: 8, Writers: 2, Pause: 10 * time.Millisecond,
	}
	if role == child.Producer {
		cfg.Orders, cfg.Producer = orders, cfg.Name
	}
	if of == older {
		cfg.Program = r.old.Child
	}
	p, err := r.Start(r.ctx, cfg, "")
	ok(r.t, err)
	return p
}

// placed waits until a producer has placed a share of its orders.
func (r *rig) placed(p *child.Process, n int64) {
	r.t.Helper()
	ok(r.t, p.Until(r.ctx, fmt.Sprintf("%d orders were placed", n), func(rep *child.Report) bool { return rep.Placed >= n }))
}

// stop ends a process in good order, as a deployment does.
func (r *rig) stop(p *child.Process) {
	r.t.Helper()
	report, err := p.Stop(r.ctx)
	ok(r.t, err)
	r.Reported(p, report)
}

// finish waits until all is at rest and checks what is there.
func (r *rig) finish(placed int) {
	r.t.Helper()
	r.Injected(0)
	state, err := r.Finish(r.ctx, invariant.Work{Orders: placed})
	ok(r.t, err)
	if why := invariant.Invalid(state); why != "" {
		r.t.Errorf("INVALID: %s", why)
	}
	for _, v := range invariant.Check(state) {
		r.t.Errorf("%v", v)
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Producer, relay and consumer are deployed one after another, in any order.
func TestProcessesOfBothStatesMakeOneChain(t *testing.T) {
	t.Parallel()
	ages := []age{older, newer}
	for _, p := range ages {
		for _, r := range ages {
			for _, c := range ages {
				if p == r && r == c && c == newer {
					continue // the fault matrix shows it
				}
				name := fmt.Sprintf("%v producer, %v relay, %v consumer", p, r, c)
				t.Run(strings.ReplaceAll(name, ", ", "+"), func(t *testing.T) {
					rig := newRig(t, false)
					rig.start(child.Consumer, c)
					rig.start(child.Relay, r)
					rig.start(child.Producer, p)
					rig.finish(orders)
				})
			}
		}
	}
}

// Relays of both states share the shards of one outbox, and take them over from each other.
func TestRelaysOfBothStatesTakeOverFromEachOther(t *testing.T) {
	r := newRig(t, false)
	r.start(child.Consumer, newer)
	first, second := r.start(child.Relay, older), r.start(child.Relay, newer)
	p, q := r.start(child.Producer, older), r.start(child.Producer, newer)
	r.placed(p, orders/4)
	first.Kill()
	r.placed(p, orders/2)
	third := r.start(child.Relay, older)
	ok(r.t, third.Until(r.ctx, "the older relay had shards", func(rep *child.Report) bool { return rep.Shards > 0 }))
	second.Kill()
	r.placed(q, 3*orders/4)
	r.start(child.Relay, newer)
	r.finish(2 * orders)
}

// The tables are brought up to date while processes of the older state work; then these are
// replaced one by one.
func TestUpgradeUnderLoadLosesNothing(t *testing.T) {
	r := newRig(t, true)
	consumer, relay := r.start(child.Consumer, older), r.start(child.Relay, older)
	p := r.start(child.Producer, older)
	r.placed(p, orders/4)
	ok(t, r.migrate())
	q := r.start(child.Producer, newer)
	r.start(child.Relay, newer)
	r.placed(p, orders/2)
	r.stop(relay)
	r.start(child.Consumer, newer)
	r.placed(q, orders/2)
	r.stop(consumer)
	r.finish(2 * orders)
}

// A deployment is taken back: processes of the older state go on with what the newer ones have
// left.
func TestDowngradeUnderLoadLosesNothing(t *testing.T) {
	r := newRig(t, false)
	consumer, relay := r.start(child.Consumer, newer), r.start(child.Relay, newer)
	p := r.start(child.Producer, newer)
	r.placed(p, orders/4)
	r.start(child.Relay, older)
	q := r.start(child.Producer, older)
	r.placed(q, orders/4)
	r.stop(relay)
	r.start(child.Consumer, older)
	r.placed(q, orders/2)
	r.stop(consumer)
	r.finish(2 * orders)
}

// migrate brings the tables of both databases up to date, and the rights on them, as their owner.
func (r *rig) migrate() error {
	var errs []error
	for _, name := range []string{r.OutboxDB, r.InboxDB} {
		errs = append(errs, child.Upgrade(r.ctx, r.Servers.Postgres.URL(name)))
	}
	return errors.Join(errs...)
}
