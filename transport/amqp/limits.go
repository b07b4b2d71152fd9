package amqp

import (
	"fmt"
	"strings"
	"time"

	"github.com/rabbitmq/amqp091-go"
)

const (
	// maxShortString is the protocol's limit for names.
	maxShortString = 255
	// maxHeaderBytes keeps the properties of a message within one frame. RabbitMQ limits a frame to
	// 128 KiB, and closes the connection on a larger one.
	maxHeaderBytes = 120 << 10
	// maxHeaders is below the limit of amqp091: a message with more headers would end the
	// connection of each consumer to which it is delivered.
	maxHeaders = 4096
	// maxDepth bounds the nesting of tables and arrays, for the same reason.
	maxDepth = 16
	// frameOverhead is the size of a header frame without the properties.
	frameOverhead = 8 + 14
)

// propertiesSize returns the encoded size of pub's properties, or an error that names a field which
// the protocol cannot carry.
func propertiesSize(pub *amqp091.Publishing) (int, error) {
	size := 1 + 1 + 8 // delivery mode, priority, timestamp
	for _, f := range [...]struct{ name, value string }{
		{"content type", pub.ContentType},
		{"content encoding", pub.ContentEncoding},
		{"correlation ID", pub.CorrelationId},
		{"reply-to", pub.ReplyTo},
		{"expiration", pub.Expiration},
		{"message ID", pub.MessageId},
		{"type", pub.Type},
		{"user ID", pub.UserId},
		{"app ID", pub.AppId},
	} {
		if err := checkShort(f.name, f.value); err != nil {
			return 0, err
		}
		size += 1 + len(f.value)
	}
	n, err := tableSize(pub.Headers, 0)
	if err != nil {
		return 0, err
	}
	if size += n; size > maxHeaderBytes {
		return 0, fmt.Errorf("headers: %d bytes, more than %d", size, maxHeaderBytes)
	}
	return size, nil
}

func checkShort(name, value string) error {
	if len(value) > maxShortString {
		return fmt.Errorf("%s: %d bytes, more than %d", name, len(value), maxShortString)
	}
	return nil
}

// checkName refuses names of exchanges and queues that the broker changes. RabbitMQ removes line
// breaks from a name in a declaration, and later does not find the name with line breaks.
func checkName(what, name string) error {
	if strings.ContainsAny(name, "\r\n") {
		return fmt.Errorf("%s %q: RabbitMQ takes no line break in a name", what, shorten(name))
	}
	return checkShort(what, name)
}

func tableSize(t amqp091.Table, depth int) (int, error) {
	if len(t) > maxHeaders {
		return 0, fmt.Errorf("headers: %d of them, more than %d", len(t), maxHeaders)
	}
	size := 4
	for name, value := range t {
		if len(name) > maxShortString {
			return 0, fmt.Errorf("header %q…: name of %d bytes, more than %d", name[:32], len(name), maxShortString)
		}
		n := 5
		if text, ok := value.(string); ok {
			n += len(text)
		} else {
			var err error
			if n, err = fieldSize(value, depth); err != nil {
				return 0, fmt.Errorf("header %q: %w", name, err)
			}
		}
		size += 1 + len(name) + n
	}
	return size, nil
}

func fieldSize(value any, depth int) (int, error) {
	if depth > maxDepth {
		return 0, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	switch v := value.(type) {
	case string:
		return 5 + len(v), nil
	case []byte:
		return 5 + len(v), nil
	case nil, bool, int8, uint8, int16, uint16, int, int32, uint32, int64, float32, float64, time.Time, amqp091.Decimal:
		return 9, nil
	case amqp091.Table:
		n, err := tableSize(v, depth+1)
		return 1 + n, err
	case []any:
		if len(v) > maxHeaders {
			return 0, fmt.Errorf("array of %d elements, more than %d", len(v), maxHeaders)
		}
		size := 5
		for _, value := range v {
			n, err := fieldSize(value, depth+1)
			if err != nil {
				return 0, err
			}
			size += n
		}
		return size, nil
	default:
		return 0, fmt.Errorf("type %T cannot be sent", v)
	}
}
