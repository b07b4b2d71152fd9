package chain

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/lineage"
	"github.com/boxpair/boxpair/producer"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
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
	db.wantEffects(t, "stock", each*len(keys)) // has patience for some lease times
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

// looks counts the looks of a wait into an inbox.
type looks struct {
	lineage.Messages
	n atomic.Int64
}

func (l *looks) SearchMessages(ctx context.Context, q inbox.Query) (inbox.Results, error) {
	defer l.n.Add(1)
	return l.Messages.SearchMessages(ctx, q)
}

// TestWaitForAKilledConsumerEndsWithItsCommit kills two processes of the consumer between the effect
// and its commit. The third one stands still after the commit, before it acknowledges the message.
func TestWaitForAKilledConsumerEndsWithItsCommit(t *testing.T) {
	t.Parallel()
	orders, _ := newPostgres(t)
	stock, url := newPostgres(t)
	topic := newTopic(t, "stock")
	outbox := outboxOf(t, orders)
	startRelay(t, outbox, newPublisher(t), relay.Config{})
	in, err := consumer.New(stock.store, consumer.Config{Service: "stock"})
	ok(t, err)
	seen := &looks{Messages: in}
	follow, err := lineage.New(lineage.Config{
		Outboxes:    []lineage.Outbox{{Name: "orders", Events: outbox}},
		Inboxes:     []lineage.Inbox{{Name: "stock", Messages: seen}},
		Consumers:   map[string][]string{"stock/apply": {topic}},
		MaxInterval: 10 * time.Millisecond,
	})
	ok(t, err)
	var placed []uuid.UUID
	ok(t, outbox.Transact(t.Context(), func(ctx context.Context, w *producer.Writer[pgx.Tx]) (err error) {
		placed, err = w.Write(ctx, numbered(topic, "order", 1))
		return err
	}))

	ctx, stop := context.WithTimeout(t.Context(), 4*patience)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- follow.WaitApplied(ctx, placed[0]) }()
	open := func(when string) {
		t.Helper()
		before := seen.n.Load() // the second look from here begins after it
		eventually(t, "two looks", func() bool { return seen.n.Load() >= before+2 || len(ended) > 0 })
		if len(ended) > 0 {
			t.Fatalf("the wait ended %s: %v", when, <-ended)
		}
	}
	for range 2 {
		p := startChild(t, child{Role: "consumer", Database: url, Topic: topic, Point: "effects"})
		p.waits("at effects", 1)
		open("before the commit")
		p.kill()
		open("with the process")
	}
	startChild(t, child{Role: "consumer", Database: url, Topic: topic, Point: "committed"})
	ok(t, <-ended)
	if n := stock.number(`SELECT count(*) FROM effects`); n != 1 {
		t.Errorf("the wait ended with %d effects", n)
	}
}
