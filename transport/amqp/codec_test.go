package amqp

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	wamqp "github.com/ThreeDotsLabs/watermill-amqp/v2/pkg/amqp"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/rabbitmq/amqp091-go"
)

func TestHeaderOfAnyTypeBecomesText(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		value any
		want  string
	}{
		{"text", "text"},
		{true, "true"},
		{int8(-8), "-8"}, {uint8(8), "8"}, {int16(-16), "-16"}, {uint16(16), "16"},
		{int32(-32), "-32"}, {uint32(32), "32"}, {int64(-64), "-64"}, {7, "7"},
		{float32(1.5), "1.5"}, {2.25, "2.25"}, {math.NaN(), "NaN"},
		{amqp091.Decimal{Scale: 2, Value: 12345}, "123.45"},
		{amqp091.Decimal{Scale: 3, Value: -5}, "-0.005"},
		{amqp091.Decimal{Scale: 0, Value: -5}, "-5"},
		{amqp091.Decimal{Scale: 2, Value: math.MinInt32}, "-21474836.48"},
		{time.Date(2026, 11, 20, 12, 0, 0, 0, time.FixedZone("", 3600)), "2026-11-20T11:00:00Z"},
		{[]byte("bytes"), "bytes"},
		{[]byte{0xff, 0xfe}, "//4="},
		{[]any{"a", int32(1), nil, amqp091.Table{"b": []byte{0xff}}}, `["a",1,null,{"b":"/w=="}]`},
		{amqp091.Table{"z": math.Inf(1), "a": []any{}, "d": amqp091.Decimal{Scale: 1, Value: 5}}, `{"a":[],"d":"0.5","z":"+Inf"}`},
	} {
		if got, ok := headerText(test.value); !ok || got != test.want {
			t.Errorf("headerText(%#v) = %q, %v; want %q", test.value, got, ok, test.want)
		}
	}
	if _, ok := headerText(nil); ok {
		t.Error("nil becomes text")
	}
}

func TestAnyMessageIsRead(t *testing.T) {
	t.Parallel()
	c := newCodec(nil, false)
	for name, d := range map[string]amqp091.Delivery{
		"without headers":     {MessageId: "id", Body: []byte("x")},
		"with a numeric ID":   {Headers: amqp091.Table{wamqp.DefaultMessageUUIDHeaderKey: int64(7)}},
		"with nil":            {Headers: amqp091.Table{"a": nil}},
		"with unknown types":  {Headers: amqp091.Table{"a": struct{}{}}},
		"with nested nothing": {Headers: amqp091.Table{"a": []any{nil, amqp091.Table{"b": nil}}}},
	} {
		if _, err := c.decode(&d); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	msg, _ := c.decode(&amqp091.Delivery{MessageId: "id", Headers: amqp091.Table{seqHeader: "3", "a": "b"}})
	if msg.UUID != "id" || len(msg.Metadata) != 1 {
		t.Errorf("message %q with %v", msg.UUID, msg.Metadata)
	}
}

type broken struct{ wamqp.DefaultMarshaler }

func (broken) Marshal(*message.Message) (amqp091.Publishing, error) { panic("secret payload") }
func (broken) Unmarshal(amqp091.Delivery) (*message.Message, error) { return nil, nil }

func TestPanicOfAMarshalerIsAnErrorWithoutItsText(t *testing.T) {
	t.Parallel()
	c := newCodec(broken{}, false)
	_, _, err := c.encode(message.NewMessage("id", nil), "1")
	if err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("encode = %v", err)
	}
	if _, err := c.decode(&amqp091.Delivery{}); err == nil {
		t.Error("decode gives no message and no error")
	}
}

func FuzzHeaderText(f *testing.F) {
	f.Add([]byte("x"), int64(1), 1.0, "s")
	f.Fuzz(func(t *testing.T, b []byte, i int64, x float64, s string) {
		for _, v := range []any{b, i, x, s, amqp091.Decimal{Scale: uint8(i), Value: int32(i)}} {
			if _, ok := headerText(v); !ok {
				t.Errorf("headerText(%#v) is nothing", v)
			}
		}
		nested := amqp091.Table{s: []any{b, i, x, s, amqp091.Table{s: x}}}
		text, ok := headerText(nested)
		if !ok || !json.Valid([]byte(text)) {
			t.Errorf("headerText(%#v) = %q, %v", nested, text, ok)
		}
	})
}

