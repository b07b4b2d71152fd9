package amqp_test

import (
	"maps"
	neturl "net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// event is an event with everything that travels.
func event(topic string) transport.Event {
	e := transport.Event{
		ID:            uuid.MustParse("6f2c1a1e-1f7e-5d0b-9d7e-3f0f5c1d2e3a"),
		Topic:         topic,
		Key:           "order-4711",
		Type:          "order.placed",
		Payload:       []byte(`{"total":12}`),
		Producer:      "orders",
		Source:        "order/4711",
		Version:       3,
		Index:         1,
		SchemaVersion: 2,
		ContentType:   "application/json",
		Headers:       map[string]string{"tenant": "acme"},
		Stamp:         time.Date(2026, 11, 20, 10, 20, 30, 123456000, time.UTC),
		CorrelationID: "request-1",
		TraceParent:   "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}
	e.Digest = transport.ContentDigest(&e)
	return e
}

// sameEvent fails unless msg carries want.
func sameEvent(t *testing.T, msg *message.Message, want transport.Event) {
	t.Helper()
	got, err := transport.Parse(want.Topic, msg)
	if err != nil {
		t.Fatal(err)
	}
	expected := want.Message()
	if !got.Message().Equals(expected) {
		t.Errorf("event = %+v\nwant %+v", got, want)
	}
	if transport.ContentDigest(&got) != want.Digest {
		t.Error("the content has another digest")
	}
}

func TestEventArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurablePubSub(url, "consumer")
	want := event(name)
	fill(t, config, amqp.Quorum, name, want.Message())
	msg := receive(t, subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name))
	sameEvent(t, msg, want)
	if !msg.Equals(want.Message()) {
		t.Errorf("message = %+v", msg)
	}
	msg.Ack()
}

// TestPropertiesSayWhatTheMetadataSays for readers that know nothing of Watermill.
func TestPropertiesSayWhatTheMetadataSays(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	e := event(name)
	fill(t, amqp.DurableQueue(url), amqp.Quorum, name, e.Message())
	d := look(t, url, name, true)
	if d.MessageId != e.ID.String() || d.Type != e.Type || d.ContentType != e.ContentType ||
		!d.Timestamp.Equal(e.Stamp.Truncate(time.Second)) || d.DeliveryMode != amqp091.Persistent {
		t.Errorf("properties: %+v", d)
	}
}

// TestEnvelopesAreSentOnRequest, to consumers that need not be told.
func TestEnvelopesAreSentOnRequest(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	for name, test := range map[string]struct{ request, custom, all bool }{
		"envelope":                          {request: true},
		"envelope for another marshaler":    {request: true, custom: true},
		"headers":                           {},
		"headers for another marshaler":     {custom: true},
		"all headers":                       {all: true},
		"all headers for another marshaler": {all: true, custom: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := topic(t)
			want := event(topic)
			want.Headers = map[string]string{"tenant": "acme"}
			want.Digest = transport.ContentDigest(&want)
			p := newPublisher(t, amqp.PublisherConfig{
				AMQP: amqp.DurableQueue(url), Envelope: test.request, AllHeaders: test.all,
				Queues: []amqp.Queue{{Topic: topic}},
			})
			mustConfirm(t, p, topic, want.Message())
			d := look(t, url, topic, true)
			line, payload, _ := strings.Cut(string(d.Body), "\n")
			values, err := neturl.ParseQuery(line)
			enveloped := d.Headers[transport.MetaKey] == nil && d.Headers["tenant"] == nil && d.ContentEncoding == "boxpair" && d.ContentType == "" && err == nil &&
				values.Get("key") == want.Key && values.Get("_tenant") == "acme" && payload == string(want.Payload)
			separate := d.Headers[transport.MetaKey] == want.Key && d.Headers["tenant"] == "acme" && string(d.Body) == string(want.Payload) && d.ContentEncoding == ""
			if all := d.Headers[wamqp.DefaultMessageUUIDHeaderKey] == want.ID.String() && d.Headers[transport.MetaProducer] == want.Producer; all != test.all {
				t.Errorf("all headers: %v, %v", all, d.Headers)
			}
			if enveloped != test.request || separate == test.request || d.MessageId != want.ID.String() {
				t.Errorf("it is sent as %+v", d)
			}
			mustConfirm(t, p, topic, want.Message())
			config := amqp.DurableQueue(url)
			if test.custom {
				config.Marshaler = struct{ wamqp.DefaultMarshaler }{}
			}
			msg := receive(t, subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), topic))
			sameEvent(t, msg, want)
			if !msg.Equals(want.Message()) {
				t.Errorf("metadata = %v", msg.Metadata)
			}
			msg.Ack()
		})
	}
}

