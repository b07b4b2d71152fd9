package chain

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/outbox"
)

// A database moves to another server by logical replication, as for an upgrade, while a service
// works on it. The database is copied and followed under load, and the service stops only for the
// switch.
func TestDatabaseThatMovesByLogicalReplicationLosesAndReordersNothing(t *testing.T) {
	t.Parallel()
	source, sourceURL := alone(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	keys := []string{"a", "b", "c"}

	stop, written := work(t, source, topic, keys)
	eventually(t, "work before the copy", func() bool { return written.Load() >= 60 })
	target, targetURL := follow(t, sourceURL)
	before := written.Load()
	eventually(t, "work beside the replication", func() bool { return written.Load() >= before+60 })

	stop()
	leave(t, source, targetURL)
	moveSequences(t, source, targetURL)

	stop, more := work(t, target, topic, keys)
	eventually(t, "work after the switch", func() bool { return more.Load() >= 60 })
	stop()
	outbox := outboxOf(t, target)
	apply(t, target, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	startRelay(t, outbox, newPublisher(t), relay.Config{LeaseTTL: time.Second})
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

// After forgotten sequences the relay and every write with a reused number report the mistake. The
// command in the relay's message repairs it.
func TestForgottenSequencesOfAMoveAreNoticedBeforeOrderIsLost(t *testing.T) {
	t.Parallel()
	const each = 3
	source, sourceURL := alone(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	placeAll(t, source, outboxOf(t, source), topic, each, "a", "b")
	target, targetURL := follow(t, sourceURL)
	leave(t, source, targetURL)

	said := &logs{}
	out := outboxOf(t, target)
	relay := relay.Config{LeaseTTL: time.Second, Logger: said.logger()}
	startRelay(t, out, newPublisher(t), relay)
	eventually(t, "the relay to say that the sequence is below the events", func() bool {
		return strings.Contains(said.String(), "level=ERROR") && strings.Contains(said.String(), "run SELECT setval(")
	})
	err := out.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
		_, err := target.place(ctx, w, topic, "a")
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "outbox_events_pk") {
		t.Errorf("an event was written with the number of another one: %v", err)
	}

	behind := target.store.(outbox.SequenceChecker).CheckSequence(t.Context(), 0)
	_, remedy, _ := strings.Cut(fmt.Sprint(behind), "run ")
	execute(t, targetURL, remedy)
	placeAll(t, target, out, topic, each, "a", "b")
	apply(t, target, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	for _, key := range []string{"a", "b"} {
		target.wantEffectsOf(t, key, 2*each)
		wantAscending(t, "on the wire, key "+key, seen.first(key), 2*each)
		target.wantOrder(t, "stock", key, 2*each)
	}
	target.wantEffects(t, "stock", 4*each)
	target.wantDrained(t)
	eventually(t, "the relay to say that all is well", func() bool {
		return strings.Contains(said.String(), "sequence of event numbers is above all events again")
	})
}

// alone returns a database on a server of its own: the copy of each table waits for all transactions of the
// server, those of other tests among them.
func alone(t *testing.T) (*database[pgx.Tx], string) {
	t.Helper()
	url := testenv.PrivatePostgres(t).URL()
	setUpPostgres(t, url)
	return openPostgres(t, url), url
}

// follow makes a new server follow the database at sourceURL, and returns its database once the
// existing rows are copied.
func follow(t *testing.T, sourceURL string) (*database[pgx.Tx], string) {
	t.Helper()
	server := testenv.PrivatePostgres(t)
	schema := tool(t, "pg_dump", nil, "--schema-only", sourceURL)
	tool(t, "psql", schema, "-v", "ON_ERROR_STOP=1", "-q", server.URL())
	execute(t, sourceURL, `CREATE PUBLICATION move FOR ALL TABLES`)
	execute(t, server.URL(), `CREATE SUBSCRIPTION move CONNECTION '`+sourceURL+`' PUBLICATION move WITH (slot_name = '`+testenv.Name(t)+`')`)
	target := openPostgres(t, server.URL())
	eventually(t, "the copy, and what is written meanwhile", func() bool {
		return target.number(`SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'`) == 0
	})
	return target, server.URL()
}

// leave waits until the target has all commits of source, and ends the replication.
func leave(t *testing.T, source *database[pgx.Tx], targetURL string) {
	t.Helper()
	end := source.list(`SELECT pg_current_wal_lsn()::text`)[0]
	eventually(t, "the target to have everything", func() bool {
		return source.number(`SELECT count(*) FROM pg_stat_replication r JOIN pg_replication_slots s ON s.active_pid = r.pid
			WHERE s.database = current_database() AND r.replay_lsn >= '`+end+`'`) == 1
	})
	execute(t, targetURL, `DROP SUBSCRIPTION move`)
}

// work runs a service with all its parts: events of the keys in one transaction each, a relay and a
// consumer. It runs until stop; written counts the events.
func work(t *testing.T, db *database[pgx.Tx], topic string, keys []string) (stop func(), written *atomic.Int64) {
	t.Helper()
	outbox := outboxOf(t, db)
	s := apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	_, endRelay := startRelay(t, outbox, newPublisher(t), relay.Config{LeaseTTL: time.Second})
	written = new(atomic.Int64)
	endWriter := start(t, func(ctx context.Context) error {
		for ctx.Err() == nil {
			for _, key := range keys {
				// A started transaction must end, since otherwise its outcome would be unknown.
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

// moveSequences sets the sequences of target to the values in source, since sequences are not
// replicated.
func moveSequences(t *testing.T, source *database[pgx.Tx], target string) {
	t.Helper()
	statements := source.list(`SELECT format('SELECT setval(%L, %s)', format('%I.%I', schemaname, sequencename), last_value)
		FROM pg_sequences WHERE last_value IS NOT NULL`)
	execute(t, target, strings.Join(statements, ";"))
}
