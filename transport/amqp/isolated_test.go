package amqp_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// health returns the state of one queue.
func health(s *amqp.Subscriber, queue string) amqp.QueueHealth {
	for _, h := range s.Health() {
		if h.Queue == queue {
			return h
		}
	}
	return amqp.QueueHealth{}
}

// unreadable publishes a message to a queue that ends the connection of whoever gets it: the client
// takes 8,192 headers.
func unreadable(t *testing.T, url, queue string) {
	t.Helper()
	headers := amqp091.Table{}
	for i := range 8193 {
		headers[fmt.Sprint(i)] = nil
	}
	if err := channel(t, url).PublishWithContext(t.Context(), "", queue, true, false, amqp091.Publishing{Headers: headers}); err != nil {
		t.Fatal(err)
	}
}

func TestMessageThatEndsItsConnectionHurtsNoOtherTopic(t *testing.T) {
	t.Parallel()
	url, name := testenv.AMQPURL(t), topic(t)
	config := amqp.DurableQueue(url)
	quickly(&config)
	w := wired(&config)
	var logs lines
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	bad := name + "-bad"
	if err := s.SubscribeInitialize(bad); err != nil {
		t.Fatal(err)
	}
	unreadable(t, url, bad)
	subscribe(t, s, bad)
	const others = 20
	topics, messages := make([]string, others), make([]<-chan *message.Message, others)
	for i := range topics {
		topics[i] = fmt.Sprint(name, "-", i)
		messages[i] = subscribe(t, s, topics[i]) // while the connection is lost again and again
	}
	const says = "look for a message that no client can read"
	await(t, "a connection of its own", func() bool {
		return logs.contain(says) && health(s, bad).Isolated && health(s, bad).Err != nil
	})
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(url)})
	held := make([]*message.Message, others)
	for i, name := range topics {
		mustConfirm(t, p, name, newMessage(name))
		held[i] = receive(t, messages[i])
	}
	before := w.dialled()
	await(t, "more lost connections", func() bool { return w.dialled() > before+5 })
	for i, name := range topics {
		if h := health(s, name); !h.Consuming || h.Err != nil || h.Topic != name {
			t.Errorf("health = %+v", h)
		}
		held[i].Ack()
		mustConfirm(t, p, name, newMessage("next"))
		take(t, messages[i], "next") // and not again what was in flight
	}
	if !logs.contain("queue=" + bad) {
		t.Error("no log names the queue")
	}
}

const noAnswer = "queue gives no answer"

// dials are log lines that note how many connections were dialled before a queue gave no answer.
type dials struct {
	lines
	of     *wire
	before atomic.Int64
}

func (d *dials) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte(noAnswer)) {
		d.before.CompareAndSwap(0, int64(d.of.dialled()))
	}
	return d.lines.Write(p)
}

// silentQueue has a queue of a subscriber answer nothing, as one without a leader does.
func silentQueue(t *testing.T, node *testenv.Node) {
	config := amqp.DurableQueue(node.URL())
	quickly(&config)
	logs := dials{of: wired(&config)}
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
	s.SetTimeout(4 * time.Second)
	const silent, other = "sub-silent", "sub-other"
	for _, name := range []string{silent, other} {
		if err := s.SubscribeInitialize(name); err != nil {
			t.Fatal(err)
		}
	}
	control(t, node, silent, "suspend")
	messages := subscribe(t, s, other)
	late := subscribe(t, s, silent)
	await(t, "a connection of its own", func() bool { return logs.contain(noAnswer) && health(s, silent).Isolated })
	if n := logs.before.Load(); n > 2 {
		t.Errorf("%d connections until then", n)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: amqp.DurableQueue(node.URL())})
	mustConfirm(t, p, other, newMessage("held"))
	held := receive(t, messages)
	before := logs.of.dialled()
	await(t, "more lost connections", func() bool { return logs.of.dialled() > before+1 })
	if h := health(s, silent); h.Consuming || h.Err == nil || health(s, other).Err != nil {
		t.Errorf("health = %+v", s.Health())
	}
	held.Ack()
	mustConfirm(t, p, other, newMessage("next"))
	take(t, messages, "next")
	control(t, node, silent, "resume")
	mustConfirm(t, p, silent, newMessage("late"))
	take(t, late, "late")
}
