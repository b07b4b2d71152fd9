// Package transport is the wire contract between producers and consumers: how an event becomes a
// Watermill message and back, and how a publisher reports the outcome of each message to a relay.
//
// # The message
//
// The UUID of the Watermill message is the dispatch ID, and the payload is the event's payload, byte
// for byte. The other fields of the event travel as metadata under the names declared here. The
// user's headers travel under their own names, so that handlers which do not know this library can
// read them as before.
//
// Names that begin with [ReservedPrefix] belong to this contract and are refused as user headers.
// The correlation ID and the W3C trace context have the names that Watermill's middleware and
// OpenTelemetry use. Package signature signs messages and verifies them.
//
// # The outcome of a publish
//
// Watermill's Publisher reports one error for a whole call. A caller that publishes ten messages and
// gets an error does not know which of them the broker has. A relay must know, so the transports of
// this library implement [Sender], which reports a [Result] for every message. Only [Confirmed] lets
// an event leave the outbox.
//
// A relay can also publish to any other Watermill publisher. The relay then publishes the messages of
// a failed batch again one by one, and the outcome is only as reliable as the publisher's errors.
package transport
