package transporttest_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/transporttest"
)

const broker = "127.0.0.1:5672"

// A test of your own tells whether a publisher may be what a relay publishes to: here RabbitMQ's,
// with a queue for each topic.
func ExampleTest() {
	_ = func(t *testing.T) { // func TestPublisherMayBeARelaysTarget(t *testing.T)
		transporttest.Test(t, &transporttest.Target{
			Address: broker,
			Open: func(_ context.Context, address string) (message.Publisher, error) {
				return amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurableQueue("amqp://guest:guest@" + address), CompetingConsumers: true})
			},
			Prepare: func(context.Context, string) error { return nil }, // the publisher declares its queues
			Stored:  stored,
		})
	}
}

// stored reads a queue and leaves it as it is: what is not acknowledged goes back.
func stored(_ context.Context, topic string) ([]*message.Message, error) {
	conn, err := amqp091.Dial("amqp://guest:guest@" + broker)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	channel, err := conn.Channel()
	if err != nil {
		return nil, err
	}
	var msgs []*message.Message
	for {
		d, more, err := channel.Get(topic, false)
		if err != nil || !more {
			return msgs, err
		}
		msgs = append(msgs, message.NewMessage(d.MessageId, d.Body))
	}
}
