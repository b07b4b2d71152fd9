package sqlite_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/sqlite"
)

// childEnv names the environment variable with the task of a child process and its arguments.
const childEnv = "BOXPAIR_SQLITE_TEST_CHILD"

// children are the tasks of child processes. They print a line per step, and fail by panicking.
var children = map[string]func(args []string){
	"orders":  placeOrders,
	"handler": handleMessages,
	"migrate": migrateOnce,
	"archive": archiveAndStall,
}

func runChild(name string) {
	fields := strings.Split(name, "\n")
	children[fields[0]](fields[1:])
}

// child starts the binary of this test as a child process with the task name.
func child(t *testing.T, name string, args ...string) (*exec.Cmd, *bufio.Scanner) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(append([]string{name}, args...), "\n"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewScanner(out)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// placeOrders writes orders with an event each, until the process is killed or the given number is
// written.
func placeOrders(args []string) {
	path, name, count := args[0], args[1], must(strconv.Atoi(args[2]))
	ctx := context.Background()
	db := must(sqlite.Open(path))
	store := must(sqlite.New(db, sqlite.Config{}))
	for i := 1; i <= count; i++ {
		id := fmt.Sprint(name, "-", i)
		check(store.Transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, id); err != nil {
				return err
			}
			_, err := store.Append(ctx, tx, uuid.New(), []outbox.Record{record(id, 1, "placed"), record(id, 2, "paid")})
			return err
		}))
		fmt.Println(id)
	}
	check(db.Close())
}

