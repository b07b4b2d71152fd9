package amqp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// TestBatchesAreOpenedAsFarAsTheyAreNeeded: the prefetch count is of batches, of which each may have hundreds of messages.
func TestBatchesAreOpenedAsFarAsTheyAreNeeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const inFlight, batches, each = 40, 20, 50
		config := SubscriberConfig{InFlight: inFlight, Key: func(m *message.Message) string { return m.Metadata[transport.MetaKey] }}
		sub := &subscription{
			s: &Subscriber{config: config, codec: newCodec(nil, false)}, logger: slog.New(slog.DiscardHandler),
			out: make(chan *message.Message), handed: make(chan *delivery), finished: make(chan *delivery, inFlight),
			abandoned: make(chan struct{}), inFlight: make(map[*delivery]struct{}), tails: make(map[string]*delivery),
		}
		deliveries, closed := make(chan amqp091.Delivery, batches), make(chan *amqp091.Error)
		for i := range batches {
			body := appendBatchStart(nil, "1")
			for k := range each {
				body = appendPart(body, anID, fmt.Appendf(nil, "key=%d\n%d", k, i))
			}
			deliveries <- amqp091.Delivery{ContentEncoding: batchEncoding, Body: body}
		}
		ended := make(chan error, 1)
		go func() {
			ended <- sub.consume(t.Context(), context.Background(), &source{deliveries: deliveries, closed: closed})
		}()
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
		// Nothing is read from the channel now, and its end is seen all the same.
		close(closed)
		if err := <-ended; !errors.Is(err, amqp091.ErrClosed) {
			t.Errorf("ended with %v", err)
		}
		close(sub.abandoned)
		sub.tasks.Wait()
	})
}
