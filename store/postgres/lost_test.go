package postgres_test

import (
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// A server that begins anew since one of its sessions has crashed loses what was committed
// asynchronously, and is not started again by anybody.
func TestIdentityIsAnotherAfterACrashThatMayLoseCommits(t *testing.T) {
	t.Parallel()
	server := testenv.PrivatePostgres(t)
	pool := poolOn(t, server.URL(), nil)
	store := newStore(t, pool, postgres.Config{})
	r := &rig{T: t, Store: store, pool: pool}
	identity := func() (name string) {
		t.Helper()
		r.eventually("identity", func() bool {
			var err error
			name, err = store.Identity(t.Context())
			return err == nil && name != ""
		})
		return name
	}
	before := identity()
	var pid int
	if err := pool.QueryRow(t.Context(), "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	var after string
	r.eventually("another identity", func() bool { after = identity(); return after != before })
	if again := identity(); again != after {
		t.Errorf("identity is %q, then %q", after, again)
	}
}

// The sequence of a database that lost commits gives their IDs out again.
func TestMarkOfALostEventKeepsTheRowOfTheEventThatHasItsID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	lost := r.write(event("key", "lost"))[0]
	lease := r.acquire("relay", patience)[lost.Shard]
	r.exec("DELETE FROM " + r.names.Table("outbox_queue"))
	r.exec("DELETE FROM " + r.names.Table("outbox_events"))
	r.exec("ALTER TABLE " + r.names.Table("outbox_events") + " ALTER COLUMN id RESTART WITH 1")
	kept := r.write(event("key", "kept"))
	if len(kept) != 1 || kept[0].Seq != lost.Seq || kept[0].Shard != lost.Shard {
		t.Fatalf("queue holds %+v, which should have the ID of %+v", kept, lost)
	}
	_, err := r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(lease, lost)})
	r.ok(err)
	_, err = r.Follow(r.ctx(), "relay", lease, []outbox.Mark{markOf(lease, lost)})
	r.ok(err)
	if left := r.queue(); len(left) != 1 || left[0].ID != kept[0].ID {
		t.Errorf("queue holds %+v", left)
	}
}

// Writers that know nothing of rounds, as outbox_write() and those of before, write them by chance
// as well.
func TestEveryWriterGivesARowARoundOfItsOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 2 {
		r.exec("SELECT FROM "+r.names.Table("outbox_write")+"(producer => 'p', topic => 't', payload => '', source => $1, version => 1)", uuid.NewString())
	}
	q := r.queue()
	if len(q) != 2 || q[0].Round >= 0 || q[1].Round >= 0 || q[0].Round == q[1].Round {
		t.Errorf("queue holds %+v", q)
	}
}
