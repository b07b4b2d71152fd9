package postgres

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/outbox"
)

// explained is a pool of one connection whose server tells the plan of each statement as it was
// executed.
type explained struct {
	*planned
	plans []node // of statements that name a table of the outbox, since the last look
}

func newExplained(t *testing.T) *explained {
	t.Helper()
	e := &explained{}
	cfg, err := pgxpool.ParseConfig(testenv.Postgres(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.MaxConns = 1
	cfg.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		_, text, ok := strings.Cut(n.Message, "plan:")
		if !ok || !strings.Contains(text, "outbox_") {
			return
		}
		var told struct{ Plan node }
		if err := json.Unmarshal([]byte(text), &told); err != nil {
			t.Errorf("plan: %v", err)
		}
		e.plans = append(e.plans, told.Plan)
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `LOAD 'auto_explain'; SET auto_explain.log_level = notice; SET auto_explain.log_format = json;
			SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on; SET auto_explain.log_timing = off`)
		return err
	}
	e.planned = newPlannedOver(t, cfg)
	return e
}

// calls calls what a relay calls, and returns the plan that the server had for each.
func (e *explained) calls(leases []outbox.Lease, from, n int64) map[string]node {
	e.Helper()
	e.run("SET auto_explain.log_min_duration = 0")
	defer e.run("SET auto_explain.log_min_duration = -1")
	plans := make(map[string]node)
	call := func(name string, fn func() error) {
		e.Helper()
		e.plans = nil
		if err := fn(); err != nil {
			e.Fatalf("%s: %v", name, err)
		}
		if len(e.plans) != 1 {
			e.Fatalf("%s ran %d statements, want one", name, len(e.plans))
		}
		plans[name] = e.plans[0]
	}
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, After: from, Limit: 8}
	}
	for i := range int64(3000) { // what a relay has in memory
		ranges[0].Except = append(ranges[0].Except, from+n-i)
	}
	ctx := e.Context()
	rows, err := e.pool.Query(ctx, `SELECT shard, id, round FROM boxpair.outbox_queue WHERE id > $1 ORDER BY id LIMIT 500`, from)
	if err != nil {
		e.Fatal(err)
	}
	marks := []outbox.Mark{{Lease: leases[0], Seq: 1}} // which is not there
	var m outbox.Mark
	if _, err := pgx.ForEachRow(rows, []any{&m.Shard, &m.Seq, &m.Round}, func() error {
		m.Lease = leases[m.Shard]
		marks = append(marks, m)
		return nil
	}); err != nil {
		e.Fatal(err)
	}
	call("fetch", func() error { _, err := e.Fetch(ctx, ranges); return err })
	call("fetch of a key", func() error { _, err := e.FetchKey(ctx, 1, "key 1", from, 10); return err })
	keys := []outbox.BlockedKey{{Shard: 1, Key: "key 1"}, {Shard: 2, Key: "key 2"}}
	call("fetch of parked events", func() error { _, err := e.FetchParked(ctx, keys, true, 10); return err })
	call("mark", func() error { _, err := e.Mark(ctx, "relay", marks); return err })
	return plans
}

// TestKeptPlansHoldWhenTheQueueFillsUp has the server make its plans while there is little or
// nothing, and looks at those that it has when that is so no more.
func TestKeptPlansHoldWhenTheQueueFillsUp(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(e *explained){
		"nothing":                func(*explained) {},
		"an event of each shard": func(e *explained) { e.fill(64) },
		"what was delivered": func(e *explained) {
			e.fill(20_032)
			e.run(`DELETE FROM boxpair.outbox_queue`)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newExplained(t)
			before(e)
			e.run("ANALYZE")
			e.fillUp()
		})
	}
}

// fillUp looks at the plans that are made now when the queue has filled up.
func (e *explained) fillUp() {
	shards, epochs := e.own()
	leases := make([]outbox.Lease, idgen.Shards)
	for i, shard := range shards {
		leases[shard] = outbox.Lease{Shard: int(shard), Epoch: epochs[i]}
	}
	e.calls(leases, 0, 0)

	const n = 32_000
	var last int64
	if err := e.pool.QueryRow(e.Context(), `SELECT coalesce(max(id), 0) FROM boxpair.outbox_events`).Scan(&last); err != nil {
		e.Fatal(err)
	}
	e.fill(n)
	plans := e.calls(leases, last+n/2, n/2)
	var left int64
	if err := e.pool.QueryRow(e.Context(), `SELECT count(*) FROM boxpair.outbox_queue WHERE id > $1`, last).Scan(&left); err != nil || left != n-500 {
		e.Errorf("%d events are left of %d, 500 of which were marked: %v", left, n, err)
	}
	for name, blocks := range map[string]int{
		"fetch": 64 * 8 * 5, "fetch of a key": 800, "fetch of parked events": 100, "mark": 500 * 10,
	} {
		e.expectIndexes(name, plans[name], blocks)
		plans[name].walk(func(n node) {
			if n.Kind == "Memoize" {
				e.Errorf("%s: events are remembered that are read once", name)
			}
		})
	}

	var kept, anew int
	err := e.pool.QueryRow(e.Context(), `SELECT count(*) FILTER (WHERE generic_plans = 2 AND custom_plans = 0), count(*) FILTER (WHERE custom_plans > 0)
		FROM pg_prepared_statements WHERE statement ~ 'outbox_(queue|parked)' AND statement LIKE '%$2%'`).Scan(&kept, &anew)
	if err != nil {
		e.Fatal(err)
	}
	if kept != len(plans) || anew != 0 {
		e.Errorf("%d of %d plans were kept, %d made anew", kept, len(plans), anew)
	}
}
