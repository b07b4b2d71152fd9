package matrix

import (
	"context"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/invariant"
	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

const (
	// orders is how many orders a cell places.
	orders = 60
	// nth is the count of a point at which the fault happens: in the midst of the flow.
	nth = "@4"
	// patience bounds the waits of a cell, on a machine that is busy with many cells.
	patience = 60 * time.Second
)

// quick tells whether only a part of the matrix runs.
var quick = os.Getenv("MATRIX_QUICK") != ""

// left tells whether a quick run leaves a cell out: a fixed choice of five cells in six.
func left(test, name string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(test + "/" + name))
	return quick && h.Sum32()%6 != 0
}

// rig is a system of one cell.
type rig struct {
	t   *testing.T
	ctx context.Context
	*system.System
	needed   invariant.Work
	patience time.Duration
}

// cell runs one cell of the matrix in parallel with others.
func cell(t *testing.T, name string, on func() (*servers.Servers, error), cfg system.Config, run func(t *testing.T, r *rig)) {
	t.Helper()
	if left(t.Name(), name) {
		return
	}
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		t.Cleanup(func() { tally.add(t.Name(), t.Failed()) })
		run(t, newRig(t, on, cfg))
	})
}

func newRig(t *testing.T, on func() (*servers.Servers, error), cfg system.Config) *rig {
	t.Helper()
	s, err := on()
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	cfg.Dir, err = os.MkdirTemp("", "boxpair-matrix-") //nolint:usetesting // kept if the cell fails
	ok(t, err)
	r := &rig{t: t, ctx: ctx, needed: invariant.Work{Orders: orders, Faults: 1}, patience: patience}
	r.System, err = system.New(ctx, s, cfg)
	ok(t, err)
	t.Cleanup(func() {
		ok(t, r.Close(context.WithoutCancel(ctx)))
		if t.Failed() {
			r.tellLogs(cfg.Dir)
			return
		}
		ok(t, os.RemoveAll(cfg.Dir))
	})
	return r
}

// tellLogs logs the directory of a failed cell's logs, and the last lines of the children's
// standard error.
func (r *rig) tellLogs(dir string) {
	r.t.Logf("logs are in %s", dir)
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		text, _ := os.ReadFile(filepath.Join(dir, e.Name()))
		if strings.HasSuffix(e.Name(), ".err") && len(text) > 0 {
			r.t.Logf("%s:\n%s", e.Name(), text[max(0, len(text)-2000):])
		}
	}
}

// change changes the configuration of a child.
type change func(*child.Config)

// start starts a child with one role, named after it.
func (r *rig) start(role child.Role, faults string, changes ...change) *child.Process {
	r.t.Helper()
	cfg := child.Config{Name: string(role), Roles: []child.Role{role}}
	if role == child.Producer {
		cfg.Orders = orders
	}
	for _, c := range changes {
		c(&cfg)
	}
	p, err := r.Start(r.ctx, cfg, faults)
	ok(r.t, err)
	return p
}

// chain starts a consumer, a relay and a producer; the victim gets the faults.
func (r *rig) chain(victim child.Role, faults string, changes ...change) map[child.Role]*child.Process {
	r.t.Helper()
	all := make(map[child.Role]*child.Process)
	for _, role := range []child.Role{child.Consumer, child.Relay, child.Producer} {
		spec := ""
		if role == victim {
			spec = faults
		}
		all[role] = r.start(role, spec, changes...)
	}
	return all
}

// suppressed waits until p has suppressed the given number of copies: delivered and unacknowledged
// messages show nowhere else.
func (r *rig) suppressed(p *child.Process, copies int) {
	r.t.Helper()
	ok(r.t, p.Until(r.within(), "copies", func(r *child.Report) bool {
		n := 0
		for _, h := range r.Handlers {
			n += int(h.Duplicates())
		}
		return n >= copies
	}))
}

// finish waits until all is at rest, and checks the state.
func (r *rig) finish() *invariant.State {
	r.t.Helper()
	state, err := r.Finish(r.ctx, r.needed)
	ok(r.t, err)
	r.check(state)
	return state
}

func (r *rig) check(state *invariant.State) {
	r.t.Helper()
	if why := invariant.Invalid(state); why != "" {
		r.t.Errorf("INVALID: %s", why)
	}
	for _, v := range invariant.Check(state) {
		r.t.Errorf("%v", v)
	}
}

// within bounds a wait.
func (r *rig) within() context.Context {
	ctx, cancel := context.WithTimeout(r.ctx, r.patience)
	r.t.Cleanup(cancel)
	return ctx
}

// eventually waits until cond holds.
func (r *rig) eventually(what string, cond func() (bool, error)) {
	r.t.Helper()
	ctx := r.within()
	var last error
	for {
		done, err := cond()
		if err == nil && done {
			return
		}
		last = err
		select {
		case <-ctx.Done():
			r.t.Fatalf("waited too long for %s (%v)", what, last)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pause lets d pass during a fault of a server, or without a fault: all clocks are real.
func pause(d time.Duration) { <-time.After(d) }

// victim is the role whose process reaches a point.
func victim(p fault.Point) child.Role {
	switch {
	case p.OfProducer():
		return child.Producer
	case p.OfConsumer(), p == fault.BrokerDelivered:
		return child.Consumer
	}
	return child.Relay
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
