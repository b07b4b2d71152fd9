package system

import (
	"fmt"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/test/faults/child"
)

// Queue is the name of a service's queue.
func (s *System) Queue(service string) string { return child.QueueName(s.Topic, service) }

// Recorded returns the messages that were recorded of the wire. They stay recorded, in
// another order perhaps.
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

// Take takes all messages out of a service's queue, for good. No child may be reading
// it. How many there are is asked of nobody: a marker behind them tells.
func (s *System) Take(service string) (found []amqp091.Delivery, err error) {
	marker := "marker-" + token()
	if err := s.Put(service, amqp091.Publishing{MessageId: marker}); err != nil {
		return nil, err
	}
	err = s.channel(func(ch *amqp091.Channel) error {
		// Acknowledged by the broker itself: what a channel acknowledges last may come
		// again when it closes at once.
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

// Put publishes messages to a service's queue, past the exchange, and waits until the broker has
// them.
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
