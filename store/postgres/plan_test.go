package postgres

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
)

// planned is a store whose plans are looked at.
type planned struct {
	*testing.T
	*Store
}

func newPlanned(t *testing.T) *planned {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	return newPlannedOver(t, cfg)
}

func newPlannedOver(t *testing.T, cfg *pgxpool.Config) *planned {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := Migrate(t.Context(), pool, Config{}); err != nil {
		t.Fatal(err)
	}
	store, err := New(pool, Config{})
	if err != nil {
		t.Fatal(err)
	}
	return &planned{T: t, Store: store}
}

func (p *planned) run(sql string, args ...any) {
	p.Helper()
	if _, err := p.pool.Exec(p.Context(), sql, args...); err != nil {
		p.Fatal(err)
	}
}

// fill puts n events, spread over shards and over keys, into log and queue,
// without telling the planner.
func (p *planned) fill(n int) {
	p.Helper()
	p.run(`WITH e AS (
		INSERT INTO boxpair.outbox_events (dispatch_id, shard, digest, topic, key, payload)
		SELECT gen_random_uuid(), i % 64, '\x00000000000000000000000000000000', 'topic', 'key ' || i % 640, 'payload'
		FROM generate_series(1, $1::int) i RETURNING shard, id
	) INSERT INTO boxpair.outbox_queue (shard, id) SELECT shard, id FROM e`, n)
}

// node is a node of a plan.
type node struct {
	Kind    string `json:"Node Type"`
	Table   string `json:"Relation Name"`
	Hit     int    `json:"Shared Hit Blocks"`
	Read    int    `json:"Shared Read Blocks"`
	Removed int    `json:"Rows Removed by Filter"`
	Plans   []node
}

func (n node) walk(visit func(node)) {
	visit(n)
	for _, child := range n.Plans {
		child.walk(visit)
	}
}

// explain runs a statement in a transaction that is rolled back, and returns
// its plan as it is made for these arguments.
func (p *planned) explain(tmpl *template, args ...any) node {
	p.Helper()
	return p.explainAfter("", tmpl, args...)
}

// explainRemoval is explain for a statement of the janitor, behind the one that begins its
// transaction.
func (p *planned) explainRemoval(tmpl *template, args ...any) node {
	p.Helper()
	return p.explainAfter(beginRetention, tmpl, args...)
}

func (p *planned) explainAfter(begin string, tmpl *template, args ...any) node {
	p.Helper()
	tx, err := p.pool.Begin(p.Context())
	if err != nil {
		p.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(p.Context()))
	if begin != "" {
		if _, err := tx.Exec(p.Context(), begin, 1, "off"); err != nil {
			p.Fatal(err)
		}
	}
	return p.explainSQL(tx, p.sql[tmpl], args...)
}

// explainSQL runs a statement and returns its plan.
func (p *planned) explainSQL(in interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, sql string, args ...any) node {
	p.Helper()
	var text []byte
	args = append([]any{pgx.QueryExecModeDescribeExec}, args...)
	if err := in.QueryRow(p.Context(), "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) "+sql, args...).Scan(&text); err != nil {
		p.Fatal(err)
	}
	var plans []struct{ Plan node }
	if err := json.Unmarshal(text, &plans); err != nil {
		p.Fatal(err)
	}
	return plans[0].Plan
}

// expectIndexes checks that no big table is read as a whole, and that the
// statement touches at most a number of blocks.
func (p *planned) expectIndexes(name string, plan node, blocks int) {
	p.Helper()
	plan.walk(func(n node) {
		if strings.HasPrefix(n.Kind, "Seq Scan") && slices.Contains([]string{"outbox_queue", "outbox_events", "outbox_parked", "outbox_deferred", "inbox_parked"}, n.Table) {
			p.Errorf("%s reads all of %s", name, n.Table)
		}
	})
	// What nothing reads from runs after the top node, which does not count it then.
	got := plan.Hit + plan.Read
	for _, child := range plan.Plans {
		got = max(got, child.Hit+child.Read)
	}
	if got > blocks {
		p.Errorf("%s touches %d blocks, want at most %d", name, got, blocks)
	}
}

func allShards() []int {
	list := make([]int, idgen.Shards)
	for i := range list {
		list[i] = i
	}
	return list
}

// own makes "relay" the owner of all shards.
func (p *planned) own() (shards []int16, epochs []int64) {
	p.Helper()
	grants, err := p.Acquire(p.Context(), "relay", 1e12, idgen.Shards)
	if err != nil {
		p.Fatal(err)
	}
	leases := make([]outbox.Lease, len(grants))
	for i, g := range grants {
		leases[i] = g.Lease
	}
	return split(leases)
}

