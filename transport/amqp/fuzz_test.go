package amqp

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/google/uuid"
	"github.com/rabbitmq/amqp091-go"

	"github.com/boxpair/boxpair/transport"
)

// grower makes headers of any shape out of the bytes of a fuzz test.
type grower struct {
	rest  []byte
	nodes int
}

func (g *grower) byte() byte {
	if len(g.rest) == 0 {
		return 0
	}
	b := g.rest[0]
	g.rest = g.rest[1:]
	return b
}

func (g *grower) number() uint64 {
	var b [8]byte
	n := copy(b[:], g.rest)
	g.rest = g.rest[n:]
	return binary.LittleEndian.Uint64(b[:])
}

func (g *grower) bytes() []byte {
	n := min(int(g.byte()), len(g.rest))
	b := g.rest[:n]
	g.rest = g.rest[n:]
	return b
}

func (g *grower) table(depth int) amqp091.Table {
	table := amqp091.Table{}
	for range g.byte() % 8 {
		table[string(g.bytes())] = g.value(depth + 1)
	}
	return table
}

// value returns a value of any type that AMQP has, and of some that it has not.
func (g *grower) value(depth int) any {
	kinds := byte(20)
	if g.nodes++; depth > maxDepth+2 || g.nodes > 500 {
		kinds = 17 // no more tables and arrays
	}
	switch g.byte() % kinds {
	case 0:
		return nil
	case 1:
		return g.byte()%2 == 0
	case 2:
		return int8(g.byte())
	case 3:
		return g.byte()
	case 4:
		return int16(g.number())
	case 5:
		return uint16(g.number())
	case 6:
		return int32(g.number())
	case 7:
		return uint32(g.number())
	case 8:
		return int64(g.number())
	case 9:
		return math.Float32frombits(uint32(g.number()))
	case 10:
		return math.Float64frombits(g.number())
	case 11:
		return time.Unix(int64(g.number()), 0)
	case 12:
		return amqp091.Decimal{Scale: g.byte(), Value: int32(g.number())}
	case 13:
		return append([]byte{}, g.bytes()...)
	case 14:
		return int(g.number())
	case 15:
		return struct{}{} // no type of AMQP's
	case 16:
		return string(g.bytes())
	case 17:
		return g.table(depth)
	default:
		array := make([]any, g.byte()%8)
		for i := range array {
			array[i] = g.value(depth + 1)
		}
		return array
	}
}

// FuzzDecode: whatever headers a message has, it is read without a panic, into
// text that is no longer than a small multiple of them, by both codecs.
func FuzzDecode(f *testing.F) {
	f.Add([]byte{3, 1, 'a', 12, 255, 1, 2, 3, 4, 1, 'b', 18, 3, 0, 0, 0, 1, 'c', 17, 2}, "id", true)
	f.Add([]byte{1, 21, '_', 'w', 'a', 't', 'e', 'r', 'm', 'i', 'l', 'l', '_', 'm', 'e', 's', 's', 'a', 'g', 'e', '_', 'u', 'u', 8}, "", false)
	f.Add([]byte{7, 0, 13, 200, 0xff, 0xfe, 1, 9, 0, 0, 0xc0, 0x7f}, "\xff", true)
	deep := []byte{1, 1, 'd'}
	for range 24 {
		deep = append(deep, 17, 1, 1, 'x')
	}
	f.Add(deep, "id", false)
	f.Fuzz(func(t *testing.T, shape []byte, id string, custom bool) {
		headers := (&grower{rest: shape}).table(0)
		c := newCodec(nil, false)
		if custom {
			c = newCodec(wamqp.CorrelatingMarshaler{}, false)
		}
		msg, err := c.decode(&amqp091.Delivery{Headers: headers, MessageId: id, Body: shape})
		if err != nil {
			if !custom || len(err.Error()) > 4096 {
				t.Errorf("%v: %v", headers, err)
			}
			return
		}
		size := 0
		for name, value := range msg.Metadata {
			if !isText(name, value, headers[name]) {
				t.Errorf("header %q of type %T becomes %q", name, headers[name], value)
			}
			size += len(name) + len(value)
		}
		// A control character of one byte is six in JSON, a scale of decimals at most 255 digits.
		if most := 1000 + 300*len(shape); size > most {
			t.Errorf("%d bytes of headers become %d bytes of text", len(shape), size)
		}
		if _, err := transport.Parse("topic", msg); err != nil && len(err.Error()) > 64+len(msg.Metadata)*320 {
			t.Errorf("an error of %d bytes", len(err.Error()))
		}
	})
}

