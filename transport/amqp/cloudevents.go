package amqp

import (
	"net/url"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// cloudEventsPrefix begins the names of CloudEvents attributes in the headers of a message. The
// binding of CloudEvents 1.0.2 for AMQP 1.0 also allows "cloudEvents:", and recommends this prefix,
// which every client can read. There is no binding for AMQP 0-9-1.
const cloudEventsPrefix = "cloudEvents_"

// setCloudEvents adds the attributes of CloudEvents 1.0 in binary mode to headers. The payload
// stays unchanged, and the content-type property already is datacontenttype. The user's headers are
// not overwritten.
func setCloudEvents(headers amqp091.Table, topic string, msg *message.Message) {
	set := func(name, value string) {
		name = cloudEventsPrefix + name
		if _, there := headers[name]; value != "" && !there {
			headers[name] = value
		}
	}
	set("specversion", "1.0")
	set("id", msg.UUID)
	set("source", "/"+url.PathEscape(msg.Metadata[transport.MetaProducer])) // a URI reference, and never empty
	set("type", msg.Metadata[transport.MetaType])
	set("type", topic) // if the event has no type
	set("subject", msg.Metadata[transport.MetaSource])
	set("time", msg.Metadata[transport.MetaOccurredAt])
	set("time", msg.Metadata[transport.MetaStamp]) // if the event occurred when it was written
	set("partitionkey", msg.Metadata[transport.MetaKey])
	set("traceparent", msg.Metadata[transport.MetaTraceParent])
	set("tracestate", msg.Metadata[transport.MetaTraceState])
}
