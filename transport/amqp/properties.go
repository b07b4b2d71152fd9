package amqp

import (
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// The metadata names for properties of messages from other programs. Content type, type and
// correlation ID become transport.MetaContentType, transport.MetaType and
// transport.MetaCorrelationID. A header with one of these names takes precedence.
const (
	PropertyReplyTo         = "amqp-reply-to"
	PropertyAppID           = "amqp-app-id"
	PropertyUserID          = "amqp-user-id"
	PropertyContentEncoding = "amqp-content-encoding"
	PropertyTimestamp       = "amqp-timestamp"  // RFC 3339, UTC
	PropertyPriority        = "amqp-priority"   // decimal, absent for 0
	PropertyExpiration      = "amqp-expiration" // milliseconds, decimal
)

// setProperties adds the properties of a message to its metadata. Messages of this library do not
// need it: their metadata has the properties.
func setProperties(meta message.Metadata, d *amqp091.Delivery) {
	set := func(name, value string) {
		if _, there := meta[name]; value != "" && !there {
			meta[name] = value
		}
	}
	set(transport.MetaContentType, d.ContentType)
	set(transport.MetaType, d.Type)
	set(transport.MetaCorrelationID, d.CorrelationId)
	set(PropertyReplyTo, d.ReplyTo)
	set(PropertyAppID, d.AppId)
	set(PropertyUserID, d.UserId)
	set(PropertyContentEncoding, d.ContentEncoding)
	set(PropertyExpiration, d.Expiration)
	if !d.Timestamp.IsZero() {
		set(PropertyTimestamp, d.Timestamp.UTC().Format(time.RFC3339))
	}
	if d.Priority != 0 {
		set(PropertyPriority, strconv.Itoa(int(d.Priority)))
	}
}

// isDeliveryHeader tells whether a header describes the delivery and not the message: RabbitMQ's
// quorum queues and streams add such headers.
func isDeliveryHeader(header string) bool {
	switch header {
	case "x-acquired-count", "x-delivery-count", "x-stream-offset": // the first since RabbitMQ 4.3
		return true
	}
	return false
}

// isBrokerHeader tells whether RabbitMQ added a header, about a delivery or about the
// dead-lettering of the message. A text under such a name is the message's own, unless the message
// was dead-lettered.
func isBrokerHeader(headers amqp091.Table, name string) bool {
	if !strings.HasPrefix(name, "x-") {
		return false
	}
	_, text := headers[name].(string)
	_, dead := headers["x-death"].([]any)
	return !text && (isDeliveryHeader(name) || name == "x-death") ||
		dead && (strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-"))
}