// isText tells whether value is what a header may become: what is text already stays as it
// is, and all else is valid UTF-8.
func isText(_, value string, was any) bool {
	switch was := was.(type) {
	case string:
		return value == was
	case amqp091.Table, []any:
		return json.Valid([]byte(value))
	}
	return utf8.ValidString(value)
}

// FuzzPropertiesSize: a message that is said to fit a frame does, and one of any shape is
// measured without a panic.
func FuzzPropertiesSize(f *testing.F) {
	f.Add([]byte{3, 1, 'a', 12, 255, 1, 2, 3, 4, 1, 'b', 18, 3, 0, 0, 0, 1, 'c', 17, 2}, "id", "type")
	f.Add([]byte{}, strings.Repeat("x", 256), "")
	f.Fuzz(func(t *testing.T, shape []byte, id, kind string) {
		pub := amqp091.Publishing{Headers: (&grower{rest: shape}).table(0), MessageId: id, Type: kind}
		size, err := propertiesSize(&pub)
		if err != nil {
			if len(err.Error()) > 4096 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(id) > maxShortString || len(kind) > maxShortString || size > maxHeaderBytes {
			t.Errorf("accepted with %d bytes", size)
		}
		if err := pub.Headers.Validate(); err != nil {
			t.Errorf("accepted, and amqp091 says %v", err)
		}
	})
}

// FuzzRoundTrip: an event is what it was when it has gone through the broker's format.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), "key", "type", "source", int64(3), 1, 2, "text/plain", "tenant", "acme", int64(1), []byte("payload"))
	f.Add([]byte("0123456789abcdef"), "\xff", "", "", int64(-1), -1, -1, "", "x-death", "\x00", int64(-1<<62), []byte(nil))
	f.Fuzz(func(t *testing.T, id []byte, key, kind, source string, version int64, index, schema int, contentType, name, value string,
		stamp int64, payload []byte,
	) {
		e := transport.Event{
			Topic: "topic", Key: key, Type: kind, Payload: payload, Source: source, SchemaVersion: schema,
			ContentType: contentType, Stamp: time.Unix(stamp%1e10, stamp%1e9).UTC(), Producer: "p",
		}
		copy(e.ID[:], id)
		if source != "" {
			e.Version, e.Index = version, index
		}
		if schema > 0 {
			e.ResendUntil = e.Stamp.Add(time.Duration(schema%1e6) * time.Second)
		}
		if !transport.IsReserved(name) && name != wamqp.DefaultMessageUUIDHeaderKey && name != seqHeader {
			e.Headers = map[string]string{name: value}
		}
		e.Digest = transport.ContentDigest(&e)
		if e.ID == uuid.Nil || e.Stamp.Year() < 0 {
			return
		}
		for _, envelopes := range []bool{false, true} {
			c := newCodec(nil, envelopes)
			pub, _, err := c.encode(e.Message(), "1")
			if _, size := propertiesSize(&pub); size != nil || err != nil && len(name) > maxShortString {
				return // it would not go in headers either
			}
			if err != nil {
				t.Fatal(err)
			}
			if seqOf(&amqp091.Return{Headers: pub.Headers, ContentEncoding: pub.ContentEncoding, Body: pub.Body}) != "1" {
				t.Errorf("the publish has no number: %v", pub.Headers)
			}
			msg, err := c.decode(delivered(&pub))
			if err != nil {
				t.Fatal(err)
			}
			got, err := transport.Parse("topic", msg)
			if len(got.Payload)+len(e.Payload) == 0 {
				got.Payload = e.Payload // nil or not
			}
			if err != nil || !reflect.DeepEqual(got, e) {
				t.Errorf("%+v arrives as %+v, %v", e, got, err)
			}
			if transport.ContentDigest(&got) != got.Digest {
				t.Error("the digest is not that of the content")
			}
		}
	})
}

