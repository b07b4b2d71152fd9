package amqp

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
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

// codec turns messages into publishings and deliveries into messages.
type codec interface {
	// encode returns a publishing with a number, whose Headers the caller may change. If it is made
	// of parts that are used again, the caller gives them back when it has been written.
	encode(msg *message.Message, seq string) (pub amqp091.Publishing, used *pooled, err error)
	decode(d *amqp091.Delivery) (*message.Message, error)
	// total tells whether decode can read any delivery, in whatever way. A batch that comes to it
	// could not be split.
	readsAll() bool
}

// newCodec returns the codec for a marshaler. The default one may write envelopes.
func newCodec(m wamqp.Marshaler, envelopes bool) codec {
	switch m := m.(type) {
	case nil:
		return newDefaultCodec(wamqp.DefaultMarshaler{}, envelopes)
	case wamqp.DefaultMarshaler:
		return newDefaultCodec(m, envelopes)
	case *wamqp.DefaultMarshaler:
		return newDefaultCodec(*m, envelopes)
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
	envelopes bool
	transient bool
	post      func(amqp091.Publishing) amqp091.Publishing
}

func newDefaultCodec(m wamqp.DefaultMarshaler, envelopes bool) defaultCodec {
	c := defaultCodec{m.MessageUUIDHeaderKey, envelopes, m.NotPersistentDeliveryMode, m.PostprocessPublishing}
	if c.idHeader == "" {
		c.idHeader = wamqp.DefaultMessageUUIDHeaderKey
	}
	return c
}

// pooled are what a publishing is made of.
type pooled struct {
	headers amqp091.Table
	body    []byte // of an envelope
}

// pool are used again: amqp091 has encoded headers and body when Publish returns.
var pool = sync.Pool{New: func() any { return &pooled{headers: make(amqp091.Table, 16)} }}

// maxPooled is how large a body is kept for the next message.
const maxPooled = 64 << 10

func (p *pooled) release() {
	clear(p.headers)
	if cap(p.body) > maxPooled {
		p.body = nil
	}
	pool.Put(p)
}

func (c defaultCodec) readsAll() bool { return true }

func (c defaultCodec) encode(msg *message.Message, seq string) (pub amqp091.Publishing, used *pooled, err error) {
	p := pool.Get().(*pooled)
	pub = amqp091.Publishing{Headers: p.headers, MessageId: msg.UUID}
	if c.envelopes {
		if p.body, err = appendEnvelope(p.body[:0], msg, seq, c.idHeader); err != nil {
			return pub, nil, err
		}
		// RabbitMQ has more work with properties of more than 64 bytes: neither Type nor
		// ContentType.
		pub.Body, pub.ContentEncoding = p.body, envelopeEncoding
	} else {
		for name, value := range msg.Metadata {
			p.headers[name] = value
		}
		p.headers[seqHeader] = seq
		p.headers[c.idHeader] = msg.UUID
		pub.Body, pub.Type, pub.ContentType = msg.Payload, msg.Metadata[transport.MetaType], msg.Metadata[transport.MetaContentType]
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
		return pub, p, nil
	}
	return c.postprocess(pub, seq), nil, nil // the hook may keep the headers, so they are not used again
}

// postprocess has the user's hook at pub.
func (c defaultCodec) postprocess(pub amqp091.Publishing, seq string) amqp091.Publishing {
	pub = c.post(pub)
	if pub.Headers[seqHeader] != seq { // without it a return would be nobody's
		pub.Headers = maps.Clone(pub.Headers) // which the hook may use again
		if pub.Headers == nil {
			pub.Headers = amqp091.Table{}
		}
		pub.Headers[seqHeader] = seq
	}
	return pub
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
		switch {
		case name == c.idHeader:
			id, found = text, true
		case !isBrokerHeader(d.Headers, name):
			meta[name] = text
		}
	}
	if _, ours := meta[seqHeader]; !ours && !isOwnEncoding(d.ContentEncoding) {
		setProperties(meta, d)
	}
	body := d.Body
	switch {
	case d.ContentEncoding == envelopeEncoding:
		body = c.unwrap(d.Body, meta)
	case isOwnEncoding(d.ContentEncoding): // a batch that could not be split, or what a later version writes
		meta[transport.MetaEnvelope] = unreadable
	}
	delete(meta, seqHeader)
	if !found {
		id = d.MessageId
	}
	msg := message.NewMessage(id, body)
	msg.Metadata = meta
	return msg, nil
}

// unwrap returns the payload in an envelope, and adds its metadata to meta, where that has no header
// of the same name. What cannot be opened is refused by the inbox.
func (c defaultCodec) unwrap(body []byte, meta message.Metadata) []byte {
	payload, err := parseEnvelope(body, func(name, value string) {
		if _, there := meta[name]; !there && name != c.idHeader {
			meta[name] = value
		}
	})
	if err != nil {
		meta[transport.MetaEnvelope] = unreadable
		return body
	}
	return payload
}

// customCodec uses a marshaler of the user's.
type customCodec struct{ wamqp.Marshaler }

func (c customCodec) readsAll() bool { return false }

func (c customCodec) encode(msg *message.Message, seq string) (pub amqp091.Publishing, used *pooled, err error) {
	defer recoverAs("marshal", &err)
	pub, err = c.Marshal(msg)
	if err != nil {
		return pub, nil, err
	}
	pub.Headers = maps.Clone(pub.Headers) // they may be the marshaler's own
	if pub.Headers == nil {
		pub.Headers = amqp091.Table{}
	}
	pub.Headers[seqHeader] = seq
	return pub, nil, nil
}

// decode tries the delivery as it is, then with its headers as text: most
// marshalers take no other, and RabbitMQ itself adds numbers and tables.
func (c customCodec) decode(d *amqp091.Delivery) (*message.Message, error) {
	d, err := asPlain(d)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(d.Headers, func(name string, _ any) bool { return name == seqHeader || isDeliveryHeader(name) })
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
	defer recoverAs("unmarshal", &err)
	msg, err = c.Unmarshal(d)
	if err == nil && msg == nil {
		err = errors.New("marshaler returned no message")
	}
	if err == nil && msg.UUID == "" { // it may be in the properties only
		msg.UUID = d.MessageId
	}
	return msg, err
}

func recoverAs(what string, err *error) {
	switch r := recover().(type) {
	case nil:
	case runtime.Error:
		*err = fmt.Errorf("%s: panic: %w", what, r)
	default: // its text may hold the payload
		*err = fmt.Errorf("%s: panic with a %T", what, r)
	}
}
