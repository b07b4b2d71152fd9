package amqp_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// batching is a publisher behind a wire whose first message was confirmed.
func batching(t *testing.T, name string, size int, change func(*amqp.PublisherConfig)) (*amqp.Publisher, *wire) {
	t.Helper()
	config := amqp.PublisherConfig{AMQP: amqp.DurableQueue(testenv.AMQPURL(t)), Envelope: true, BatchSize: size, CompetingConsumers: true} // no basic.get of a queue with a single active consumer
	if change != nil {
		change(&config)
	}
	w := wired(&config.AMQP)
	p := newPublisher(t, config)
	mustConfirm(t, p, name, newMessage("first"))
	return p, w
}

// inQueue returns what the AMQP messages in a queue carry: the payloads of each.
func inQueue(t *testing.T, url, queue string) [][]string {
	t.Helper()
	ch := channel(t, url)
	var all [][]string
	for {
		d, ok, err := ch.Get(queue, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return all
		}
		all = append(all, payloads(t, &d))
	}
}

// payloads reads a delivery as it is documented.
func payloads(t *testing.T, d *amqp091.Delivery) (list []string) {
	t.Helper()
	open := func(envelope string) {
		_, payload, ok := strings.Cut(envelope, "\n")
		if !ok {
			t.Fatalf("%q is no envelope", envelope)
		}
		list = append(list, payload)
	}
	switch d.ContentEncoding {
	case "boxpair":
		open(string(d.Body))
	case "boxpair-batch":
		_, rest, _ := strings.Cut(string(d.Body), "\n")
		for rest != "" {
			line, after, _ := strings.Cut(rest, "\n")
			var id string
			var n int
			if _, err := fmt.Sscanf(line, "%36s %d", &id, &n); err != nil || n > len(after) {
				t.Fatalf("%q is not the line of a message: %v", line, err)
			}
			open(after[:n])
			rest = after[n:]
		}
	default:
		t.Fatalf("content encoding %q", d.ContentEncoding)
	}
	return list
}

// TestMessagesAreGatheredBehindUnconfirmedOnes: the first ones go at once, and what then comes goes
// together.
func TestMessagesAreGatheredBehindUnconfirmedOnes(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	p, w := batching(t, name, 10, nil)
	w.hold()
	var c tally
	for i := range 107 {
		c.send(t.Context(), p, name, newMessage(fmt.Sprint(i)))
	}
	// The last ones go without an answer: they are not kept for long.
	await(t, "all in the queue", func() bool { return depth(t, url, name) >= 1+4+11 })
	w.pass()
	c.pending.Wait()
	if c.of(transport.Confirmed) != 107 {
		t.Fatalf("outcomes: %v", &c)
	}
	next, largest := 0, 0
	for i, batch := range inQueue(t, url, name)[1:] {
		if i < 4 && len(batch) != 1 {
			t.Errorf("%d messages are in batch %d, which had nothing to wait for", len(batch), i)
		}
		largest = max(largest, len(batch))
		for _, payload := range batch {
			if payload != fmt.Sprint(next) {
				t.Fatalf("message %s comes instead of %d", payload, next)
			}
			next++
		}
	}
	if next != 107 || largest != 10 {
		t.Errorf("%d messages, up to %d at once", next, largest)
	}
}

// TestBatchesAreOfOneRoute and carry what a single message does.
func TestBatchesAreOfOneRoute(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	p, w := batching(t, name, 8, nil)
	mustConfirm(t, p, name+"-2", newMessage("first"))
	w.hold()
	topics := []string{name, name + "-2"}
	want := make(map[string][]*message.Message)
	var c tally
	for i := range 40 {
		for _, topic := range topics {
			e := event(topic)
			e.Key, e.Payload = fmt.Sprint("key \n", i), []byte(fmt.Sprint(topic, "\n", i))
			msg := e.Message()
			msg.UUID = newMessage("").UUID
			want[topic] = append(want[topic], msg)
			c.send(t.Context(), p, topic, msg)
		}
	}
	w.pass()
	c.pending.Wait()
	for _, topic := range topics {
		messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{AMQP: amqp.DurableQueue(url)}), topic)
		take(t, messages, "first")
		for i, expected := range want[topic] {
			msg := receive(t, messages)
			if !msg.Equals(expected) {
				t.Fatalf("message %d of %s is %q with %v", i, topic, msg.Payload, msg.Metadata)
			}
			msg.Ack()
		}
	}
}

