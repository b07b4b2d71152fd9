package amqp

import (
	"maps"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

const aStamp = "2026-01-31T12:00:00.000001Z"

// whole is the metadata of an event as a relay sends it.
func whole() message.Metadata {
	return message.Metadata{
		transport.MetaKey: "order-7", transport.MetaType: "OrderPlaced", transport.MetaContentType: "application/json", transport.MetaProducer: "orders",
		transport.MetaSource: "order/7", transport.MetaVersion: "3", transport.MetaIndex: "0", transport.MetaDigest: "0123456789abcdef0123456789abcdef",
		transport.MetaStamp: aStamp, transport.MetaResendUntil: "2026-02-07T12:00:00.000001Z", "tenant": "acme",
	}
}

// TestEventHasFewHeaders is the format that other languages read.
func TestEventHasFewHeaders(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage(anID, []byte("x"))
	msg.Metadata = whole()
	pub, _, err := newCodec(nil, false).encode(msg, "12345")
	if err != nil {
		t.Fatal(err)
	}
	want := amqp091.Table{
		transport.MetaKey: "order-7", transport.MetaSource: "order/7", transport.MetaVersion: "3", transport.MetaDigest: "0123456789abcdef0123456789abcdef",
		transport.MetaStamp: aStamp + ";604800;12345", "tenant": "acme",
	}
	if !maps.Equal(pub.Headers, want) || pub.MessageId != anID || pub.Type != "OrderPlaced" || pub.ContentType != "application/json" || pub.AppId != "orders" {
		t.Errorf("%+v", pub)
	}
}

// TestMetadataArrivesAsItWasSent, whether it fits into few headers or not.
func TestMetadataArrivesAsItWasSent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(message.Metadata){
		"of an event":       func(message.Metadata) {},
		"without a horizon": func(m message.Metadata) { delete(m, transport.MetaResendUntil) },
		"without properties": func(m message.Metadata) {
			delete(m, transport.MetaType)
			delete(m, transport.MetaContentType)
			delete(m, transport.MetaProducer)
		},
		"index above 0": func(m message.Metadata) { m[transport.MetaIndex] = "1" },
		"of a random event": func(m message.Metadata) {
			delete(m, transport.MetaIndex)
			delete(m, transport.MetaVersion)
			delete(m, transport.MetaSource)
		},
		"version without index": func(m message.Metadata) { delete(m, transport.MetaIndex) },
		"index without version": func(m message.Metadata) { delete(m, transport.MetaVersion) },
		"part of a second":      func(m message.Metadata) { m[transport.MetaResendUntil] = "2026-02-07T12:00:00.000002Z" },
		"horizon in another zone": func(m message.Metadata) {
			m[transport.MetaResendUntil] = "2026-02-07T13:00:00.000001+01:00"
		},
		"horizon before the stamp": func(m message.Metadata) { m[transport.MetaResendUntil] = "2026-01-30T12:00:00.000001Z" },
		"far horizon":              func(m message.Metadata) { m[transport.MetaResendUntil] = "2226-01-31T12:00:00.000001Z" },
		"horizon is no time":       func(m message.Metadata) { m[transport.MetaResendUntil] = "later" },
		"stamp in another form":    func(m message.Metadata) { m[transport.MetaStamp] = "2026-01-31T12:00:00.000001000Z" },
		"stamp is no time":         func(m message.Metadata) { m[transport.MetaStamp] = "now" },
		"without a stamp":          func(m message.Metadata) { delete(m, transport.MetaStamp) },
		"empty type":               func(m message.Metadata) { m[transport.MetaType] = "" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage(anID, []byte("x"))
			msg.Metadata = whole()
			change(msg.Metadata)
			pub, _, err := newCodec(nil, false).encode(msg, "12345")
			if err != nil {
				t.Fatal(err)
			}
			if seq := seqOf(&amqp091.Return{Headers: pub.Headers}); seq != "12345" {
				t.Errorf("the number of the publish is %q in %v", seq, pub.Headers)
			}
			sent := maps.Clone(pub.Headers)
			for reader, m := range map[string]wamqp.Marshaler{"own": nil, "custom": struct{ wamqp.DefaultMarshaler }{}} {
				got, err := newCodec(m, false).decode(delivered(&pub))
				if err != nil || !got.Equals(msg) {
					t.Errorf("%s marshaler reads %v, %v; want %v", reader, got, err, msg)
				}
			}
			if !maps.Equal(pub.Headers, sent) {
				t.Errorf("reading changes the headers to %v", pub.Headers)
			}
		})
	}
}

// TestHookMayChangeTheProperties of an event, and its metadata arrives all the same.
func TestHookMayChangeTheProperties(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage(anID, []byte("x"))
	msg.Metadata = whole()
	hooked := wamqp.DefaultMarshaler{PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
		pub.AppId, pub.Type, pub.ContentType = "shop", "message", "text/plain"
		return pub
	}}
	pub, _, err := newCodec(hooked, false).encode(msg, "12345")
	if err != nil {
		t.Fatal(err)
	}
	got, err := newCodec(nil, false).decode(delivered(&pub))
	if err != nil || !got.Equals(msg) {
		t.Errorf("%v arrives as %v, %v", msg, got, err)
	}
}

// TestStampWithoutItsPartsIsLeftAsItIs, so that an inbox refuses what is no stamp.
func TestStampWithoutItsPartsIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	for _, stamp := range []string{
		aStamp + ";604800", aStamp + ";604800;", aStamp + ";;x", aStamp + ";-1;7", aStamp + ";1234567890;7", aStamp + ";604800;7;8",
		aStamp + ";604800;123456789012345678901", "now;604800;7",
	} {
		d := &amqp091.Delivery{MessageId: anID, AppId: "orders", Headers: amqp091.Table{transport.MetaStamp: stamp}}
		for reader, m := range map[string]wamqp.Marshaler{"own": nil, "custom": struct{ wamqp.DefaultMarshaler }{}} {
			got, err := newCodec(m, false).decode(d)
			if err != nil || got.Metadata[transport.MetaStamp] != stamp || got.Metadata[transport.MetaProducer] != "" {
				t.Errorf("%s marshaler makes %v of stamp %q, %v", reader, got.Metadata, stamp, err)
			}
		}
	}
}
