// Package transport is the wire contract between producers and consumers: how
// an event becomes a Watermill message and back, and what a publisher tells a
// relay about each message that it was given.
//
// # The message
//
// The UUID of the Watermill message is the dispatch ID. What else the event is
// made of travels as metadata under the names declared here; the headers of the
// user travel under their own names beside them, so handlers that know nothing
// of this library read them as they always did. The payload is the event's
// payload, byte for byte.
//
// Names that begin with [ReservedPrefix] belong to this contract and are
// refused as user headers. The correlation ID and the W3C trace context use the
// names that Watermill's own middleware and OpenTelemetry use.
//
// # The outcome of a publish
//
// Watermill's Publisher reports one error for a whole call: who publishes ten
// messages and gets an error does not know which of them the broker has. A
// relay must know, so a transport of ours is a [Sender]: it reports a [Result]
// for every message. Only [Confirmed] lets an event leave the outbox.
//
// Any other Watermill publisher can be the target of a relay too. Then a batch
// that failed is narrowed down one by one, and the outcome is as good as what
// that publisher's error means.
package transport