// TestSizeOfABatchIsLimited, also that of what is sent together on purpose.
func TestSizeOfABatchIsLimited(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	const body = 40 << 10
	p, w := batching(t, name, 100, func(c *amqp.PublisherConfig) { c.MaxBody = body })
	w.hold()
	var c tally
	for range 30 {
		c.send(t.Context(), p, name, newMessage(strings.Repeat("x", body/3)))
	}
	w.pass()
	c.pending.Wait()
	if c.of(transport.Confirmed) != 30 {
		t.Fatalf("outcomes: %v", &c)
	}
	ch, messages := channel(t, url), 0
	for {
		d, ok, err := ch.Get(name, true)
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		if len(d.Body) > body {
			t.Errorf("a body of %d bytes", len(d.Body))
		}
		messages += len(payloads(t, &d))
	}
	if messages != 1+30 {
		t.Errorf("%d messages", messages)
	}
	wantOutcome(t, sendBatch(t, p, name, newMessage(strings.Repeat("x", body/2)), newMessage(strings.Repeat("x", body/2))), transport.Invalid, nil)
	wantOutcome(t, sendBatch(t, p, name, newMessage(strings.Repeat("x", body+1)), newMessage("")), transport.Invalid, nil)
	long := newMessage("small")
	long.UUID = strings.Repeat("x", 256)
	wantOutcome(t, sendBatch(t, p, name, newMessage("small"), long), transport.Invalid, nil)
	wantOutcome(t, sendBatch(t, p, name, newMessage("small"), newMessage("small")), transport.Confirmed, nil)
}

func sendBatch(t *testing.T, p *amqp.Publisher, topic string, msgs ...*message.Message) transport.Result {
	t.Helper()
	results := make(chan transport.Result, 2)
	p.SendBatch(t.Context(), topic, msgs, func(r transport.Result) { results <- r })
	select {
	case r := <-results:
		return r
	case <-time.After(publishCall):
		t.Fatal("no outcome")
		panic("unreachable")
	}
}

// TestBatchIsOneMessageOfTheBroker, alone and among others.
func TestBatchIsOneMessageOfTheBroker(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	p, w := batching(t, name, 5, nil)
	wantOutcome(t, sendBatch(t, p, name, newMessage("a1"), newMessage("a2"), newMessage("a3")), transport.Confirmed, nil)
	w.hold()
	var c tally
	for range 4 {
		c.send(t.Context(), p, name, newMessage("-"))
	}
	for range 10 {
		c.send(t.Context(), p, name, newMessage("-"))
		c.pending.Add(1)
		p.SendBatch(t.Context(), name, []*message.Message{newMessage("b1"), newMessage("b2"), newMessage("b3")}, func(r transport.Result) {
			c.counts[r.Outcome].Add(1)
			c.pending.Done()
		})
	}
	w.pass()
	c.pending.Wait()
	if c.of(transport.Confirmed) != 24 {
		t.Fatalf("outcomes: %v", &c)
	}
	found := 0
	for _, batch := range inQueue(t, url, name) {
		text := strings.Join(batch, " ")
		found += strings.Count(text, "a1 a2 a3") + strings.Count(text, "b1 b2 b3")
		if len(batch) > 5 {
			t.Errorf("%d messages at once", len(batch))
		}
	}
	if found != 11 {
		t.Errorf("%d of 11 batches are whole", found)
	}
	many := make([]*message.Message, 6)
	for i := range many {
		many[i] = newMessage("")
	}
	wantOutcome(t, sendBatch(t, p, name, many...), transport.Invalid, nil)
	wantOutcome(t, sendBatch(t, p, name), transport.Invalid, nil)
	wantOutcome(t, sendBatch(t, p, name, newMessage("alone")), transport.Confirmed, nil)
	if messages, _ := p.BatchLimit(); messages != 5 {
		t.Errorf("limit of %d messages", messages)
	}
}

