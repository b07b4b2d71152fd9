package amqp

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"sync"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// A number of each publish, so that a return is matched to the publish that
// it belongs to and not to another one of the same message. Its value is text:
// stock watermill-amqp cannot read a message with any other header.
const seqHeader = transport.ReservedPrefix + "publish-seq"

// seqOf returns the number of the publish with these headers.
func seqOf(headers amqp091.Table) string {
	if seq, ok := headers[seqHeader].(string); ok {
		return seq
	}
	packed, _ := headers[packedHeader].(string)
	meta := message.Metadata{packedHeader: packed}
	_ = unpack(meta)
	return meta[seqHeader]
}

// codec turns messages into publishings and deliveries into messages.
type codec interface {
	// encode returns a publishing with a number, whose Headers the caller may change. If pooled,
	// it gives them back with releaseHeaders when they have been written.
	encode(msg *message.Message, seq string) (pub amqp091.Publishing, pooled bool, err error)
	decode(d *amqp091.Delivery) (*message.Message, error)
	// total tells whether decode can read any delivery.
	total() bool
}

// newCodec returns the codec for a marshaler. The default one may pack what it writes.
func newCodec(m wamqp.Marshaler, packs bool) codec {
	switch m := m.(type) {
	case nil:
		return newDefaultCodec(wamqp.DefaultMarshaler{}, packs)
	case wamqp.DefaultMarshaler:
		return newDefaultCodec(m, packs)
	case *wamqp.DefaultMarshaler:
		return newDefaultCodec(*m, packs)
	default:
		return customCodec{m}
	}
}

// transient tells whether m is known to make messages that do not survive a
// restart of the broker.
func transient(m wamqp.Marshaler) bool {
	switch m := m.(type) {
	case wamqp.DefaultMarshaler:
		return m.NotPersistentDeliveryMode
	case *wamqp.DefaultMarshaler:
		return m.NotPersistentDeliveryMode
	case wamqp.CorrelatingMarshaler:
		return m.NotPersistentDeliveryMode
	case *wamqp.CorrelatingMarshaler:
		return m.NotPersistentDeliveryMode
	}
	return false
}

// defaultCodec writes what watermill-amqp's DefaultMarshaler writes, and the
// message's properties besides. It reads any message.
type defaultCodec struct {
	idHeader  string
	packs     bool
	transient bool
	post      func(amqp091.Publishing) amqp091.Publishing
}

func newDefaultCodec(m wamqp.DefaultMarshaler, packs bool) defaultCodec {
	c := defaultCodec{m.MessageUUIDHeaderKey, packs, m.NotPersistentDeliveryMode, m.PostprocessPublishing}
	if c.idHeader == "" {
		c.idHeader = wamqp.DefaultMessageUUIDHeaderKey
	}
	return c
}

// headerTables are used again: amqp091 has encoded a table when Publish returns.
var headerTables = sync.Pool{New: func() any { return make(amqp091.Table, 16) }}

func releaseHeaders(t amqp091.Table) {
	clear(t)
	headerTables.Put(t)
}

func (c defaultCodec) total() bool { return true }

func (c defaultCodec) encode(msg *message.Message, seq string) (amqp091.Publishing, bool, error) {
	packed := c.pack(msg, seq)
	headers := headerTables.Get().(amqp091.Table)
	for name, value := range msg.Metadata {
		if packed == "" || !strings.HasPrefix(name, transport.ReservedPrefix) {
			headers[name] = value
		}
	}
	if packed == "" {
		headers[seqHeader] = seq
		headers[c.idHeader] = msg.UUID
	} else {
		headers[packedHeader] = packed
		delete(headers, c.idHeader) // of another message, which this one was made from
	}
	pub := amqp091.Publishing{
		Headers:     headers,
		Body:        msg.Payload,
		MessageId:   msg.UUID,
		Type:        msg.Metadata[transport.MetaType],
		ContentType: msg.Metadata[transport.MetaContentType],
	}
	if !c.transient {
		pub.DeliveryMode = amqp091.Persistent
	}
	if stamp := msg.Metadata[transport.MetaStamp]; stamp != "" {
		if t, err := time.Parse(time.RFC3339Nano, stamp); err == nil && t.Unix() > 0 {
			pub.Timestamp = t
		}
	}
	if c.post == nil {
		return pub, true, nil
	}
	pub = c.post(pub) // it may keep the headers, so they are not used again
	if pub.Headers == nil {
		pub.Headers = amqp091.Table{}
	}
	numbered := seqOf(pub.Headers) == seq // without it a return would be nobody's
	named := packed == "" || pub.MessageId == msg.UUID
	if !numbered || !named {
		pub.Headers = maps.Clone(pub.Headers) // which may be used again
	}
	if !numbered {
		pub.Headers[seqHeader] = seq
	}
	if !named {
		pub.Headers[c.idHeader] = msg.UUID
	}
	return pub, false, nil
}

