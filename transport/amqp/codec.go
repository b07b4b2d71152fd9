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

// seqHeader is the header with the number of the publish, for matching a return to its publish, unless
// the header with the stamp has the number. A message ID would be ambiguous, since a message can be
// published twice. The number is text, since stock watermill-amqp reads only text headers.
const seqHeader = transport.ReservedPrefix + "publish-seq"

// codec encodes messages as publishings and decodes deliveries to messages.
type codec interface {
	// encode returns a publishing with the given number. The caller may change its Headers. If
	// encode also returns pooled memory, the publishing uses it, and the caller releases it once
	// the publishing was written.
	encode(msg *message.Message, seq string) (pub amqp091.Publishing, used *pooled, err error)
	decode(d *amqp091.Delivery) (*message.Message, error)
	// readsAll tells whether decode can read every delivery in some way. A batch reaches decode
	// only if it could not be parsed.
	readsAll() bool
}

// newCodec returns the codec for a marshaler. Only the default codec can write envelopes.
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

// codecOf returns the codec of a publisher.
func codecOf(config *PublisherConfig) codec {
	c := newCodec(config.AMQP.Marshaler, config.Envelope)
	if own, ok := c.(defaultCodec); ok {
		own.all = config.AllHeaders
		return own
	}
	return c
}

// transient tells whether m is known to make messages that do not survive a restart of the broker.
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

// defaultCodec writes events with few headers, and other messages with the headers that
// watermill-amqp's DefaultMarshaler writes. It can read every message.
type defaultCodec struct {
	idHeader  string
	all       bool // each name of the metadata has a header
	envelopes bool
	transient bool
	post      func(amqp091.Publishing) amqp091.Publishing
}

func newDefaultCodec(m wamqp.DefaultMarshaler, envelopes bool) defaultCodec {
	c := defaultCodec{m.MessageUUIDHeaderKey, false, envelopes, m.NotPersistentDeliveryMode, m.PostprocessPublishing}
	if c.idHeader == "" {
		c.idHeader = wamqp.DefaultMessageUUIDHeaderKey
	}
	return c
}

// pooled is the memory of a publishing.
type pooled struct {
	headers amqp091.Table
	body    []byte // of an envelope
}

// pool keeps memory for later publishings: amqp091 has encoded headers and body when Publish
// returns.
var pool = sync.Pool{New: func() any { return &pooled{headers: make(amqp091.Table, 16)} }}

// maxPooled is the largest body that is kept for later messages.
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
	stamp, _ := time.Parse(time.RFC3339Nano, msg.Metadata[transport.MetaStamp]) // the zero time without a stamp
	pub = amqp091.Publishing{Headers: p.headers, MessageId: msg.UUID}
	if c.envelopes {
		if p.body, err = appendEnvelope(p.body[:0], msg, seq, c.idHeader); err != nil {
			return pub, nil, err
		}
		// Type and ContentType stay empty: RabbitMQ has more work with properties of more than 64
		// bytes.
		pub.Body, pub.ContentEncoding = p.body, envelopeEncoding
	} else {
		if !c.all && c.post == nil && c.appendBrief(p.headers, msg.Metadata, stamp, seq) {
			pub.AppId = msg.Metadata[transport.MetaProducer]
		} else {
			for name, value := range msg.Metadata {
				p.headers[name] = value
			}
			p.headers[seqHeader] = seq
			p.headers[c.idHeader] = msg.UUID
		}
		pub.Body, pub.Type, pub.ContentType = msg.Payload, msg.Metadata[transport.MetaType], msg.Metadata[transport.MetaContentType]
	}
	if !c.transient {
		pub.DeliveryMode = amqp091.Persistent
	}
	if stamp.Unix() > 0 {
		pub.Timestamp = stamp
	}
	if c.post == nil {
		return pub, p, nil
	}
	return c.postprocess(pub, seq), nil, nil // not pooled, since the hook may keep the headers
}

// postprocess calls the user's hook.
func (c defaultCodec) postprocess(pub amqp091.Publishing, seq string) amqp091.Publishing {
	pub = c.post(pub)
	if pub.Headers[seqHeader] != seq { // without the number, a return could not be matched
		pub.Headers = maps.Clone(pub.Headers) // the hook may use the map again
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
	brief := readBrief(meta, d)
	if _, ours := meta[seqHeader]; !ours && !brief && !isOwnEncoding(d.ContentEncoding) {
		setProperties(meta, d)
	}
	body := d.Body
	switch {
	case d.ContentEncoding == envelopeEncoding:
		body = c.unwrap(d.Body, meta)
	case isOwnEncoding(d.ContentEncoding): // a batch that could not be parsed, or a format of a later version
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

// unwrap returns the payload of an envelope, and adds the envelope's metadata to meta, except names
// that meta has. If the envelope cannot be parsed, it returns body and marks meta, so that the
// inbox refuses the message.
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

// customCodec uses the user's marshaler.
type customCodec struct{ wamqp.Marshaler }

func (c customCodec) readsAll() bool { return false }

func (c customCodec) encode(msg *message.Message, seq string) (pub amqp091.Publishing, used *pooled, err error) {
	defer recoverAs("marshal", &err)
	pub, err = c.Marshal(msg)
	if err != nil {
		return pub, nil, err
	}
	pub.Headers = maps.Clone(pub.Headers) // the map may be the marshaler's
	if pub.Headers == nil {
		pub.Headers = amqp091.Table{}
	}
	pub.Headers[seqHeader] = seq
	return pub, nil, nil
}

// decode passes the delivery to the marshaler as it is, and if that fails, with all headers as
// text: most marshalers accept text only, and RabbitMQ itself adds numbers and tables.
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
	if err == nil && msg.UUID == "" { // the ID may be in the properties only
		msg.UUID = d.MessageId
	}
	return msg, err
}

func recoverAs(what string, err *error) {
	switch r := recover().(type) {
	case nil:
	case runtime.Error:
		*err = fmt.Errorf("%s: panic: %w", what, r)
	default: // the text of the panic may hold the payload
		*err = fmt.Errorf("%s: panic with a %T", what, r)
	}
}
