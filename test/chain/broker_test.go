package chain

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// newTopic returns a topic of the test's own with a durable queue for each
// consumer. They are deleted at the end of the test.
func newTopic(t *testing.T, consumers ...string) string {
	t.Helper()
	name := testenv.Name(t)
	declare(t, name, consumers...)
	return name
}

// newTopics declares topics with one consumer each, and returns what their names begin
// with.
func newTopics(t *testing.T, consumers map[string]string) string {
	t.Helper()
	prefix := testenv.Name(t) + "_"
	for topic, consumer := range consumers {
		declare(t, prefix+topic, consumer)
	}
	return prefix
}

func declare(t *testing.T, topic string, consumers ...string) {
	t.Helper()
	url := testenv.AMQPURL(t)
	t.Cleanup(func() {
		conn, err := amqp091.Dial(url)
		ok(t, err)
		defer conn.Close()
		ch, err := conn.Channel()
		ok(t, err)
		for _, c := range consumers {
			if _, err := ch.QueueDelete(topic+"_"+c, false, false, false); err != nil {
				t.Error(err)
			}
		}
		if err := ch.ExchangeDelete(topic, false, false); err != nil {
			t.Error(err)
		}
	})
	for _, c := range consumers {
		ok(t, newSubscriber(t, c).SubscribeInitialize(topic))
	}
}

func newPublisher(t *testing.T) *amqp.Publisher {
	t.Helper()
	p, err := amqp.NewPublisher(amqp.PublisherConfig{AMQP: amqp.DurablePubSub(testenv.AMQPURL(t), "")})
	ok(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func newSubscriber(t *testing.T, consumer string) *amqp.Subscriber {
	t.Helper()
	s, err := amqp.NewSubscriber(amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(testenv.AMQPURL(t), consumer)})
	ok(t, err)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// wire records what the broker was given on a topic, in its order, copies included.
type wire struct {
	mu       sync.Mutex
	arrivals []arrival
	changed  chan struct{} // closed at the next arrival
}

type arrival struct{ id, key, content string }

// record listens to a topic until the end of the test. The exchange must exist.
func record(t *testing.T, topic string) *wire {
	t.Helper()
	conn, err := amqp091.Dial(testenv.AMQPURL(t))
	ok(t, err)
	ch, err := conn.Channel()
	ok(t, err)
	ok(t, ch.ExchangeDeclare(topic, amqp091.ExchangeFanout, true, false, false, false, nil))
	queue, err := ch.QueueDeclare("", false, true, true, false, nil)
	ok(t, err)
	ok(t, ch.QueueBind(queue.Name, "", topic, false, nil))
	deliveries, err := ch.Consume(queue.Name, "", true, true, false, false, nil)
	ok(t, err)
	w := &wire{changed: make(chan struct{})}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for d := range deliveries {
			key, _ := d.Headers[transport.MetaKey].(string)
			w.add(arrival{id: d.MessageId, key: key, content: string(d.Body)})
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return w
}

func (w *wire) add(a arrival) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.arrivals = append(w.arrivals, a)
	close(w.changed)
	w.changed = make(chan struct{})
}

// all returns what has arrived.
func (w *wire) all() []arrival {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.arrivals[:len(w.arrivals):len(w.arrivals)]
}

// first returns the contents of first deliveries of key, in their order.
func (w *wire) first(key string) (contents []string) {
	seen := map[string]bool{}
	for _, a := range w.all() {
		if a.key == key && !seen[a.content] {
			seen[a.content] = true
			contents = append(contents, a.content)
		}
	}
	return contents
}

// has waits until an event has arrived.
func (w *wire) has(ctx context.Context, key, content string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	next := 0
	for {
		w.mu.Lock()
		arrivals, changed := w.arrivals[next:], w.changed
		next = len(w.arrivals)
		w.mu.Unlock()
		for _, a := range arrivals {
			if a.key == key && a.content == content {
				return nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("event %s of key %s: %w", content, key, ctx.Err())
		}
	}
}
