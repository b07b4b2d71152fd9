package matrix

import (
	"testing"
	"time"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/test/faults/child"
	"github.com/boxpair/boxpair/test/faults/proxy"
	"github.com/boxpair/boxpair/test/faults/system"
)

// A janitor beside the chain meets a fault. Only delivered events are removed, and the next janitor
// removes the remaining events past their retention.
func TestJanitorThatMeetsAFaultRemovesOnlyWhatIsDelivered(t *testing.T) {
	t.Parallel()
	faults := map[string]func(t *testing.T, r *rig, p fault.Point, j *child.Process){
		"kill": func(t *testing.T, r *rig, _ fault.Point, j *child.Process) { ok(t, j.Killed(r.within())) },
		"panic": func(t *testing.T, r *rig, _ fault.Point, j *child.Process) {
			if j.Wait(r.within()) == nil {
				t.Fatal("a process that panicked ended with status 0")
			}
		},
		"error": func(*testing.T, *rig, fault.Point, *child.Process) {},
		"backend terminated": func(t *testing.T, r *rig, _ fault.Point, j *child.Process) {
			_, err := r.Servers.Postgres.Terminate(r.ctx, r.OutboxDB)
			ok(t, err)
			ok(t, j.Release())
		},
		"reply lost": func(t *testing.T, r *rig, _ fault.Point, j *child.Process) {
			ok(t, r.Outbox.Add(proxy.DropReplies(100)))
			ok(t, j.Release())
			pause(300 * time.Millisecond)
			r.Outbox.Heal()
		},
		"lock held": func(t *testing.T, r *rig, p fault.Point, j *child.Process) {
			tx := r.begin(r.OutboxDB)
			_, err := tx.Exec(r.ctx, `SELECT FROM boxpair.outbox_shards FOR UPDATE`)
			ok(t, err)
			ok(t, j.Release())
			pause(500 * time.Millisecond)
			ok(t, tx.Rollback(r.ctx))
		},
	}
	for name, meet := range faults {
		for _, p := range []fault.Point{fault.BeforeDelete, fault.WithinDelete} {
			cell(t, name+"/"+string(p), calm, system.Config{Archive: true, Proxies: true}, func(t *testing.T, r *rig) {
				action := map[string]string{"kill": "kill", "panic": "panic", "error": "error"}[name]
				if action == "" {
					action = "wait"
				}
				j := r.start(child.Janitor, string(p)+"="+action+"@3")
				r.chain("", "", func(c *child.Config) { c.Pause = slow })
				ok(t, j.Fault(r.within(), 1))
				meet(t, r, p, j)
				r.Injected(1)
				next := r.start(child.Janitor, "", named("next"))
				ok(t, r.Settle(r.ctx))
				r.eventually("an empty log", func() (bool, error) {
					n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_events`)
					return n == 0, err
				})
				if last := next.Last(); last == nil || last.Removed == 0 {
					t.Error("the second janitor has removed nothing")
				}
				r.Injected(0)
				r.finish()
			})
		}
	}
}
