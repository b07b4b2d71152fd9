package amqp

import (
	"strings"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// defaultInFlight is the prefetch count that the constructors set.
const defaultInFlight = 64

// DurablePubSub returns the configuration of a durable fanout exchange per topic and a durable
// queue <topic>_<consumer> for each consumer of the topic: every consumer gets every message, and
// the processes of one consumer share the messages. A consumer is one handler, not a service: two
// handlers of a topic with the same queue would get half of the messages each. The names are those
// of watermill-amqp's NewDurablePubSubConfig with GenerateQueueNameTopicNameWithSuffix(consumer). A
// publisher passes no consumer.
func DurablePubSub(uri, consumer string) wamqp.Config {
	c := wamqp.NewDurablePubSubConfig(uri, nil)
	if consumer != "" {
		c.Queue.GenerateName = wamqp.GenerateQueueNameTopicNameWithSuffix(consumer)
	}
	c.Consume.Qos.PrefetchCount = defaultInFlight
	return c
}

// DurableQueue returns the configuration of one durable queue per topic, which has the topic's name
// and is reached by the default exchange: all consumers share its messages. The names are those of
// watermill-amqp's NewDurableQueueConfig.
func DurableQueue(uri string) wamqp.Config {
	c := wamqp.NewDurableQueueConfig(uri)
	c.Consume.Qos.PrefetchCount = defaultInFlight
	return c
}

// TopicExchange returns the configuration of one durable topic exchange with the topic as routing
// key, and a durable queue <topic>_<consumer> for each topic and consumer. A consumer may subscribe
// to a pattern such as "order.#". A publisher passes no consumer.
func TopicExchange(uri, exchange, consumer string) wamqp.Config {
	c := DurablePubSub(uri, consumer)
	c.Exchange.Type = amqp091.ExchangeTopic
	c.Exchange.GenerateName = func(string) string { return exchange }
	c.Publish.GenerateRoutingKey = func(topic string) string { return topic }
	c.QueueBind.GenerateRoutingKey = func(queue string) string {
		return strings.TrimSuffix(queue, "_"+consumer)
	}
	return c
}

func metaKey(msg *message.Message) string { return msg.Metadata[transport.MetaKey] }
