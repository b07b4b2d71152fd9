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

// keyOf returns a key in a shard of a relay.
func keyOf(t *testing.T, db *database[pgx.Tx], relay *process) string {
	t.Helper()
	shards := db.list(`SELECT shard::text FROM boxpair.outbox_shards WHERE owner LIKE $1`, relay.ownedBy())
	for i := 0; ; i++ {
		if key := fmt.Sprint("key", i); slices.Contains(shards, fmt.Sprint(idgen.Shard(key, uuid.UUID{}))) {
			return key
		}
	}
}

// TestShardsOfAKilledRelayAreTakenOverAtOnce has leases that last so long that only the end of the
// killed relay's session can tell.
func TestShardsOfAKilledRelayAreTakenOverAtOnce(t *testing.T) {
	t.Parallel()
	for name, pooler := range map[string]bool{"direct connections": false, "listening past a pooler": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, url := newPostgres(t)
			c := child{Role: "relay", Database: url, Listens: true}
			if pooler {
				c.Database, c.Direct = pooled(t, url, "cache_describe"), url
			}
			killRelays(t, db, c)
		})
	}
}

// killRelays kills a relay before and after another one has joined.
func killRelays(t *testing.T, db *database[pgx.Tx], c child) {
	t.Helper()
	const ttl, soon = 20 * time.Second, 12 * time.Second // usually half a second; a lease has 13 s left
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	outbox := outboxOf(t, db)
	start(t, outbox.Run)
	c.Topic, c.LeaseTTL = topic, ttl
	relay := func() *process { return startChild(t, c) }
	placed := map[string]int{}
	takeover := func(dead *process, others func()) time.Duration {
		t.Helper()
		key := keyOf(t, db, dead)
		placed[key]++
		began := time.Now()
		dead.kill()
		placeAll(t, db, outbox, topic, 1, key)
		others()
		ok(t, seen.has(t.Context(), key, fmt.Sprint(placed[key])))
		took := time.Since(began)
		db.wantDrained(t)
		return took
	}
	// The machine may stand still during one takeover or another. After the end of leases, none is so soon.
	oneOf := func(takeover func() time.Duration) {
		t.Helper()
		var took []time.Duration
		for len(took) < 3 {
			if took = append(took, takeover()); took[len(took)-1] <= soon {
				return
			}
		}
		t.Errorf("took over after %v", took)
	}
	last := relay()
	oneOf(func() time.Duration {
		share(t, db, last)
		return takeover(last, func() { last = relay() })
	})
	oneOf(func() time.Duration {
		dead := last
		last = relay()
		eventually(t, "two relays that own shards", func() bool {
			return db.number(`SELECT count(DISTINCT owner) FROM boxpair.outbox_shards`) == 2
		})
		share(t, db, dead, last)
		return takeover(dead, func() {})
	})
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
	key := keyOf(t, db, zombie)
	end := db.number(`SELECT (extract(epoch FROM min(lease_until)) * 1000000)::bigint FROM boxpair.outbox_shards WHERE owner LIKE $1`, zombie.ownedBy())
	zombie.signal(syscall.SIGSTOP)
	placeAll(t, db, outbox, topic, 1, key)
	ended := func() bool { // before their time, by the clock of the database
		return db.number(`SELECT (count(*) < $2 AND extract(epoch FROM clock_timestamp()) * 1000000 < $3::bigint)::int
			FROM boxpair.outbox_shards WHERE owner LIKE $1 AND lease_until > clock_timestamp()`, zombie.ownedBy(), idgen.Shards/2, end) != 0
	}
	for until := time.Now().Add(ttl / 3); time.Now().Before(until); pause(10 * time.Millisecond) {
		if ended() {
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
