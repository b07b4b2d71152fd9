package matrix

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/internal/fault"
	"github.com/boxpair/boxpair/producer/archive"
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
	check := func(name, kind string, p fault.Point, meet func(t *testing.T, r *rig, p fault.Point, j *child.Process), keeps bool) {
		cell(t, name+"/"+string(p), calm, system.Config{Archive: true, Proxies: true}, func(t *testing.T, r *rig) {
			files := func(*child.Config) {}
			dir := t.TempDir()
			if keeps {
				files = func(c *child.Config) { c.Archive = dir }
			}
			action := map[string]string{"kill": "kill", "panic": "panic", "error": "error"}[kind]
			if action == "" {
				action = "wait"
			}
			j := r.start(child.Janitor, string(p)+"="+action+"@3", files)
			r.chain("", "", func(c *child.Config) { c.Pause = slow })
			ok(t, j.Fault(r.within(), 1))
			meet(t, r, p, j)
			r.Injected(1)
			next := r.start(child.Janitor, "", named("next"), files)
			ok(t, r.Settle(r.ctx))
			r.eventually("an empty log", func() (bool, error) {
				n, err := system.Number(r.ctx, r.OutboxPool(), `SELECT count(*) FROM boxpair.outbox_events`)
				return n == 0, err
			})
			if last := next.Last(); last == nil || last.Removed == 0 {
				t.Error("the second janitor has removed nothing")
			}
			if keeps {
				r.archived(dir)
			}
			r.Injected(0)
			r.finish()
		})
	}
	for name, meet := range faults {
		for _, p := range []fault.Point{fault.BeforeDelete, fault.WithinDelete} {
			check(name, name, p, meet, false)
			check("with an archive/"+name, name, p, meet, true)
		}
	}
}

// archived checks that the files in dir hold every event of the outbox, as it was written.
func (r *rig) archived(dir string) {
	r.t.Helper()
	payloads := make(map[uuid.UUID]string)
	for e, err := range archive.Read(dir) {
		ok(r.t, err)
		payloads[e.ID] = string(e.Payload)
	}
	rows, err := r.OutboxPool().Query(r.ctx, `SELECT dispatch_id, payload FROM archive`)
	ok(r.t, err)
	var id uuid.UUID
	var payload []byte
	n := 0
	_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&id), &payload}, func() error {
		if n++; payloads[id] != string(payload) {
			return fmt.Errorf("event %v is not in the files", id)
		}
		return nil
	})
	ok(r.t, err)
	if n < orders || n != len(payloads) {
		r.t.Errorf("%d events in the files, %d were written", len(payloads), n)
	}
}
