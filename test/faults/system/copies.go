package system

import (
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/test/faults/child"
)

// Queue returns the name of a service's queue.
func (s *System) Queue(service string) string { return child.QueueName(s.Topic, service) }

// Recorded returns the recorded messages. They stay recorded, perhaps in another order.
func (s *System) Recorded() (found []amqp091.Delivery, err error) {
	err = s.channel(func(ch *amqp091.Channel) error {
		for {
			d, ok, err := ch.Get(s.wireQueue(), false)
			if err != nil || !ok {
				return err
			}
			found = append(found, d)
		}
	})
	return found, err
}

// Take removes all messages from a service's queue. No child may be reading the queue. A marker
// behind the messages shows the end; the broker is not asked for their number.
func (s *System) Take(service string) (found []amqp091.Delivery, err error) {
	marker := "marker-" + token()
	if err := s.Put(service, amqp091.Publishing{MessageId: marker}); err != nil {
		return nil, err
	}
	err = s.channel(func(ch *amqp091.Channel) error {
		// The broker acknowledges by itself: the last acknowledgement of a channel may be lost when
		// the channel closes at once.
		deliveries, err := ch.Consume(s.Queue(service), "", true, false, false, false, nil)
		if err != nil {
			return err
		}
		for d := range deliveries {
			if d.MessageId == marker {
				return nil
			}
			found = append(found, d)
		}
		return amqp091.ErrClosed
	})
	return found, err
}

// Put publishes messages to a service's queue, without the exchange, and waits for the confirms.
func (s *System) Put(service string, messages ...amqp091.Publishing) error {
	return s.channel(func(ch *amqp091.Channel) error {
		if err := ch.Confirm(false); err != nil {
			return err
		}
		var last *amqp091.DeferredConfirmation
		for i := range messages {
			messages[i].DeliveryMode = amqp091.Persistent
			c, err := ch.PublishWithDeferredConfirm("", s.Queue(service), true, false, messages[i])
			if err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
			last = c
		}
		if last != nil && !last.Wait() {
			return fmt.Errorf("the broker refused a copy")
		}
		return nil
	})
}

// Copy returns a message as it was published.
func Copy(d *amqp091.Delivery) amqp091.Publishing {
	return amqp091.Publishing{
		Headers: d.Headers, ContentType: d.ContentType, ContentEncoding: d.ContentEncoding, DeliveryMode: d.DeliveryMode,
		CorrelationId: d.CorrelationId, MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, Body: d.Body,
	}
}
