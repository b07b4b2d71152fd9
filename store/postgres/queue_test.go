package postgres_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
)

func (r *rig) writers() []string {
	r.Helper()
	names, err := r.Writers(r.ctx())
	r.ok(err)
	return names
}

func TestIdleTransactionsThatWriteNoEventAreNoWriters(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := poolOn(t, testenv.Postgres(t), nil)
	elsewhere, err := other.Begin(t.Context())
	r.ok(err)
	t.Cleanup(func() { elsewhere.Rollback(context.WithoutCancel(t.Context())) })
	_, err = elsewhere.Exec(t.Context(), "CREATE TABLE t ()")
	r.ok(err)
	otherOutbox := newStore(t, r.pool, postgres.Config{Prefix: "other_"})
	here := r.begin()
	_, err = here.Exec(r.ctx(), "CREATE TABLE t (); SELECT * FROM "+r.names.Table("outbox_events"))
	r.ok(err)
	_, err = otherOutbox.Append(r.ctx(), here, uuid.New(), []outbox.Record{event("key", "x")})
	r.ok(err)
	if names := r.writers(); len(names) != 0 {
		t.Errorf("writers are %v", names)
	}
}

// TestWriterInACopyOfTheDatabaseIsNoWriter: in a copy, tables have the same
// object IDs, and locks of all databases are seen from each.
func TestWriterInACopyOfTheDatabaseIsNoWriter(t *testing.T) {
	t.Parallel()
	address := testenv.Postgres(t)
	pool := poolOn(t, address, nil)
	newStore(t, pool, postgres.Config{})
	pool.Close() // a database that is copied must not be in use
	source, name := pool.Config().ConnConfig.Database, testenv.Name(t)
	admin := poolOn(t, testenv.Postgres(t), nil)
	if _, err := admin.Exec(t.Context(), "CREATE DATABASE "+name+" TEMPLATE "+source); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Exec(context.WithoutCancel(t.Context()), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	here := newStore(t, poolOn(t, address, nil), postgres.Config{})
	pool = poolOn(t, strings.Replace(address, source, name, 1), nil)
	copied := newStore(t, pool, postgres.Config{})
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if _, err := copied.Append(t.Context(), tx, uuid.New(), []outbox.Record{event("key", "x")}); err != nil {
		t.Fatal(err)
	}
	for store, want := range map[*postgres.Store]bool{here: false, copied: true} {
		names, err := store.Writers(t.Context())
		if err != nil || len(names) > 0 != want {
			t.Errorf("writers are %v, %v, want some: %t", names, err, want)
		}
	}
}

func TestPreparedTransactionStaysAWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gid := testenv.Name(t)
	tx := r.begin()
	r.ok(r.put(r.ctx(), tx, uuid.New(), event("key", "1")))
	before := r.writers()
	_, err := tx.Exec(r.ctx(), "PREPARE TRANSACTION '"+gid+"'")
	r.ok(err)
	kept := func(name string) bool { return slices.Contains(before, name) }
	if after := r.writers(); !slices.ContainsFunc(after, kept) {
		t.Errorf("writers were %v, and are %v after PREPARE TRANSACTION", before, after)
	}
	r.exec("COMMIT PREPARED '" + gid + "'")
	if after := r.writers(); len(after) != 0 {
		t.Errorf("writers are %v", after)
	}
	if q := r.queue(); len(q) != 1 {
		t.Errorf("queue holds %v", q)
	}
}

func TestMarkKeepsOneReceiptAndDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := r.write(event("a", "1"), event("b", "2"), event("c", "3"), event("d", "4"))
	leases := r.acquire("relay", time.Hour)
	var marks []outbox.Mark
	for _, q := range events[:3] {
		marks = append(marks, markOf(leases[q.Shard], q))
	}
	for range 2 { // the second time, nothing is left to mark
		if _, err := r.Mark(r.ctx(), "relay", marks); err != nil {
			t.Fatal(err)
		}
	}
	receipts := "FROM " + r.names.Table("outbox_receipts")
	if n := value[int](r, "SELECT count(*) "+receipts); n != 1 {
		t.Fatalf("%d receipts", n)
	}
	got := value[[]int64](r, "SELECT event_ids "+receipts)
	if want := []int64{events[0].Seq, events[1].Seq, events[2].Seq}; !slices.Equal(got, want) {
		t.Errorf("receipt names %v, want %v", got, want)
	}
}

