// Package schema gives payloads a type: how it is encoded, which version it has, how
// earlier versions are read, and what makes a value valid.
//
//	var placed, err = schema.New(schema.Config[OrderPlaced]{
//		Name:    "order.placed",
//		Version: 2,
//		Key:     func(o OrderPlaced) string { return o.Order },
//		Upcast: map[int]schema.Upcaster{
//			1: schema.Up(func(old OrderPlacedV1) (OrderPlaced, error) { … }),
//		},
//	})
//
// A producer writes a value with [github.com/boxpair/boxpair/producer.Typed], a consumer handles it
// with [github.com/boxpair/boxpair/consumer.Typed]. JSON is the default encoding; protobuf is in
// the package schema/protobuf, others implement [Codec].
//
// # Versions
//
// The version of a payload travels beside it. A payload of an earlier version is taken
// through one upcaster after another until it has the current one, so each
// upcaster is written once, when its version is superseded, and never again. A payload of a
// later version is an error that wraps [ErrNewer]: the consumer is to be
// brought up to date, and its message waits for that like any that fails. A
// payload that cannot be decoded, has another content type or is not valid never will be: that is
// [ErrUnreadable], and a typed handler has it dead at once, for an operator to see.
//
// The same event written again must encode to the same bytes, or the outbox refuses it as the same
// dispatch ID with other content. JSON of structs and maps is so in Go; protobuf is encoded
// deterministically, which holds within one version of its library and not beyond.
//
// # Guarantees
//
// Errors tell neither payloads nor values, but those of a Validate or an upcaster of yours
// are passed on as they are. Nothing here does I/O, and a [Type] is safe for concurrent use.
package schema