// TestSizeOfPropertiesIsNotUnderestimated: one byte too many for a frame closes the
// connection.
func TestSizeOfPropertiesIsNotUnderestimated(t *testing.T) {
	t.Parallel()
	pub := amqp091.Publishing{
		ContentType: "c", MessageId: "m", Type: "t", AppId: "a",
		Headers: amqp091.Table{"a": "b", "n": nil, "t": amqp091.Table{"x": []any{"y", int64(1), true}}, "d": amqp091.Decimal{}},
	}
	size, err := propertiesSize(&pub)
	// Counted by hand from the grammar of AMQP 0-9-1: short strings, then the table.
	exact := 4*2 + 4 + (2 + 6) + (2 + 1) + (2 + 1 + 4 + (2 + 5 + (6 + 9 + 2))) + (2 + 6)
	if err != nil || size < exact {
		t.Errorf("size = %d, %v; at least %d", size, err, exact)
	}
	deep := any("x")
	for range 40 {
		deep = []any{deep}
	}
	for name, value := range map[string]any{"deep": deep, "type": struct{}{}, "array": make([]any, 9000)} {
		if _, err := propertiesSize(&amqp091.Publishing{Headers: amqp091.Table{"h": value}}); err == nil || !strings.Contains(err.Error(), `"h"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestDeliveryLimitFollowsTheVersionOfTheBroker(t *testing.T) {
	t.Parallel()
	mine := amqp091.Table{"x-single-active-consumer": true}
	for _, test := range []struct {
		kind    QueueType
		version int
		args    amqp091.Table
		limit   any
		type_   any
	}{
		{Quorum, 3, mine, nil, "quorum"}, // -1 would drop after one failure
		{Quorum, 0, mine, nil, "quorum"},
		{Quorum, 4, mine, -1, "quorum"},
		{Quorum, 4, amqp091.Table{"x-delivery-limit": 5}, 5, "quorum"},
		{Classic, 4, mine, nil, "classic"},
		{Classic, 4, amqp091.Table{"x-queue-type": "quorum"}, -1, "quorum"},
		{Quorum, 4, amqp091.Table{"x-queue-type": "stream"}, nil, "stream"},
	} {
		got := queueArguments(test.args, test.kind, test.version)
		if got["x-delivery-limit"] != test.limit || got["x-queue-type"] != test.type_ {
			t.Errorf("version %d: %v", test.version, got)
		}
	}
	if len(mine) != 1 {
		t.Errorf("the user's arguments were changed: %v", mine)
	}
}

// TestBulkAcksCoverOnlyAFinishedPrefix and never name a tag that is settled.
func TestBulkAcksCoverOnlyAFinishedPrefix(t *testing.T) {
	t.Parallel()
	var a acks
	var list []*delivery
	for tag := range uint64(8) {
		d := &delivery{}
		d.raw.DeliveryTag = tag + 1
		list = append(list, d)
		a.add(d)
	}
	type sent struct {
		tag      uint64
		multiple bool
	}
	step := func(limit int, finished []int, want ...sent) {
		t.Helper()
		for _, tag := range finished {
			a.finish(list[tag-1])
		}
		var got []sent
		err := a.flush(limit, func(tag uint64, multiple bool) error {
			got = append(got, sent{tag, multiple})
			return nil
		})
		if err != nil || len(got) != len(want) {
			t.Fatalf("acks = %v, %v; want %v", got, err, want)
		}
		for i := range got {
			if got[i] != want[i] {
				t.Fatalf("acks = %v; want %v", got, want)
			}
		}
	}
	step(2, nil)
	step(2, []int{3})                                 // beyond the gap, it waits
	step(2, []int{4}, sent{3, false}, sent{4, false}) // singly
	step(2, []int{1}, sent{1, false})                 // a prefix of one
	step(2, []int{2}, sent{2, false})                 // 3 and 4 are settled: their tags are unknown by now
	step(2, []int{5, 6, 8}, sent{6, true})            // in bulk, up to the gap
	step(1, nil, sent{8, false})                      //
	step(2, []int{7}, sent{7, false})                 //
	if err := a.flush(1, nil); err != nil || len(a.list) != 0 || a.unsent != 0 {
		t.Errorf("left: %v, %d", a.list, a.unsent)
	}
	d := &delivery{}
	a.add(d)
	a.finish(d)
	failed := errors.New("closed")
	if err := a.flush(1, func(uint64, bool) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("flush = %v", err)
	}
}

// TestAcknowledgementsBehindAGapAreForgotten once the broker has been told of them: what is kept
// and looked at are those that it still waits for.
func TestAcknowledgementsBehindAGapAreForgotten(t *testing.T) {
	t.Parallel()
	var a acks
	a.add(&delivery{raw: amqp091.Delivery{DeliveryTag: 1}})
	for tag := uint64(2); tag < 10_000; tag++ {
		d := &delivery{raw: amqp091.Delivery{DeliveryTag: tag}}
		a.add(d)
		a.finish(d)
		if a.unsent < 32 {
			continue
		}
		if err := a.flush(32, func(uint64, bool) error { return nil }); err != nil || len(a.list) != 1 || a.unsent != 0 {
			t.Fatalf("tag %d: %v; %d are kept, %d of them finished", tag, err, len(a.list), a.unsent)
		}
	}
}
