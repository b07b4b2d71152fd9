package protobuf_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/boxpair/boxpair/transport/schema"
	"github.com/boxpair/boxpair/transport/schema/protobuf"
)

func TestMessageComesBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	typ, err := schema.New(schema.Config[*structpb.Struct]{Name: "order.placed", Codec: protobuf.Codec{}})
	if err != nil {
		t.Fatal(err)
	}
	want, err := structpb.NewStruct(map[string]any{"order": "42", "lines": []any{"a", "b"}, "cents": 5.0, "paid": true})
	if err != nil {
		t.Fatal(err)
	}
	first, err := typ.Encode(want)
	if err != nil {
		t.Fatal(err)
	}
	for range 50 { // of a map, in Go's random order
		again, err := typ.Encode(want)
		if err != nil || !bytes.Equal(first, again) {
			t.Fatalf("another encoding of an equal value, or %v", err)
		}
	}
	got, err := typ.Decode(first, 1, "application/x-protobuf")
	if err != nil || !proto.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestUpcasterTakesOneMessageTypeToTheNext(t *testing.T) {
	t.Parallel()
	typ, err := schema.New(schema.Config[*wrapperspb.Int64Value]{
		Name: "counted", Version: 2, Codec: protobuf.Codec{},
		Upcast: map[int]schema.Upcaster{1: schema.Up(func(old *wrapperspb.StringValue) (*wrapperspb.Int64Value, error) {
			return wrapperspb.Int64(int64(len(old.Value))), nil
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	old, err := protobuf.Codec{}.Marshal(wrapperspb.String("abc"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := typ.Decode(old, 1, ""); err != nil || got.Value != 3 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestWhatIsNoMessageIsRefusedWithoutTellingIt(t *testing.T) {
	t.Parallel()
	var c protobuf.Codec
	var none *wrapperspb.StringValue
	for _, v := range []any{"secret", none, nil, 1} {
		if _, err := c.Marshal(v); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%T: %v", v, err)
		}
	}
	var text string
	var number *int
	for _, v := range []any{text, &text, &number, nil, (**int)(nil)} {
		if err := c.Unmarshal([]byte{}, v); err == nil {
			t.Errorf("%T was decoded into", v)
		}
	}
	typ, err := schema.New(schema.Config[*wrapperspb.StringValue]{Name: "note", Codec: c})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := typ.Decode([]byte("\x0a\xffsecret"), 1, ""); !errors.Is(err, schema.ErrUnreadable) || strings.Contains(err.Error(), "secret") {
		t.Error(err)
	}
}