// TestPlansHoldWithoutStatistics fills the queue after its statistics were
// gathered, and does not tell the planner.
func TestPlansHoldWithoutStatistics(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]int{"nothing": 0, "what was delivered": 20_032} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlanned(t)
			p.fill(before)
			p.run(`DELETE FROM boxpair.outbox_queue`)
			p.run("ANALYZE")
			const n = 32_000
			p.fill(n)
			p.expectPlans(before, n)
		})
	}
}

// expectPlans looks at the plans of statements about a queue whose n rows are of events behind
// before.
func (p *planned) expectPlans(before, n int) {
	shards, epochs := p.own()
	middle := int64(before + n/2)
	after, through, most := make([]int64, 64), make([]int64, 64), make([]int64, 64)
	for i := range 64 {
		after[i], through[i], most[i] = middle, 1<<62, 8
	}
	except := make([]int64, 3000) // what a relay has in memory
	for i := range except {
		except[i] = int64(before + n - i)
	}
	p.expectIndexes("fetch", p.explain(fetch, shards, after, through, most, except), 64*8*5)
	p.expectIndexes("fetch of a key", p.explain(fetchKey, 1, "key 1", middle, 10), 800)

	marked, seqs, rounds := p.queued("id > $1", middle)
	markedEpochs := make([]int64, len(marked))
	for i, shard := range marked {
		markedEpochs[i] = epochs[shard]
	}
	p.expectIndexes("mark", p.explain(mark, "relay", shards, epochs, marked, markedEpochs, seqs, rounds), 500*12)

	_, seqs, rounds = p.queued("shard = 0 AND id > $1", int64(before))
	var f failures
	for i, seq := range seqs {
		f.seqs, f.attempts, f.retryIn = append(f.seqs, seq), append(f.attempts, 1), append(f.retryIn, 0)
		f.dead, f.outcomes, f.errors = append(f.dead, i%2 == 0), append(f.outcomes, "refused"), append(f.errors, "")
	}
	p.expectIndexes("park", p.explain(park, "relay", 0, epochs[0], f.seqs, rounds, f.attempts, f.retryIn, f.dead, f.outcomes, f.errors), 500*60)
	p.expectIndexes("follow", p.explain(follow, "relay", 0, epochs[0], f.seqs, rounds), 500*60)
}

// queued reads 500 rows of the queue.
func (p *planned) queued(where string, arg int64) (shards []int16, seqs, rounds []int64) {
	p.Helper()
	rows, err := p.pool.Query(p.Context(), `SELECT shard, id, round FROM boxpair.outbox_queue WHERE `+where+` ORDER BY id LIMIT 500`, arg)
	if err != nil {
		p.Fatal(err)
	}
	var (
		shard      int16
		seq, round int64
	)
	if _, err := pgx.ForEachRow(rows, []any{&shard, &seq, &round}, func() error {
		shards, seqs, rounds = append(shards, shard), append(seqs, seq), append(rounds, round)
		return nil
	}); err != nil || len(seqs) != 500 {
		p.Fatalf("%d rows, %v", len(seqs), err)
	}
	return shards, seqs, rounds
}

// looks returns how many blocks a relay's looks touch: for events, for what is due of the parked
// ones, and for deferred ones.
func (p *planned) looks(shards []int16, epochs []int64) (fetched, parked, deferred int) {
	p.Helper()
	after, through, most := make([]int64, 64), make([]int64, 64), make([]int64, 64)
	for i := range 64 {
		through[i], most[i] = 1<<62, 16
	}
	fetching := p.explain(fetch, shards, after, through, most, []int64{})
	looking := p.explain(due, allShards(), 10, "-infinity", 0, (24 * time.Hour).Microseconds(), false)
	moving := p.explain(undefer, "relay", shards, epochs, 32)
	return fetching.Hit + fetching.Read, looking.Hit + looking.Read, moving.Hit + moving.Read
}

