// Package amqpv3 takes a configuration of watermill-amqp v3 for package amqp, whose configuration is
// that of v2.
package amqpv3

import (
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	v2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	v3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"
)

// Config returns c for amqp.PublisherConfig.AMQP and amqp.SubscriberConfig.AMQP. It does no I/O.
//
// Where v2 gives QueueBind.GenerateRoutingKey the name of the queue, v3 gives the topic, and so does
// the returned configuration: for the topic that a queue was last named for. A queue that several
// topics share needs a routing key that is the same for all of them.
func Config(c v3.Config) v2.Config {
	topics := &sync.Map{} // by the name of the queue
	r := v2.Config{
		Connection: v2.ConnectionConfig{
			AmqpURI: c.Connection.AmqpURI, TLSConfig: c.Connection.TLSConfig, AmqpConfig: c.Connection.AmqpConfig,
			Reconnect: (*v2.ReconnectConfig)(c.Connection.Reconnect),
		},
		Marshaler: marshaler(c.Marshaler),
		Exchange: v2.ExchangeConfig{
			GenerateName: c.Exchange.GenerateName, Type: c.Exchange.Type, Durable: c.Exchange.Durable, AutoDeleted: c.Exchange.AutoDeleted,
			Internal: c.Exchange.Internal, NoWait: c.Exchange.NoWait, Arguments: c.Exchange.Arguments,
		},
		Queue: v2.QueueConfig{
			Durable: c.Queue.Durable, AutoDelete: c.Queue.AutoDelete, Exclusive: c.Queue.Exclusive, NoWait: c.Queue.NoWait, Arguments: c.Queue.Arguments,
		},
		QueueBind: v2.QueueBindConfig(c.QueueBind),
		Publish:   v2.PublishConfig(c.Publish),
		Consume: v2.ConsumeConfig{
			NoRequeueOnNack: c.Consume.NoRequeueOnNack, Consumer: c.Consume.Consumer, Exclusive: c.Consume.Exclusive, NoLocal: c.Consume.NoLocal,
			NoWait: c.Consume.NoWait, Qos: v2.QosConfig(c.Consume.Qos), Arguments: c.Consume.Arguments,
		},
	}
	if generate := c.Queue.GenerateName; generate != nil {
		r.Queue.GenerateName = func(topic string) string {
			queue := generate(topic)
			topics.Store(queue, topic)
			return queue
		}
	}
	topicOf := func(queue string) string {
		if topic, ok := topics.Load(queue); ok {
			return topic.(string)
		}
		return queue
	}
	if generate := c.QueueBind.GenerateRoutingKey; generate != nil {
		r.QueueBind.GenerateRoutingKey = func(queue string) string { return generate(topicOf(queue)) }
	}
	switch own := c.TopologyBuilder.(type) {
	case nil:
	case *v3.DefaultTopologyBuilder:
		r.TopologyBuilder = &v2.DefaultTopologyBuilder{}
	default:
		r.TopologyBuilder = builder{own: own, config: c, topicOf: topicOf}
	}
	return r
}

// marshaler returns m, and v2's default in place of v3's, which does the same.
func marshaler(m v3.Marshaler) v2.Marshaler {
	switch d := m.(type) {
	case v3.DefaultMarshaler:
		return v2.DefaultMarshaler(d)
	case *v3.DefaultMarshaler:
		return (*v2.DefaultMarshaler)(d)
	case nil:
		return nil
	}
	return m
}

// builder is a topology builder of v3.
type builder struct {
	own     v3.TopologyBuilder
	config  v3.Config
	topicOf func(queue string) string
}

// with returns the builder's configuration with the queue's arguments that package amqp adds.
func (b builder) with(c v2.Config) v3.Config {
	r := b.config
	r.Queue.Arguments, r.Exchange.NoWait, r.Queue.NoWait, r.QueueBind.NoWait = c.Queue.Arguments, c.Exchange.NoWait, c.Queue.NoWait, c.QueueBind.NoWait
	return r
}

// BuildTopology implements v2's TopologyBuilder.
func (b builder) BuildTopology(channel *amqp091.Channel, queue, exchange string, c v2.Config, logger watermill.LoggerAdapter) error {
	params := v3.BuildTopologyParams{Topic: b.topicOf(queue), QueueName: queue, ExchangeName: exchange}
	if c.QueueBind.GenerateRoutingKey != nil {
		params.RoutingKey = c.QueueBind.GenerateRoutingKey(queue)
	}
	return b.own.BuildTopology(channel, params, b.with(c), logger)
}

// ExchangeDeclare implements v2's TopologyBuilder.
func (b builder) ExchangeDeclare(channel *amqp091.Channel, exchange string, c v2.Config) error {
	return b.own.ExchangeDeclare(channel, exchange, b.with(c))
}
