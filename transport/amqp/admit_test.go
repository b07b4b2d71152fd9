package amqp_test

import (
	"fmt"
	"maps"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// batchEntry is a message in a batch, by what its documentation says. Its ID needs no escape.
func batchEntry(id, envelope string) string {
	return fmt.Sprintf("%s %d\n%s", id, len(envelope), envelope)
}

// batched is a publishing of parts.
func batched(parts ...string) amqp091.Publishing {
	return amqp091.Publishing{
		ContentEncoding: "boxpair-batch", DeliveryMode: amqp091.Persistent,
		Body: []byte("publish-seq=1\n" + strings.Join(parts, "")),
	}
}

// batchOf is a batch of messages with these payloads, which begin with their keys, a letter.
func batchOf(payloads ...string) amqp091.Publishing {
	var parts []string
	for _, p := range payloads {
		parts = append(parts, batchEntry("id-"+p, "publish-seq=2&key="+p[:1]+"\n"+p))
	}
	return batched(parts...)
}

// put puts messages as they are into the queue that a consumer of topic has.
func put(t *testing.T, config amqp.SubscriberConfig, topic string, messages ...amqp091.Publishing) {
	t.Helper()
	if err := newSubscriber(t, config).SubscribeInitialize(topic); err != nil {
		t.Fatal(err)
	}
	ch := channel(t, config.AMQP.Connection.AmqpURI)
	if err := ch.Confirm(false); err != nil {
		t.Fatal(err)
	}
	for _, pub := range messages {
		confirm, err := ch.PublishWithDeferredConfirm("", topic, true, false, pub)
		if err != nil {
			t.Fatal(err)
		}
		if !confirm.Wait() {
			t.Fatal("not confirmed")
		}
	}
}

// closed closes s, and fails unless so many messages are in the queue then.
func closed(t *testing.T, s *amqp.Subscriber, url, queue string, left int) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	await(t, fmt.Sprintf("%d messages in the queue", left), func() bool { return depth(t, url, queue) == left })
}

func TestBatchIsItsMessages(t *testing.T) {
	t.Parallel()
	for name, marshaler := range map[string]wamqp.Marshaler{"default": nil, "own": struct{ wamqp.DefaultMarshaler }{}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.AMQPURL(t)
			name := topic(t)
			config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), CloseTimeout: publishCall}
			config.AMQP.Marshaler = marshaler
			long := strings.Repeat("three 3\n", 100)
			batch := batched(
				batchEntry("one", "publish-seq=2&key=a&type=placed&_tenant=acme\n{}\n"),
				batchEntry("t%20wo%0A", "publish-seq=3\n"),
				batchEntry("three", "publish-seq=4&key=c\n"+long),
			)
			batch.Headers = amqp091.Table{"x-of-all": "yes"}
			put(t, config, name, batch, batched(batchEntry("four", "publish-seq=1\n4")))
			s := newSubscriber(t, config)
			messages := subscribe(t, s, name)
			for _, want := range []*message.Message{
				{UUID: "one", Payload: []byte("{}\n"), Metadata: message.Metadata{
					transport.MetaKey: "a", transport.MetaType: "placed", "tenant": "acme", "x-of-all": "yes",
				}},
				{UUID: "t wo\n", Metadata: message.Metadata{"x-of-all": "yes"}},
				{UUID: "three", Payload: []byte(long), Metadata: message.Metadata{transport.MetaKey: "c", "x-of-all": "yes"}},
				{UUID: "four", Payload: []byte("4")},
			} {
				msg := receive(t, messages)
				if msg.UUID != want.UUID || string(msg.Payload) != string(want.Payload) || !maps.Equal(msg.Metadata, want.Metadata) {
					t.Errorf("%q %v %.150q, want %q %v %.150q", msg.UUID, msg.Metadata, msg.Payload, want.UUID, want.Metadata, want.Payload)
				}
				if transport.Redelivered(msg) {
					t.Errorf("%s counts as delivered again", msg.UUID)
				}
				_ = append(msg.Payload, strings.Repeat("z", 100)...) // not over the next one
				msg.Ack()
			}
			closed(t, s, url, name, 0)
		})
	}
}

func TestKeysOfBatchesGoOnBesideEachOther(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), InFlight: 6, CloseTimeout: publishCall}
	put(t, config, name, batchOf("a1", "b1", "a2", "c1"), batchOf("a3", "b2", "d1"))
	s := newSubscriber(t, config)
	messages := subscribe(t, s, name)
	held := make(map[string]*message.Message)
	next := func(payloads ...string) {
		t.Helper()
		for _, want := range payloads {
			msg := receive(t, messages)
			if string(msg.Payload) != want {
				t.Fatalf("%s instead of %s", msg.Payload, want)
			}
			held[want] = msg
		}
		none(t, messages)
	}
	next("a1", "b1", "c1", "d1")
	held["a1"].Ack()
	next("a2")
	held["b1"].Ack()
	next("b2")
	held["a2"].Ack()
	next("a3")
	for _, payload := range []string{"a3", "b2", "c1", "d1"} {
		held[payload].Ack()
	}
	closed(t, s, url, name, 0)
}