// handleMessages applies messages until it is killed.
func handleMessages(args []string) {
	path, consumerID := args[0], must(strconv.Atoi(args[1]))
	ctx := context.Background()
	store := must(sqlite.New(must(sqlite.Open(path)), sqlite.Config{}))
	for {
		id := uuid.New()
		_ = must(store.Apply(ctx, inbox.Claim{Consumer: consumerID, ID: id}, func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO effects (id) VALUES (?)`, id[:])
			return err
		}))
		fmt.Println(id)
	}
}

func migrateOnce(args []string) {
	db := must(sqlite.Open(args[0]))
	fmt.Println("ready")
	_ = must(io.Copy(io.Discard, os.Stdin)) // until the parent closes stdin
	applied := must(sqlite.Migrate(context.Background(), db, sqlite.Config{}))
	fmt.Println(len(applied))
	check(db.Close())
}

// killAfter reads steps lines of a child, kills it with SIGKILL and returns the last whole line.
func killAfter(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner, steps int) (last string) {
	t.Helper()
	for range steps {
		if !lines.Scan() {
			t.Fatalf("child ended early: %v", lines.Err())
		}
		last = lines.Text()
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	return last
}

func TestKilledWriterLeavesEveryOrderWithItsEvents(t *testing.T) {
	t.Parallel()
	db, path := database(t)
	run(t, db, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	for round := range 5 {
		cmd, lines := child(t, "orders", path, fmt.Sprint("round", round), "1000000")
		last := killAfter(t, cmd, lines, 20+7*round)
		if n := number(t, db, `SELECT count(*) FROM orders WHERE id = ?`, last); n != 1 {
			t.Errorf("order %s was committed and is not there", last)
		}
	}
	if n := number(t, db, `SELECT count(*) FROM orders o WHERE 2 <>
		(SELECT count(*) FROM boxpair_outbox_events e JOIN boxpair_outbox_queue q ON q.id = e.id WHERE e.key = o.id)`); n != 0 {
		t.Errorf("%d orders have not exactly their two events", n)
	}
	if n := number(t, db, `SELECT count(*) FROM boxpair_outbox_events WHERE key NOT IN (SELECT id FROM orders)`); n != 0 {
		t.Errorf("%d events have no order", n)
	}
	checkIntegrity(t, db)
}

func TestKilledHandlerLeavesEveryClaimWithItsEffect(t *testing.T) {
	t.Parallel()
	db, path := database(t)
	run(t, db, `CREATE TABLE effects (id BLOB)`)
	r, err := newStore(t, db).Register(t.Context(), "test", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 5 {
		cmd, lines := child(t, "handler", path, strconv.Itoa(r.Consumer))
		last := uuid.MustParse(killAfter(t, cmd, lines, 20+7*round))
		if n := number(t, db, `SELECT count(*) FROM effects WHERE id = ?`, last[:]); n != 1 {
			t.Errorf("message %s was applied and has %d effects", last, n)
		}
	}
	claims := number(t, db, `SELECT count(*) FROM boxpair_inbox`)
	both := number(t, db, `SELECT count(*) FROM boxpair_inbox i JOIN effects e ON e.id = i.dispatch_id`)
	if effects := number(t, db, `SELECT count(*) FROM effects`); effects != claims || both != claims {
		t.Errorf("%d claims, %d effects, %d of both", claims, effects, both)
	}
	checkIntegrity(t, db)
}

func checkIntegrity(t *testing.T, db *sql.DB) {
	t.Helper()
	var answer string
	if err := db.QueryRowContext(t.Context(), `PRAGMA integrity_check`).Scan(&answer); err != nil || answer != "ok" {
		t.Errorf("integrity check: %s, %v", answer, err)
	}
}

func TestThreeProcessesOnOneFileWriteAllTheirEvents(t *testing.T) {
	t.Parallel()
	db, path := database(t)
	run(t, db, `CREATE TABLE orders (id TEXT PRIMARY KEY)`)
	const each = 150
	names := []string{"a", "b"}
	var commands []*exec.Cmd
	for _, name := range names {
		cmd, lines := child(t, "orders", path, name, strconv.Itoa(each))
		commands = append(commands, cmd)
		go func() {
			for lines.Scan() {
				continue // until the child ends
			}
		}()
	}
	// The third process relays the events of the other two.
	s := newStore(t, db)
	leases := leaseAll(t, s, "relay")
	seen := make(map[string]int64)
	deadline := time.Now().Add(time.Minute)
	for delivered := 0; delivered < 2*each*len(names); {
		if time.Now().After(deadline) {
			t.Fatalf("only %d events after a minute", delivered)
		}
		var marks []outbox.Mark
		for _, q := range fetchAll(t, s, leases) {
			if q.Version != seen[q.Key]+1 {
				t.Errorf("version %d of %s came after version %d", q.Version, q.Key, seen[q.Key])
			}
			seen[q.Key] = q.Version
			marks = append(marks, outbox.Mark{Lease: leases[q.Shard], Seq: q.Seq, Round: q.Round})
		}
		lost, err := s.Mark(t.Context(), "relay", marks)
		if err != nil || len(lost) > 0 {
			t.Fatalf("Mark() = %v, %v", lost, err)
		}
		delivered += len(marks)
	}
	for _, cmd := range commands {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// fetchAll reads the queue rows of all leases.
func fetchAll(t testing.TB, s *sqlite.Store, leases map[int]outbox.Lease) []outbox.Queued {
	t.Helper()
	var ranges []outbox.Range
	for shard := range leases {
		ranges = append(ranges, outbox.Range{Shard: shard, Limit: 1000})
	}
	queued, err := s.Fetch(t.Context(), ranges)
	if err != nil {
		t.Fatal(err)
	}
	return queued
}

func TestProcessesThatMigrateAtOnceApplyEveryFileOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "test.db")
	total := 0
	type started struct {
		lines *bufio.Scanner
		stdin io.Closer
	}
	var all []started
	for range 3 {
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), childEnv+"=migrate\n"+path)
		cmd.Stderr = os.Stderr
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = stdin.Close()
			_ = cmd.Wait()
		})
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "ready" {
			t.Fatal("child is not ready")
		}
		all = append(all, started{lines, stdin})
	}
	for _, s := range all {
		if err := s.stdin.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range all {
		if !s.lines.Scan() {
			t.Fatal("child has failed")
		}
		n, err := strconv.Atoi(s.lines.Text())
		if err != nil {
			t.Fatal(err)
		}
		total += n
	}
	db := open(t, path)
	if n := number(t, db, `SELECT count(*) FROM boxpair_schema_migrations`); n == 0 || n != total {
		t.Errorf("%d migrations are recorded, %d were applied", n, total)
	}
}

func TestCopiedDatabaseGoesOn(t *testing.T) {
	t.Parallel()
	db, _ := database(t)
	s := newStore(t, db)
	leases := leaseAll(t, s, "relay")
	write(t, s, record("a", 1, "1"), record("a", 2, "2"), record("b", 1, "1"))
	first := fetchAll(t, s, leases)[0]
	mark := outbox.Mark{Lease: leases[first.Shard], Seq: first.Seq}
	if lost, err := s.Mark(t.Context(), "relay", []outbox.Mark{mark}); err != nil || len(lost) > 0 {
		t.Fatal(lost, err)
	}
	c := claim(t, s)
	nothing := func(context.Context, *sql.Tx) error { return nil }
	if v, err := s.Apply(t.Context(), c, nothing); v != inbox.Applied || err != nil {
		t.Fatal(v, err)
	}

	path := filepath.Join(t.TempDir(), "copy.db")
	run(t, db, `VACUUM INTO ?`, path)
	restored := newStore(t, open(t, path))
	write(t, restored, record("a", 1, "1"), record("a", 3, "3"))
	var versions []string
	for _, q := range fetchAll(t, restored, leases) {
		versions = append(versions, fmt.Sprint(q.Key, q.Version))
	}
	if got := strings.Join(versions, " "); got != "a2 b1 a3" {
		t.Errorf("the copy is to send %s, want a2 b1 a3", got)
	}
	if renewed, err := restored.Renew(t.Context(), "relay", time.Minute, []outbox.Lease{mark.Lease}); err != nil || len(renewed) != 1 {
		t.Errorf("Renew() = %v, %v, want the lease", renewed, err)
	}
	if v, err := restored.Apply(t.Context(), c, nothing); v != inbox.Duplicate || err != nil {
		t.Errorf("Apply() = %v, %v, want a duplicate", v, err)
	}
}
