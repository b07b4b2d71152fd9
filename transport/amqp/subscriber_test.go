package amqp_test

import (
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
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

// fill publishes numbered messages to a queue that a consumer of topic has.
func fill(t *testing.T, config wamqp.Config, queueType amqp.QueueType, topic string, messages ...*message.Message) {
	t.Helper()
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, QueueType: queueType})
	if err := s.SubscribeInitialize(topic); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, QueueType: queueType})
	if err := p.Publish(topic, messages...); err != nil {
		t.Fatal(err)
	}
}

// numbered returns messages "1", "2", … of one key.
func numbered(key string, n int) []*message.Message {
	messages := make([]*message.Message, n)
	for i := range messages {
		messages[i] = keyed(key, strconv.Itoa(i+1))
	}
	return messages
}

// TestManyMessagesAreInFlight: stock watermill-amqp hands out the second message
// after the ack of the first, whatever the prefetch count is.
func TestManyMessagesAreInFlight(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Quorum, name, numbered("", 20)...)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, InFlight: 10, CloseTimeout: publishCall})
	messages := subscribe(t, s, name)
	var held []*message.Message
	for range 10 {
		held = append(held, receive(t, messages))
	}
	none(t, messages)
	held[7].Ack() // acknowledged beyond a gap, it makes room
	held[3].Ack()
	held = append(held, receive(t, messages), receive(t, messages))
	none(t, messages)
	for _, msg := range held {
		msg.Ack()
	}
	for range 8 {
		receive(t, messages).Ack()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := depth(t, url, name); n != 0 {
		t.Errorf("%d messages are still in the queue", n)
	}
}

func TestSubscriberTellsWhatWaitsInItsQueue(t *testing.T) {
	t.Parallel()
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	name := topic(t)
	fill(t, config, amqp.Classic, name, numbered("", 20)...)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, QueueType: amqp.Classic, InFlight: 3, Prefetch: 5})
	msg := receive(t, subscribe(t, s, name))
	backlog, ok := transport.BacklogOf(msg.Context())
	if !ok {
		t.Fatal("the message has no backlog")
	}
	if n, err := backlog.Waiting(t.Context()); err != nil || n != 15 {
		t.Errorf("%d messages wait (%v), want 15 of 20 with a prefetch count of 5", n, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n, err := backlog.Waiting(t.Context()); err == nil {
		t.Errorf("after the end, %d messages wait", n)
	}
}

func TestMessagesThatWaitForTheirKeyLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	name := topic(t)
	config := amqp.DurableQueue(testenv.AMQPURL(t))
	all := append(numbered("slow", 8), keyed("other", "other"))
	fill(t, config, amqp.Quorum, name, all...)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config, InFlight: 4}), name)
	slow := receive(t, messages)
	if msg := receive(t, messages); string(msg.Payload) != "other" {
		t.Errorf("message %s came", msg.Payload)
	} else {
		msg.Ack()
	}
	none(t, messages)
	for slow.Ack(); ; slow.Ack() {
		if slow = receive(t, messages); string(slow.Payload) == "8" {
			slow.Ack()
			break
		}
	}
}

// TestMessagesOfAKeyComeOneAfterAnother while handlers of many keys fail at random
// places and take their time.
func TestMessagesOfAKeyComeOneAfterAnother(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	const keys, each = 8, 40
	var all []*message.Message
	for i := range each {
		for k := range keys {
			all = append(all, keyed(fmt.Sprint("key", k), strconv.Itoa(i)))
		}
	}
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Quorum, name, all...)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config, InFlight: 64}), name)

	var mu sync.Mutex
	busy, next := make(map[string]bool), make(map[string]int)
	var nacks atomic.Int64
	var handlers sync.WaitGroup
	done := make(chan struct{}, len(all))
	handle := func(msg *message.Message) {
		key, n := msg.Metadata[transport.MetaKey], string(msg.Payload)
		mu.Lock()
		if busy[key] {
			t.Errorf("two messages of %s at once", key)
		}
		busy[key] = true
		if n != strconv.Itoa(next[key]) {
			t.Errorf("%s: message %s instead of %d", key, n, next[key])
		}
		fails := !transport.Redelivered(msg) && (len(key)+len(n)+next[key])%5 == 0
		mu.Unlock()

		runtime.Gosched()
		mu.Lock()
		busy[key] = false
		if !fails {
			next[key]++
		}
		mu.Unlock()
		if fails {
			nacks.Add(1)
			msg.Nack()
			return
		}
		msg.Ack()
		done <- struct{}{}
	}
	for handled := 0; handled < len(all); {
		select {
		case msg := <-messages:
			handlers.Go(func() { handle(msg) })
		case <-done:
			handled++
		case <-time.After(publishCall):
			t.Fatalf("%d of %d messages handled", handled, len(all))
		}
	}
	handlers.Wait()
	if nacks.Load() == 0 {
		t.Error("no handler has failed")
	}
}

