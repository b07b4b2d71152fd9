package amqp

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/idgen"
)

// maxPartitions is the number of shards: each partition has one shard at least.
const maxPartitions = idgen.Shards

// layout describes the queues of a topic's consumer. A partitioned topic has a queue for each
// partition, and a marker queue with the plain name. The marker queue is always empty; its
// x-max-length is the number of partitions. So the broker refuses a declaration with another
// number, and a declaration as an ordinary queue.
type layout struct {
	queue    string // the plain name
	exchange string // "" is the default exchange
	key      string // binding key, without the shard
	count    int    // number of partitions; 0 is a queue without partitions
}

// partition returns the name of the queue of partition i, from 1.
func (l layout) partition(i int) string {
	return l.queue + "." + strconv.Itoa(i) + "of" + strconv.Itoa(l.count)
}

// names returns the names of the queues that hold messages.
func (l layout) names() []string {
	if l.count == 0 {
		return []string{l.queue}
	}
	names := make([]string, l.count)
	for i := range names {
		names[i] = l.partition(i + 1)
	}
	return names
}

// shards calls f with the binding key of each shard of partition i.
func (l layout) shards(i int, f func(key string) error) error {
	for shard := i - 1; shard < idgen.Shards; shard += l.count {
		if err := f(shardKey(l.key, shard)); err != nil {
			return err
		}
	}
	return nil
}

var shardNames = func() (names [idgen.Shards]string) {
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}()

// shardKey returns the routing key of a shard.
func shardKey(key string, shard int) string {
	if key == "" {
		return shardNames[shard]
	}
	return key + "." + shardNames[shard]
}

// shardOf returns the shard of a message: the shard of its key, as in the outbox, or of its ID if
// it has no key.
func shardOf(msg *message.Message, key string) int {
	if key != "" {
		return idgen.Shard(key, uuid.Nil)
	}
	id, err := uuid.Parse(msg.UUID)
	if err != nil { // of another library; the prefix keeps the text from being empty
		return idgen.Shard("."+msg.UUID, uuid.Nil)
	}
	return idgen.Shard("", id)
}

// layoutOf returns the layout of config's consumer of topic in count partitions.
func layoutOf(config *SubscriberConfig, topic string, count int) (layout, error) {
	c := &config.AMQP
	l := layout{queue: c.Queue.GenerateName(topic), exchange: c.Exchange.GenerateName(topic), count: count}
	switch {
	case l.queue == "":
		return l, errors.New("AMQP.Queue.GenerateName returned no name")
	case count == 0:
		return l, nil
	case l.exchange == "":
		l.exchange = l.queue
		return l, nil
	case c.QueueBind.GenerateRoutingKey == nil:
		return l, fmt.Errorf("bind queue %q: AMQP.QueueBind.GenerateRoutingKey is missing", l.queue)
	}
	// watermill-amqp passes the name of the queue, not the topic.
	l.key = c.QueueBind.GenerateRoutingKey(l.queue)
	if c.Exchange.Type == amqp091.ExchangeTopic && strings.ContainsAny(l.key, "*#") {
		return l, fmt.Errorf("bind queue %q: %q is a pattern, and a partitioned topic is subscribed to by its name", l.queue, l.key)
	}
	return l, nil
}

// ensureLayout declares or checks the exchange and the queues of a partitioned topic.
func (t *topology) ensureLayout(ch *amqp091.Channel, l layout, version int) error {
	if err := t.ensureMarker(ch, l, version); err != nil {
		return err
	}
	if err := t.ensureExchange(ch, l.exchange); err != nil {
		return err
	}
	for i := range l.count {
		if err := t.ensurePartition(ch, l, i+1, version); err != nil {
			return err
		}
	}
	return nil
}

// ensureMarker declares or checks the marker queue, which tells the number of partitions.
func (t *topology) ensureMarker(ch *amqp091.Channel, l layout, version int) error {
	var err error
	var q amqp091.Queue
	switch t.mode {
	case NoTopology:
		return nil
	case Passive:
		q, err = ch.QueueDeclarePassive(l.queue, true, false, false, false, nil)
	default:
		args := t.markerArguments(l, version)
		q, err = ch.QueueDeclare(l.queue, true, false, false, false, args)
		err = t.asLimitError(err, l.queue, args, true) // safe, since the queue is empty
	}
	var other *argumentError
	switch {
	case errors.As(err, &other):
		return err
	case errorCode(err) == amqp091.PreconditionFailed:
		return fmt.Errorf("%w: queue %q was not declared for %d partitions; all publishers and consumers of a queue need the same "+
			"number, which Repartition changes: %w", ErrPartitions, l.queue, l.count, err)
	case err != nil:
		return explain(err, "queue", l.queue)
	case q.Messages > 0:
		return fmt.Errorf("queue %q: %d messages, from a publisher that does not partition; move them, and set "+
			"PublisherConfig.Partitions there", l.queue, q.Messages)
	}
	return nil
}

