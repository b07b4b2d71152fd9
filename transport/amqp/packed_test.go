package amqp

import (
	"fmt"
	"maps"
	"net/url"
	"strings"
	"testing"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

func TestPackedHeaderIsAURLQueryOfTheContractOnly(t *testing.T) {
	t.Parallel()
	meta := message.Metadata{
		transport.MetaStamp: "2026-01-31T12:00:00.000001Z", transport.MetaKey: "order 7;&=+%\xff", transport.MetaProducer: "orders",
		transport.ReservedPrefix + "later": "x", transport.MetaCorrelationID: "c", "tenant": "acme", seqHeader: "of another publish",
	}
	want := "key=order%207%3B%26%3D%2B%25%FF&later=x&producer=orders&stamp=2026-01-31T12:00:00.000001Z&publish-seq=7"
	if got := pack(meta, "7"); got != want {
		t.Errorf("packed as %q, want %q", got, want)
	}
	if values, err := url.ParseQuery(want); err != nil || values.Get("key") != "order 7;&=+%\xff" {
		t.Errorf("net/url reads %v, %v", values, err)
	}
	if got := pack(message.Metadata{"tenant": "acme"}, "7"); got != "publish-seq=7" {
		t.Errorf("nothing is packed as %q", got)
	}
	again := message.Metadata{packedHeader: want, transport.MetaKey: "of its own"}
	if got := pack(again, "8"); !strings.HasPrefix(got, "key=of%20its%20own&later=x&") || !strings.HasSuffix(got, "Z&publish-seq=8") || len(again) != 2 {
		t.Errorf("what is packed is packed again as %q, and becomes %v", got, again)
	}
}

func TestUnpackKeepsWhatIsThereAndWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	meta := message.Metadata{packedHeader: "key=a+b&type=%C3%A9&key=other&type=", transport.MetaProducer: "p", "tenant": "acme"}
	want := message.Metadata{transport.MetaKey: "a b", transport.MetaType: "é", transport.MetaProducer: "p", "tenant": "acme"}
	if err := unpack(meta); err != nil || !maps.Equal(meta, want) {
		t.Errorf("unpacked: %v, %v", meta, err)
	}
	meta = message.Metadata{packedHeader: "key=a", transport.MetaKey: "b"}
	if err := unpack(meta); err != nil || !maps.Equal(meta, message.Metadata{transport.MetaKey: "b"}) {
		t.Errorf("unpacked: %v, %v", meta, err)
	}
	for _, text := range []string{"secret", "key=a&secret", "key=%zz", "%2=secret", "&"} {
		meta := message.Metadata{packedHeader: text, "tenant": "acme"}
		if err := unpack(meta); err == nil || strings.Contains(err.Error(), "secret") || meta[packedHeader] != text || len(meta) != 2 {
			t.Errorf("%q unpacked: %v, %v", text, meta, err)
		}
	}
	if unpack(nil) != nil || unpack(message.Metadata{}) != nil {
		t.Error("what is not packed cannot be unpacked")
	}
}

func FuzzPacked(f *testing.F) {
	f.Add("key", "order-7", "type", "", "key=a&type=b")
	f.Add("", "\x00\xff+% &=;", "later", "x", "%zz")
	f.Fuzz(func(t *testing.T, first, a, second, b, text string) {
		meta := message.Metadata{transport.ReservedPrefix + first: a, transport.ReservedPrefix + second: b}
		delete(meta, packedHeader)
		delete(meta, seqHeader)
		packed := pack(meta, "3")
		if packed == "" {
			return // a name is too long
		}
		got := message.Metadata{packedHeader: packed}
		meta[seqHeader] = "3"
		if err := unpack(got); err != nil || !maps.Equal(got, meta) {
			t.Errorf("%v comes back as %v, %v", meta, got, err)
		}
		got = message.Metadata{packedHeader: text}
		if err := unpack(got); err != nil && (len(got) != 1 || got[packedHeader] != text || len(err.Error()) > 200) {
			t.Errorf("%q, which cannot be read, becomes %v, %v", text, got, err)
		}
		for name := range got {
			if !strings.HasPrefix(name, transport.ReservedPrefix) {
				t.Errorf("%q becomes a name that is not of the contract: %q", text, name)
			}
		}
	})
}