// TestMillionDeferredEventsCostARelayNothing compares what a relay's looks touch with and without
// deferred events, and moves those that are due out of them, all without telling the planner.
func TestMillionDeferredEventsCostARelayNothing(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.run("ANALYZE")
	p.fill(1000)
	shards, epochs := p.own()
	fetched, parked, deferred := p.looks(shards, epochs)
	const n, dueNow = 1_000_000, 6400
	p.run(`INSERT INTO boxpair.outbox_deferred (id, shard, due_at, key)
		SELECT 10000 + i, i % 64, now() + i * interval '1 s' + interval '1 hour', 'key ' || i FROM generate_series(1, $1::int) i`, n)
	withFetched, withParked, withDeferred := p.looks(shards, epochs)
	t.Logf("blocks without and with %d deferred events: fetch %d and %d, due %d and %d, deferred %d and %d",
		n, fetched, withFetched, parked, withParked, deferred, withDeferred)
	if withFetched > fetched+10 || withParked > parked+10 {
		t.Error("deferred events are in the way of others")
	}
	if withDeferred > 64*10 { // down one index per shard, twice
		t.Errorf("a look for deferred events touches %d blocks", withDeferred)
	}

	p.run(`UPDATE boxpair.outbox_deferred SET due_at = now() - interval '1 minute' WHERE id > $1`, 10000+n-dueNow)
	p.expectIndexes("move of what is due", p.explain(undefer, "relay", shards, epochs, 32), 64*32*25)
	leases := make([]outbox.Lease, len(shards))
	for i := range shards {
		leases[i] = outbox.Lease{Shard: int(shards[i]), Epoch: epochs[i]}
	}
	u, err := p.Undefer(t.Context(), "relay", leases, 100)
	if err != nil || len(u.Moved) != dueNow || u.Next < 50*time.Minute || u.Next > time.Hour {
		t.Errorf("moved %d, the next in %v, %v", len(u.Moved), u.Next, err)
	}
}

// TestRemovalLooksEventsUp fills log, queue and receipts without telling the planner, and
// removes a few events of many.
func TestRemovalLooksEventsUp(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.run("ANALYZE")
	const n, receipts = 32_000, 400
	p.fill(n)
	p.run(`DELETE FROM boxpair.outbox_queue WHERE id <= $1`, receipts*20)
	p.run(`INSERT INTO boxpair.outbox_receipts (relay, delivered_at, event_ids)
		SELECT 'relay', now() - interval '1 hour' + i * interval '1 s', (SELECT array_agg(k ORDER BY k) FROM generate_series(20 * i - 19, 20 * i) k)
		FROM generate_series(1, $1::int) i`, receipts)
	p.run(`INSERT INTO boxpair.outbox_parked (id, shard, key, state, discarded_at)
		SELECT id, shard, key, 'discarded', now() - interval '1 hour' FROM boxpair.outbox_events WHERE id > $1`, n-2000)
	p.run(`DELETE FROM boxpair.outbox_queue WHERE id > $1`, n-1000)
	p.expectIndexes("removal of delivered events", p.explainRemoval(removeDelivered, 0, sinceOf(time.Time{}), 200), 200*25)
	p.expectIndexes("removal of discarded events", p.explainRemoval(removeDiscarded, 0, 100), 1000*4+100*25)
	p.expectIndexes("count", p.explainRemoval(countRemovable, 0, sinceOf(time.Time{}), 200), 200*25+1000*4+200*25)
	r, err := p.RemoveDelivered(t.Context(), 0, time.Time{}, 200)
	if err != nil || r.Events != 200 || r.Receipts != 10 || !r.Full {
		t.Errorf("removed %+v, %v", r, err)
	}
}

// TestManyFollowersCostLittle parks many followers of a few keys. The
// number of blocks must depend on the keys, not on the followers.
func TestManyFollowersCostLittle(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.run("ANALYZE")
	const n = 32_000
	p.fill(n)
	// 640 keys with 90 followers each and no head, 10 dead ones of each in front.
	p.run(`INSERT INTO boxpair.outbox_parked (id, shard, key, state)
		SELECT id, shard, key, CASE WHEN id <= $1 THEN 'dead' ELSE 'following' END FROM boxpair.outbox_events`, n/10)
	p.run(`DELETE FROM boxpair.outbox_queue`)
	shards, epochs := p.own()

	p.expectIndexes("blocked", p.explain(blocked, shards, 0, "", false, 100), 1500)
	p.expectIndexes("blocked with hold", p.explain(blocked, shards, 10, "key 1", true, 100), 2500)
	healed := p.explain(heal, "relay", shards, epochs, false)
	p.expectIndexes("heal", healed, 640*30)
	held := p.explain(heal, "relay", shards, epochs, true)
	p.expectIndexes("heal with hold", held, 640*20)
	p.run(p.sql[heal], "relay", shards, epochs, false)

	p.expectIndexes("due", p.explain(due, allShards(), 10, "-infinity", 0, (24*time.Hour).Microseconds(), false), 64*200)
	p.expectIndexes("parked events of keys", p.explain(fetchParked, []int16{1, 2, 3}, []string{"key 1", "key 2", "key 3"}, true, 10), 300)
	for _, hold := range []bool{false, true} {
		p.expectIndexes("sent", p.explain(sent, "relay", shards, epochs, shards[:2], epochs[:2], []int64{n/10 + 64, n/10 + 65}, hold), 400)
	}
	p.expectIndexes("retry", p.explain(retry, "relay", 0, epochs[0],
		[]int64{n/10 + 64}, []int32{1}, []float64{0}, []bool{true}, []string{"refused"}, []string{""}, false), 200)
}

