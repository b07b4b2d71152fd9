package chain

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
)

func TestRelayThatIsKilledIsTakenOverWithinAFewLeaseTimes(t *testing.T) {
	t.Parallel()
	const each, ttl = 60, time.Second
	db, url := newPostgres(t)
	topic := newTopic(t, "stock")
	seen := record(t, topic)
	apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	outbox := outboxOf(t, db)
	first := startChild(t, child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl})
	startChild(t, child{Role: "relay", Database: url, Topic: topic, LeaseTTL: ttl})
	eventually(t, "two relays that share the shards", func() bool {
		return db.number(`SELECT count(DISTINCT owner) FROM boxpair.outbox_shards`) == 2
	})
	keys := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	var killer sync.WaitGroup
	killer.Go(func() {
		if err := seen.has(t.Context(), "a", "20"); err != nil {
			t.Error(err)
		}
		first.kill()
	})
	placeAll(t, db, outbox, topic, each, keys...)
	killer.Wait()
	killed := time.Now()
	db.wantEffects(t, "stock", each*len(keys))
	if took := time.Since(killed); took > 10*ttl {
		t.Errorf("took over after %s", took)
	}
	for _, key := range keys {
		wantAscending(t, "on the wire, key "+key, seen.first(key), each)
		db.wantOrder(t, "stock", key, each)
	}
	db.wantDrained(t)
}

func TestProducerThatIsKilledLeavesBothOrNeither(t *testing.T) {
	t.Parallel()
	for point, want := range map[string]int{"written": 0, "committed": 1} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			db, url := newPostgres(t)
			topic := newTopic(t, "stock")
			apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{})
			p := startChild(t, child{Role: "producer", Database: url, Topic: topic, Point: point})
			p.waits("at "+point, 1)
			p.kill()
			outbox := outboxOf(t, db)
			startRelay(t, outbox, newPublisher(t), relay.Config{})
			ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) error {
				return db.order(ctx, w, topic, "lives")
			}))
			db.wantEffects(t, "stock", 1+want)
			db.wantDrained(t)
			orders := db.number(`SELECT count(*) FROM orders WHERE key = 'killed'`)
			events := db.number(`SELECT count(*) FROM boxpair.outbox_events WHERE key = 'killed'`)
			effects := db.number(`SELECT count(*) FROM effects WHERE key = 'killed'`)
			if orders != want || events != want || effects != want {
				t.Errorf("%d orders, %d events and %d effects, want %d of each", orders, events, effects, want)
			}
		})
	}
}

func TestConsumerThatIsKilledLeavesOneEffect(t *testing.T) {
	t.Parallel()
	for _, point := range []string{"effects", "committed"} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			orders, _ := newPostgres(t)
			stock, url := newPostgres(t)
			topic := newTopic(t, "stock")
			outbox := outboxOf(t, orders)
			startRelay(t, outbox, newPublisher(t), relay.Config{})
			p := startChild(t, child{Role: "consumer", Database: url, Topic: topic, Point: point})
			placeAll(t, orders, outbox, topic, 1, "a", "b", "c")
			p.waits("at "+point, 3)
			p.kill()
			if n := stock.number(`SELECT count(*) FROM effects`); n > 0 && point == "effects" {
				t.Fatalf("%d effects were committed", n)
			}
			s := startService(t, stock, outboxOf(t, stock), newSubscriber(t, "stock"), topic,
				consumer.Config{Service: "stock", CacheSize: -1}, consumer.HandlerConfig{},
				func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
					if err := stock.effect(ctx, w, "stock"); err != nil {
						return err
					}
					_, err := w.Write(ctx, producer.Event{Topic: topic + "_reserved", Key: w.Event().Key})
					return err
				})
			eventually(t, "all messages again", func() bool {
				c := s.handler.Counters()
				return c.Applied+c.Duplicates() >= 3
			})
			stock.wantEffects(t, "stock", 3)
			if n := stock.number(`SELECT count(*) FROM boxpair.outbox_events`); n != 3 {
				t.Errorf("%d events written", n)
			}
			if c := s.handler.Counters(); point == "committed" && c.Applied != 0 {
				t.Errorf("counters: %+v", c)
			}
		})
	}
}
