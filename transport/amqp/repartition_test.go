package amqp_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// TestPartitionsGrowAndShrinkInOrder changes the number while messages wait: first in
// vain, then after they were handled. 0 is a topic without partitions.
func TestPartitionsGrowAndShrinkInOrder(t *testing.T) {
	t.Parallel()
	eachPartitionable(t, func(t *testing.T, config wamqp.Config, topic string) {
		const keys, each = 10, 4
		var h history
		steps := []int{2, 3, 0, 4, 1}
		for i, n := range steps {
			sc := amqp.SubscriberConfig{AMQP: config, Partitions: n}
			if i == 0 {
				if err := newSubscriber(t, sc).SubscribeInitialize(topic); err != nil {
					t.Fatal(err)
				}
			} else {
				repartition(t, sc, topic, steps[i-1])
			}
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: n})
			publishNumbered(t, p, topic, keys, i*each+1, (i+1)*each)
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			next := sc
			next.Partitions = n + 1
			wantNotDrained(t, next, topic, n)
			s := newSubscriber(t, sc)
			messages := subscribe(t, s, topic)
			for h.len() < keys*each*(i+1) {
				h.handle(receive(t, messages))
			}
			wantNotDrained(t, next, topic, n) // consumed
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
		h.wantOrder(t, keys, each*len(steps))
	})
}

func repartition(t *testing.T, config amqp.SubscriberConfig, topic string, from int) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	err := amqp.Repartition(t.Context(), config, topic, from)
	for errors.Is(err, amqp.ErrNotDrained) && time.Now().Before(deadline) { // the broker counts consumers a little longer
		err = amqp.Repartition(t.Context(), config, topic, from)
	}
	if err == nil {
		err = amqp.Repartition(t.Context(), config, topic, from) // again is no error
	}
	if err != nil {
		t.Fatal(err)
	}
}

func wantNotDrained(t *testing.T, config amqp.SubscriberConfig, topic string, from int) {
	t.Helper()
	if err := amqp.Repartition(t.Context(), config, topic, from); !errors.Is(err, amqp.ErrNotDrained) {
		t.Fatalf("from %d to %d: %v, want %v", from, config.Partitions, err, amqp.ErrNotDrained)
	}
}

// TestPublisherThatWasForgottenLosesNothingInARepartition publishes all the while.
func TestPublisherThatWasForgottenLosesNothingInARepartition(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurablePubSub(testenv.AMQPURL(t), "consumer")
	old := amqp.SubscriberConfig{AMQP: config, Partitions: 2, QueueType: amqp.Classic}
	next := old
	next.Partitions = 3
	if err := newSubscriber(t, old).SubscribeInitialize(name); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 2})
	stop, ended := context.WithCancel(t.Context())
	var n int
	var publishing sync.WaitGroup
	t.Cleanup(publishing.Wait)
	publishing.Go(func() {
		for ; stop.Err() == nil; n++ {
			if err := p.Publish(name, keyed("", strconv.Itoa(n))); err != nil {
				t.Errorf("message %d: %v", n, err)
			}
			select {
			case <-stop.Done():
			case <-time.After(time.Duration(n*n) * 10 * time.Millisecond): // at first, no call finds a gap
			}
		}
	})
	var h history
	calls := 1
	for ; ; calls++ {
		handleUntilEmpty(t, old, name, &h)
		err := amqp.Repartition(t.Context(), next, name, 2)
		if err == nil {
			break
		}
		if !errors.Is(err, amqp.ErrNotDrained) {
			ended()
			t.Fatal(err)
		}
	}
	ended()
	publishing.Wait()
	messages := subscribe(t, newSubscriber(t, next), name)
	for h.len() < n {
		h.handle(receive(t, messages))
	}
	t.Logf("%d messages, %d calls", n, calls)
}

// handleUntilEmpty runs a consumer until the next message does not come at once.
func handleUntilEmpty(t *testing.T, config amqp.SubscriberConfig, topic string, h *history) {
	t.Helper()
	s := newSubscriber(t, config)
	messages := subscribe(t, s, topic)
	for waiting := true; waiting; {
		select {
		case msg := <-messages:
			h.handle(msg)
		case <-time.After(50 * time.Millisecond):
			waiting = false
		}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for msg := range messages {
			h.handle(msg)
		}
	}()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-done
}

