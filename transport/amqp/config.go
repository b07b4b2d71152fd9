package amqp

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

// Queue is a queue that a publisher declares.
type Queue struct {
	// Topic is the topic whose messages go to the queue. Required.
	Topic string `yaml:"topic" env:"TOPIC"`
	// Name of the queue. Defaults to AMQP.Queue.GenerateName(Topic).
	Name string `yaml:"name" env:"NAME"`
	// BindingKey binds the queue to the topic's exchange. Defaults to the routing key with which
	// messages of the topic are published. Refused with Partitions.
	BindingKey string `yaml:"binding_key" env:"BINDING_KEY"`
	// Partitions is the number of partitions of the queue's consumer. It needs
	// PublisherConfig.Partitions, and may differ from that number. Defaults to
	// PublisherConfig.Partitions.
	Partitions int `yaml:"partitions" env:"PARTITIONS"`
}

// PublisherConfig configures a [Publisher].
type PublisherConfig struct {
	// AMQP is watermill-amqp's configuration. Connection.AmqpURI, Exchange.GenerateName and
	// Publish.GenerateRoutingKey are required; a nil Marshaler is the DefaultMarshaler.
	// Publish.Mandatory, ConfirmDelivery and ChannelPoolSize have no effect: messages are always
	// mandatory and confirmed, on one channel. NoWait of a declaration is taken as false.
	AMQP wamqp.Config `yaml:"-" env:"-"`

	// Hosts are the nodes of a cluster, each as host or host:port, and replace the host in
	// AMQP.Connection.AmqpURI. They are tried in turn from a random host on. Defaults to the host
	// in AmqpURI.
	Hosts []string `yaml:"hosts" env:"HOSTS"`

	// Credentials, if not nil, returns user and password at each attempt to connect, for passwords
	// that are replaced and tokens that expire. Its result overrides user and password in
	// AMQP.Connection.AmqpURI. Calls may be concurrent.
	Credentials Credentials `yaml:"-" env:"-"`

	// Name distinguishes this publisher in [Publisher.Route]. Defaults to host:port/vhost of the
	// broker, with all hosts if there are several.
	Name string `yaml:"name" env:"NAME"`

	// Topology determines who declares. Defaults to Declare.
	Topology Topology `yaml:"topology" env:"TOPOLOGY"`

	// Queues are declared along with the exchange of their topic, so that the broker keeps messages
	// from before a consumer's first start. With the default exchange, the queue named by the
	// routing key is declared without being listed, if its name is AMQP.Queue.GenerateName(topic).
	// Defaults to none.
	Queues []Queue `yaml:"queues" envPrefix:"QUEUES_"`

	// Partitions, if it is not 0, publishes to partitioned topics: by the shard of the event's key
	// (idgen.Shard), over a direct exchange. It is the number of queues of each consumer whose
	// queues are declared here; other consumers may have another number. At most 64, the number of
	// shards. See "Partitioned topics" in the documentation of the package. Defaults to 0: topics
	// are not partitioned.
	Partitions int `yaml:"partitions" env:"PARTITIONS"`

	// CompetingConsumers declares the queues without x-single-active-consumer, for consumers that set
	// CompetingConsumers too. Defaults to false: one consumer of a queue is active at a time.
	CompetingConsumers bool `yaml:"competing_consumers" env:"COMPETING_CONSUMERS"`

	// Key returns the key of a message, "" for none. It is used with Partitions only, and called by
	// the goroutines that publish. Defaults to the metadata transport.MetaKey.
	Key func(*message.Message) string `yaml:"-" env:"-"`

	// CloudEvents adds the attributes of CloudEvents 1.0 to each message, in binary mode, for
	// consumers without this library. See "CloudEvents" in the documentation of the package.
	// Defaults to false.
	CloudEvents bool `yaml:"cloud_events" env:"CLOUD_EVENTS"`

	// AllHeaders sends a header for each name of an event's metadata, and Watermill's header for the
	// UUID, for consumers that read with watermill-amqp's subscriber or by the names of package
	// transport. It costs the broker a fifth of its throughput. Consumers of this package read both.
	// See "Headers" in the documentation of the package. Defaults to false: what AMQP has a property
	// for is no header.
	AllHeaders bool `yaml:"all_headers" env:"ALL_HEADERS"`

	// Envelope sends the metadata in the body, as a line before the payload, and the dispatch ID in
	// the message-id property only: headers cost the broker a part of its throughput. Consumers
	// must read with this package. Refused with AllHeaders and CloudEvents, and with a Marshaler other
	// than the DefaultMarshaler without PostprocessPublishing. See "Envelopes" in the documentation of
	// the package. Defaults to false.
	Envelope bool `yaml:"envelope" env:"ENVELOPE"`

	// BatchSize is how many messages of one exchange and routing key may be published as one AMQP
	// message, which costs the broker little more than a single message. Messages are gathered
	// while earlier ones are unconfirmed, for some milliseconds at most. Needs Envelope. See
	// "Batches" in the documentation of the package. At most 1000. Defaults to 1.
	BatchSize int `yaml:"batch_size" env:"BATCH_SIZE"`

	// QueueType is the type of the declared queues, unless AMQP.Queue.Arguments names a type.
	// Defaults to Quorum.
	QueueType QueueType `yaml:"queue_type" env:"QUEUE_TYPE"`

	// Window is how many messages may be unconfirmed; a call of SendBatch counts as one message.
	// Defaults to 1000.
	Window int `yaml:"window" env:"WINDOW"`

	// WindowBytes is how many bytes may be unconfirmed. One message of any size is always allowed.
	// With Envelope, a waiting call of Send holds a copy of its payload in addition. Defaults to 64
	// MiB.
	WindowBytes int `yaml:"window_bytes" env:"WINDOW_BYTES"`

	// ConfirmTimeout is how long the broker may take to answer for a message before the message is
	// reported as unavailable. If the broker has answered for no message in that time, the
	// connection is cut. ConfirmTimeout also bounds how long Send waits for the connection or for
	// room in the window, and how long Close waits for confirms. Defaults to 30 seconds.
	ConfirmTimeout time.Duration `yaml:"confirm_timeout" env:"CONFIRM_TIMEOUT"`

	// MaxBody is the largest body in bytes: the payload, and with Envelope the metadata. A message
	// with a larger body is Invalid. Keep MaxBody at or below the broker's max_message_size, beyond
	// which the broker closes the channel. Defaults to 16 MiB, as in RabbitMQ 4.
	MaxBody int `yaml:"max_body" env:"MAX_BODY"`

	// AllowLoss accepts configuration with which the broker may lose confirmed messages: transient
	// messages, and exchanges and queues that are not durable or drop messages. Defaults to false:
	// New refuses such configuration.
	AllowLoss bool `yaml:"allow_loss" env:"ALLOW_LOSS"`

	// Logger receives events of the connection. Defaults to [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

// SubscriberConfig configures a [Subscriber].
type SubscriberConfig struct {
	// AMQP is watermill-amqp's configuration. Connection.AmqpURI, Exchange.GenerateName and
	// Queue.GenerateName are required; a nil Marshaler is the DefaultMarshaler. NoWait of a
	// declaration is taken as false, and Consume.Qos.Global too: each subscription has a channel of
	// its own.
	AMQP wamqp.Config `yaml:"-" env:"-"`

	// Hosts are the nodes of a cluster, each as host or host:port, and replace the host in
	// AMQP.Connection.AmqpURI. They are tried in turn from a random host on. Defaults to the host
	// in AmqpURI.
	Hosts []string `yaml:"hosts" env:"HOSTS"`

	// Credentials, if not nil, returns user and password at each attempt to connect, for passwords
	// that are replaced and tokens that expire. Its result overrides user and password in
	// AMQP.Connection.AmqpURI. Calls may be concurrent.
	Credentials Credentials `yaml:"-" env:"-"`

	// Topology determines who declares. Defaults to Declare.
	Topology Topology `yaml:"topology" env:"TOPOLOGY"`

	// QueueType is the type of the declared queues, unless AMQP.Queue.Arguments names a type.
	// Defaults to Quorum.
	QueueType QueueType `yaml:"queue_type" env:"QUEUE_TYPE"`

	// DeliveryLimitIsSafe asserts that the queue drops no message after too many deliveries: it is
	// not a quorum queue, or has no delivery limit, or dead-letters messages beyond the limit. The
	// assertion is required if the subscriber does not declare the queue (Passive and NoTopology),
	// since RabbitMQ 4 drops after 20 deliveries by default, and if Arguments set a limit without a
	// dead-letter exchange. With RabbitMQ 4 it is also required for an existing queue without the
	// argument x-delivery-limit, for example from RabbitMQ 3: see "Delivery limits" in the
	// documentation of the package. Defaults to false.
	DeliveryLimitIsSafe bool `yaml:"delivery_limit_is_safe" env:"DELIVERY_LIMIT_IS_SAFE"`

	// Partitions, if not 0, is the number of queues of the consumer: a queue for each partition,
	// with one active consumer at a time among all processes. At most 64. Publishers must partition
	// as well. See "Partitioned topics" in the documentation of the package. Defaults to 0: one
	// queue.
	Partitions int `yaml:"partitions" env:"PARTITIONS"`

	// CompetingConsumers has all processes of a consumer get messages of the queue at once, which
	// loses the order of keys between the processes: handlers with Order.ByKey refuse their
	// messages. Publishers that declare the queue need the same setting. Defaults to false: the queue
	// is declared with x-single-active-consumer, one process is active, and the others take over when
	// it ends. Partitions spread the work over processes and keep the order of keys. An existing
	// queue is used as it was declared, with a warning. Refused with Partitions.
	CompetingConsumers bool `yaml:"competing_consumers" env:"COMPETING_CONSUMERS"`

	// RebalanceInterval is how often each process of a consumer compares its number of partitions
	// with its share, to give back the excess. If several consumers of a queue are active, a process
	// checks a twelfth as often for them, and warns. Defaults to 5 seconds.
	RebalanceInterval time.Duration `yaml:"rebalance_interval" env:"REBALANCE_INTERVAL"`

	// InFlight is how many messages of a subscription, or of each of its partitions, may be handed
	// out and not yet acknowledged. Defaults to AMQP.Consume.Qos.PrefetchCount, and to 64 if that
	// is 0.
	InFlight int `yaml:"in_flight" env:"IN_FLIGHT"`
	// Prefetch is how many messages or batches the broker may deliver before they are acknowledged.
	// Messages that are not handed out wait in memory: with a Prefetch above InFlight, messages
	// that wait for an earlier message of their key leave room for other keys. Other consumers of
	// the queue do not get messages that wait here. At least InFlight, at most 65535. Defaults to 4
	// times InFlight.
	Prefetch int `yaml:"prefetch" env:"PREFETCH"`

	// Key returns the key of a message; "" is no key. Messages of one key are handed out one after
	// another. Key is called by one goroutine per subscription. Handlers get its result by
	// transport.OrderingKey. Defaults to the metadata transport.MetaKey.
	Key func(*message.Message) string `yaml:"-" env:"-"`

	// RedeliveryMin is the delay before a nacked message is handed out again. The delay doubles
	// with each nack, up to RedeliveryMax, and is spread by a random factor. Defaults to 100
	// milliseconds, or to RedeliveryMax if that is shorter.
	RedeliveryMin time.Duration `yaml:"redelivery_min" env:"REDELIVERY_MIN"`
	// RedeliveryMax is the longest delay. Defaults to 10 seconds, or to RedeliveryMin if that is
	// longer.
	RedeliveryMax time.Duration `yaml:"redelivery_max" env:"REDELIVERY_MAX"`

	// CloseTimeout is how long Close, and the end of a Subscribe's context, wait for messages in
	// flight. Defaults to 30 seconds.
	CloseTimeout time.Duration `yaml:"close_timeout" env:"CLOSE_TIMEOUT"`

	// DeadLetterExchange receives the messages that AMQP.Marshaler cannot read, with the name of
	// the queue as routing key. The exchange must exist and route the messages. Defaults to the
	// default exchange and the queue <queue>.undecodable, which is declared, or checked if Topology
	// is Passive, with the other queues. The DefaultMarshaler reads every message and needs no such
	// queue.
	DeadLetterExchange string `yaml:"dead_letter_exchange" env:"DEAD_LETTER_EXCHANGE"`

	// AllowLoss accepts queues that are not durable or drop messages. Defaults to false: New
	// refuses such queues.
	AllowLoss bool `yaml:"allow_loss" env:"ALLOW_LOSS"`

	// Logger receives events of connections, and messages that cannot be read. Defaults to
	// [slog.Default].
	Logger *slog.Logger `yaml:"-" env:"-"`
}

func (c *PublisherConfig) setDefaults() {
	defaultTo(&c.BatchSize, 1)
	defaultTo(&c.Window, 1000)
	defaultTo(&c.WindowBytes, 64<<20)
	defaultTo(&c.ConfirmTimeout, 30*time.Second)
	defaultTo(&c.MaxBody, 16<<20)
	if c.Key == nil {
		c.Key = metaKey
	}
	defaultTo(&c.Logger, slog.Default())
}

// maxPrefetch is the largest prefetch count that the protocol can carry.
const maxPrefetch = 1<<16 - 1

func (c *SubscriberConfig) setDefaults() {
	defaultTo(&c.InFlight, c.AMQP.Consume.Qos.PrefetchCount)
	defaultTo(&c.InFlight, 64)
	defaultTo(&c.Prefetch, min(lookAhead*c.InFlight, max(c.InFlight, maxPrefetch)))
	if c.Key == nil {
		c.Key = metaKey
	}
	defaultTo(&c.RedeliveryMax, max(10*time.Second, c.RedeliveryMin))
	defaultTo(&c.RedeliveryMin, min(100*time.Millisecond, c.RedeliveryMax))
	defaultTo(&c.CloseTimeout, 30*time.Second)
	defaultTo(&c.RebalanceInterval, 5*time.Second)
	defaultTo(&c.Logger, slog.Default())
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c *PublisherConfig) validate() error {
	var v problems
	v.common(&c.AMQP, c.Topology, c.QueueType, c.AllowLoss)
	if c.AMQP.Publish.GenerateRoutingKey == nil {
		v.add("AMQP.Publish.GenerateRoutingKey: missing")
	}
	if c.AMQP.Publish.Transactional {
		v.add("AMQP.Publish.Transactional: a channel has transactions or confirms, and confirms are needed")
	}
	if c.AMQP.Publish.Immediate {
		v.add("AMQP.Publish.Immediate: RabbitMQ does not support it and closes the connection")
	}
	if c.AMQP.Exchange.Internal {
		v.add("AMQP.Exchange.Internal: nothing can be published to an internal exchange")
	}
	if !c.AllowLoss && transient(c.AMQP.Marshaler) {
		v.add("AMQP.Marshaler: messages must be persistent to survive a restart of the broker; set AllowLoss to send transient messages")
	}
	if codec, ok := newCodec(c.AMQP.Marshaler, false).(defaultCodec); c.Envelope && (!ok || codec.post != nil) {
		v.add("Envelope: AMQP.Marshaler determines the body; only the DefaultMarshaler without PostprocessPublishing makes envelopes")
	}
	if c.AllHeaders && c.Envelope {
		v.add("AllHeaders: excludes Envelope, which has the metadata in the body")
	}
	if c.CloudEvents && c.Envelope {
		v.add("CloudEvents: excludes Envelope, since the body is the payload in binary mode")
	}
	v.queues(c)
	v.partitions(c)
	v.consumers(c.CompetingConsumers, c.Partitions, &c.AMQP)
	if c.BatchSize > 1 && !c.Envelope {
		v.add("BatchSize: %d needs Envelope, since a batch consists of envelopes", c.BatchSize)
	}
	v.positive("BatchSize", c.BatchSize)
	if c.BatchSize > maxBatch {
		v.add("BatchSize: %d is more than %d", c.BatchSize, maxBatch)
	}
	v.positive("Window", c.Window)
	v.positive("WindowBytes", c.WindowBytes)
	v.positive("ConfirmTimeout", int(c.ConfirmTimeout))
	v.positive("MaxBody", c.MaxBody)
	return v.err()
}

func (c *SubscriberConfig) validate() error {
	var v problems
	v.common(&c.AMQP, c.Topology, c.QueueType, c.AllowLoss)
	if c.AMQP.Queue.GenerateName == nil {
		v.add("AMQP.Queue.GenerateName: missing")
	}
	if c.AMQP.Consume.NoRequeueOnNack {
		v.add("AMQP.Consume.NoRequeueOnNack: not supported, a nacked message is handed out again and never dropped")
	}
	if c.AMQP.Consume.Qos.PrefetchSize != 0 {
		v.add("AMQP.Consume.Qos.PrefetchSize: RabbitMQ does not support it")
	}
	if c.Topology != Declare && c.QueueType == Quorum && !c.DeliveryLimitIsSafe {
		v.add("DeliveryLimitIsSafe: must be asserted unless Topology is Declare, " +
			"since RabbitMQ 4 drops messages of a quorum queue after 20 deliveries by default, which a client cannot see")
	}
	if c.Topology == Declare {
		v.queue(&c.AMQP, c.QueueType, c.AllowLoss, c.DeliveryLimitIsSafe)
	}
	v.partitioned(c.Partitions, &c.AMQP, c.Topology)
	v.consumers(c.CompetingConsumers, c.Partitions, &c.AMQP)
	if c.Partitions > 0 {
		v.partitionQueue(&c.AMQP)
		if c.AMQP.Consume.Exclusive {
			v.add("AMQP.Consume.Exclusive: other processes could not take a partition over")
		}
	}
	v.positive("RebalanceInterval", int(c.RebalanceInterval))
	v.positive("InFlight", c.InFlight)
	switch {
	case c.InFlight > maxPrefetch:
		v.add("InFlight: %d is more than the protocol's maximum, %d", c.InFlight, maxPrefetch)
	case c.Prefetch > maxPrefetch:
		v.add("Prefetch: %d is more than the protocol's maximum, %d", c.Prefetch, maxPrefetch)
	case c.InFlight > 0 && c.Prefetch < c.InFlight:
		v.add("Prefetch: %d is less than InFlight, %d", c.Prefetch, c.InFlight)
	}
	v.positive("RedeliveryMin", int(c.RedeliveryMin))
	v.positive("RedeliveryMax", int(c.RedeliveryMax))
	if c.RedeliveryMax < c.RedeliveryMin {
		v.add("RedeliveryMax: %v is less than RedeliveryMin, %v", c.RedeliveryMax, c.RedeliveryMin)
	}
	v.positive("CloseTimeout", int(c.CloseTimeout))
	return v.err()
}

// problems collects the errors of a configuration.
type problems []error

func (v *problems) add(format string, args ...any) { *v = append(*v, fmt.Errorf(format, args...)) }

func (v *problems) err() error { return errors.Join(*v...) }

func (v *problems) positive(field string, n int) {
	if n <= 0 {
		v.add("%s: must be positive", field)
	}
}

func (v *problems) common(c *wamqp.Config, topology Topology, queueType QueueType, allowLoss bool) {
	if c.Exchange.GenerateName == nil {
		v.add("AMQP.Exchange.GenerateName: missing")
	}
	if topology > NoTopology {
		v.add("Topology: unknown value %d", topology)
	}
	if queueType > Classic {
		v.add("QueueType: unknown value %d", queueType)
	}
	// The default exchange has no type here, and is always durable.
	if topology == Declare && c.Exchange.Type != "" && !c.Exchange.Durable && !allowLoss {
		v.add("AMQP.Exchange.Durable: an exchange that is not durable is gone after a restart of the broker; set AllowLoss to accept that")
	}
}

// queues checks the queues of a publisher.
func (v *problems) queues(c *PublisherConfig) {
	for i, q := range c.Queues {
		if q.Topic == "" {
			v.add("Queues[%d].Topic: missing", i)
		}
		if q.Name == "" && c.AMQP.Queue.GenerateName == nil {
			v.add("Queues[%d].Name: missing, and AMQP.Queue.GenerateName too", i)
		}
		if err := checkName("queue", q.Name); err != nil {
			v.add("Queues[%d].Name: %w", i, err)
		}
	}
	if len(c.Queues) > 0 {
		v.queue(&c.AMQP, c.QueueType, c.AllowLoss, true)
	}
}

// queue checks the settings of the queues to be declared.
func (v *problems) queue(c *wamqp.Config, queueType QueueType, allowLoss, limitIsSafe bool) {
	if kind, ok := c.Queue.Arguments[amqp091.QueueTypeArg].(string); ok && kind != amqp091.QueueTypeQuorum {
		queueType = Classic
	}
	if queueType == Quorum && (!c.Queue.Durable || c.Queue.AutoDelete || c.Queue.Exclusive) {
		v.add("AMQP.Queue: a quorum queue must be Durable and neither AutoDelete nor Exclusive; set QueueType to Classic")
	}
	if c.Queue.Arguments[amqp091.QueueTypeArg] == amqp091.QueueTypeStream && !allowLoss {
		v.add("AMQP.Queue.Arguments: a stream is read from its end, so that its consumer skips earlier messages" + acceptLoss)
	}
	if !allowLoss {
		v.lasting(&c.Queue)
		v.arguments(c.Queue.Arguments, limitIsSafe)
	}
}

const acceptLoss = "; set AllowLoss to accept that"

// lasting refuses queues that the broker deletes with their messages.
func (v *problems) lasting(c *wamqp.QueueConfig) {
	if !c.Durable {
		v.add("AMQP.Queue.Durable: a queue that is not durable loses its messages with a restart of the broker" + acceptLoss)
	}
	if c.AutoDelete || c.Exclusive || c.Arguments[amqp091.QueueTTLArg] != nil {
		v.add("AMQP.Queue: AutoDelete, Exclusive and x-expires delete a queue with its messages" + acceptLoss)
	}
}

// arguments refuses queues that drop messages instead of dead-lettering them.
func (v *problems) arguments(args amqp091.Table, limitIsSafe bool) {
	if args[deadLetterExchangeArg] != nil && args[deadLetterExchangeArg] != "" || args[deadLetterKeyArg] != nil {
		return // with the default exchange and without a key, a message would be dead-lettered to the same queue, and RabbitMQ drops it
	}
	if args[amqp091.QueueMessageTTLArg] != nil {
		v.add("AMQP.Queue.Arguments: x-message-ttl without x-dead-letter-exchange drops messages" + acceptLoss)
	}
	limited := args[amqp091.QueueMaxLenArg] != nil || args[amqp091.QueueMaxLenBytesArg] != nil
	overflow, _ := args[amqp091.QueueOverflowArg].(string)
	if limited && (overflow == "" || overflow == amqp091.QueueOverflowDropHead) {
		v.add("AMQP.Queue.Arguments: x-max-length drops the oldest messages unless x-overflow is reject-publish" + acceptLoss)
	}
	if args[deliveryLimitArg] != nil && !limitIsSafe {
		v.add("AMQP.Queue.Arguments: x-delivery-limit without x-dead-letter-exchange drops messages; " +
			"leave it out, or assert DeliveryLimitIsSafe")
	}
}
