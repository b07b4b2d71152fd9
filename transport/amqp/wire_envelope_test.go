package amqp

import (
	"bytes"
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

const anID = "0191d0c5-0000-7000-8000-000000000001"

func newTestMessage(meta message.Metadata, payload string) *message.Message {
	msg := message.NewMessage(anID, []byte(payload))
	msg.Metadata = meta
	return msg
}

// delivered returns pub as it comes to a consumer.
func delivered(pub *amqp091.Publishing) *amqp091.Delivery {
	return &amqp091.Delivery{
		Headers: maps.Clone(pub.Headers), ContentEncoding: pub.ContentEncoding, ContentType: pub.ContentType, Type: pub.Type,
		MessageId: pub.MessageId, AppId: pub.AppId, Body: bytes.Clone(pub.Body),
	}
}

func TestEnvelopeIsALineAndThePayload(t *testing.T) {
	t.Parallel()
	meta := message.Metadata{
		transport.MetaStamp: "2026-01-31T12:00:00.000001Z", transport.MetaKey: "order 7;&=+%\xff\n", transport.ReservedPrefix + "later": "x",
		transport.MetaCorrelationID: "c", "tenant=": "acme", seqHeader: "of another publish", wamqp.DefaultMessageUUIDHeaderKey: "of another",
		transport.ReservedPrefix + "_x": "", "": "no name",
	}
	want := "publish-seq=7&_=no%20name&_boxpair-_x=&key=order%207%3B%26%3D%2B%25%FF%0A&later=x&stamp=2026-01-31T12:00:00.000001Z" +
		"&_correlation_id=c&_tenant%3D=acme"
	for _, payload := range []string{"", "{}", "\na=b\n"} {
		pub, _, err := newCodec(nil, true).encode(newTestMessage(meta, payload), "7")
		if err != nil || string(pub.Body) != want+"\n"+payload {
			t.Errorf("envelope %q, %v, want %q", pub.Body, err, want)
		}
		// What RabbitMQ does with little work.
		const flags, mode, timestamp = 2, 1, 8
		size := flags + mode + timestamp + 1 + len(pub.ContentEncoding) + 1 + len(pub.MessageId)
		if len(pub.Headers) > 0 || pub.Type != "" || pub.ContentType != "" || size > 64 || pub.MessageId != anID {
			t.Errorf("%d bytes of properties: %+v", size, pub)
		}
		if seqOf(&amqp091.Return{ContentEncoding: pub.ContentEncoding, Body: pub.Body}) != "7" {
			t.Error("the return is nobody's")
		}
		got, err := newCodec(nil, false).decode(delivered(&pub))
		if err != nil {
			t.Fatal(err)
		}
		expect := newTestMessage(maps.Clone(meta), payload)
		delete(expect.Metadata, seqHeader)
		delete(expect.Metadata, wamqp.DefaultMessageUUIDHeaderKey)
		if !got.Equals(expect) {
			t.Errorf("%+v arrives as %+v", expect, got)
		}
	}
	line, _, _ := strings.Cut(want, "\n")
	if values, err := url.ParseQuery(line); err != nil || values.Get("key") != meta[transport.MetaKey] {
		t.Errorf("net/url reads %v, %v", values, err)
	}
}

func TestHeadersGoBeforeTheEnvelope(t *testing.T) {
	t.Parallel()
	d := amqp091.Delivery{
		MessageId: anID, ContentEncoding: envelopeEncoding, Body: []byte("type=a+b&key=1&_tenant=x\n{}"),
		Headers: amqp091.Table{transport.MetaKey: "2", "x-own": amqp091.Table{}},
	}
	want := message.Metadata{transport.MetaType: "a b", transport.MetaKey: "2", "tenant": "x", "x-own": "{}"}
	for name, c := range map[string]codec{"default": newCodec(nil, false), "own": newCodec(struct{ wamqp.DefaultMarshaler }{}, false)} {
		got, err := c.decode(&d)
		if err != nil || !got.Equals(newTestMessage(want, "{}")) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if len(d.Headers) != 2 || string(d.Body) != "type=a+b&key=1&_tenant=x\n{}" {
		t.Errorf("the delivery has become %+v, and may have to be read again", d)
	}
}

func TestEnvelopeThatCannotBeOpenedIsRefusedWhole(t *testing.T) {
	t.Parallel()
	for _, body := range []string{
		"", "key=a", "\n", "{}\n", "key=a&secret\n{}", "key=%zz\n", "key=%4\n", "%2=secret\n", "&\n", strings.Repeat("a=&", maxHeaders+1) + "a=\n",
	} {
		d := amqp091.Delivery{MessageId: anID, ContentEncoding: envelopeEncoding, Body: []byte(body)}
		// A marshaler of one's own is not shown it: the message is set aside.
		if _, err := newCodec(struct{ wamqp.DefaultMarshaler }{}, false).decode(&d); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", body, err)
		}
		c := newCodec(nil, false)
		got, err := c.decode(&d)
		if err != nil {
			t.Fatal(err)
		}
		if string(got.Payload) != body || len(got.Metadata) != 1 {
			t.Errorf("%q arrives as %.100q with %d names", body, got.Payload, len(got.Metadata))
		}
		if _, err := transport.Parse("topic", got); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q is read: %v", body, err)
		}
		// Whoever passes it on does not make it readable.
		pub, _, err := newCodec(nil, true).encode(got, "1")
		if err != nil {
			t.Fatal(err)
		}
		if got, err = c.decode(delivered(&pub)); err != nil || got.Metadata[transport.MetaEnvelope] == "" {
			t.Errorf("%q arrives in the end as %+v, %v", body, got, err)
		}
	}
}

