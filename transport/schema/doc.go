// Package schema gives payloads a type: an encoding, a version, a way to read earlier versions, and
// a test of validity.
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
// A producer writes a value with [github.com/boxpair/boxpair/producer.Typed], and a consumer
// handles it with [github.com/boxpair/boxpair/consumer.Typed]. JSON is the default encoding,
// package schema/protobuf has protobuf, and any other encoding implements [Codec].
//
// # Versions
//
// The version of a payload travels beside it. A payload of an earlier version passes through one
// upcaster after another until it has the current version. So each upcaster is written once, when
// its version is superseded, and never again. A payload of a later version gives an error that
// wraps [ErrNewer]: the message waits like any failing message until the consumer is updated. A
// payload that cannot be decoded, has another content type or is not valid gives an error that
// wraps [ErrUnreadable]: a typed handler makes it a dead letter at once, for an operator to see.
//
// An event that is written again must encode to the same bytes, or the outbox refuses it as other
// content under the same dispatch ID. JSON of structs and maps fulfils this in Go. Protobuf is
// encoded deterministically, but only within one version of its library.
//
// # Guarantees
//
// Errors contain neither payloads nor values, except that errors of your own Validate functions and
// upcasters are passed on unchanged. The package does no I/O, and a [Type] is safe for concurrent
// use.
package schema