func TestMessageSaysTheKeyThatItIsOrderedBy(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurableQueue(testenv.AMQPURL(t))
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	mustConfirm(t, p, name, keyed("metadata", "a"))
	mustConfirm(t, p, name, keyed("metadata", ""))
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Key: func(msg *message.Message) string { return string(msg.Payload) }})
	messages := subscribe(t, s, name)
	for _, want := range []string{"a", ""} {
		msg := receive(t, messages)
		if key, ok := transport.OrderingKey(msg.Context()); !ok || key != want {
			t.Errorf("ordered by %q, %v, want %q", key, ok, want)
		}
		msg.Ack()
	}
}

// TestNackIsADeliveryAgainFromHere with growing delays, known as such, ahead of the
// later messages of its key.
func TestNackIsADeliveryAgainFromHere(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Quorum, name, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{
		AMQP: config, RedeliveryMin: 50 * time.Millisecond, RedeliveryMax: time.Second,
	}), name)
	first := receive(t, messages)
	if transport.Redelivered(first) {
		t.Error("a first delivery counts as another")
	}
	first.Metadata["changed by"] = "the handler"
	take(t, messages, "b1")
	begin := time.Now()
	first.Nack()
	for i := range 3 {
		again := receive(t, messages)
		if string(again.Payload) != "a1" || !transport.Redelivered(again) || again.UUID != first.UUID {
			t.Errorf("%s, redelivered %v", again.Payload, transport.Redelivered(again))
		}
		if again.Metadata["changed by"] != "" {
			t.Error("the metadata is what the handler left behind")
		}
		if d := time.Since(begin); d < 30*time.Millisecond<<i {
			t.Errorf("delivery %d after %v", i+2, d)
		}
		if i < 2 {
			begin = time.Now()
			again.Nack()
		} else {
			again.Ack()
		}
	}
	last := receive(t, messages)
	if string(last.Payload) != "a2" || transport.Redelivered(last) {
		t.Errorf("%s, redelivered %v", last.Payload, transport.Redelivered(last))
	}
	last.Ack()
}

// TestDeletedQueueGivesNoMessage: stock watermill-amqp hands out an empty one. The
// queue is declared again, and consumed.
func TestDeletedQueueGivesNoMessage(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurablePubSub(url, "consumer")
	quickly(&config)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	ch := channel(t, url)
	for i := range 3 {
		if _, err := ch.QueueDelete(name+"_consumer", false, false, false); err != nil {
			t.Fatal(err)
		}
		awaitConfirm(t, p, name, fmt.Sprint("after", i))
		msg := receive(t, messages)
		if want := fmt.Sprint("after", i); string(msg.Payload) != want {
			t.Errorf("message %q with UUID %q instead of %s", msg.Payload, msg.UUID, want)
		}
		msg.Ack()
	}
}

// TestConsumerOfADeletedQueueConsumesTheNext: RabbitMQ does not cancel the consumer of a quorum
// queue that is declared again within milliseconds, and gives it nothing.
func TestConsumerOfADeletedQueueConsumesTheNext(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurablePubSub(url, "consumer")
	quickly(&config)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Queues: []amqp.Queue{{Topic: name, Name: name + "_consumer"}}})
	ch := channel(t, url)
	for i := range 3 {
		before := fmt.Sprint("before", i)
		awaitConfirm(t, p, name, before)
		declared := time.Now()
		for {
			msg := receive(t, messages)
			msg.Ack()
			if string(msg.Payload) == before {
				break
			}
		}
		await(t, "a declaration that is to be repeated", func() bool { return time.Since(declared) > 1500*time.Millisecond })
		if _, err := ch.QueueDelete(name+"_consumer", false, false, false); err != nil {
			t.Fatal(err)
		}
		after := fmt.Sprint("after", i)
		awaitConfirm(t, p, name, after)
		if msg := receive(t, messages); string(msg.Payload) != after {
			t.Errorf("message %s instead of %s", msg.Payload, after)
		} else {
			msg.Ack()
		}
	}
}

