package chain

import (
	"fmt"
	"testing"
	"time"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/amqp"
)

// Three consumers share the partitions of a topic, one of them a process that is killed with
// messages in its transactions.
func TestPartitionedTopicKeepsOrderWhileConsumersComeAndGo(t *testing.T) {
	t.Parallel()
	const each, count = 30, 4
	var keys []string
	for i := range 12 {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	db, url := newPostgres(t)
	topic, stock := newPartitionedTopic(t, "stock", count)
	outbox := outboxOf(t, db)
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: stock.AMQP, Partitions: count})
	ok(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	startRelay(t, outbox, publisher, relay.Config{})

	// The first consumer has all partitions, and stops in the midst of them.
	doomed := startChild(t, child{Role: "consumer", Database: url, Topic: topic, Point: "effects", Partitions: count})
	placeAll(t, db, outbox, topic, each/3, keys...)
	doomed.waits("at effects", 1)
	subscribers := make([]*amqp.Subscriber, 2)
	for i := range subscribers {
		subscribers[i], err = amqp.NewSubscriber(stock)
		ok(t, err)
		t.Cleanup(func() { _ = subscribers[i].Close() })
		apply(t, db, subscribers[i], topic, "stock", consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
	}
	placeAll(t, db, outbox, topic, each/3, keys...)
	doomed.kill()
	eventually(t, "effects after the kill", func() bool {
		return db.number(`SELECT count(*) FROM effects`) > len(keys)*each/3
	})
	ok(t, subscribers[0].Close())
	placeAll(t, db, outbox, topic, each/3, keys...)
	db.wantEffects(t, "stock", each*len(keys))
	db.wantDrained(t)
	for _, key := range keys {
		db.wantOrder(t, "stock", key, each)
	}
}

// newPartitionedTopic returns a topic of the test's own that one consumer takes in
// partitions, and the configuration of its subscribers.
func newPartitionedTopic(t *testing.T, consumer string, count int) (string, amqp.SubscriberConfig) {
	t.Helper()
	topic, url := testenv.Name(t), testenv.AMQPURL(t)
	config := partitioned(url, consumer, count)
	s, err := amqp.NewSubscriber(config)
	ok(t, err)
	ok(t, s.SubscribeInitialize(topic))
	ok(t, s.Close())
	t.Cleanup(func() {
		conn, err := amqp091.Dial(url)
		ok(t, err)
		defer conn.Close()
		ch, err := conn.Channel()
		ok(t, err)
		names := []string{topic + "_" + consumer}
		for i := range count {
			names = append(names, fmt.Sprintf("%s.%dof%d", names[0], i+1, count))
		}
		for _, name := range names {
			if _, err := ch.QueueDelete(name, false, false, false); err != nil {
				t.Error(err)
			}
		}
		if err := ch.ExchangeDelete(topic, false, false); err != nil {
			t.Error(err)
		}
	})
	return topic, config
}

func partitioned(url, consumer string, count int) amqp.SubscriberConfig {
	return amqp.SubscriberConfig{
		AMQP: amqp.DurablePubSub(url, consumer), Partitions: count, RebalanceInterval: 100 * time.Millisecond,
	}
}
