package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// TestBatchesAreOpenedAsFarAsTheyAreNeeded: the prefetch count is of batches, of which each may
// have hundreds of messages.
func TestBatchesAreOpenedAsFarAsTheyAreNeeded(t *testing.T) {
	t.Parallel()
	// Nothing is read from the channel then, and its end is seen all the same, and that of the
	// consumer.
	for name, end := range map[string]func(consumer *consumerChannel) error{
		"channel": func(consumer *consumerChannel) error {
			close(consumer.closed)
			return amqp091.ErrClosed
		},
		"channel, by the broker": func(consumer *consumerChannel) error {
			consumer.closed <- amqp091.ErrFrame
			close(consumer.closed)
			close(consumer.cancelled)
			return amqp091.ErrFrame
		},
		"consumer": func(consumer *consumerChannel) error {
			consumer.cancelled <- ""
			return errConsumerEnded
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { openedAsNeeded(t, end) })
		})
	}
}

func openedAsNeeded(t *testing.T, end func(consumer *consumerChannel) error) {
	const inFlight, batches, each = 40, 20, 50
	config := SubscriberConfig{InFlight: inFlight, Key: func(m *message.Message) string { return m.Metadata[transport.MetaKey] }}
	sub := &subscription{
		s: &Subscriber{config: config, codec: newCodec(nil, false)}, logger: slog.New(slog.DiscardHandler),
		out: make(chan *message.Message), handed: make(chan *delivery), finished: make(chan *delivery, inFlight),
		abandoned: make(chan struct{}), inFlight: make(map[*delivery]struct{}), tails: make(map[string]*delivery),
	}
	deliveries := make(chan amqp091.Delivery, batches)
	for i := range batches {
		body := appendBatchStart(nil, "1")
		for k := range each {
			body = appendBatchEntry(body, anID, fmt.Appendf(nil, "key=%d\n%d", k, i))
		}
		deliveries <- amqp091.Delivery{ContentEncoding: batchEncoding, Body: body}
	}
	consumer := &consumerChannel{deliveries: deliveries, closed: make(chan *amqp091.Error, 1), cancelled: make(chan string, 1)}
	ended := make(chan error, 1)
	scope, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { ended <- sub.deliver(t.Context(), scope, consumer) }()
	synctest.Wait()
	const opened = (lookAhead*inFlight + each - 1) / each
	if n := batches - len(deliveries); n != opened {
		t.Errorf("%d batches were opened at first, want %d", n, opened)
	}
	const finished = 6 // too few to be worth an ack, for which there is no broker here
	for range finished * each {
		(<-sub.out).Ack()
	}
	synctest.Wait()
	if n := batches - len(deliveries); n < finished || n > finished+opened {
		t.Errorf("%d batches were opened for %d", n, finished)
	}
	want := end(consumer)
	synctest.Wait()
	select {
	case err := <-ended:
		if !errors.Is(err, want) {
			t.Errorf("ended with %v, want %v", err, want)
		}
	default:
		t.Error("the end is not seen")
		cancel() // a bubble ends with all of its goroutines
	}
	close(sub.abandoned)
	sub.tasks.Wait()
}

// TestWhatIsSetAsideBeforeAGiveBackIsNotOpenAnyMore, also where the partition stays because a
// message is in flight for too long.
func TestWhatIsSetAsideBeforeAGiveBackIsNotOpenAnyMore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		consumer := &consumerChannel{}
		slow, odd := &delivery{from: consumer}, &delivery{from: consumer}
		slow.raw.DeliveryTag, odd.raw.DeliveryTag = 1, 2
		sub := &subscription{
			s:     &Subscriber{config: SubscriberConfig{InFlight: 40, RebalanceInterval: time.Second}},
			aside: make(chan *delivery, 1), finished: make(chan *delivery), inFlight: map[*delivery]struct{}{slow: {}}, admitted: 2,
		}
		consumer.acks.add(slow)
		consumer.acks.add(odd)
		sub.aside <- odd
		if err := sub.giveBack(t.Context(), consumer); err != nil {
			t.Fatal(err)
		}
		if sub.admitted != 1 || consumer.acks.unsent != 1 || !consumer.acks.list[1].finished {
			t.Errorf("%d are open, acknowledgements: %+v", sub.admitted, consumer.acks)
		}
	})
}

// TestWhatAnEndedChannelSetAsideIsNotAcknowledgedOnTheNext: their tags are alike.
func TestWhatAnEndedChannelSetAsideIsNotAcknowledgedOnTheNext(t *testing.T) {
	t.Parallel()
	consumer := &consumerChannel{}
	waiting, late := &delivery{from: consumer}, &delivery{from: &consumerChannel{}}
	waiting.raw.DeliveryTag, late.raw.DeliveryTag = 1, 1
	sub := &subscription{admitted: 1}
	consumer.acks.add(waiting)
	sub.finishSetAside(consumer, late)
	if sub.admitted != 1 || consumer.acks.unsent != 0 {
		t.Errorf("%d are open, acknowledgements: %+v", sub.admitted, consumer.acks)
	}
}
