package chain

import (
	"context"
	"database/sql"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/store/inbox"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// thrice is a publisher that sends every message three times.
func thrice(to transport.Sender) transport.Sender {
	return &sender{Sender: to, send: func(ctx context.Context, topic string, msg *message.Message, done func(transport.Result)) {
		to.Send(ctx, topic, msg.Copy(), func(transport.Result) {})
		to.Send(ctx, topic, msg.Copy(), func(transport.Result) {})
		to.Send(ctx, topic, msg, done)
	}}
}

// Two services on one database, four processes each, read what is sent three
// times.
func TestCopiesHaveOneEffectPerConsumer(t *testing.T) {
	t.Parallel()
	const each = 10
	keys := []string{"a", "b", "c", "d", "e"}
	for name, level := range map[string]inbox.Isolation{
		"read committed": inbox.ReadCommitted, "repeatable read": inbox.RepeatableRead, "serializable": inbox.Serializable,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shop, _ := newPostgres(t)
			shared, _ := newPostgres(t)
			services := []string{"stock", "mail"}
			topic := newTopic(t, services...)
			for _, service := range services {
				for range 4 {
					fn := func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
						if _, err := shared.next(ctx, w.DB(), service+" "+w.Event().Key); err != nil {
							return err
						}
						return shared.effect(ctx, w, service)
					}
					startService(t, shared, nil, newSubscriber(t, service), topic,
						consumer.Config{Service: service, CacheSize: 1}, consumer.HandlerConfig{Isolation: level}, fn)
				}
			}
			outbox := outboxOf(t, shop)
			startRelay(t, outbox, thrice(newPublisher(t)), relay.Config{})
			placeAll(t, shop, outbox, topic, each, keys...)
			for _, service := range services {
				shared.wantEffects(t, service, each*len(keys))
				for _, key := range keys {
					if n := shared.number(`SELECT n FROM aggregates WHERE key = $1`, service+" "+key); n != each {
						t.Errorf("%s, key %s: counted %d of %d", service, key, n, each)
					}
				}
			}
		})
	}
}

func TestCopiesHaveOneEffectPerConsumerWithinOneProcess(t *testing.T) {
	t.Parallel()
	db := newSQLite(t)
	broker, err := memory.New(memory.Config{})
	ok(t, err)
	t.Cleanup(func() { _ = broker.Close() })
	outbox := outboxOf(t, db)
	for _, service := range []string{"stock", "mail"} {
		apply[*sql.Tx](t, db, broker.Subscriber(service), "placed", service, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	}
	startRelay(t, outbox, thrice(broker), relay.Config{})
	placeAll(t, db, outbox, "placed", 10, "a", "b")
	for _, service := range []string{"stock", "mail"} {
		db.wantEffects(t, service, 20)
		db.wantOrder(t, service, "a", 10)
		db.wantOrder(t, service, "b", 10)
	}
	db.wantDrained(t)
}

// A stock publisher sends neither a stamp nor a digest: its UUIDs are all there is.
func TestMessagesOfAStockPublisherAreDeduplicatedByTheirUUID(t *testing.T) {
	t.Parallel()
	const n = 20
	db, _ := newPostgres(t)
	topic := newTopic(t, "stock")
	stock, err := wamqp.NewPublisher(wamqp.NewDurablePubSubConfig(testenv.AMQPURL(t), nil), watermill.NopLogger{})
	ok(t, err)
	defer stock.Close()
	first := apply(t, db, newSubscriber(t, "stock"), topic, "stock", consumer.HandlerConfig{})
	var ids []string
	for i := range n {
		ids = append(ids, uuid.NewString())
		msg := message.NewMessage(ids[i], []byte(fmt.Sprint(i)))
		ok(t, stock.Publish(topic, msg, msg.Copy()))
	}
	db.wantEffects(t, "stock", n)
	first.stop()

	// A process that remembers nothing asks the table.
	second := startService(t, db, nil, newSubscriber(t, "stock"), topic, consumer.Config{Service: "stock", CacheSize: -1},
		consumer.HandlerConfig{}, func(ctx context.Context, w *consumer.Work[pgx.Tx], _ *message.Message) error {
			return db.effect(ctx, w, "stock")
		})
	for _, id := range ids {
		ok(t, stock.Publish(topic, message.NewMessage(id, []byte("again"))))
	}
	ok(t, stock.Publish(topic, message.NewMessage(uuid.NewString(), []byte("new"))))
	eventually(t, "all copies", func() bool {
		c := second.handler.Counters()
		return c.DuplicatesByTable >= n && c.Applied == 1
	})
	db.wantEffects(t, "stock", n+1)
	if parked, err := second.inbox.ListParked(t.Context(), inbox.Filter{}); err != nil || len(parked) != 0 {
		t.Errorf("parked: %v, %v", parked, err)
	}
}