// TestRedrivenEventsCostLittleBehindAnAnalyze redrives dead events of a few keys whose statistics know
// dead events only, as behind a nightly vacuumdb --analyze.
func TestRedrivenEventsCostLittleBehindAnAnalyze(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	const n = 32_000
	p.fill(n)
	p.run(`INSERT INTO boxpair.outbox_parked (id, shard, key, state) SELECT id, shard, key, 'dead' FROM boxpair.outbox_events`)
	p.run(`DELETE FROM boxpair.outbox_queue`)
	p.run("VACUUM ANALYZE")
	p.run(`UPDATE boxpair.outbox_parked SET state = 'retrying', next_attempt_at = now()`)
	shards, epochs := p.own()
	p.expectIndexes("due", p.explain(due, allShards(), 10, "-infinity", 0, (24*time.Hour).Microseconds(), false), 64*100)
	p.expectIndexes("sent", p.explain(sent, "relay", shards, epochs, shards[:2], epochs[:2], []int64{n/10 + 64, n/10 + 65}, false), 400)
	p.expectIndexes("blocked", p.explain(blocked, shards, 0, "", false, 100), 1500)
	p.expectIndexes("heal", p.explain(heal, "relay", shards, epochs, false), 640*30)
	p.expectIndexes("parked events of keys", p.explain(fetchParked, []int16{1, 2, 3}, []string{"key 1", "key 2", "key 3"}, true, 10), 300)
	p.expectIndexes("retry", p.explain(retry, "relay", 0, epochs[0],
		[]int64{n/10 + 64}, []int32{1}, []float64{0}, []bool{true}, []string{"refused"}, []string{""}, false), 200)
}

// TestMarkDoesNotWaitForTheDisk looks at the setting that the commit goes by.
func TestMarkDoesNotWaitForTheDisk(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.fill(64)
	shards, epochs := p.own()
	show := func(tx pgx.Tx) (value string) {
		t.Helper()
		if err := tx.QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&value); err != nil {
			t.Fatal(err)
		}
		return value
	}
	conn, err := p.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for _, c := range []struct{ relay, during string }{{"relay", "off"}, {"stranger", "on"}} {
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		_, err = tx.Exec(t.Context(), p.sql[mark], c.relay, shards[:1], epochs[:1], shards[:1], epochs[:1], []int64{64}, []int64{0})
		if err != nil {
			t.Fatal(err)
		}
		if got := show(tx); got != c.during {
			t.Errorf("%s: synchronous_commit is %s at the commit", c.relay, got)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	if got := show(tx); got != "on" {
		t.Errorf("synchronous_commit is %s in the next transaction", got)
	}
}

// TestReasonsOfABacklogAreReadInOneGo: who asks why a backlog waits, while a route does not work,
// reads the queue a few times, not once for each event.
func TestReasonsOfABacklogAreReadInOneGo(t *testing.T) {
	t.Parallel()
	p := newPlanned(t)
	p.fill(6400)
	p.run(`UPDATE boxpair.outbox_events SET topic = 'sick' WHERE id % 5 = 0`)
	p.run(`INSERT INTO boxpair.outbox_relays (id, seen_until) VALUES ('relay', now() + interval '1 hour')`)
	p.run(`UPDATE boxpair.outbox_shards SET owner = 'relay', lease_until = now() + interval '1 hour'`)
	p.run(`INSERT INTO boxpair.outbox_routes VALUES ('relay', 'sick', 'sick', 'refusing', now(), '312 NO_ROUTE')`)
	for _, statistics := range []bool{false, true} {
		if statistics {
			p.run("ANALYZE")
		}
		plan := p.explainSQL(p.pool, `SELECT count(*), why FROM boxpair.outbox_status WHERE topic = 'topic' AND state = 'pending' GROUP BY why`)
		if blocks := plan.Hit + plan.Read; blocks > 100_000 { // three looks for each event, for its shard, what is parked and itself, are some 50,000
			t.Errorf("with statistics %t, %d blocks were read", statistics, blocks)
		}
	}
}
