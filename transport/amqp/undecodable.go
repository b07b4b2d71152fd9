package amqp

import (
	"maps"
	"strings"

	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// Headers of a message that was set aside because its marshaler cannot read it.
const (
	headerUndecodableError    = transport.ReservedPrefix + "undecodable-error"
	headerUndecodableQueue    = transport.ReservedPrefix + "undecodable-queue"
	headerUndecodableExchange = transport.ReservedPrefix + "undecodable-exchange"
	headerUndecodableKey      = transport.ReservedPrefix + "undecodable-routing-key"
)

// setAside publishes an undecodable message to a queue for operators, until the publish is
// confirmed. Only then the message is acknowledged.
func (sub *subscription) setAside(d *delivery, reason error) {
	sub.logger.Error("message cannot be read, setting it aside", "message_id", shorten(d.raw.MessageId), "error", reason)
	exchange, key := sub.s.config.DeadLetterExchange, sub.layout.queue
	if exchange == "" {
		key = sub.undecodableQueue()
	}
	pub := undecodable(&d.raw, sub.queue, reason)
	sub.tasks.Go(func() {
		ctx := d.from.ended
		for attempt := 0; ; attempt++ {
			r := sub.s.dead.publishRaw(ctx, exchange, key, pub)
			if r.Outcome == transport.Confirmed {
				break
			}
			if r.Outcome == transport.Invalid {
				// The headers exceed the limits. Omit our headers first, then all headers: a
				// message without headers is better than none.
				if len(pub.Headers) > len(d.raw.Headers) {
					pub.Headers = d.raw.Headers
				} else {
					pub.Headers = nil
				}
			}
			if ctx.Err() != nil {
				return
			}
			sub.logger.Error("cannot set a message aside", "exchange", exchange, "routing_key", key,
				"attempt", attempt+1, "outcome", r.Outcome.String(), "error", r.Err)
			if !sub.s.connections.broker.backoff.wait(ctx, attempt) {
				return
			}
		}
		select {
		case sub.aside <- d:
		case <-ctx.Done():
		}
	})
}

// undecodable returns raw as a publishing, with the reason, its queue, exchange and routing key.
func undecodable(raw *amqp091.Delivery, queue string, reason error) amqp091.Publishing {
	headers := maps.Clone(raw.Headers)
	if headers == nil {
		headers = amqp091.Table{}
	}
	headers[headerUndecodableError] = shortText(reason.Error())
	headers[headerUndecodableQueue] = queue
	headers[headerUndecodableExchange] = raw.Exchange
	headers[headerUndecodableKey] = raw.RoutingKey
	return amqp091.Publishing{
		Headers:         headers,
		ContentType:     raw.ContentType,
		ContentEncoding: raw.ContentEncoding,
		DeliveryMode:    amqp091.Persistent,
		Priority:        raw.Priority,
		CorrelationId:   raw.CorrelationId,
		ReplyTo:         raw.ReplyTo,
		MessageId:       raw.MessageId,
		Timestamp:       raw.Timestamp,
		Type:            raw.Type,
		AppId:           raw.AppId,
		Body:            raw.Body,
		// Expiration is omitted, since the message would be dropped, and UserId, since the broker
		// accepts it from its user only.
	}
}

// shortText returns text as valid UTF-8 of at most 1000 bytes.
func shortText(text string) string {
	text = strings.ToValidUTF8(text, "?")
	return strings.ToValidUTF8(text[:min(len(text), 1000)], "") // removes a rune that was cut
}