func TestPackedMessageKeepsItsIDAndNumber(t *testing.T) {
	t.Parallel()
	for name, marshaler := range map[string]wamqp.DefaultMarshaler{
		"plain":         {},
		"own ID header": {MessageUUIDHeaderKey: "id"},
		"hook that takes the ID": {PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
			pub.MessageId = "request-1"
			return pub
		}},
		"hook that leaves the body": {PostprocessPublishing: func(pub amqp091.Publishing) amqp091.Publishing {
			return amqp091.Publishing{Body: pub.Body}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			msg := message.NewMessage("0191d0c5-0000-7000-8000-000000000001", []byte("x"))
			msg.Metadata = message.Metadata{
				transport.MetaKey: "k", "tenant": "acme", "id": "of another", wamqp.DefaultMessageUUIDHeaderKey: "of another too",
			}
			c := newCodec(marshaler, true)
			pub, _, err := c.encode(msg, "7")
			if err != nil || seqOf(pub.Headers) != "7" {
				t.Fatalf("headers %v, %v", pub.Headers, err)
			}
			d := amqp091.Delivery{Headers: pub.Headers, MessageId: pub.MessageId, Body: pub.Body}
			got, err := newCodec(wamqp.DefaultMarshaler{MessageUUIDHeaderKey: marshaler.MessageUUIDHeaderKey}, false).decode(&d)
			if err != nil || got.UUID != msg.UUID {
				t.Errorf("arrives as %q, %v", got.UUID, err)
			}
		})
	}
}

func TestMarshalerOfOnesOwnReadsPackedHeaders(t *testing.T) {
	t.Parallel()
	msg := message.NewMessage("0191d0c5-0000-7000-8000-000000000001", []byte("x"))
	msg.Metadata = message.Metadata{transport.MetaKey: "k", transport.MetaVersion: "3", "tenant": "acme"}
	pub, _, err := newCodec(nil, true).encode(msg, "7")
	if err != nil {
		t.Fatal(err)
	}
	for name, marshaler := range map[string]wamqp.Marshaler{
		"correlating": wamqp.CorrelatingMarshaler{},
		"own":         struct{ wamqp.DefaultMarshaler }{},
	} {
		d := amqp091.Delivery{Headers: maps.Clone(pub.Headers), MessageId: pub.MessageId, Body: pub.Body}
		for range 2 { // as when it was nacked
			got, err := newCodec(marshaler, false).decode(&d)
			if err != nil {
				t.Fatal(err)
			}
			delete(got.Metadata, transport.MetaCorrelationID) // which the first of them always sets
			if !got.Equals(msg) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
}

func TestWhatCouldNotBeUnpackedIsNotPacked(t *testing.T) {
	t.Parallel()
	many := make(message.Metadata)
	for i := range maxPairs {
		many[fmt.Sprint(transport.ReservedPrefix, i)] = ""
	}
	long := message.Metadata{transport.ReservedPrefix + strings.Repeat("x", maxShortString): ""}
	for _, meta := range []message.Metadata{many, long} {
		if got := pack(meta, "7"); got != "" {
			t.Errorf("packed into %d bytes", len(got))
		}
	}
	for _, text := range []string{strings.Repeat("a=&", maxPairs) + "a=", strings.Repeat("x", maxShortString) + "="} {
		meta := message.Metadata{packedHeader: text}
		if err := unpack(meta); err == nil || len(meta) != 1 {
			t.Errorf("unpacked: %v", err)
		}
	}
}