func TestEnvelopesOfManyGoroutinesAreNotMixed(t *testing.T) {
	t.Parallel()
	const senders, each = 16, 50
	url, topic := testenv.AMQPURL(t), topic(t)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url), Envelope: true, Queues: []amqp.Queue{{Topic: topic}}})
	var sending sync.WaitGroup
	for range senders {
		sending.Go(func() {
			for range each {
				msg := newMessage("")
				msg.Payload = []byte(strings.Repeat(msg.UUID, 1+int(msg.UUID[0])%3))
				msg.Metadata = message.Metadata{transport.MetaKey: msg.UUID}
				p.Send(t.Context(), topic, msg, func(r transport.Result) {
					if r.Outcome != transport.Confirmed {
						t.Errorf("outcome = %v, %v", r.Outcome, r.Err)
					}
				})
			}
		})
	}
	sending.Wait()
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url)}), topic)
	for range senders * each {
		msg := receive(t, messages)
		if want := strings.Repeat(msg.UUID, 1+int(msg.UUID[0])%3); string(msg.Payload) != want || msg.Metadata[transport.MetaKey] != msg.UUID {
			t.Fatalf("message %s has the key %s and the payload %s", msg.UUID, msg.Metadata[transport.MetaKey], msg.Payload)
		}
		msg.Ack()
	}
}

// TestReturnIsMatchedWhateverTheHookLeavesOfTheMessage sends to a queue that is not there.
func TestReturnIsMatchedWhateverTheHookLeavesOfTheMessage(t *testing.T) {
	t.Parallel()
	for name, post := range map[string]func(amqp091.Publishing) amqp091.Publishing{
		"no hook":    nil,
		"all":        func(pub amqp091.Publishing) amqp091.Publishing { return pub },
		"no headers": func(pub amqp091.Publishing) amqp091.Publishing { pub.Headers = nil; return pub },
		"headers of others": func(pub amqp091.Publishing) amqp091.Publishing {
			pub.Headers = amqp091.Table{"tenant": "a"}
			return pub
		},
		"another number": func(pub amqp091.Publishing) amqp091.Publishing {
			pub.Headers = amqp091.Table{"boxpair-publish-seq": "of another"}
			return pub
		},
		"an envelope": func(pub amqp091.Publishing) amqp091.Publishing {
			return amqp091.Publishing{DeliveryMode: amqp091.Persistent, ContentEncoding: "boxpair", Body: []byte("publish-seq=0\n")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := amqp.DurableQueue(testenv.AMQPURL(t))
			config.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: post}
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Topology: amqp.NoTopology, Envelope: post == nil})
			e := event(topic(t))
			for _, msg := range []*message.Message{newMessage("x"), e.Message()} {
				wantOutcome(t, send(t, p, topic(t), msg), transport.Returned, amqp.ErrUnroutable)
			}
		})
	}
}

func TestStockSubscriberReadsOurMessages(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix("consumer"))
	stock, err := wamqp.NewSubscriber(config, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	defer stock.Close()
	messages := subscribe(t, stock, name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, AllHeaders: true})
	want := event(name)
	if err := p.Publish(name, want.Message()); err != nil {
		t.Fatal(err)
	}
	msg := receive(t, messages)
	sameEvent(t, msg, want)
	msg.Ack()
}

func TestMessagesOfAStockPublisherAreRead(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	for name, config := range map[string]wamqp.Config{
		"pubsub":      wamqp.NewDurablePubSubConfig(url, wamqp.GenerateQueueNameTopicNameWithSuffix("consumer")),
		"queue":       wamqp.NewDurableQueueConfig(url),
		"correlating": correlating(url),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := topic(t)
			s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, QueueType: amqp.Classic})
			messages := subscribe(t, s, name)
			stock, err := wamqp.NewPublisher(config, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			defer stock.Close()
			want := event(name)
			if err := stock.Publish(name, want.Message()); err != nil {
				t.Fatal(err)
			}
			msg := receive(t, messages)
			sameEvent(t, msg, want)
			msg.Ack()
		})
	}
}

// correlating is a configuration whose marshaler is not the default one.
func correlating(url string) wamqp.Config {
	config := wamqp.NewDurableQueueConfig(url)
	config.Marshaler = wamqp.CorrelatingMarshaler{}
	return config
}

