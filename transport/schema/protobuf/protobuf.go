// Package protobuf encodes payloads with Protocol Buffers, for package schema. A [schema.Type] over
// it has a pointer to a generated message as its T:
//
//	schema.New(schema.Config[*shopv1.OrderPlaced]{Name: "order.placed", Codec: protobuf.Codec{}})
//
// It is a separate package, so that only its users depend on the protobuf library.
package protobuf

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"

	"github.com/boxpair/boxpair/transport/schema"
)

// Codec is the codec of google.golang.org/protobuf. Messages are encoded deterministically.
type Codec struct{}

var _ schema.Codec = Codec{}

// ContentType returns "application/x-protobuf".
func (Codec) ContentType() string { return "application/x-protobuf" }

// Marshal encodes v, which must be a non-nil [proto.Message].
func (Codec) Marshal(v any) ([]byte, error) {
	m, ok := v.(proto.Message)
	if !ok || !m.ProtoReflect().IsValid() {
		return nil, fmt.Errorf("%T is no protobuf message, or nil", v)
	}
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode %T: required fields or UTF-8 are missing", v)
	}
	return data, nil
}

// Unmarshal decodes data into v, a message, or a pointer to a message pointer, which then gets a
// new message.
func (Codec) Unmarshal(data []byte, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		target := reflect.ValueOf(v)
		if target.Kind() != reflect.Pointer || target.IsNil() || target.Type().Elem().Kind() != reflect.Pointer {
			return fmt.Errorf("%T is no protobuf message", v)
		}
		fresh := reflect.New(target.Type().Elem().Elem())
		if m, ok = fresh.Interface().(proto.Message); !ok {
			return fmt.Errorf("%T is no protobuf message", v)
		}
		target.Elem().Set(fresh)
	}
	if proto.Unmarshal(data, m) != nil {
		return errors.New("not the encoding of a " + string(m.ProtoReflect().Descriptor().FullName()))
	}
	return nil
}
