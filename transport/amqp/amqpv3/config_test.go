package amqpv3_test

import (
	"crypto/tls"
	"reflect"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	v2 "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	v3 "github.com/ThreeDotsLabs/watermill-amqp/v3/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"
	"go.uber.org/goleak"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/amqp/amqpv3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// filled returns a configuration with a value in each field.
func filled() v3.Config {
	name := func(topic string) string { return topic + "!" }
	return v3.Config{
		Connection: v3.ConnectionConfig{
			AmqpURI: "amqp://localhost", TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13}, AmqpConfig: &amqp091.Config{Vhost: "v"},
			Reconnect: &v3.ReconnectConfig{BackoffInitialInterval: 1, BackoffRandomizationFactor: 2, BackoffMultiplier: 3, BackoffMaxInterval: 4},
		},
		Marshaler: v3.DefaultMarshaler{NotPersistentDeliveryMode: true},
		Exchange:  v3.ExchangeConfig{GenerateName: name, Type: "topic", Durable: true, AutoDeleted: true, Internal: true, NoWait: true, Arguments: amqp091.Table{"a": 1}},
		Queue:     v3.QueueConfig{GenerateName: name, Durable: true, AutoDelete: true, Exclusive: true, NoWait: true, Arguments: amqp091.Table{"a": 2}},
		QueueBind: v3.QueueBindConfig{GenerateRoutingKey: name, NoWait: true, Arguments: amqp091.Table{"a": 3}},
		Publish: v3.PublishConfig{
			GenerateRoutingKey: name, Mandatory: true, Immediate: true, Transactional: true, ChannelPoolSize: 5, ConfirmDelivery: true,
		},
		Consume: v3.ConsumeConfig{
			NoRequeueOnNack: true, Consumer: "c", Exclusive: true, NoLocal: true, NoWait: true,
			Qos: v3.QosConfig{PrefetchCount: 6, PrefetchSize: 7, Global: true}, Arguments: amqp091.Table{"a": 4},
		},
		TopologyBuilder: &v3.DefaultTopologyBuilder{},
	}
}

func TestEachFieldIsTakenOver(t *testing.T) {
	t.Parallel()
	compare(t, "Config", reflect.ValueOf(filled()), reflect.ValueOf(amqpv3.Config(filled())))
	empty := amqpv3.Config(v3.Config{})
	if empty.Marshaler != nil || empty.TopologyBuilder != nil || empty.Queue.GenerateName != nil || empty.QueueBind.GenerateRoutingKey != nil || empty.Connection.Reconnect != nil {
		t.Errorf("of an empty configuration: %+v", empty)
	}
}

// compare compares fields by their names, functions by what they return.
func compare(t *testing.T, name string, from, to reflect.Value) {
	t.Helper()
	switch from.Kind() {
	case reflect.Struct:
		for i := range from.NumField() {
			field := from.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			if from.Field(i).IsZero() {
				t.Errorf("%s.%s is not filled by the test", name, field.Name)
			}
			got := to.FieldByName(field.Name)
			if !got.IsValid() || got.IsZero() {
				t.Errorf("%s.%s is lost", name, field.Name)
				continue
			}
			if name+"."+field.Name == "Config.Connection" || from.Field(i).Kind() != reflect.Pointer && from.Field(i).Kind() != reflect.Interface {
				compare(t, name+"."+field.Name, from.Field(i), got)
			}
		}
	case reflect.Func:
		topic := []reflect.Value{reflect.ValueOf("topic")}
		if a, b := from.Call(topic)[0].String(), to.Call(topic)[0].String(); a != b {
			t.Errorf("%s returns %q, want %q", name, b, a)
		}
	default:
		if !reflect.DeepEqual(from.Interface(), to.Interface()) {
			t.Errorf("%s: %v, want %v", name, to, from)
		}
	}
}

func TestMarshalersAreThoseOfVersion3(t *testing.T) {
	t.Parallel()
	own := struct{ v3.DefaultMarshaler }{}
	for _, c := range []struct {
		from v3.Marshaler
		want v2.Marshaler
	}{
		{v3.DefaultMarshaler{NotPersistentDeliveryMode: true}, v2.DefaultMarshaler{NotPersistentDeliveryMode: true}},
		{&v3.DefaultMarshaler{NotPersistentDeliveryMode: true}, &v2.DefaultMarshaler{NotPersistentDeliveryMode: true}},
		{own, own},
	} {
		if got := amqpv3.Config(v3.Config{Marshaler: c.from}).Marshaler; !reflect.DeepEqual(got, c.want) {
			t.Errorf("%T becomes %#v", c.from, got)
		}
	}
}

// counting is a topology builder of a service.
type counting struct {
	v3.DefaultTopologyBuilder
	params []v3.BuildTopologyParams
}

func (b *counting) BuildTopology(ch *amqp091.Channel, p v3.BuildTopologyParams, c v3.Config, log watermill.LoggerAdapter) error {
	b.params = append(b.params, p)
	return b.DefaultTopologyBuilder.BuildTopology(ch, p, c, log)
}

// TestQueueIsBoundByTheTopic, as version 3 does: version 2 would bind it by its own name.
func TestQueueIsBoundByTheTopic(t *testing.T) {
	t.Parallel()
	for name, own := range map[string]*counting{"default builder": nil, "a builder of the service": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queue := testenv.Name(t)
			c := v3.NewDurableTopicConfig(testenv.AMQPURL(t), queue+"-exchange", queue)
			c.Exchange.Durable = true
			if own != nil {
				c.TopologyBuilder = own
			}
			config := amqpv3.Config(c)
			s, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: config})
			ok(t, err)
			defer s.Close()
			messages, err := s.Subscribe(t.Context(), "order.placed")
			ok(t, err)
			p, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: config})
			ok(t, err)
			defer p.Close()
			ok(t, p.Publish("order.placed", message.NewMessage(uuid.NewString(), []byte("1"))))
			select {
			case msg := <-messages:
				if string(msg.Payload) != "1" {
					t.Errorf("payload %q", msg.Payload)
				}
				msg.Ack()
			case <-time.After(30 * time.Second):
				t.Fatal("no message")
			}
			want := v3.BuildTopologyParams{Topic: "order.placed", QueueName: queue, ExchangeName: queue + "-exchange", RoutingKey: "order.placed"}
			if own != nil && (len(own.params) == 0 || own.params[0] != want) {
				t.Errorf("built: %+v", own.params)
			}
		})
	}
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
