package amqp_test

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
	"github.com/boxpair/boxpair/transport/signature"
)

// attributes are the headers of CloudEvents among headers.
func attributes(headers amqp091.Table) map[string]string {
	found := make(map[string]string)
	for name, value := range headers {
		if name, is := strings.CutPrefix(name, "cloudEvents_"); is {
			found[name], _ = value.(string)
		}
	}
	return found
}

func TestMessagesAreCloudEventsOnRequest(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	whole := event("order.placed")
	late := whole
	late.TraceState = "vendor=1"
	bare := transport.Event{ID: uuid.New(), Payload: []byte("x")}
	foreign := whole
	foreign.Producer = "shop/öst & co"
	foreign.Headers = map[string]string{"cloudEvents_subject": "4711", "cloudEvents_tenant": "acme"}
	for name, c := range map[string]struct {
		event transport.Event
		on    bool
		want  map[string]string // "TOPIC" stands for the topic
	}{
		"none unless asked for": {whole, false, map[string]string{}},
		"every attribute": {whole, true, map[string]string{
			"specversion": "1.0", "id": whole.ID.String(), "source": "/orders", "type": "order.placed", "subject": "order/4711",
			"time": "2026-11-20T10:20:30.123456Z", "partitionkey": "order-4711",
			"traceparent": whole.TraceParent,
		}},
		"time is when it occurred": {late, true, map[string]string{
			"specversion": "1.0", "id": whole.ID.String(), "source": "/orders", "type": "order.placed", "subject": "order/4711",
			"time": "2026-11-19T08:00:00Z", "tracestate": "vendor=1", "partitionkey": "order-4711",
			"traceparent": whole.TraceParent,
		}},
		"what is required is always there": {bare, true, map[string]string{
			"specversion": "1.0", "id": bare.ID.String(), "source": "/", "type": "TOPIC",
		}},
		"the event's own go first, and the source is a URI reference": {foreign, true, map[string]string{
			"specversion": "1.0", "id": whole.ID.String(), "source": "/shop%2F%C3%B6st%20&%20co", "type": "order.placed", "subject": "4711",
			"time": "2026-11-20T10:20:30.123456Z", "tenant": "acme", "partitionkey": "order-4711",
			"traceparent": whole.TraceParent,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic, config := topic(t), amqp.DurableQueue(url)
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, CloudEvents: c.on, CompetingConsumers: true})
			msg := c.event.Message()
			if c.event.TraceState != "" {
				msg.Metadata[transport.MetaOccurredAt] = c.want["time"]
			}
			mustConfirm(t, p, topic, msg)
			d, _, err := channel(t, url).Get(topic, true)
			if err != nil {
				t.Fatal(err)
			}
			if c.want["type"] == "TOPIC" {
				c.want["type"] = topic
			}
			if got := attributes(d.Headers); !maps.Equal(got, c.want) {
				t.Errorf("attributes are %v, want %v", got, c.want)
			}
			if d.ContentType != c.event.ContentType || string(d.Body) != string(c.event.Payload) {
				t.Errorf("content type %q, body %q", d.ContentType, d.Body)
			}
			if at, given := c.want["time"]; given {
				if _, err := time.Parse(time.RFC3339, at); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestConsumersReadCloudEventsAsOtherMessages: what the library says itself is untouched, a
// signature included.
func TestConsumersReadCloudEventsAsOtherMessages(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurablePubSub(testenv.AMQPURL(t), "consumer")
	key := signature.Key{ID: "1", Secret: []byte(strings.Repeat("s", signature.MinSecret))}
	signer, err := signature.NewSigner(key)
	if err != nil {
		t.Fatal(err)
	}
	verifier, err := signature.NewVerifier(key)
	if err != nil {
		t.Fatal(err)
	}
	want := event(name)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, CloudEvents: true})
	mustConfirm(t, signer.Sender(p), name, want.Message())
	msg := receive(t, messages)
	msg.Ack()
	if msg.Metadata["cloudEvents_id"] != msg.UUID {
		t.Errorf("metadata is %v", msg.Metadata)
	}
	if _, err := verifier.Verify(name, msg); err != nil {
		t.Error(err)
	}
	got, err := transport.Parse(name, msg)
	if err != nil || got.ID != want.ID || got.Digest != want.Digest || got.Key != want.Key || !got.Stamp.Equal(want.Stamp) {
		t.Errorf("%v, event is %+v", err, got)
	}
}