func TestQueueRowWithoutAnEventIsMissingAndNotSilent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := r.write(event("key", "1"), event("key", "2"))
	lost := events[0]
	r.exec("DELETE FROM "+r.names.Table("outbox_events")+" WHERE id = $1", lost.Seq)
	got := r.queue()
	if len(got) != 2 || !got[0].Missing || got[0].Seq != lost.Seq || got[0].Shard != lost.Shard || got[1].Missing {
		t.Fatalf("queue holds %+v", got)
	}
	lease := r.acquire("relay", time.Hour)[lost.Shard]
	_, err := r.Park(r.ctx(), "relay", lease, []outbox.Failure{{Seq: lost.Seq, Round: lost.Round, Attempts: 1, Dead: true, Error: "missing"}})
	r.ok(err)
	list, err := r.ListParked(r.ctx(), outbox.Filter{})
	r.ok(err)
	if len(list) != 1 || list[0].Seq != lost.Seq || list[0].State != outbox.Dead {
		t.Errorf("parked are %+v", list)
	}
}

func TestLateMarkOfAnEarlierRoundKeepsTheRow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.write(event("key", "1"))[0]
	lease := r.acquire("relay", time.Hour)[q.Shard]
	// The event is delivered, marked, and queued again.
	r.exec("UPDATE "+r.names.Table("outbox_queue")+" SET round = nextval($1::text::regclass)", r.names.Table("outbox_tickets"))
	if _, err := r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(lease, q)}); err != nil {
		t.Fatal(err)
	}
	again := r.queue()
	if len(again) != 1 || again[0].Round == q.Round {
		t.Fatalf("queue holds %+v", again)
	}
	if _, err := r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(lease, again[0])}); err != nil {
		t.Fatal(err)
	}
	if left := r.queue(); len(left) != 0 {
		t.Errorf("queue holds %+v", left)
	}
}

func TestEventThatIsQueuedAgainCanBeParkedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	q := r.write(event("key", "1"))[0]
	lease := r.acquire("relay", time.Hour)[q.Shard]
	failure := outbox.Failure{Seq: q.Seq, Round: q.Round, Attempts: 1, Dead: true}
	for i := range 3 {
		if i > 0 {
			r.exec("INSERT INTO "+r.names.Table("outbox_queue")+" (shard, id, round) VALUES ($1, $2, $3)", q.Shard, q.Seq, q.Round)
		}
		_, err := r.Park(r.ctx(), "relay", lease, []outbox.Failure{failure})
		r.ok(err)
	}
	if list, err := r.ListParked(r.ctx(), outbox.Filter{}); err != nil || len(list) != 1 {
		t.Errorf("parked are %+v, %v", list, err)
	}
}

func TestHeartbeatForgetsRelaysThatAreLongGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	relays := r.names.Table("outbox_relays")
	r.exec("INSERT INTO " + relays + ` VALUES ('gone', clock_timestamp() - interval '2 hours'),
		('silent', clock_timestamp() - interval '1 minute'), ('from the future', clock_timestamp() + interval '2 hours')`)
	n, err := r.Heartbeat(r.ctx(), "relay", time.Minute)
	if err != nil || n != 1 {
		t.Errorf("heartbeat sees %d relays, %v", n, err)
	}
	got := value[[]string](r, "SELECT array_agg(id ORDER BY id) FROM "+relays)
	if want := []string{"from the future", "relay", "silent"}; !slices.Equal(got, want) {
		t.Errorf("relays are %v, want %v", got, want)
	}
}

func TestStatsStopCounting(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.exec("INSERT INTO " + r.names.Table("outbox_queue") + " (shard, id) SELECT n % 64, n FROM generate_series(1, 100000) n")
	st, err := r.Stats(r.ctx())
	if err != nil || st.Pending != 100_000 || st.PendingCapped {
		t.Errorf("stats are %+v, %v", st, err)
	}
	r.exec("INSERT INTO " + r.names.Table("outbox_queue") + " (shard, id) VALUES (0, 100001)")
	st, err = r.Stats(r.ctx())
	if err != nil || st.Pending != 100_000 || !st.PendingCapped {
		t.Errorf("stats are %+v, %v", st, err)
	}
}