func TestMessagesOfABatchAreHandedOutUpToInFlight(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), InFlight: 3, CloseTimeout: publishCall}
	put(t, config, name, batchOf("a1", "b1", "c1", "d1", "e1"), batchOf("f1"))
	s := newSubscriber(t, config)
	messages := subscribe(t, s, name)
	held := []*message.Message{receive(t, messages), receive(t, messages), receive(t, messages)}
	none(t, messages)
	for _, msg := range held {
		msg.Ack()
	}
	take(t, messages, "d1", "e1", "f1")
	closed(t, s, url, name, 0)
}

// TestNackIsOfOneMessageOfABatch, and the broker keeps all until the last of them is done.
func TestNackIsOfOneMessageOfABatch(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), CloseTimeout: 3 * time.Second}
	put(t, config, name, batchOf("a1", "b1", "b2", "c1"), batchOf("d1"))
	s := newSubscriber(t, config)
	messages := subscribe(t, s, name)
	take(t, messages, "a1")
	first := receive(t, messages)
	take(t, messages, "c1", "d1")
	first.Nack()
	again := receive(t, messages)
	if string(again.Payload) != "b1" || again.UUID != "id-b1" || again.Metadata[transport.MetaKey] != "b" || !transport.Redelivered(again) {
		t.Errorf("%q %v %q instead of b1 again", again.UUID, again.Metadata, again.Payload)
	}
	again.Ack()
	last := receive(t, messages)
	none(t, messages)
	if string(last.Payload) != "b2" || transport.Redelivered(last) {
		t.Errorf("%s, redelivered %v", last.Payload, transport.Redelivered(last))
	}
	closed(t, s, url, name, 1) // b2 is not done; the other batch is

	config.CloseTimeout = publishCall
	s = newSubscriber(t, config)
	messages = subscribe(t, s, name)
	var held []*message.Message
	for _, want := range []string{"a1", "b1", "c1"} {
		msg := receive(t, messages)
		if string(msg.Payload) != want || !transport.Redelivered(msg) {
			t.Errorf("%s instead of %s, redelivered %v", msg.Payload, want, transport.Redelivered(msg))
		}
		held = append(held, msg)
	}
	for _, msg := range held {
		msg.Ack()
	}
	take(t, messages, "b2")
	closed(t, s, url, name, 0)
}

// TestOneInFlightIsOneOrderOfBatches, with the next of a key and a nacked message at their places.
func TestOneInFlightIsOneOrderOfBatches(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.SubscriberConfig{
		AMQP: amqp.DurableQueue(url), InFlight: 1, RedeliveryMin: 50 * time.Millisecond, RedeliveryMax: 50 * time.Millisecond,
		CloseTimeout: publishCall,
	}
	put(t, config, name, batchOf("a1", "a2", "b1", "a3"), batchOf("c1", "a4"), batchOf("d1"))
	s := newSubscriber(t, config)
	messages := subscribe(t, s, name)
	first := receive(t, messages)
	none(t, messages)
	first.Nack()
	take(t, messages, "a1", "a2", "b1", "a3", "c1", "a4", "d1")
	closed(t, s, url, name, 0)
}

// unsplittable are bodies of batches that cannot be read.
var unsplittable = []string{
	"", "x", "publish-seq=1", "publish-seq=1\n", "1\nid 1\nx", "publish-seq=1\nid 2\nx", "publish-seq=1\nid 1\nxy", "publish-seq=1\nid -1\nx",
	"publish-seq=1\n" + batchEntry("id", "publish-seq=2\nx") + "id", "publish-seq=1\n%4 0\n", "publish-seq=1\n" + batchEntry(strings.Repeat("x", 256), "publish-seq=2\nx"),
}

func TestBatchThatCannotBeReadIsSetAsideWhole(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	// With one delivery at a time, the last message comes after the acks of all that were set aside. Without
	// an ack, a subscriber that is closed would leave such a message in the queue.
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), InFlight: 1, Prefetch: 1, CloseTimeout: publishCall}
	config.AMQP.Marshaler = struct{ wamqp.DefaultMarshaler }{}
	want := make(map[string]bool)
	messages := []amqp091.Publishing{batchOf("a1")}
	for _, body := range unsplittable {
		want[body] = true
		messages = append(messages, amqp091.Publishing{ContentEncoding: "boxpair-batch", MessageId: "batch", DeliveryMode: amqp091.Persistent, Body: []byte(body)})
	}
	put(t, config, name, append(messages, batchOf("a2"))...)
	s := newSubscriber(t, config)
	take(t, subscribe(t, s, name), "a1", "a2")
	await(t, "all set aside", func() bool { return depth(t, url, name+".undecodable") == len(unsplittable) })
	closed(t, s, url, name, 0)
	ch := channel(t, url)
	for range unsplittable {
		d, _, err := ch.Get(name+".undecodable", true)
		if err != nil {
			t.Fatal(err)
		}
		if !want[string(d.Body)] || d.ContentEncoding != "boxpair-batch" || d.MessageId != "batch" || d.Headers["boxpair-undecodable-error"] == nil {
			t.Errorf("set aside: %q %q with headers %v", d.ContentEncoding, d.Body, d.Headers)
		}
		delete(want, string(d.Body))
	}
}

