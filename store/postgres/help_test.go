package postgres_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/idgen"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/migrations"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/transport"
)

const patience = 20 * time.Second

// rig is a store on a schema of its own, and the pool to look behind it.
type rig struct {
	*testing.T
	*postgres.Store
	pool  *pgxpool.Pool
	names migrations.Names
}

func newRig(t *testing.T) *rig {
	t.Helper()
	pool := newPool(t, nil)
	cfg := postgres.Config{Schema: testenv.Name(t)}
	names, err := migrations.PostgresNames(cfg.Schema, cfg.Prefix)
	if err != nil {
		t.Fatal(err)
	}
	return &rig{T: t, Store: newStore(t, pool, cfg), pool: pool, names: names}
}

func (r *rig) ctx() context.Context { return r.Context() }

func (r *rig) ok(err error) {
	r.Helper()
	if err != nil {
		r.Fatal(err)
	}
}

// exec runs a statement behind the store's back.
func (r *rig) exec(sql string, args ...any) {
	r.Helper()
	_, err := r.pool.Exec(r.ctx(), sql, args...)
	r.ok(err)
}

// value reads one value behind the store's back.
func value[T any](r *rig, sql string, args ...any) T {
	r.Helper()
	var v T
	r.ok(r.pool.QueryRow(r.ctx(), sql, args...).Scan(&v))
	return v
}

// begin begins a transaction that is rolled back in the end.
func (r *rig) begin() pgx.Tx {
	r.Helper()
	return r.beginAt("")
}

func (r *rig) beginAt(level pgx.TxIsoLevel) pgx.Tx {
	r.Helper()
	tx, err := r.pool.BeginTx(r.ctx(), pgx.TxOptions{IsoLevel: level})
	r.ok(err)
	r.Cleanup(func() { tx.Rollback(context.WithoutCancel(r.ctx())) })
	return tx
}

func event(key, payload string) outbox.Record {
	e := transport.Event{ID: uuid.New(), Topic: "topic", Key: key, Payload: []byte(payload)}
	e.Digest = transport.ContentDigest(&e)
	return outbox.Record{Event: e, Shard: idgen.Shard(e.Key, e.ID), OccurredAt: time.Now()}
}

// write appends records in a transaction of their own and returns them as they are queued.
func (r *rig) write(records ...outbox.Record) []outbox.Queued {
	r.Helper()
	tx := r.begin()
	_, err := r.Append(r.ctx(), tx, uuid.New(), records)
	r.ok(err)
	r.ok(tx.Commit(r.ctx()))
	return r.queue()
}

func (r *rig) queue() []outbox.Queued {
	r.Helper()
	ranges := make([]outbox.Range, idgen.Shards)
	for i := range ranges {
		ranges[i] = outbox.Range{Shard: i, Limit: 1000}
	}
	events, err := r.Fetch(r.ctx(), ranges)
	r.ok(err)
	return events
}

func (r *rig) acquire(relay string, ttl time.Duration) map[int]outbox.Lease {
	r.Helper()
	grants, err := r.Acquire(r.ctx(), relay, ttl, idgen.Shards)
	r.ok(err)
	leases := make(map[int]outbox.Lease)
	for _, g := range grants {
		leases[g.Shard] = g.Lease
	}
	return leases
}

func markOf(lease outbox.Lease, q outbox.Queued) outbox.Mark {
	return outbox.Mark{Lease: lease, Seq: q.Seq, Round: q.Round}
}

func (r *rig) eventually(what string, done func() bool) {
	r.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline.C:
			r.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// async runs fn on a goroutine that the test waits for in the end.
func (r *rig) async(fn func() error) <-chan error {
	result, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		result <- fn()
	}()
	r.Cleanup(func() { <-ended })
	return result
}

func (r *rig) result(c <-chan error) error {
	r.Helper()
	select {
	case err := <-c:
		return err
	case <-time.After(patience):
		r.Fatalf("no result within %v", patience)
		return nil
	}
}

// waitsForLock waits until a number of statements in the test's database wait for a lock.
func (r *rig) waitsForLock(n int) {
	r.Helper()
	r.eventually("statement waits for a lock", func() bool {
		return value[int](r, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock'`) == n
	})
}
