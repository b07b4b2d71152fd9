package amqp_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport"
	"github.com/boxpair/boxpair/transport/amqp"
)

// asVersion4 has a broker of version 3 say that it is of version 4, which is all that declarations
// go by.
func asVersion4(config wamqp.Config) wamqp.Config {
	edited(&config, func(frame []byte) {
		name := []byte("\x07versionS")
		if i := bytes.Index(frame, name); i >= 0 && frame[i+len(name)+4] == '3' {
			frame[i+len(name)+4] = '4'
		}
	})
	return config
}

// TestQueueOfBeforeVersion4IsUsedWhereItIsSafe: it has no argument for a delivery limit, like one
// that somebody else has declared, and so RabbitMQ 4 drops what is delivered too often.
func TestQueueOfBeforeVersion4IsUsedWhereItIsSafe(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name, config := topic(t), asVersion4(amqp.DurableQueue(url))
	declareQuorum(t, url, name, nil)
	_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config}).Subscribe(t.Context(), name)
	wantLimitError(t, err, name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	mustConfirm(t, p, name, newMessage("x"))
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, DeliveryLimitIsSafe: true})
	take(t, subscribe(t, s, name), "x")
}

func TestPartitionsOfBeforeVersion4AreUsedWhereTheyAreSafe(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name, config := topic(t), asVersion4(amqp.DurableQueue(url))
	declareQuorum(t, url, name, amqp091.Table{"x-max-length": 2, "x-overflow": "reject-publish"})
	for _, queue := range partitions(config, name, 2) {
		declareQuorum(t, url, queue, amqp091.Table{"x-single-active-consumer": true})
	}
	sc := amqp.SubscriberConfig{AMQP: config, Partitions: 2}
	_, err := newSubscriber(t, sc).Subscribe(t.Context(), name)
	wantLimitError(t, err, name+".1of2")
	if errors.Is(err, amqp.ErrPartitions) {
		t.Errorf("error = %v, which is not about their number", err)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 2})
	mustConfirm(t, p, name, keyed("key", "x"))
	sc.DeliveryLimitIsSafe = true
	s := newSubscriber(t, sc)
	take(t, subscribe(t, s, name), "x")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	sc.Partitions = 3
	repartition(t, sc, name, 2)
}

// TestQueueWithALimitOfItsOwnIsRefused, which nobody here has asked for.
func TestQueueWithALimitOfItsOwnIsRefused(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name, config := topic(t), asVersion4(amqp.DurableQueue(url))
	declareQuorum(t, url, name, amqp091.Table{"x-delivery-limit": 5})
	_, err := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, DeliveryLimitIsSafe: true}).Subscribe(t.Context(), name)
	if err == nil || !strings.Contains(err.Error(), "x-delivery-limit") {
		t.Errorf("Subscribe: %v", err)
	}
	wantOutcome(t, send(t, newPublisher(t, amqp.PublisherConfig{AMQP: config}), name, newMessage("x")), transport.Unavailable, nil)
}

func declareQuorum(t *testing.T, url, name string, args amqp091.Table) {
	t.Helper()
	all := amqp091.Table{"x-queue-type": "quorum"}
	for arg, value := range args {
		all[arg] = value
	}
	if _, err := channel(t, url).QueueDeclare(name, true, false, false, false, all); err != nil {
		t.Fatal(err)
	}
}

func wantLimitError(t *testing.T, err error, queue string) {
	t.Helper()
	for _, want := range []string{queue, "x-delivery-limit", "20 deliveries", "policy", "DeliveryLimitIsSafe"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v; want it to say %s", err, want)
		}
	}
}
