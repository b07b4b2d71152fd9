package memory_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/memory"
)

// sender publishes as a relay does: it hands the message to Send and goes on,
// and learns the outcome later. Watermill's suite publishes before anybody reads, where
// Publish, which waits for the acknowledgement, would wait for ever. What Send
// refuses at once is still an error. Every Sender is an instance on a shared
// broker, as clients of RabbitMQ are, and closing it leaves the broker alone.
type sender struct {
	b   *memory.Broker
	key string
}

func (s sender) Publish(topic string, msgs ...*message.Message) error {
	for _, msg := range msgs {
		msg = msg.CopyWithContext()
		if s.key != "" {
			msg.Metadata.Set(transport.MetaKey, s.key)
		}
		refused := make(chan error, 1)
		s.b.Send(context.Background(), topic, msg, func(r transport.Result) { refused <- r.Err })
		select {
		case err := <-refused:
			if err != nil {
				return err
			}
		default:
		}
	}
	return nil
}

func (sender) Close() error { return nil }

// testConformance runs Watermill's suite on a broker of its own.
func testConformance(t *testing.T, cfg memory.Config, features tests.Features, key string) {
	// The suite nacks one message hundreds of times, and leaves some unanswered.
	cfg.MinRedelivery, cfg.MaxRedelivery = time.Millisecond, 2*time.Millisecond
	cfg.CloseTimeout = 100 * time.Millisecond
	b := newBroker(t, cfg)
	newGroup := func(_ *testing.T, group string) (message.Publisher, message.Subscriber) {
		return sender{b, key}, b.Subscriber(group)
	}
	newPubSub := func(t *testing.T) (message.Publisher, message.Subscriber) {
		return newGroup(t, "default")
	}
	tests.TestPubSub(t, features, newPubSub, newGroup)
}

// The order of one key holds with any number of consumers, which is more than
// GuaranteedOrderWithSingleSubscriber, and is what the suite then asks for.
func TestConformanceWithOneKey(t *testing.T) {
	t.Parallel()
	testConformance(t, memory.Config{}, tests.Features{
		ConsumerGroups:  true,
		GuaranteedOrder: true,
		Persistent:      true, // between instances on one broker
	}, "key")
}

// One message at a time keeps the order without keys, with a single consumer:
// exactly the features that the stock AMQP transport declares.
func TestConformanceInFlightOneWithoutKeys(t *testing.T) {
	t.Parallel()
	testConformance(t, memory.Config{InFlight: 1}, tests.Features{
		ConsumerGroups:                      true,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
	}, "")
}

func TestConformanceInParallelWithoutKeys(t *testing.T) {
	t.Parallel()
	testConformance(t, memory.Config{}, tests.Features{
		ConsumerGroups: true,
		Persistent:     true,
	}, "")
}
