package amqp_test

import (
	"context"
	"errors"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// publishCall is how long a test waits for what must happen.
const publishCall = 30 * time.Second

// channel opens a channel on a connection of its own, closed when the test ends.
func channel(t testing.TB, url string) *amqp091.Channel {
	t.Helper()
	conn, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	return ch
}

func newPublisher(t testing.TB, config amqp.PublisherConfig) *amqp.Publisher {
	t.Helper()
	p, err := amqp.NewPublisher(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func newSubscriber(t testing.TB, config amqp.SubscriberConfig) *amqp.Subscriber {
	t.Helper()
	defaultTo(&config.RedeliveryMin, time.Millisecond)
	defaultTo(&config.RedeliveryMax, 10*time.Millisecond)
	defaultTo(&config.CloseTimeout, time.Second)
	s, err := amqp.NewSubscriber(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func defaultTo[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func subscribe(t testing.TB, s message.Subscriber, topic string) <-chan *message.Message {
	t.Helper()
	messages, err := s.Subscribe(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

// look returns the first message of a queue, on a channel that is closed then, and takes it if so
// asked. RabbitMQ has no basic.get for quorum queues with a single active consumer.
func look(t *testing.T, url, queue string, take bool) amqp091.Delivery {
	t.Helper()
	ch := channel(t, url)
	defer ch.Close()
	if err := ch.Qos(1, 0, false); err != nil {
		t.Fatal(err)
	}
	deliveries, err := ch.Consume(queue, "", false, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case d := <-deliveries:
		if take {
			if err := d.Ack(false); err != nil {
				t.Fatal(err)
			}
		}
		return d
	case <-time.After(publishCall):
		t.Fatal("no message")
	}
	return amqp091.Delivery{}
}

func newMessage(payload string) *message.Message {
	return message.NewMessage(uuid.NewString(), []byte(payload))
}

func keyed(key, payload string) *message.Message {
	m := newMessage(payload)
	m.Metadata[transport.MetaKey] = key
	return m
}

// receive returns the next message, or fails.
func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the channel of messages is closed")
		}
		return msg
	case <-time.After(publishCall):
		t.Fatal("no message")
	}
	return nil
}

// take receives a message of each payload, in this order, and acknowledges it.
func take(t testing.TB, messages <-chan *message.Message, payloads ...string) {
	t.Helper()
	for _, want := range payloads {
		msg := receive(t, messages)
		if string(msg.Payload) != want {
			t.Errorf("%s instead of %s", msg.Payload, want)
		}
		msg.Ack()
	}
}

// none fails if a message comes within a moment.
func none(t testing.TB, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if ok {
			t.Fatalf("message %q came", msg.Payload)
		}
	case <-time.After(200 * time.Millisecond):
	}
}

// await polls until what is true.
func await(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(publishCall)
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, publishCall)
		}
	}
}

// awaitConsuming waits until s consumes so many queues.
func awaitConsuming(t testing.TB, s *amqp.Subscriber, queues int) {
	t.Helper()
	await(t, "consumers", func() bool {
		n := 0
		for _, h := range s.Health() {
			if h.Consuming {
				n++
			}
		}
		return n == queues
	})
}

// send sends and waits for the outcome.
func send(t testing.TB, p transport.Sender, topic string, msg *message.Message) transport.Result {
	t.Helper()
	return sendWithin(t, p, publishCall, topic, msg)
}

func sendWithin(t testing.TB, p transport.Sender, d time.Duration, topic string, msg *message.Message) transport.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	results := make(chan transport.Result, 1)
	p.Send(ctx, topic, msg, func(r transport.Result) { results <- r })
	select {
	case r := <-results:
		return r
	case <-time.After(d + publishCall):
		t.Fatal("no outcome")
		return transport.Result{}
	}
}

func mustConfirm(t testing.TB, p transport.Sender, topic string, msg *message.Message) {
	t.Helper()
	if r := send(t, p, topic, msg); r.Outcome != transport.Confirmed {
		t.Fatalf("outcome = %v, %v", r.Outcome, r.Err)
	}
}

// awaitConfirm sends messages until one is confirmed.
func awaitConfirm(t testing.TB, p transport.Sender, topic, payload string) {
	t.Helper()
	await(t, "a confirm", func() bool { return send(t, p, topic, newMessage(payload)).Outcome == transport.Confirmed })
}

// wantOutcome fails unless r has this outcome, and an error if and only if it must.
func wantOutcome(t testing.TB, r transport.Result, want transport.Outcome, wantErr error) {
	t.Helper()
	if r.Outcome != want || (r.Err == nil) != (want == transport.Confirmed) {
		t.Fatalf("outcome = %v, %v; want %v", r.Outcome, r.Err, want)
	}
	if wantErr != nil && !errors.Is(r.Err, wantErr) {
		t.Fatalf("error = %v; want one that is %v", r.Err, wantErr)
	}
}

// depth returns how many messages are ready in a queue.
func depth(t testing.TB, url, queue string) int {
	t.Helper()
	conn, err := amqp091.Dial(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	q, err := ch.QueueDeclarePassive(queue, true, false, false, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	return q.Messages
}

// exchangeOnly is a configuration in which nothing is bound to the exchange.
func exchangeOnly(url string) wamqp.Config { return amqp.DurablePubSub(url, "") }