func TestListenEndsWithItsConnectionAndItsContext(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	listener := `SELECT coalesce(max(pid), 0) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`
	ctx, cancel := context.WithCancel(r.ctx())
	defer cancel()
	for _, end := range []func(pid int32){
		func(pid int32) { r.exec("SELECT pg_terminate_backend($1)", pid) },
		func(int32) { cancel() },
	} {
		listening := r.async(func() error { return r.Listen(ctx, func(string) {}) })
		var pid int32
		r.eventually("LISTEN", func() bool {
			pid = value[int32](r, listener)
			return pid != 0
		})
		end(pid)
		if err := r.result(listening); err == nil {
			t.Error("Listen returned no error")
		}
		r.eventually("connection is closed", func() bool { return value[int32](r, listener) == 0 })
	}
}

func TestSignalReachesOtherOutboxesNot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	other := newStore(t, r.pool, postgres.Config{Prefix: "other_"})
	woken := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(r.ctx())
	listening := r.async(func() error {
		return other.Listen(ctx, func(string) { woken <- struct{}{} })
	})
	r.eventually("LISTEN has committed", func() bool { // a signal before is lost
		return value[int](r, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND query LIKE 'LISTEN%' AND state = 'idle'`) == 1
	})
	r.ok(r.Notify(r.ctx(), ""))
	r.ok(other.Notify(r.ctx(), ""))
	r.eventually("signal", func() bool { return len(woken) == 1 })
	<-woken
	cancel()
	_ = r.result(listening)
	if len(woken) != 0 {
		t.Error("woken by the signal of another outbox")
	}
}

func TestStatusSaysWhatIsStuckAndWhy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	events := r.write(event("key", "1"), event("key", "2"), event("key", "3"), event("other", "4"), event("lost", "5"))
	why := func(i int) string {
		r.Helper()
		return value[string](r, "SELECT state || ': ' || why FROM "+r.names.Table("outbox_status")+" WHERE id = $1", events[i].Seq)
	}
	expect := func(i int, want string) {
		r.Helper()
		if got := why(i); !strings.Contains(got, want) {
			t.Errorf("status of event %d is %q, want %q", i+1, got, want)
		}
	}
	expect(3, "pending: no relay owns its shard")
	leases := r.acquire("relay-1", time.Hour)
	lease := leases[events[0].Shard]
	expect(3, "pending: waits to be sent by relay relay-1")
	_, err := r.Park(r.ctx(), "relay-1", lease, []outbox.Failure{{Seq: events[0].Seq, Round: events[0].Round, Attempts: 9, RetryIn: time.Hour, Error: "no route"}})
	r.ok(err)
	_, err = r.Follow(r.ctx(), "relay-1", lease, []outbox.Mark{markOf(lease, events[1])})
	r.ok(err)
	expect(0, "retrying: waits for its next attempt")
	expect(1, "following: waits for event 1 of its key")
	expect(2, "pending: waits for event 1 of its key")
	_, err = r.Retry(r.ctx(), "relay-1", lease, []outbox.Failure{{Seq: events[0].Seq, Attempts: 10, Dead: true}}, true)
	r.ok(err)
	expect(0, "dead: its attempts are used up")
	expect(1, "following: waits for an operator")
	_, err = r.Discard(r.ctx(), outbox.Filter{IDs: []uuid.UUID{events[0].ID}}, "not needed")
	r.ok(err)
	expect(0, "discarded: not needed")
	expect(1, "retrying: waits to be sent by relay relay-1")
	r.exec("UPDATE " + r.names.Table("outbox_shards") + " SET lease_until = '-infinity'")
	expect(3, "pending: the lease of relay relay-1 has expired")
	r.exec("DELETE FROM "+r.names.Table("outbox_events")+" WHERE id = $1", events[4].Seq)
	expect(4, "pending: the log has no such event")
}
