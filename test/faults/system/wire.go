package system

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/test/faults/invariant"
	"github.com/boxpair/boxpair/transport"
)

// readBroker reads the recorded messages, and counts the waiting ones.
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
		// Messages are acknowledged only as far as needed to get the next ones: the queue is
		// removed with the system.
		for range q.Messages {
			d, ok := <-deliveries
			if !ok {
				return amqp091.ErrClosed
			}
			arrived, err := arrivals(&d)
			if err != nil {
				return err
			}
			state.Wire = append(state.Wire, arrived...)
			if err := d.Ack(false); err != nil {
				return err
			}
		}
		return nil
	})
}

// arrivals returns the messages in d, with the keys in its header or in its envelopes.
func arrivals(d *amqp091.Delivery) ([]invariant.Arrival, error) {
	switch d.ContentEncoding {
	case "boxpair":
		return enveloped(nil, d.MessageId, string(d.Body))
	case "boxpair-batch":
		return batched(string(d.Body))
	}
	id, err := uuid.Parse(d.MessageId)
	if err != nil {
		id, err = uuid.Parse(headerUUID(d))
	}
	key, _ := d.Headers[transport.MetaKey].(string)
	return []invariant.Arrival{{Dispatch: id, Key: key}}, err
}

func batched(body string) (list []invariant.Arrival, err error) {
	_, rest, _ := strings.Cut(body, "\n")
	for rest != "" && err == nil {
		line, after, _ := strings.Cut(rest, "\n")
		id, length, _ := strings.Cut(line, " ")
		n, wrong := strconv.Atoi(length)
		if wrong != nil || n > len(after) {
			return nil, fmt.Errorf("%q begins no message of a batch", line)
		}
		list, err = enveloped(list, id, after[:n])
		rest = after[n:]
	}
	return list, err
}

func enveloped(list []invariant.Arrival, uid, body string) ([]invariant.Arrival, error) {
	line, _, _ := strings.Cut(body, "\n")
	values, wrong := url.ParseQuery(line)
	id, err := uuid.Parse(uid)
	key := values.Get(strings.TrimPrefix(transport.MetaKey, transport.ReservedPrefix))
	return append(list, invariant.Arrival{Dispatch: id, Key: key}), errors.Join(wrong, err)
}

// headerUUID returns the UUID of a message from the header of Watermill's marshaler.
func headerUUID(d *amqp091.Delivery) string {
	id, _ := d.Headers["_watermill_message_uuid"].(string)
	return id
}