func TestMarshalerOfTheConfigurationIsUsed(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := correlating(url)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config})
	messages := subscribe(t, s, name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	want := event(name)
	if err := p.Publish(name, want.Message()); err != nil {
		t.Fatal(err)
	}
	msg := receive(t, messages)
	sameEvent(t, msg, want)
	if !msg.Equals(want.Message()) { // without what is ours to number publishes
		t.Errorf("metadata = %v", msg.Metadata)
	}
	msg.Nack()

	again := receive(t, messages)
	sameEvent(t, again, want)
	again.Ack()
}

// TestRedeliveryOfAQuorumQueueIsRead: it carries x-delivery-count, a number, which is none of the
// message's metadata, and stock watermill-amqp then nacks it thousands of times a second.
func TestRedeliveryOfAQuorumQueueIsRead(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	for name, config := range map[string]wamqp.Config{
		"default marshaler": amqp.DurableQueue(url),
		"another marshaler": correlating(url),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			name := topic(t)
			fill(t, config, amqp.Quorum, name, newMessage("again"))
			for range 2 {
				look(t, url, name, false)
			}
			msg := receive(t, subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name))
			if string(msg.Payload) != "again" || msg.Metadata["x-delivery-count"] != "" || !transport.Redelivered(msg) {
				t.Errorf("message %q with metadata %v, redelivered %v", msg.Payload, msg.Metadata, transport.Redelivered(msg))
			}
			msg.Ack()
		})
	}
}

// TestDeadLetteredMessageIsRead: it carries x-death, an array of tables, which is none of the
// message's metadata.
func TestDeadLetteredMessageIsRead(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Classic, name)
	ch := channel(t, url)
	if _, err := ch.QueueDeclare(name+"-first", true, false, false, false, amqp091.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": name, "x-message-ttl": 1,
	}); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Topology: amqp.NoTopology})
	mustConfirm(t, p, name+"-first", newMessage("dead"))
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, QueueType: amqp.Classic})
	msg := receive(t, subscribe(t, s, name))
	if string(msg.Payload) != "dead" || len(msg.Metadata) != 0 {
		t.Errorf("message %q with metadata %v", msg.Payload, msg.Metadata)
	}
	msg.Ack()
}

// TestPropertiesOfAForeignMessageAreMetadata, and what the broker has added is not.
func TestPropertiesOfAForeignMessageAreMetadata(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
	publish := func(pub amqp091.Publishing) message.Metadata {
		if err := channel(t, url).PublishWithContext(t.Context(), "", name, true, false, pub); err != nil {
			t.Fatal(err)
		}
		msg := receive(t, messages)
		msg.Ack()
		return msg.Metadata
	}
	all := amqp091.Publishing{
		Headers: amqp091.Table{
			"tenant": "acme", "x-own": "stays", "x-acquired-count": 2, "x-delivery-count": 1, "x-death": []any{}, "x-first-death-queue": "q",
			"x-last-death-reason": "expired", "x-stream-offset": 7,
		},
		ContentType: "application/json", ContentEncoding: "gzip", CorrelationId: "4711", ReplyTo: "answers", Type: "order.placed",
		AppId: "shop", UserId: "guest", Priority: 3, Timestamp: time.Date(2026, 11, 20, 10, 20, 30, 0, time.UTC), Expiration: "60000",
	}
	if got, want := publish(all), (message.Metadata{
		"tenant": "acme", "x-own": "stays", transport.MetaContentType: "application/json", transport.MetaType: "order.placed",
		transport.MetaCorrelationID: "4711", amqp.PropertyReplyTo: "answers", amqp.PropertyAppID: "shop", amqp.PropertyUserID: "guest",
		amqp.PropertyContentEncoding: "gzip", amqp.PropertyPriority: "3", amqp.PropertyTimestamp: "2026-11-20T10:20:30Z",
		amqp.PropertyExpiration: "60000",
	}); !maps.Equal(got, want) {
		t.Errorf("metadata is %v, want %v", got, want)
	}
	said := amqp091.Publishing{Type: "property", CorrelationId: "property",
		Headers: amqp091.Table{transport.MetaType: "header", transport.MetaCorrelationID: "header"}}
	if got := publish(said); !maps.Equal(got, message.Metadata{transport.MetaType: "header", transport.MetaCorrelationID: "header"}) {
		t.Errorf("headers do not go first: %v", got)
	}
	if got := publish(amqp091.Publishing{}); len(got) != 0 {
		t.Errorf("a bare message has metadata %v", got)
	}
}
