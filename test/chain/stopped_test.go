//go:build unix

package chain

import (
	"context"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport"
)

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	ok(p.t, p.cmd.Process.Signal(s))
}

// A relay is stopped while its first mark is under way. Another relay takes over and holds its own
// sends back. Then the first relay is woken, and the mark arrives.
func TestRelayThatIsStoppedAndWokenChangesNothing(t *testing.T) {
	t.Parallel()
	const each, ttl = 5, time.Second
	keys := []string{"a", "b", "c", "d", "e", "f"}
	db, url := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	outbox := outboxOf(t, db)
	placeAll(t, db, outbox, topic, each, keys...)
	zombie := startChild(t, child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl, Point: "marking"})
	zombie.waits("at marking", 1)
	zombie.signal(syscall.SIGSTOP)

	gate, publisher := make(chan struct{}), newPublisher(t)
	var sending sync.WaitGroup
	held := &sender{Sender: publisher, send: func(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
		sending.Go(func() {
			<-gate
			publisher.Send(ctx, topic, msg, done)
		})
	}}
	relay, stop := startRelay(t, outbox, held, relay.Config{LeaseTTL: ttl})
	eventually(t, "a second relay that has taken over and sends", func() bool {
		h := relay.Health()
		return h.Shards == 64 && h.InFlight == len(keys)
	})
	before := db.number(`SELECT count(*) FROM boxpair.outbox_queue`)
	zombie.goOn()
	zombie.signal(syscall.SIGCONT)
	zombie.waits("marked: lost", 1)
	zombie.waits("lease lost", 1)
	eventually(t, "a woken relay that sees another one", func() bool {
		return db.number(`SELECT count(*) FROM boxpair.outbox_relays WHERE seen_until > now()`) == 2
	})
	if after := db.number(`SELECT count(*) FROM boxpair.outbox_queue`); before != each*len(keys) || after != before {
		t.Errorf("%d events in the queue, and %d after the stopped relay was woken", before, after)
	}
	if n := db.number(`SELECT count(*) FROM boxpair.outbox_receipts`); n != 0 {
		t.Errorf("%d receipts of the stopped relay", n)
	}
	zombie.kill()
	close(gate)
	db.wantEffects(t, "stock", each*len(keys))
	db.wantDrained(t)
	for _, key := range keys {
		wantAscending(t, "on the wire, key "+key, seen.first(key), each)
		db.wantOrder(t, "stock", key, each)
	}
	stop()
	sending.Wait()
}

func TestRelaysThatAreStoppedAtRandomLoseAndReorderNothing(t *testing.T) {
	t.Parallel()
	const each, ttl = 25, time.Second
	keys := []string{"a", "b", "c", "d", "e", "f"}
	db, url := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	relays := []*process{
		startChild(t, child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl}),
		startChild(t, child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl}),
	}
	for _, r := range relays {
		r.waits("started", 1)
	}
	done := make(chan struct{})
	var stopper sync.WaitGroup
	stopper.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			case <-time.After(rand.N(ttl)):
			}
			victim := relays[i%2]
			victim.signal(syscall.SIGSTOP)
			pause(ttl + rand.N(ttl))
			victim.signal(syscall.SIGCONT)
		}
	})
	outbox := outboxOf(t, db)
	for range each {
		placeAll(t, db, outbox, topic, 1, keys...)
		pause(rand.N(ttl / 4)) // all rounds together take some stops
	}
	close(done)
	stopper.Wait()
	wantAll(t, db, seen, keys, each)
}

// wantAll wants each event of keys in its order, on the wire and at the stock, and nothing left.
func wantAll(t *testing.T, db *database[pgx.Tx], seen *wire, keys []string, each int) {
	t.Helper()
	db.wantEffects(t, "stock", each*len(keys))
	for _, key := range keys {
		wantAscending(t, "on the wire, key "+key, seen.first(key), each)
		db.wantOrder(t, "stock", key, each)
	}
	db.wantDrained(t)
}
