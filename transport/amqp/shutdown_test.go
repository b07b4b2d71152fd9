package amqp_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/boxpair/boxpair/internal/testenv"
	"github.com/boxpair/boxpair/transport/amqp"
)

// TestShutdownKeepsTheOrder: giving messages back with basic.nack puts them behind
// those that were not delivered yet.
func TestShutdownKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, queueType := range map[string]amqp.QueueType{"quorum": amqp.Quorum, "classic": amqp.Classic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := testenv.AMQPURL(t)
			name := topic(t)
			config := amqp.DurableQueue(url)
			fill(t, config, queueType, name, numbered("", 10)...)
			// What is nacked comes again after the Close, not among the five.
			sc := amqp.SubscriberConfig{
				AMQP: config, QueueType: queueType, InFlight: 5, Prefetch: 5, // the others stay in the queue
				RedeliveryMin: time.Minute, RedeliveryMax: time.Minute, CloseTimeout: 3 * time.Second,
			}
			first := newSubscriber(t, sc)
			messages := subscribe(t, first, name)
			for i := range 5 {
				msg := receive(t, messages)
				if string(msg.Payload) != strconv.Itoa(i+1) {
					t.Errorf("%s instead of %d", msg.Payload, i+1)
				}
				switch i {
				case 1, 3:
					msg.Ack()
				case 2:
					msg.Nack()
				}
			}
			if err := first.Close(); err != nil {
				t.Error(err)
			}
			if _, open := <-messages; open {
				t.Error("a message after Close")
			}
			sc.InFlight, sc.Prefetch = 1, 1
			second := subscribe(t, newSubscriber(t, sc), name)
			take(t, second, "1", "3", "5", "6", "7", "8", "9", "10")
		})
	}
}

// TestNackedMessageHoldsUpNoOtherKey while it waits, and does hold up the next of its own.
func TestNackedMessageHoldsUpNoOtherKey(t *testing.T) {
	t.Parallel()
	name, config := topic(t), amqp.DurableQueue(testenv.AMQPURL(t))
	messages := subscribe(t, newSubscriber(t, amqp.SubscriberConfig{
		AMQP: config, RedeliveryMin: time.Hour, RedeliveryMax: time.Hour,
	}), name)
	p := newPublisher(t, amqp.PublisherConfig{AMQP: config})
	mustConfirm(t, p, name, keyed("a", "a1"))
	receive(t, messages).Nack()
	mustConfirm(t, p, name, keyed("a", "a2"))
	mustConfirm(t, p, name, keyed("b", "b1"))
	take(t, messages, "b1")
	none(t, messages)
}

// TestHandlersFinishDuringClose: stock watermill-amqp nacks what is in flight, so
// each deployment handles messages twice.
func TestHandlersFinishDuringClose(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Quorum, name, numbered("", 3)...)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, CloseTimeout: publishCall})
	messages := subscribe(t, s, name)
	held := []*message.Message{receive(t, messages), receive(t, messages), receive(t, messages)}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	// No more subscriptions: Close has begun, and waits.
	await(t, "closing", func() bool {
		_, err := s.Subscribe(t.Context(), name)
		return errors.Is(err, amqp.ErrClosed)
	})
	for _, msg := range held {
		if err := msg.Context().Err(); err != nil {
			t.Errorf("context of a message in flight: %v", err)
		}
		select {
		case err := <-closed:
			t.Fatalf("Close = %v before the handlers have finished", err)
		default:
		}
		msg.Ack()
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if _, open := <-messages; open {
		t.Error("a message after Close")
	}
	if n := depth(t, url, name); n != 0 {
		t.Errorf("%d messages are in the queue again", n)
	}
}

// TestWhatWasAcknowledgedBeforeCloseIsGone: a quorum queue that is acknowledged one
// by one, and fast, sets acks aside and forgets them with the channel.
func TestWhatWasAcknowledgedBeforeCloseIsGone(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	for range 5 {
		fill(t, config, amqp.Quorum, name, numbered("key", 64)...)
		s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, InFlight: 64, CloseTimeout: publishCall})
		messages := subscribe(t, s, name)
		for range 64 {
			receive(t, messages).Ack()
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if n := depth(t, url, name); n != 0 {
			t.Fatalf("%d of 64 messages are in the queue again", n)
		}
	}
}

func TestCloseGivesUpOnHandlersThatDoNotFinish(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Quorum, name, newMessage("stuck"))
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, CloseTimeout: 50 * time.Millisecond})
	msg := receive(t, subscribe(t, s, name))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if msg.Context().Err() == nil {
		t.Error("the context of the message is still alive")
	}
	msg.Ack() // too late
	await(t, "the message in the queue again", func() bool { return depth(t, url, name) == 1 })
}

func TestEndOfTheSubscriptionsContextDrains(t *testing.T) {
	t.Parallel()
	url := testenv.AMQPURL(t)
	name := topic(t)
	config := amqp.DurableQueue(url)
	fill(t, config, amqp.Quorum, name, numbered("", 3)...)
	s := newSubscriber(t, amqp.SubscriberConfig{AMQP: config, InFlight: 1, CloseTimeout: publishCall})
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
	messages, err := s.Subscribe(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	msg := receive(t, messages)
	if msg.Context().Value(key{}) != "value" {
		t.Error("the context of the message is not derived from the subscription's")
	}
	cancel()
	<-msg.Context().Done()
	msg.Ack()
	if _, open := <-messages; open {
		t.Error("a message after the end")
	}
	await(t, "the others in the queue", func() bool { return depth(t, url, name) == 2 })
	rest := subscribe(t, s, name)
	take(t, rest, "2", "3")
}
