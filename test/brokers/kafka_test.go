package brokers

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/transporttest"
)

// fakeKafka reads what a kfake has in its topics.
type fakeKafka struct {
	*child

	client sarama.Client
	admin  sarama.ClusterAdmin

	mu     sync.Mutex
	stored map[place][]*message.Message
}

type place struct {
	topic     string
	partition int32
}

const partitions = 4

func newKafka(t *testing.T) *fakeKafka {
	t.Helper()
	k := &fakeKafka{child: startChild(t, "kafka"), stored: make(map[place][]*message.Message)}
	ok(t, k.connect())
	t.Cleanup(func() { _ = k.admin.Close() })
	return k
}

// connect makes the clients that look at the server. They do not come back after its restart.
func (k *fakeKafka) connect() error {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	client, err := sarama.NewClient([]string{k.address()}, config)
	if err != nil {
		return err
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return errors.Join(err, client.Close())
	}
	if k.admin != nil {
		_ = k.admin.Close() // its connection is gone
	}
	k.client, k.admin = client, admin
	return nil
}

func (k *fakeKafka) crash(ctx context.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.restart(ctx); err != nil {
		return err
	}
	return k.connect()
}

func (k *fakeKafka) prepare(_ context.Context, topic string) error {
	err := k.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: partitions, ReplicationFactor: 1}, false)
	return errors.Join(err, k.client.RefreshMetadata(topic))
}

func (k *fakeKafka) remove(_ context.Context, topic string) error { return k.admin.DeleteTopic(topic) }

func (k *fakeKafka) read(ctx context.Context, topic string) ([]*message.Message, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	topics, err := k.admin.ListTopics()
	if err != nil {
		return nil, err
	}
	if _, found := topics[topic]; !found {
		return nil, nil
	}
	consumer, err := sarama.NewConsumerFromClient(k.client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	for partition := range int32(partitions) {
		if err := k.readOn(ctx, consumer, place{topic, partition}); err != nil {
			return nil, err
		}
	}
	var stored []*message.Message
	for partition := range int32(partitions) {
		stored = append(stored, k.stored[place{topic, partition}]...)
	}
	return stored, nil
}

// readOn reads what has come to a partition since the last time. Nothing else is written there but
// messages, one at each offset.
func (k *fakeKafka) readOn(ctx context.Context, consumer sarama.Consumer, p place) error {
	next := int64(len(k.stored[p]))
	end, err := k.client.GetOffset(p.topic, p.partition, sarama.OffsetNewest)
	if err != nil || end <= next {
		return err
	}
	of, err := consumer.ConsumePartition(p.topic, p.partition, next)
	if err != nil {
		return err
	}
	defer of.Close()
	for ; next < end; next++ {
		select {
		case record := <-of.Messages():
			msg, err := kafka.DefaultMarshaler{}.Unmarshal(record)
			if err != nil {
				return err
			}
			k.stored[p] = append(k.stored[p], msg)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(bound):
			return errors.New("the partition answers nothing")
		}
	}
	return nil
}

// through dials the line instead of what the broker calls itself.
type through string

func (address through) Dial(string, string) (net.Conn, error) {
	return net.DialTimeout("tcp", string(address), 10*time.Second)
}

// safe is watermill-kafka as it should be configured for a relay.
func (k *fakeKafka) safe() *transporttest.Target {
	return k.target(kafka.NewWithPartitioningMarshaler(func(_ string, msg *message.Message) (string, error) {
		return msg.Metadata[transport.MetaKey], nil
	}))
}

// plain is watermill-kafka with its DefaultMarshaler, which sets no key.
func (k *fakeKafka) plain() *transporttest.Target { return k.target(kafka.DefaultMarshaler{}) }

func (k *fakeKafka) target(marshaler kafka.Marshaler) *transporttest.Target {
	open := func(address string) (*kafka.Publisher, error) {
		config := kafka.DefaultSaramaSyncPublisherConfig()
		config.Version = sarama.V2_8_0_0
		config.Producer.RequiredAcks = sarama.WaitForAll
		config.Net.MaxOpenRequests = 1
		config.Producer.Retry.Max = 3
		config.Producer.Timeout = 3 * time.Second
		config.Net.DialTimeout, config.Net.ReadTimeout, config.Net.WriteTimeout = 3*time.Second, 3*time.Second, 3*time.Second
		config.Metadata.Retry.Max, config.Metadata.Retry.Backoff = 3, 100*time.Millisecond
		config.Net.Proxy.Enable, config.Net.Proxy.Dialer = true, through(address)
		return kafka.NewPublisher(kafka.PublisherConfig{
			Brokers: []string{address}, Marshaler: marshaler, OverwriteSaramaConfig: config,
		}, watermill.NopLogger{})
	}
	return &transporttest.Target{
		Address: k.address(), Open: opener(open), Prepare: k.prepare, Stored: k.read, Remove: k.remove, Bad: tooLarge, Restart: k.crash,
	}
}