func (t *topology) markerArguments(l layout, version int) amqp091.Table {
	args := amqp091.Table{}
	if kind, ok := t.amqp.Queue.Arguments[amqp091.QueueTypeArg]; ok {
		args[amqp091.QueueTypeArg] = kind
	}
	args = t.arguments(l.queue, args, version)
	args[amqp091.QueueMaxLenArg] = l.count
	args[amqp091.QueueOverflowArg] = amqp091.QueueOverflowRejectPublish
	return args
}

// ensurePartition declares or checks the queue of partition i, from 1.
func (t *topology) ensurePartition(ch *amqp091.Channel, l layout, i, version int) error {
	name := l.partition(i)
	if err := t.ensureQueue(ch, name, version); err != nil {
		return err
	}
	return l.shards(i, func(key string) error { return t.bind(ch, name, key, l.exchange) })
}

// partitions checks the settings of partitioned topics.
func (v *problems) partitions(c *PublisherConfig) {
	n := c.Partitions
	for i, q := range c.Queues {
		if q.Partitions < 0 || q.Partitions > maxPartitions {
			v.add("Queues[%d].Partitions: %d is not within 0 to %d", i, q.Partitions, maxPartitions)
		}
		if q.Partitions > 0 && n == 0 {
			v.add("Queues[%d].Partitions: needs PublisherConfig.Partitions; otherwise no message would be published to them", i)
		}
		if q.BindingKey != "" && n > 0 {
			v.add("Queues[%d].BindingKey: must be empty; a partition is bound by its shards", i)
		}
	}
	v.partitioned(n, &c.AMQP, c.Topology)
	if n > 0 && (len(c.Queues) > 0 || c.AMQP.Exchange.Type == "") {
		v.partitionQueue(&c.AMQP)
	}
}

// partitioned checks a number of partitions and the settings that exclude partitions.
func (v *problems) partitioned(n int, c *wamqp.Config, topology Topology) {
	if n < 0 || n > maxPartitions {
		v.add("Partitions: %d is not within 0 to %d, which is the number of shards", n, maxPartitions)
	}
	if n == 0 {
		return
	}
	switch c.Exchange.Type {
	case "", amqp091.ExchangeFanout, amqp091.ExchangeTopic:
	default:
		v.add("AMQP.Exchange.Type: %q cannot be partitioned, only fanout, topic and the default exchange: the exchange "+
			"becomes a direct one, whose type exposes publishers that do not partition", c.Exchange.Type)
	}
	if topology == Declare && customBuilder(c) {
		v.add("AMQP.TopologyBuilder: does not support partitions; leave it out, or set Topology to Passive")
	}
}

// partitionQueue checks the queues of partitions.
func (v *problems) partitionQueue(c *wamqp.Config) {
	if !c.Queue.Durable || c.Queue.AutoDelete || c.Queue.Exclusive {
		v.add("AMQP.Queue: queues of partitions must be Durable and neither AutoDelete nor Exclusive")
	}
	if kind, _ := c.Queue.Arguments[amqp091.QueueTypeArg].(string); kind == amqp091.QueueTypeStream {
		v.add("AMQP.Queue.Arguments: a stream cannot be a partition")
	}
	if single, ok := c.Queue.Arguments[amqp091.SingleActiveConsumerArg]; ok && single != true {
		v.add("AMQP.Queue.Arguments: x-single-active-consumer must be true, or a key loses its order")
	}
}

// consumers checks the setting of the number of active consumers.
func (v *problems) consumers(competing bool, partitions int, c *wamqp.Config) {
	if competing && partitions > 0 {
		v.add("CompetingConsumers: a partition has one active consumer")
	}
	if single, ok := c.Queue.Arguments[amqp091.SingleActiveConsumerArg]; ok && competing && single != false {
		v.add("CompetingConsumers: AMQP.Queue.Arguments has x-single-active-consumer")
	}
}

func customBuilder(c *wamqp.Config) bool {
	if c.TopologyBuilder == nil {
		return false
	}
	_, standard := c.TopologyBuilder.(*wamqp.DefaultTopologyBuilder)
	return !standard
}
