package amqp_test

import (
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// features are those that stock watermill-amqp declares for itself. The restart of the
// broker is not among them: the suite's own test of it has data races. Others here cut
// connections and crash the broker.
func features(t *testing.T, groups bool) tests.Features {
	return tests.Features{
		ConsumerGroups:                      groups,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
		GenerateTopicFunc:                   topics(t),
	}
}

// topics gives the suite topic names whose exchanges and queues are deleted
// afterwards. They are many: all suites together exhaust the files of a broker.
func topics(t *testing.T) func(tests.TestContext) string {
	prefix := topic(t)
	t.Cleanup(func() {
		if err := sweep([]string{prefix}); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	return func(c tests.TestContext) string {
		return prefix + "-" + strings.ReplaceAll(string(c.TestID), "-", "")
	}
}

// pair is a constructor for the suite. The suite itself forgets some subscribers.
func pair(config wamqp.Config, change func(*amqp.PublisherConfig, *amqp.SubscriberConfig)) tests.PubSubConstructor {
	return func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		pc := amqp.PublisherConfig{AMQP: config}
		sc := amqp.SubscriberConfig{AMQP: config}
		change(&pc, &sc)
		return newPublisher(t, pc), newSubscriber(t, sc)
	}
}

// inTotalOrder has many messages of one key in flight. Since the key is the same
// for all, one is handed out at a time.
func inTotalOrder(_ *amqp.PublisherConfig, c *amqp.SubscriberConfig) {
	c.Key = func(*message.Message) string { return "all" }
}

func TestConformsAsPubSubWithOneKey(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	tests.TestPubSub(t, features(t, true), pair(amqp.DurablePubSub(url, "test"), inTotalOrder),
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return pair(amqp.DurablePubSub(url, group), inTotalOrder)(t)
		})
}

// TestConformsWithAStockConfiguration carries a configuration of watermill-amqp
// over as it is: classic queues and one message in flight.
func TestConformsWithAStockConfiguration(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	classic := func(p *amqp.PublisherConfig, s *amqp.SubscriberConfig) {
		p.QueueType, s.QueueType = amqp.Classic, amqp.Classic
	}
	config := func(group string) wamqp.Config {
		return wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix(group))
	}
	tests.TestPubSub(t, features(t, true), pair(config("test"), classic),
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return pair(config(group), classic)(t)
		})
}

// TestConformsWithBatches has what is published meanwhile gathered, and taken apart again.
func TestConformsWithBatches(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	f := features(t, true)
	f.ForceShort = true
	batches := func(p *amqp.PublisherConfig, s *amqp.SubscriberConfig) {
		inTotalOrder(p, s)
		p.Envelope, p.BatchSize = true, 7
	}
	tests.TestPubSub(t, f, pair(amqp.DurablePubSub(url, "test"), batches),
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return pair(amqp.DurablePubSub(url, group), batches)(t)
		})
}

func TestConformsAsQueue(t *testing.T) {
	t.Parallel()
	f := features(t, false)
	f.ForceShort = true
	tests.TestPubSub(t, f, pair(amqp.DurableQueue(testenv.AMQPURL(t)), inTotalOrder), nil)
}

func TestConformsOnATopicExchange(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	f := features(t, true)
	f.ForceShort = true
	exchange := topic(t)
	tests.TestPubSub(t, f, pair(amqp.TopicExchange(url, exchange, "test"), inTotalOrder),
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return pair(amqp.TopicExchange(url, exchange, group), inTotalOrder)(t)
		})
}

// TestConformsWithManyInFlightWithoutKeys has no order to declare: what has no
// key is handed out beside what is unacknowledged.
func TestConformsWithManyInFlightWithoutKeys(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	many := func(_ *amqp.PublisherConfig, s *amqp.SubscriberConfig) { s.InFlight = 32 }
	f := features(t, true)
	f.GuaranteedOrder = false
	f.ForceShort = true
	tests.TestPubSub(t, f, pair(amqp.DurablePubSub(url, "test"), many),
		func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
			return pair(amqp.DurablePubSub(url, group), many)(t)
		})
}