// TestAcksDoNotCrossToAnotherChannel: tags start again at 1 there, so an ack of
// the channel before would acknowledge what nobody has handled.
func TestAcksDoNotCrossToAnotherChannel(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	quickly(&config)
	w := wired(&config)
	fill(t, amqp.DurableQueue(url), amqp.Quorum, name, numbered("", 6)...)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, InFlight: 6})
	messages := subscribe(t, s, name)
	var old []*message.Message
	for range 6 {
		old = append(old, receive(t, messages))
	}
	before := w.dialled()
	w.cut()
	await(t, "another connection", func() bool { return w.dialled() > before })
	none(t, messages) // six are still with their handlers
	for _, msg := range old {
		msg.Ack()
	}
	for i := range 6 {
		msg := receive(t, messages)
		if string(msg.Payload) != strconv.Itoa(i+1) || !transport.Redelivered(msg) {
			t.Errorf("%s, redelivered %v", msg.Payload, transport.Redelivered(msg))
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	await(t, "all in the queue", func() bool { return depth(t, url, name) == 6 })
}

// TestKeyWaitsForItsHandlerAcrossConnections: the broker delivers again what a
// handler still works on.
func TestKeyWaitsForItsHandlerAcrossConnections(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	quickly(&config)
	w := wired(&config)
	fill(t, amqp.DurableQueue(url), amqp.Quorum, name, keyed("a", "a1"), keyed("a", "a2"), keyed("b", "b1"))
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
	a1 := receive(t, messages)
	receive(t, messages).Ack() // b1
	w.cut()
	for range 2 { // whether or not the ack of b1 has arrived
		select {
		case msg := <-messages:
			if key := msg.Metadata[transport.MetaKey]; key == "a" {
				t.Fatalf("%s is handed out while a1 is with its handler", msg.Payload)
			}
			msg.Ack()
		case <-time.After(500 * time.Millisecond):
		}
	}
	a1.Ack()
	take(t, messages, "a1", "a2")
}

// TestNothingIsDroppedForTooManyDeliveries: with a delivery limit, a quorum queue
// drops the messages of a consumer that crashes.
func TestNothingIsDroppedForTooManyDeliveries(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	fill(t, amqp.DurableQueue(url), amqp.Quorum, name, newMessage("survivor"))
	config := amqp.DurableQueue(url)
	config.Connection.Reconnect = &wamqp.ReconnectConfig{BackoffInitialInterval: time.Millisecond, BackoffMaxInterval: 5 * time.Millisecond}
	w := wired(&config)
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: config}), name)
	for range 25 {
		msg := receive(t, messages)
		w.cut()
		msg.Ack() // does not arrive
	}
	if msg := receive(t, messages); string(msg.Payload) != "survivor" {
		t.Errorf("message %q", msg.Payload)
	}
}

func TestQueueOfAnotherKindIsAClearError(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	if _, err := channel(t, url).QueueDeclare(name, true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url)})
	_, err := s.Subscribe(t.Context(), name)
	for _, want := range []string{name, "QueueType", "x-queue-type", "406"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v; want it to say %s", err, want)
		}
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url)})
	r := send(t, p, name, newMessage("x"))
	wantOutcome(t, r, transport.Unavailable, nil)
	if !strings.Contains(r.Err.Error(), "x-queue-type") {
		t.Errorf("error = %v", r.Err)
	}
	s = newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url), QueueType: amqp.Classic})
	subscribe(t, s, name)
}

// picky is a marshaler that cannot read some messages.
type picky struct {
	wamqp.DefaultMarshaler
	calls *atomic.Int64
}

func (m picky) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	m.calls.Add(1)
	switch string(d.Body) {
	case "unreadable":
		return nil, errors.New("unknown version")
	case "explosive":
		panic("boom")
	}
	return m.DefaultMarshaler.Unmarshal(d)
}

// TestUndecodableMessageIsSetAside: stock watermill-amqp nacks it, thousands of
// times a second, for ever.
func TestUndecodableMessageIsSetAside(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurablePubSub(url, "consumer")
	fill(t, config, amqp.Quorum, name,
		newMessage("1"), newMessage("unreadable"), newMessage("2"), newMessage("explosive"), newMessage("3"))
	marshaler := picky{calls: new(atomic.Int64)}
	config.Marshaler = marshaler
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, CloseTimeout: publishCall})
	messages := subscribe(t, s, name)
	take(t, messages, "1", "2", "3")
	queue := name + "_consumer"
	await(t, "both set aside", func() bool { return depth(t, url, queue+".undecodable") == 2 })
	if n := marshaler.calls.Load(); n > 10 {
		t.Errorf("%d calls of the marshaler", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := depth(t, url, queue); n != 0 {
		t.Errorf("%d messages left", n)
	}
	ch := channel(t, url)
	reasons := make(map[string]any)
	for range 2 {
		d, _, err := ch.Get(queue+".undecodable", true)
		if err != nil {
			t.Fatal(err)
		}
		reasons[string(d.Body)] = d.Headers["boxpair-undecodable-error"]
		if d.Headers["boxpair-undecodable-queue"] != queue || d.DeliveryMode != amqp091.Persistent {
			t.Errorf("set aside: %q with headers %v", d.Body, d.Headers)
		}
	}
	if reasons["unreadable"] != "unknown version" || reasons["explosive"] == nil {
		t.Errorf("reasons: %v", reasons)
	}
}

// TestUndecodableMessageIsKeptWhileItCannotBeSetAside: it is not acknowledged, and
// others go on.
func TestUndecodableMessageIsKeptWhileItCannotBeSetAside(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	quickly(&config)
	fill(t, config, amqp.Quorum, name, newMessage("unreadable"), newMessage("1"))
	config.Marshaler = picky{calls: new(atomic.Int64)}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, DeadLetterExchange: name + "-aside"})
	messages := subscribe(t, s, name)
	receive(t, messages).Ack()
	ch := channel(t, url)
	if err := ch.ExchangeDeclare(name+"-aside", "fanout", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := ch.QueueDeclare(name+"-dead", true, false, false, false, nil); err != nil {
		t.Fatal(err)
	}
	if err := ch.QueueBind(name+"-dead", "", name+"-aside", false, nil); err != nil {
		t.Fatal(err)
	}
	await(t, "set aside", func() bool { return depth(t, url, name+"-dead") == 1 })
}