// FuzzConfig: no configuration panics, and what is refused is named.
func FuzzConfig(f *testing.F) {
	f.Add("amqp://host", "queue", uint8(0), uint8(0), 0, 0, int64(0), "x-message-ttl", int64(5), uint16(0))
	f.Add("amqps://u:p@host/v", "", uint8(3), uint8(2), -1, -1, int64(-1), "x-max-length", int64(-5), uint16(0xffff))
	f.Fuzz(func(t *testing.T, uri, queue string, topology, queueType uint8, window, inFlight int, wait int64, argument string, value int64, flags uint16) {
		flag := func(n int) bool { return flags&(1<<n) != 0 }
		config := DurablePubSub(uri, queue)
		if flag(0) {
			config = DurableQueue(uri)
		}
		config.Exchange.Durable, config.Queue.Durable, config.Queue.AutoDelete = !flag(1), !flag(2), flag(3)
		config.Publish.Transactional, config.Publish.Immediate, config.Consume.NoRequeueOnNack = flag(4), flag(5), flag(6)
		config.Consume.Qos.PrefetchCount = inFlight
		config.Queue.Arguments = amqp091.Table{argument: value}
		_, err := NewPublisher(PublisherConfig{
			AMQP: config, Topology: Topology(topology), QueueType: QueueType(queueType), Window: window, WindowBytes: window,
			ConfirmTimeout: time.Duration(wait), MaxBody: inFlight, AllowLoss: flag(7), Queues: []Queue{{Topic: argument, Name: queue}},
		})
		refusalNamesFields(t, err)
		_, err = NewSubscriber(SubscriberConfig{
			AMQP: config, Topology: Topology(topology), QueueType: QueueType(queueType), InFlight: window,
			RedeliveryMin: time.Duration(wait), RedeliveryMax: time.Duration(value), CloseTimeout: time.Duration(wait),
			AllowLoss: flag(7), DeliveryLimitIsSafe: flag(8),
		})
		refusalNamesFields(t, err)
	})
}

func refusalNamesFields(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		return
	}
	for line := range strings.Lines(err.Error()) {
		line = strings.TrimPrefix(strings.TrimPrefix(line, "amqp publisher: "), "amqp subscriber: ")
		name, _, ok := strings.Cut(line, ": ")
		if !ok || name == "" || strings.ContainsAny(name, " \"") || strings.ToUpper(name[:1]) != name[:1] {
			t.Errorf("an error names no field: %q", line)
		}
	}
}

// FuzzShortText: any error fits a header.
func FuzzShortText(f *testing.F) {
	f.Add("\xffé", 400)
	f.Fuzz(func(t *testing.T, text string, times int) {
		text = strings.Repeat(text, min(max(times, 0), 2000))
		short := shortText(text)
		if !utf8.ValidString(short) || len(short) > 1000 || utf8.ValidString(text) && !strings.HasPrefix(text, short) {
			t.Errorf("%q becomes %q", text, short)
		}
	})
}

// FuzzSplitBatch: whatever the body of a batch is, it is split without a panic, and what was put
// into one comes out.
func FuzzSplitBatch(f *testing.F) {
	f.Add([]byte("publish-seq=1\nid 3\nabcid%20 0\n"), "id", []byte("envelope"), "", []byte(nil))
	f.Add([]byte("publish-seq=1\nid 2147483648\n"), " \n%+", []byte("\n"), "\xff", []byte("id 1\nx"))
	f.Add([]byte("publish-seq=1\n 18446744073709551616\n"), "%zz", []byte{0}, "a b", []byte(" 0\n"))
	f.Fuzz(func(t *testing.T, body []byte, first string, a []byte, second string, b []byte) {
		entries, err := parseBatch(body)
		if (err != nil) != (len(entries) == 0) {
			t.Fatalf("%d parts, %v", len(entries), err)
		}
		size := 0
		for _, p := range entries {
			size += len(p.envelope)
			if cap(p.envelope) != len(p.envelope) {
				t.Error("who appends to a message writes over the next one")
			}
		}
		if size > len(body) {
			t.Errorf("%d bytes out of %d", size, len(body))
		}
		for _, entries := range [][]batchEntry{entries, {{first, a}, {second, b}}} {
			again := []byte(envelopeStart + "1\n")
			for _, p := range entries {
				again = appendBatchEntry(again, p.id, p.envelope)
			}
			got, err := parseBatch(again)
			if len(entries) > 0 && err != nil || len(got) != len(entries) {
				t.Fatalf("%q: %v, %v", again, got, err)
			}
			for i, p := range entries {
				if got[i].id != p.id || !bytes.Equal(got[i].envelope, p.envelope) {
					t.Errorf("%q becomes %q", p, got[i])
				}
			}
		}
	})
}