// TestQueueThatIsNotCountedIsNotDeleted has RabbitMQ say that the old queues are empty and not
// consumed, as it does when their leaders do not answer in time.
func TestQueueThatIsNotCountedIsNotDeleted(t *testing.T) {
	t.Parallel()
	eachPartitionable(t, func(t *testing.T, config wamqp.Config, topic string) {
		for _, from := range []int{1, 0} {
			name := topic + strconv.Itoa(from)
			old := amqp.SubscriberConfig{AMQP: config, Partitions: from}
			next := old
			next.Partitions = 2
			lied := next
			edited(&lied.AMQP, uncounted)
			if config.Exchange.Type == amqp091.ExchangeTopic && from == 0 {
				continue // the exchange is partitioned by now
			}
			if err := newSubscriber(t, old).SubscribeInitialize(name); err != nil {
				t.Fatal(err)
			}
			p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: from})
			publishNumbered(t, p, name, 1, 1, 3)
			wantNotDrained(t, lied, name, from)
			s := newSubscriber(t, old)
			messages := subscribe(t, s, name)
			var h history
			for h.len() < 3 {
				h.handle(receive(t, messages))
			}
			h.wantOrder(t, 1, 3)
			none(t, messages)
			wantNotDrained(t, lied, name, from) // consumed
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			repartition(t, lied, name, from)
		}
	})
}

// uncounted has RabbitMQ count no messages, and no consumers as long as one of several has them.
func uncounted(frame []byte) {
	if declared := []byte{0, 50, 0, 11}; frame[0] == 1 && bytes.HasPrefix(frame[7:], declared) {
		numbers := frame[len(frame)-9 : len(frame)-1]
		if binary.BigEndian.Uint32(numbers) > 0 || binary.BigEndian.Uint32(numbers[4:]) > 1 {
			clear(numbers)
		}
	}
}

// TestConsumersOfOneExchangeArePartitionedTogether: it becomes another exchange, so
// none may be left behind.
func TestConsumersOfOneExchangeArePartitionedTogether(t *testing.T) {
	t.Parallel()
	name, url := topic(t), testenv.AMQPURL(t)
	stock := amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(url, "stock")}
	bills := amqp.SubscriberConfig{AMQP: amqp.DurablePubSub(url, "bills")}
	for _, sc := range []amqp.SubscriberConfig{stock, bills} {
		if err := newSubscriber(t, sc).SubscribeInitialize(name); err != nil {
			t.Fatal(err)
		}
	}
	stock.Partitions, bills.Partitions = 4, 2
	err := amqp.Repartition(t.Context(), stock, name, 0)
	if !errors.Is(err, amqp.ErrNotDrained) || !strings.Contains(err.Error(), "other consumers") {
		t.Fatalf("the first: %v", err)
	}
	repartition(t, bills, name, 0)
	repartition(t, stock, name, 0)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: stock.AMQP, Partitions: 4, Queues: []amqp.Queue{
		{Topic: name}, {Topic: name, Name: name + "_bills", Partitions: 2},
	}})
	mustConfirm(t, p, name, keyed("key", "x"))
	for _, sc := range []amqp.SubscriberConfig{stock, bills} {
		receive(t, subscribe(t, newSubscriber(t, sc), name)).Ack()
	}
}

func TestRepartitionIsRefused(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurablePubSub(testenv.AMQPURL(t), "consumer")
	sc := amqp.SubscriberConfig{AMQP: config, Partitions: 4}
	if err := newSubscriber(t, sc).SubscribeInitialize(name); err != nil {
		t.Fatal(err)
	}
	// What is there is in another number than from says, 0 included: a populated
	// layout would be left behind.
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config, Partitions: 4})
	mustConfirm(t, p, name, keyed("key", "x"))
	other := sc
	other.Partitions = 8
	if err := amqp.Repartition(t.Context(), other, name, 2); !errors.Is(err, amqp.ErrPartitions) {
		t.Errorf("from 2, where 4 are: %v", err)
	}
	if err := amqp.Repartition(t.Context(), other, name, 0); err == nil || errors.Is(err, amqp.ErrNotDrained) {
		t.Errorf("from 0, where 4 are: %v", err)
	}
	receive(t, subscribe(t, newSubscriber(t, sc), name)).Ack()

	passive := other
	passive.Topology, passive.DeliveryLimitIsSafe = amqp.Passive, true
	for says, call := range map[string]struct {
		config amqp.SubscriberConfig
		from   int
	}{
		"from: -1":    {other, -1},
		"from: 65":    {other, 65},
		"from: 8":     {other, 8},
		"Topology":    {passive, 4},
		"Partitions:": {amqp.SubscriberConfig{AMQP: config, Partitions: 65}, 4},
	} {
		if err := amqp.Repartition(t.Context(), call.config, name, call.from); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}
