package matrix

import (
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/invariant"
	"github.com/boxpair/boxpair/test/faults/servers"
	"github.com/boxpair/boxpair/test/faults/system"
)

// A standby that lacks the last commits takes over. The lost orders and effects are not the
// library's to prevent, but the rest must be whole: no order without its event, no effect without
// its claim and its own event, nothing twice. Events that are unsent on the new server are sent by
// the relay that had marked them on the old server, and have their effects, although the consumer
// had applied and remembered them.
func TestFailOverThatLosesCommitsLeavesWhatIsLeftWhole(t *testing.T) {
	t.Parallel()
	alone := func() (*servers.Servers, error) {
		shared, err := calm()
		if err != nil {
			return nil, err
		}
		s, err := started(servers.Config{NoRabbitMQ: true})()
		if err != nil {
			return nil, err
		}
		return &servers.Servers{Postgres: s.Postgres, RabbitMQ: shared.RabbitMQ}, nil
	}
	cell(t, "before-window", alone, system.Config{Proxies: true, DrainLimit: 20 * time.Second}, func(t *testing.T, r *rig) {
		primary := r.Servers.Postgres
		standby, err := primary.Standby(r.ctx)
		ok(t, err)
		stopLater(standby.Close)
		all := r.chain("", "", func(c *child.Config) { c.Orders, c.Pause = 0, 5*time.Millisecond })
		before := r.effects(30)
		// The standby must hold events that will have been sent and marked on the primary.
		ok(t, all[child.Relay].Signal(syscall.SIGSTOP))
		r.eventually("events that are pending", func() (bool, error) {
			n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_queue`)
			return n >= 10, err
		})
		ok(t, primary.AwaitReplay(r.ctx, standby))
		standby.Stop()
		ok(t, all[child.Relay].Signal(syscall.SIGCONT))
		r.effects(before + 60) // missing on the standby
		primary.Kill()
		ok(t, standby.Start(r.ctx))
		ok(t, standby.Promote(r.ctx))
		ok(t, r.FailOver(r.ctx, standby))
		first, err := r.LookAtDatabases(r.ctx)
		ok(t, err)
		ok(t, r.Switch())
		r.Injected(1)
		after := r.effects(len(first.Consumers[0].Effects) + 60)
		report, err := all[child.Producer].Stop(r.within())
		ok(t, err)
		r.Reported(all[child.Producer], report)
		state, err := r.Finish(r.ctx, r.needed)
		ok(t, err)

		state.Wire = nil // the broker has acknowledgements of claims that are lost
		lost, ghosts := 0, 0
		for _, v := range invariant.Check(state) {
			switch v.Check {
			case "loss":
				lost++
			case "phantom", "conserved", "totals", "order", "wire", "drained":
				ghosts++
			default:
				t.Errorf("%v", v)
			}
		}
		applied := make([]uuid.UUID, 0, after)
		for _, e := range state.Consumers[0].Effects {
			applied = append(applied, e.Dispatch)
		}
		for _, id := range first.Pending {
			if !slices.Contains(applied, id) {
				t.Errorf("dispatch %s was pending after the fail-over and has no effect", id)
			}
		}
		if len(first.Pending) == 0 || len(first.Consumers[0].Effects) >= before+60 {
			t.Errorf("INVALID: %d events were pending, %d effects there", len(first.Pending), len(first.Consumers[0].Effects))
		}
		t.Logf("%d events were sent again; the fail-over shows in %d kinds of loss and %d of other traces", len(first.Pending), lost, ghosts)
	})
}

// effects waits until there are at least n effects, and returns their number.
func (r *rig) effects(n int) (found int) {
	r.t.Helper()
	r.eventually("effects", func() (bool, error) {
		var err error
		found, err = system.Number(r.ctx, r.InboxPool(), `SELECT count(*) FROM effects`)
		return found >= n, err
	})
	return found
}
