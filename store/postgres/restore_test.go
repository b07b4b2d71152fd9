package postgres_test

import (
	"bytes"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

// TestRestoredDatabaseKeepsGoing dumps a database in the middle of its work and
// goes on in another one: nothing is lost, and the order of a key is kept.
func TestRestoredDatabaseKeepsGoing(t *testing.T) {
	t.Parallel()
	source, target := testenv.Postgres(t), testenv.Postgres(t)
	pool := poolOn(t, source, nil)
	r := &rig{T: t, Store: newStore(t, pool, postgres.Config{}), pool: pool}
	written := []outbox.Record{
		event("key", "delivered"), event("key", "dead"), event("key", "head"), event("key", "follower"), event("other", "queued"),
	}
	q := r.write(written...)
	lease := r.acquire("relay", time.Hour)[q[0].Shard]
	_, err := r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(lease, q[0])})
	r.ok(err)
	_, err = r.Park(r.ctx(), "relay", lease, []outbox.Failure{
		{Seq: q[1].Seq, Round: q[1].Round, Attempts: 10, Dead: true}, {Seq: q[2].Seq, Round: q[2].Round, Attempts: 1},
	})
	r.ok(err)
	_, err = r.Follow(r.ctx(), "relay", lease, []outbox.Mark{markOf(lease, q[3])})
	r.ok(err)

	dump := run(t, "pg_dump", nil, source)
	run(t, "psql", dump, "-v", "ON_ERROR_STOP=1", "-q", target)

	pool = poolOn(t, target, nil)
	r = &rig{T: t, Store: newStore(t, pool, postgres.Config{}), pool: pool}
	if known := r.knows(written...); strings.Contains(known, "new") {
		t.Errorf("after the restore, written events are %s", known)
	}
	late := event("key", "late")
	r.write(late)
	queue := r.queue()
	if len(queue) != 2 || queue[0].ID != written[4].ID || queue[1].ID != late.ID || queue[1].Seq <= q[4].Seq {
		t.Errorf("queue holds %+v", queue)
	}
	// The lease is in the dump. It ends when it would have, or when the clock says
	// that it begins too far ahead.
	r.exec("UPDATE boxpair.outbox_shards SET leased_at = leased_at + interval '2 hours', lease_until = lease_until + interval '2 hours'")
	leases := r.acquire("relay of the restored database", time.Minute)
	lease, ok := leases[q[0].Shard]
	if !ok {
		t.Fatal("shards of the dumped relay cannot be taken over")
	}
	for _, want := range written[2:4] {
		due, _, err := r.Due(r.ctx(), []int{lease.Shard}, false, outbox.DuePoint{}, 24*time.Hour, 10)
		r.ok(err)
		if len(due) != 1 || due[0].ID != want.ID {
			t.Fatalf("due are %+v, want %s", due, want.Payload)
		}
		_, err = r.Sent(r.ctx(), "relay of the restored database", []outbox.Mark{markOf(lease, due[0])}, false)
		r.ok(err)
	}
	redriven, _, err := r.Redrive(r.ctx(), outbox.Filter{}, "reason")
	r.ok(err)
	if len(redriven) != 1 || redriven[0] != written[1].ID {
		t.Errorf("redriven are %v", redriven)
	}
}

// TestPlainFilesWorkWithOtherTools applies the migrations as psql would.
func TestPlainFilesWorkWithOtherTools(t *testing.T) {
	t.Parallel()
	address := testenv.Postgres(t)
	files, err := filepath.Glob("../../migrations/postgres/*.sql")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	args := []string{"-v", "ON_ERROR_STOP=1", "-q", "-c", "CREATE SCHEMA boxpair"}
	for _, file := range files { // sorted
		args = append(args, "-f", file)
	}
	run(t, "psql", nil, append(args, "--single-transaction", address)...)
	pool := poolOn(t, address, nil)
	store, err := postgres.New(pool, postgres.Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{T: t, Store: store, pool: pool}
	if q := r.write(event("key", "1")); len(q) != 1 {
		t.Errorf("queue holds %v", q)
	}
}

// knows appends records again and says of each whether it is known.
func (r *rig) knows(records ...outbox.Record) string {
	r.Helper()
	known, err := r.Append(r.ctx(), r.begin(), uuid.New(), records)
	r.ok(err)
	var b strings.Builder
	for _, k := range known {
		if k {
			b.WriteString("known ")
		} else {
			b.WriteString("new ")
		}
	}
	return b.String()
}

// run runs one of PostgreSQL's programs on a database.
func run(t *testing.T, program string, input []byte, args ...string) []byte {
	t.Helper()
	address := args[len(args)-1]
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), testenv.PGTool(t, program), append(args[:len(args)-1], "-d", u.String())...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", program, err, errs.String())
	}
	return out.Bytes()
}

func TestIdentityIsTheSameUntilTheServerIsAnother(t *testing.T) {
	t.Parallel()
	store := newStore(t, newPool(t, nil), postgres.Config{})
	first, err := store.Identity(t.Context())
	if err != nil || !regexp.MustCompile(`^[0-9]+/[0-9A-F]{8} [0-9.]+$`).MatchString(first) {
		t.Fatalf("identity %q, %v", first, err)
	}
	if again, err := store.Identity(t.Context()); again != first || err != nil {
		t.Errorf("then %q, %v", again, err)
	}
}