// TestBatchOfTwoRoutesIsInvalid: with partitions the route depends on the key.
func TestBatchOfTwoRoutesIsInvalid(t *testing.T) {
	t.Parallel()
	name := topic(t)
	p := newPublisher(t, amqp.PublisherConfig{
		AMQP: amqp.DurablePubSub(testenv.AMQPURL(t), ""), Partitions: 2, Envelope: true, BatchSize: 10,
		Queues: []amqp.Queue{{Topic: name, Name: name + "-queue", Partitions: 2}},
	})
	wantOutcome(t, sendBatch(t, p, name, keyed("1", ""), keyed("2", "")), transport.Invalid, nil)
	wantOutcome(t, sendBatch(t, p, name, keyed("1", ""), keyed("1", "")), transport.Confirmed, nil)
}

// TestFailureIsThatOfTheWholeBatch.
func TestFailureIsThatOfTheWholeBatch(t *testing.T) {
	t.Parallel()
	t.Run("returned", func(t *testing.T) {
		t.Parallel()
		url, name := testenv.AMQPURL(t), topic(t)
		good, bad := name+"-good", name+"-bad"
		p, w := batching(t, good, 10, func(c *amqp.PublisherConfig) {
			c.AMQP, c.Queues = exchangeOnly(url), []amqp.Queue{{Topic: good, Name: name + "-queue"}}
		})
		wantOutcome(t, send(t, p, bad, newMessage("first")), transport.Returned, amqp.ErrUnroutable)
		w.hold()
		var delivered, lost tally
		for range 200 {
			delivered.send(t.Context(), p, good, newMessage(""))
			lost.send(t.Context(), p, bad, newMessage(""))
		}
		w.pass()
		delivered.pending.Wait()
		lost.pending.Wait()
		if delivered.of(transport.Confirmed) != 200 || lost.of(transport.Returned) != 200 {
			t.Errorf("routable: %v; unroutable: %v", &delivered, &lost)
		}
	})
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		name := topic(t)
		p, w := batching(t, name, 10, func(c *amqp.PublisherConfig) {
			c.AMQP.Queue.Arguments = amqp091.Table{"x-max-length": 1, "x-overflow": "reject-publish"}
			c.QueueType = amqp.Classic
		})
		w.hold()
		var c tally
		for range 100 {
			c.send(t.Context(), p, name, newMessage(""))
		}
		w.pass()
		c.pending.Wait()
		if c.of(transport.Refused) != 100 {
			t.Errorf("outcomes: %v", &c)
		}
		wantOutcome(t, sendBatch(t, p, name, newMessage(""), newMessage("")), transport.Refused, amqp.ErrNacked)
	})
	t.Run("culprit", func(t *testing.T) {
		t.Parallel()
		url, name := testenv.AMQPURL(t), topic(t)
		config := amqp.DurablePubSub(url, "")
		newSubscriberQueue(t, url, name)
		p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Topology: amqp.NoTopology, Envelope: true, BatchSize: 10})
		mustConfirm(t, p, name, newMessage("first"))
		wantOutcome(t, sendBatch(t, p, name+"-missing", newMessage("1"), newMessage("2")), transport.Returned, amqp.ErrUnroutable)
		wantOutcome(t, send(t, p, name+"-missing", newMessage("1")), transport.Returned, amqp.ErrUnroutable)
	})
	t.Run("unavailable", func(t *testing.T) {
		t.Parallel()
		name := topic(t)
		p, w := batching(t, name, 10, nil)
		w.hold()
		var c tally
		for range 1000 {
			c.send(t.Context(), p, name, newMessage(""))
		}
		w.cut()
		w.pass()
		// Each has exactly one, or the count of pending ones would be negative.
		await(t, "an outcome of each", func() bool { return c.of(transport.Confirmed)+c.of(transport.Unavailable) == 1000 })
		awaitConfirm(t, p, name, "after")
		if n := p.Health().Unconfirmed; n != 0 {
			t.Errorf("%d unconfirmed", n)
		}
	})
}

// TestCloseSendsWhatWasGathered.
func TestCloseSendsWhatWasGathered(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	p, _ := batching(t, name, 1000, nil)
	var c tally
	for range 500 {
		c.send(t.Context(), p, name, newMessage(""))
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	c.pending.Wait()
	messages := 0
	for _, batch := range inQueue(t, url, name) {
		messages += len(batch)
	}
	if c.of(transport.Confirmed) != 500 || messages != 501 {
		t.Errorf("%d messages, outcomes: %v", messages, &c)
	}
}