func TestEnvelopesHaveTheLimitsOfHeaders(t *testing.T) {
	t.Parallel()
	for name, meta := range map[string]message.Metadata{
		"names":  many(maxHeaders + 1),
		"name":   {strings.Repeat("x", maxShortString+1): ""},
		"values": {"a": strings.Repeat("x", maxHeaderBytes)},
	} {
		if _, _, err := newCodec(nil, true).encode(newTestMessage(meta, ""), "1"); err == nil || strings.Contains(err.Error(), "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx") {
			t.Errorf("%s: %v", name, err)
		}
	}
	pub, _, err := newCodec(nil, true).encode(newTestMessage(many(maxHeaders), ""), "1")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := newCodec(nil, false).decode(delivered(&pub)); err != nil || len(got.Metadata) != maxHeaders {
		t.Errorf("%d names arrive as %d, %v", maxHeaders, len(got.Metadata), err)
	}
}

func many(names int) message.Metadata {
	meta := make(message.Metadata)
	for i := range names {
		meta[fmt.Sprint(i)] = ""
	}
	return meta
}

func TestNumberOfAReturnIsReadFromWhatItIs(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]string{
		"publish-seq=7\n": "7", "publish-seq=18446744073709551615&a=b\n": "18446744073709551615",
		"publish-seq=": "", "": "", "7\n": "", "publish-seq=7": "", "\n": "", "publish-seq=" + strings.Repeat("1", 100) + "\n": "",
	} {
		if got := seqOf(&amqp091.Return{ContentEncoding: envelopeEncoding, Body: []byte(body)}); got != want {
			t.Errorf("%q has the number %q, want %q", body, got, want)
		}
		if got := seqOf(&amqp091.Return{Body: []byte(body)}); got != "" {
			t.Errorf("%q, which is no envelope, has the number %q", body, got)
		}
		if got := seqOf(&amqp091.Return{ContentEncoding: envelopeEncoding, Headers: amqp091.Table{seqHeader: "3"}, Body: []byte(body)}); got != "3" {
			t.Errorf("the header does not go first: %q", got)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add("key", "order-7", "tenant", "", "", []byte("key=a&type=b\n{}"))
	f.Add("boxpair-_", "\x00\xff+% &=;", "_", "x", "%zz", []byte("\n"))
	f.Fuzz(func(t *testing.T, first, a, second, b, payload string, body []byte) {
		meta := message.Metadata{transport.ReservedPrefix + first: a, second: b}
		delete(meta, seqHeader)
		delete(meta, wamqp.DefaultMessageUUIDHeaderKey)
		pub, used, err := newCodec(nil, true).encode(newTestMessage(meta, payload), "3")
		if _, size := propertiesSize(&amqp091.Publishing{Headers: amqp091.Table{transport.ReservedPrefix + first: a, second: b}}); size != nil {
			return // nor would it go in headers
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []wamqp.Marshaler{nil, struct{ wamqp.DefaultMarshaler }{}} {
			got, err := newCodec(m, false).decode(delivered(&pub))
			if err != nil || !got.Equals(newTestMessage(meta, payload)) {
				t.Errorf("%v arrives as %v, %v", meta, got, err)
			}
		}
		used.release()
		d := &amqp091.Delivery{MessageId: anID, ContentEncoding: envelopeEncoding, Body: body, Headers: amqp091.Table{second: b, "nil": nil}}
		got, err := newCodec(nil, false).decode(d)
		if err != nil {
			t.Fatal(err)
		}
		failed := got.Metadata[transport.MetaEnvelope] == unreadable && bytes.Equal(got.Payload, body)
		other, err := newCodec(struct{ wamqp.DefaultMarshaler }{}, false).decode(d)
		if (err != nil) != failed && got.Metadata[transport.MetaEnvelope] != unreadable || err == nil && !other.Equals(got) {
			t.Errorf("%q with %v becomes %v, and %v, %v", body, d.Headers, got, other, err)
		}
	})
}

func TestEnvelopeIsNotGivenToAHook(t *testing.T) {
	t.Parallel()
	config := PublisherConfig{AMQP: DurableQueue("amqp://nowhere.invalid"), Envelope: true}
	config.AMQP.Marshaler = wamqp.DefaultMarshaler{PostprocessPublishing: func(p amqp091.Publishing) amqp091.Publishing { return p }}
	if _, err := NewPublisher(config); err == nil || !strings.Contains(err.Error(), "Envelope: ") {
		t.Errorf("NewPublisher() = %v", err)
	}
}

func TestEnvelopeIsOfItsOwnMessage(t *testing.T) {
	t.Parallel()
	// Whose metadata was taken from another message, or from one for a publisher that names the ID
	// otherwise.
	meta := message.Metadata{"id": "of another", wamqp.DefaultMessageUUIDHeaderKey: "of another too"}
	for _, key := range []string{"", "id"} {
		pub, _, err := newCodec(wamqp.DefaultMarshaler{MessageUUIDHeaderKey: key}, true).encode(newTestMessage(meta, "x"), "7")
		if err != nil {
			t.Fatal(err)
		}
		own := wamqp.DefaultMarshaler{MessageUUIDHeaderKey: key}
		for name, m := range map[string]wamqp.Marshaler{"default": wamqp.DefaultMarshaler{}, "same": own, "own": struct{ wamqp.DefaultMarshaler }{}} {
			if got, err := newCodec(m, false).decode(delivered(&pub)); err != nil || got.UUID != anID || got.Metadata[key] != "" ||
				name != "same" && got.Metadata[wamqp.DefaultMessageUUIDHeaderKey] != "" {
				t.Errorf("%q, %s: arrives as %v, %v", key, name, got, err)
			}
		}
	}
}

func TestMarshalerOfOnesOwnReadsEnvelopes(t *testing.T) {
	t.Parallel()
	msg := newTestMessage(message.Metadata{
		transport.MetaKey: "k", transport.MetaContentType: "text/plain", transport.MetaType: "placed", "tenant": "acme",
	}, "x")
	pub, _, err := newCodec(nil, true).encode(msg, "7")
	if err != nil {
		t.Fatal(err)
	}
	var seen amqp091.Delivery
	for name, marshaler := range map[string]wamqp.Marshaler{
		"correlating": wamqp.CorrelatingMarshaler{},
		"own":         spying{seen: &seen},
	} {
		d := delivered(&pub)
		for range 2 { // as when it was nacked
			got, err := newCodec(marshaler, false).decode(d)
			if err != nil {
				t.Fatal(err)
			}
			delete(got.Metadata, wamqp.DefaultMessageUUIDHeaderKey) // the first of them does not know it
			if !got.Equals(msg) {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
	if seen.ContentType != "text/plain" || seen.Type != "placed" || seen.ContentEncoding != "" || string(seen.Body) != "x" ||
		seen.Headers[wamqp.DefaultMessageUUIDHeaderKey] != anID {
		t.Errorf("it was shown %+v", seen)
	}
}

// spying is a marshaler of one's own.
type spying struct {
	wamqp.DefaultMarshaler
	seen *amqp091.Delivery
}

func (s spying) Unmarshal(d amqp091.Delivery) (*message.Message, error) {
	*s.seen = d
	return s.DefaultMarshaler.Unmarshal(d)
}

func TestBodiesThatAreUsedAgainAreNotMixed(t *testing.T) {
	t.Parallel()
	c := newCodec(nil, true)
	for i := range 100 {
		payload := strings.Repeat(fmt.Sprint(i), 1+i*20)
		pub, used, err := c.encode(newTestMessage(message.Metadata{transport.MetaKey: fmt.Sprint(i)}, payload), fmt.Sprint(i))
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.decode(delivered(&pub))
		if err != nil || !got.Equals(newTestMessage(message.Metadata{transport.MetaKey: fmt.Sprint(i)}, payload)) {
			t.Errorf("message %d arrives as %v, %v", i, got, err)
		}
		used.release()
	}
}
