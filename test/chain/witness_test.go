//go:build unix

package chain

import (
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/idgen"
)

// ownedBy is the owner of the shards of a process.
func (p *process) ownedBy() string { return fmt.Sprintf("%%/%d/%%", p.cmd.Process.Pid) }

// share waits until relays share the shards and have witnesses.
func share(t *testing.T, db *database[pgx.Tx], relays ...*process) {
	t.Helper()
	eventually(t, "relays that share the shards", func() bool {
		return !slices.ContainsFunc(relays, func(p *process) bool {
			return db.number(`SELECT count(*) FROM boxpair.outbox_shards WHERE owner LIKE $1
				AND witness_epoch = epoch AND witness IS NOT NULL`, p.ownedBy()) < idgen.Shards/len(relays)
		})
	})
}

// keyOf returns a key in a shard of a relay, the nth there.
func keyOf(t *testing.T, db *database[pgx.Tx], relay *process, n int) string {
	t.Helper()
	shards := db.list(`SELECT shard::text FROM boxpair.outbox_shards WHERE owner LIKE $1`, relay.ownedBy())
	for i := 0; ; i++ {
		if key := fmt.Sprint("key", i); slices.Contains(shards, fmt.Sprint(idgen.Shard(key, uuid.UUID{}))) {
			if n--; n < 0 {
				return key
			}
		}
	}
}

// The leases last so long that only the end of the killed relay's session can tell.
func TestShardsOfAKilledRelayAreTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	const ttl, soon = 20 * time.Second, 10 * time.Second // usually half a second
	db, url := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	outbox := outboxOf(t, db)
	start(t, outbox.Run)
	relay := func() *process {
		return startChild(t, child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl, Listens: true})
	}
	takeover := func(dead *process, n int, others func()) {
		t.Helper()
		key := keyOf(t, db, dead, n)
		began := time.Now()
		dead.kill()
		placeAll(t, db, outbox, topic, 1, key)
		others()
		ok(t, seen.has(t.Context(), key, "1"))
		if took := time.Since(began); took > soon {
			t.Errorf("took over after %v", took)
		}
		db.wantDrained(t)
	}
	first := relay()
	share(t, db, first)
	second := (*process)(nil)
	takeover(first, 0, func() { second = relay() })
	third := relay()
	eventually(t, "two relays that own shards", func() bool {
		return db.number(`SELECT count(DISTINCT owner) FROM boxpair.outbox_shards`) == 2
	})
	share(t, db, second, third)
	takeover(second, 1, func() {})
}

// A session lasts while its process stands still, and so do the leases.
func TestRelayThatIsStoppedKeepsItsShardsUntilItsLeasesEnd(t *testing.T) {
	t.Parallel()
	const ttl = 3 * time.Second
	db, url := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	outbox := outboxOf(t, db)
	start(t, outbox.Run)
	c := child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl, Listens: true}
	zombie, other := startChild(t, c), startChild(t, c)
	share(t, db, zombie, other)
	key := keyOf(t, db, zombie, 0)
	zombie.signal(syscall.SIGSTOP)
	placeAll(t, db, outbox, topic, 1, key)
	left := func() int {
		return db.number(`SELECT count(*) FROM boxpair.outbox_shards WHERE owner LIKE $1 AND lease_until > clock_timestamp()`, zombie.ownedBy())
	}
	for until := time.Now().Add(ttl / 3); time.Now().Before(until); pause(10 * time.Millisecond) {
		if left() != idgen.Shards/2 {
			t.Fatal("the leases of a relay that lives were ended")
		}
	}
	ok(t, seen.has(t.Context(), key, "1"))
	zombie.signal(syscall.SIGCONT)
	zombie.waits("lease lost", 1)
	placeAll(t, db, outbox, topic, 4, key)
	ok(t, seen.has(t.Context(), key, "5"))
	wantAscending(t, "on the wire", seen.first(key), 5)
	db.wantDrained(t)
}

// The connections that listen end again and again, while the relays go on.
func TestRelaysThatLoseTheirWitnessesLoseAndReorderNothing(t *testing.T) {
	t.Parallel()
	const each = 25
	keys := []string{"a", "b", "c", "d", "e", "f"}
	db, url := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	outbox := outboxOf(t, db)
	start(t, outbox.Run)
	c := child{Role: "relay", Database: url, Topic: topic, LeaseTTL: 2 * time.Second, Listens: true}
	relays := []*process{startChild(t, c), startChild(t, c)}
	share(t, db, relays...)
	done := make(chan struct{})
	var killer sync.WaitGroup
	killer.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			db.number(`SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'`)
			pause(300 * time.Millisecond)
		}
	})
	for range each {
		placeAll(t, db, outbox, topic, 1, keys...)
		pause(50 * time.Millisecond)
	}
	close(done)
	killer.Wait()
	wantAll(t, db, seen, keys, each)
	share(t, db, relays...) // with new witnesses
}
