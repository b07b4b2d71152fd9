package chain

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
)

// A database moves to another server by logical replication, as for an upgrade, while a service works on it: it is copied
// and followed under load, and the service stands still for the switch alone.
func TestDatabaseThatMovesByLogicalReplicationLosesAndReordersNothing(t *testing.T) {
	t.Parallel()
	source, sourceURL := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	keys := []string{"a", "b", "c"}

	stop, written := work(t, source, topic, keys)
	eventually(t, "work before the copy", func() bool { return written.Load() >= 60 })
	server := testenv.PrivatePostgres(t)
	schema := tool(t, "pg_dump", nil, "--schema-only", sourceURL)
	tool(t, "psql", schema, "-v", "ON_ERROR_STOP=1", "-q", server.URL())
	execute(t, sourceURL, `CREATE PUBLICATION move FOR ALL TABLES`)
	execute(t, server.URL(), `CREATE SUBSCRIPTION move CONNECTION '`+sourceURL+`' PUBLICATION move WITH (slot_name = '`+testenv.Name(t)+`')`)
	target := openPostgres(t, server.URL())
	eventually(t, "the copy, and what is written meanwhile", func() bool {
		return target.number(`SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`) == 0
	})
	before := written.Load()
	eventually(t, "work beside the replication", func() bool { return written.Load() >= before+60 })

	stop()
	end := source.list(`SELECT pg_current_wal_lsn()::text`)[0]
	eventually(t, "the target to have everything", func() bool {
		return source.number(`SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '`+end+`'`) == 1
	})
	execute(t, server.URL(), `DROP SUBSCRIPTION move`)
	moveSequences(t, source, server.URL())

	stop, more := work(t, target, topic, keys)
	eventually(t, "work after the switch", func() bool { return more.Load() >= 60 })
	stop()
	outbox := outboxOf(t, target)
	apply(t, target, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Ordered: true})
	startRelay(t, outbox, newPublisher(t), producer.RelayConfig{LeaseTTL: time.Second})
	total := 0
	for _, key := range keys {
		n := target.number(`SELECT n FROM aggregates WHERE key = $1`, key)
		total += n
		target.wantEffectsOf(t, key, n)
		wantAscending(t, "on the wire, key "+key, seen.first(key), n)
		target.wantOrder(t, "stock", key, n)
	}
	target.wantEffects(t, "stock", total)
	target.wantDrained(t)
}

// work runs a service with all its parts: events of the keys, one transaction each, a relay and a consumer. It goes on until stop;
// written tells how many events there are.
func work(t *testing.T, db *database[pgx.Tx], topic string, keys []string) (stop func(), written *atomic.Int64) {
	t.Helper()
	outbox := outboxOf(t, db)
	s := apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Ordered: true})
	_, endRelay := startRelay(t, outbox, newPublisher(t), producer.RelayConfig{LeaseTTL: time.Second})
	written = new(atomic.Int64)
	endWriter := start(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			for _, key := range keys {
				// A transaction that has begun is brought to its end, or nobody would know how it ended.
				if err := outbox.Transact(context.WithoutCancel(ctx), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
					_, err := db.place(ctx, w, topic, key)
					return err
				}); err != nil {
					return err
				}
				written.Add(1)
			}
		}
		return nil
	})
	return func() {
		endWriter()
		endRelay()
		s.stop()
	}, written
}

// moveSequences sets the sequences of the database at target to where those of source are: they are not replicated.
func moveSequences(t *testing.T, source *database[pgx.Tx], target string) {
	t.Helper()
	statements := source.list(`SELECT format('SELECT setval(%L, %s)', format('%I.%I', schemaname, sequencename), last_value)
		FROM pg_sequences WHERE last_value IS NOT NULL`)
	execute(t, target, strings.Join(statements, ";"))
}
