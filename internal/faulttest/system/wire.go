package system

import (
	"context"
	"net/url"
	"strings"

	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/internal/faulttest/invariant"
	"github.com/boxpair/boxpair/transport"
)

// readBroker takes over what was recorded of the wire, and counts what waits.
func (s *System) readBroker(_ context.Context, state *invariant.State) (err error) {
	if s.Servers.RabbitMQ == nil {
		return nil
	}
	for _, service := range s.cfg.Services {
		left, err := s.Take(service)
		if err != nil {
			return err
		}
		state.Queued += len(left)
	}
	if s.cfg.NoWire {
		return nil
	}
	state.Wire = []invariant.Arrival{}
	return s.channel(func(ch *amqp091.Channel) error {
		q, err := ch.QueueDeclarePassive(s.wireQueue(), true, false, false, false, nil)
		if err != nil || q.Messages == 0 {
			return err
		}
		if err := ch.Qos(1000, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.Consume(q.Name, "", false, true, false, false, nil)
		if err != nil {
			return err
		}
		// Read and not acknowledged beyond what is needed to get the next: the queue goes with the
		// system.
		for d := range deliveries {
			id, err := uuid.Parse(d.MessageId)
			if err != nil {
				id, err = uuid.Parse(headerUUID(d))
			}
			if err != nil {
				return err
			}
			key, err := keyOf(&d)
			if err != nil {
				return err
			}
			state.Wire = append(state.Wire, invariant.Arrival{Dispatch: id, Key: key})
			if err := d.Ack(false); err != nil {
				return err
			}
			if len(state.Wire) == q.Messages {
				return nil
			}
		}
		return amqp091.ErrClosed
	})
}

// keyOf returns the key that a message tells, in a header or in its envelope.
func keyOf(d *amqp091.Delivery) (string, error) {
	if d.ContentEncoding != "boxpair" {
		key, _ := d.Headers[transport.MetaKey].(string)
		return key, nil
	}
	line, _, _ := strings.Cut(string(d.Body), "\n")
	values, err := url.ParseQuery(line)
	return values.Get(strings.TrimPrefix(transport.MetaKey, transport.ReservedPrefix)), err
}

// headerUUID is where Watermill's marshaler puts the UUID of a message.
func headerUUID(d amqp091.Delivery) string {
	id, _ := d.Headers["_watermill_message_uuid"].(string)
	return id
}