// maxPacked is how long a packed header gets. It may be three times as long as what it holds, which could be too long
// then; what is rarely so long is sent separately.
const maxPacked = 4 << 10

// pack returns the packed header of msg, or "" if it is to have none.
func (c defaultCodec) pack(msg *message.Message, seq string) string {
	if !c.packs {
		return ""
	}
	packed := pack(msg.Metadata, seq)
	if len(packed) > maxPacked {
		return ""
	}
	return packed
}

func (c defaultCodec) decode(d *amqp091.Delivery) (*message.Message, error) {
	id, found := "", false
	meta := make(message.Metadata, len(d.Headers))
	for name, value := range d.Headers {
		text, ok := value.(string)
		if !ok {
			if text, ok = headerText(value); !ok {
				continue
			}
		}
		switch name {
		case c.idHeader:
			id, found = text, true
		default:
			meta[name] = text
		}
	}
	_ = unpack(meta) // what it cannot read stays, and is refused by the inbox
	delete(meta, seqHeader)
	if !found {
		id = d.MessageId
	}
	msg := message.NewMessage(id, d.Body)
	msg.Metadata = meta
	return msg, nil
}

// customCodec uses a marshaler of the user's.
type customCodec struct{ wamqp.Marshaler }

func (c customCodec) total() bool { return false }

func (c customCodec) encode(msg *message.Message, seq string) (pub amqp091.Publishing, pooled bool, err error) {
	defer recovered("marshal", &err)
	pub, err = c.Marshal(msg)
	if err != nil {
		return pub, false, err
	}
	pub.Headers = maps.Clone(pub.Headers) // they may be the marshaler's own
	if pub.Headers == nil {
		pub.Headers = amqp091.Table{}
	}
	pub.Headers[seqHeader] = seq
	return pub, false, nil
}

// decode tries the delivery as it is, then with its headers as text: most
// marshalers take no other, and RabbitMQ itself adds numbers and tables.
func (c customCodec) decode(d *amqp091.Delivery) (*message.Message, error) {
	unpackHeaders(d)
	delete(d.Headers, seqHeader)
	msg, err := c.unmarshal(*d)
	if err == nil {
		return msg, nil
	}
	texts, changed := make(amqp091.Table, len(d.Headers)), false
	for name, value := range d.Headers {
		text, ok := headerText(value)
		if ok {
			texts[name] = text
		}
		if _, isText := value.(string); !isText {
			changed = true
		}
	}
	if !changed {
		return nil, err
	}
	again := *d
	again.Headers = texts
	if msg, again := c.unmarshal(again); again == nil {
		return msg, nil
	}
	return nil, err
}

func (c customCodec) unmarshal(d amqp091.Delivery) (msg *message.Message, err error) {
	defer recovered("unmarshal", &err)
	msg, err = c.Unmarshal(d)
	if err == nil && msg == nil {
		err = errors.New("marshaler returned no message")
	}
	if err == nil && msg.UUID == "" { // with packed headers it has none but in the properties
		msg.UUID = d.MessageId
	}
	return msg, err
}

func recovered(what string, err *error) {
	switch r := recover().(type) {
	case nil:
	case runtime.Error:
		*err = fmt.Errorf("%s: panic in the marshaler: %w", what, r)
	default: // its text may hold the payload
		*err = fmt.Errorf("%s: panic in the marshaler with a %T", what, r)
	}
}