// TestBatchThatCannotBeReadIsHandedOutWhole where no message is set aside, and inboxes refuse it.
func TestBatchThatCannotBeReadIsHandedOutWhole(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), CloseTimeout: publishCall}
	var messages []amqp091.Publishing
	for _, body := range unsplittable {
		messages = append(messages, amqp091.Publishing{ContentEncoding: "boxpair-batch", MessageId: "batch", DeliveryMode: amqp091.Persistent, Body: []byte(body)})
	}
	put(t, config, name, messages...)
	s := newSubscriber(t, config)
	out := subscribe(t, s, name)
	for _, body := range unsplittable {
		msg := receive(t, out)
		if string(msg.Payload) != body || msg.UUID != "batch" {
			t.Errorf("%q %q instead of %q", msg.UUID, msg.Payload, body)
		}
		if _, err := transport.Parse("topic", msg); err == nil || msg.Metadata[transport.MetaEnvelope] == "" {
			t.Errorf("%q is read: %v", body, msg.Metadata)
		}
		msg.Ack()
	}
	closed(t, s, url, name, 0)
}

func TestMessageOfABatchIsSetAsideAlone(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), CloseTimeout: publishCall}
	config.AMQP.Marshaler = picky{calls: new(atomic.Int64)}
	want := map[string]string{"2": "publish-seq=4&key=a\nunreadable", "4": "no envelope"}
	put(t, config, name, batched(
		batchEntry("1", "publish-seq=3&key=a\nx1"), batchEntry("2", want["2"]), batchEntry("3", "publish-seq=5&key=a\nx3"), batchEntry("4", want["4"]), batchEntry("5", "publish-seq=6\nx5"),
	))
	// While they cannot be set aside, the broker keeps the batch.
	other := config
	other.DeadLetterExchange = name + "-missing"
	s := newSubscriber(t, other)
	messages := subscribe(t, s, name)
	msg := receive(t, messages)
	take(t, messages, "x5")
	msg.Ack()
	take(t, messages, "x3")
	none(t, messages)
	closed(t, s, url, name, 1)

	s = newSubscriber(t, config)
	messages = subscribe(t, s, name)
	msg = receive(t, messages)
	take(t, messages, "x5")
	msg.Ack()
	take(t, messages, "x3")
	await(t, "both set aside", func() bool { return depth(t, url, name+".undecodable") == 2 })
	closed(t, s, url, name, 0)
	ch := channel(t, url)
	for range want {
		d, _, err := ch.Get(name+".undecodable", true)
		if err != nil {
			t.Fatal(err)
		}
		if string(d.Body) != want[d.MessageId] || d.ContentEncoding != "boxpair" {
			t.Errorf("set aside: %q %q %q", d.MessageId, d.ContentEncoding, d.Body)
		}
		delete(want, d.MessageId)
	}
	// What was set aside is read like any message, once it can be.
	put(t, config, name, amqp091.Publishing{ContentEncoding: "boxpair", MessageId: "2", DeliveryMode: amqp091.Persistent, Body: []byte("publish-seq=4&key=a\nunreadable")})
	config.AMQP.Marshaler = nil
	take(t, subscribe(t, newSubscriber(t, config), name), "unreadable")
}

func TestBatchOfABrokenConnectionComesAgain(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	plain := amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), InFlight: 4, CloseTimeout: publishCall}
	put(t, plain, name, batchOf("a1", "b1", "a2", "e1", "e2"), batchOf("c1", "f1", "f2"))
	config := plain
	quickly(&config.AMQP)
	w := wired(&config.AMQP)
	s := newSubscriber(t, config)
	messages := subscribe(t, s, name)
	var old []*message.Message
	take(t, messages, "a1")
	for range 4 { // b1, a2, e1 and c1
		old = append(old, receive(t, messages))
	}
	none(t, messages) // f1 is ready
	before := w.dialled()
	w.cut()
	await(t, "another connection", func() bool { return w.dialled() > before })
	none(t, messages) // there are four with their handlers
	for _, msg := range old {
		msg.Ack()
	}
	at := make(map[string]int)
	for i := range 8 {
		msg := receive(t, messages)
		if !transport.Redelivered(msg) {
			t.Errorf("%s counts as delivered once", msg.Payload)
		}
		at[string(msg.Payload)] = i + 1
		msg.Ack()
	}
	if len(at) != 8 || at["a1"] > at["a2"] || at["e1"] > at["e2"] || at["f1"] > at["f2"] {
		t.Errorf("order of what came again: %v", at)
	}
	closed(t, s, url, name, 0)
}
