package postgres_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/store/outbox"
	"github.com/boxpair/boxpair/store/postgres"
	"github.com/boxpair/boxpair/store/storetest"
)

// pooledStore is a store behind a pooler, which passes no signals on: those are listened to past
// it.
type pooledStore struct {
	*postgres.Store
	direct *postgres.Store
}

func (p pooledStore) Listen(ctx context.Context, woken func(string)) error {
	return p.direct.Listen(ctx, woken)
}

// TestContractBehindAPoolerInTransactionMode runs through PgBouncer what holds transactions, leases
// and locks against each other, and all of the queue.
func TestContractBehindAPoolerInTransactionMode(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	direct := poolOn(t, url, nil)
	pool := poolOn(t, testenv.PgBouncer(t, url), func(cfg *pgxpool.Config) {
		cfg.MaxConns = 40
		cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	})
	t.Run("outbox", func(t *testing.T) {
		tables := &shelf{pool: pool}
		storetest.Producer(t, func(t *testing.T) storetest.OutboxFixture[pgx.Tx] {
			cfg := tables.config(t)
			f := outboxFixtureOf(t, pool, cfg)
			f.Store = pooledStore{f.Store.(*postgres.Store), storeOf(t, direct, cfg)}
			return f
		}, "append", "lease", "queue", "parked", "search")
	})
	t.Run("inbox", func(t *testing.T) { storetest.Consumer(t, inboxFixture(pool, ""), "claim", "race", "search") })
}

// TestOneConnectionServesProducerRelayAndConsumer: nothing waits for a second connection
// while it holds one.
func TestOneConnectionServesProducerRelayAndConsumer(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, func(cfg *pgxpool.Config) { cfg.MaxConns = 1 })
	ctx, cancel := context.WithTimeout(r.ctx(), time.Minute)
	defer cancel()
	registered, err := r.Register(ctx, "service/handler", time.Hour)
	r.ok(err)
	e := event("key", "1")
	r.ok(r.Transact(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := r.Append(ctx, tx, uuid.New(), []outbox.Record{e})
		return err
	}))
	r.ok(r.store.Transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		return r.put(ctx, tx, uuid.New(), event("key", "2"))
	}))
	leases := r.acquire("relay", time.Minute)
	for _, q := range r.queue() {
		lost, err := r.Mark(ctx, "relay", []outbox.Mark{markOf(leases[q.Shard], q)})
		if err != nil || len(lost) > 0 {
			t.Errorf("mark lost %v, %v", lost, err)
		}
	}
	for _, level := range []inbox.Isolation{inbox.ReadCommitted, inbox.Serializable} {
		c := inbox.Claim{
			Consumer: registered.Consumer, ID: uuid.New(), Stamp: time.Now(), Key: "key", Isolation: level,
			Message: &inbox.Message{Topic: "topic", Key: "key"},
		}
		verdict, err := r.Apply(ctx, c, func(ctx context.Context, tx pgx.Tx) error {
			_, err := r.Append(ctx, tx, uuid.New(), []outbox.Record{event("key", "3")})
			return err
		})
		if err != nil || verdict != inbox.Applied {
			t.Errorf("handler: %v, %v", verdict, err)
		}
		c.ID = uuid.New()
		verdict, err = r.store.Apply(ctx, c, func(ctx context.Context, tx *sql.Tx) error {
			return r.put(ctx, tx, uuid.New(), event("key", "4"))
		})
		if err != nil || verdict != inbox.Applied {
			t.Errorf("handler on database/sql: %v, %v", verdict, err)
		}
	}
	if q := r.queue(); len(q) != 4 {
		t.Errorf("%d events are queued", len(q))
	}
}

// TestRelaysAndHandlersWorkWhereSerializableIsTheDefault: a single relay and a single
// handler meet no conflict.
func TestRelaysAndHandlersWorkWhereSerializableIsTheDefault(t *testing.T) {
	t.Parallel()
	r := newSQLRig(t, func(cfg *pgxpool.Config) {
		cfg.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
	})
	r.write(event("key", "1"), event("key", "2"))
	leases := r.acquire("relay", time.Minute)
	q := r.queue()
	lost, err := r.Mark(r.ctx(), "relay", []outbox.Mark{markOf(leases[q[0].Shard], q[0])})
	if err != nil || len(lost) > 0 {
		t.Errorf("mark lost %v, %v", lost, err)
	}
	lostOne, err := r.Park(r.ctx(), "relay", leases[q[1].Shard], []outbox.Failure{{
		Seq: q[1].Seq, Round: q[1].Round, Attempts: 1, RetryIn: time.Hour, Error: "refused",
	}})
	if err != nil || lostOne {
		t.Errorf("park: lost %t, %v", lostOne, err)
	}
	registered, err := r.Register(r.ctx(), "service/handler", time.Hour)
	r.ok(err)
	claim := inbox.Claim{Consumer: registered.Consumer, ID: uuid.New(), Stamp: time.Now()}
	for _, want := range []inbox.Verdict{inbox.Applied, inbox.Duplicate} {
		got, err := r.Apply(r.ctx(), claim, func(context.Context, pgx.Tx) error { return nil })
		if err != nil || got != want {
			t.Errorf("verdict is %v, %v, want %v", got, err, want)
		}
	}
	if n := len(r.queue()); n != 0 {
		t.Errorf("%d events are queued", n)
	}
}
