package chain

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/boxpair/boxpair/consumer"
	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/producer/relay"
	"github.com/boxpair/boxpair/transport/amqp"
)

// A broker ends, and a newer one starts on its data, while services publish and consume: its
// queues, quorum and classic, keep their messages, and relay and consumers go on by themselves.
// Without the programs of a newer version it is the same one.
func TestBrokerThatIsUpgradedInPlaceLosesNothing(t *testing.T) {
	t.Parallel()
	node := testenv.PrivateRabbitMQ(t)
	db, _ := newPostgres(t)
	types := map[string]amqp.QueueType{"quorum": amqp.Quorum, "classic": amqp.Classic}
	keys := []string{"a", "b", "c"}

	waiting := make(map[string]func()) // queues with messages that nobody has taken yet
	stops := make(map[string]func())
	for name, kind := range types {
		sub := func(consumer string) *amqp.Subscriber {
			s, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(node.URL(), consumer), QueueType: kind})
			ok(t, err)
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
		late := sub("late")
		ok(t, late.SubscribeInitialize(name))
		waiting[name] = func() {
			apply(t, db, late, name, "late-"+name, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}})
		}
		stops[name] = apply(t, db, sub("stock"), name, "stock-"+name, consumer.HandlerConfig{Order: consumer.OrderConfig{ByKey: true}}).stop
	}
	publisher, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(node.URL(), "")})
	ok(t, err)
	t.Cleanup(func() { _ = publisher.Close() })
	outbox := outboxOf(t, db)
	startRelay(t, outbox, publisher, relay.Config{LeaseTTL: time.Second, RouteProbeInterval: 100 * time.Millisecond})
	place := func() {
		for name := range types {
			placeAll(t, db, outbox, name, 10, keys[0]+name, keys[1]+name, keys[2]+name)
		}
	}
	place()
	eventually(t, "effects before the upgrade", func() bool { return db.number(`SELECT count(*) FROM effects`) >= 60 })

	node.Ctl(t, "enable_feature_flag", "all") // as RabbitMQ's documentation wants it before an upgrade
	before := strings.TrimSpace(node.Ctl(t, "eval", `rabbit_misc:version().`))
	ok(t, node.Settle(t.Context()))
	node.Stop()
	place()
	node.Upgrade(t)
	ok(t, node.Start(t.Context()))
	place()
	after := strings.TrimSpace(node.Ctl(t, "eval", `rabbit_misc:version().`))
	t.Logf("RabbitMQ %s, then %s", before, after)
	if os.Getenv(testenv.NewerRabbitMQ) != "" && before == after {
		t.Errorf("the broker is of the version that it was of, %s", before)
	}

	for name, consume := range waiting {
		consume()
		db.wantEffects(t, "stock-"+name, 3*10*len(keys))
	}
	for name := range types {
		db.wantEffects(t, "late-"+name, 3*10*len(keys))
		for _, key := range keys {
			db.wantOrder(t, "stock-"+name, key+name, 3*10)
			db.wantOrder(t, "late-"+name, key+name, 3*10)
		}
	}
	db.wantDrained(t)
}
