// Package idgen computes dispatch IDs: UUIDv5 values that name one event of one source for ever.
//
// A dispatch ID is computed from the emitter of an event, the version, and the position within the
// version. An event therefore gets the same ID however often its code runs. So an outbox can ignore
// a repeated write, and an inbox a repeated delivery.
//
// There are three kinds:
//
//   - [Of] names an event of an aggregate or a process at a version;
//   - [OfKey] names an event of a request that carries an idempotency key;
//   - [Child] names an event that a handler emits while it handles another event.
//
// # Format
//
// The format is public and versioned, so that other languages and plain SQL can compute equal
// values. Version 1 is:
//
//	name = netstring(kind) netstring(part1) netstring(part2) …
//	netstring(s) = <length of s in bytes, decimal> ":" <bytes of s> ","
//	id = UUIDv5(Namespace, name)
//
// with these parts, integers in decimal and UUIDs in lower-case text:
//
//	kind "of":    producer, source, version, index
//	kind "key":   producer, source, idempotency key, index
//	kind "child": consumer, cause, index
//
// Netstrings (D. J. Bernstein, https://cr.yp.to/proto/netstrings.txt) carry their own length, so
// two different lists of parts never have equal encodings, whatever bytes the parts hold. Nothing
// is normalised: strings that look alike and differ in bytes are different. A future version gets
// another namespace and never changes the values of version 1.
//
// A shard is the first byte of the SHA-256 of the key, modulo [Shards]; for an event without a key
// the last byte of the dispatch ID, modulo [Shards].
//
// testdata/vectors.json holds test vectors for IDs and shards. Parts in valid UTF-8 without NUL can
// be reproduced in PostgreSQL, in a database with the encoding UTF8, with
// uuid_generate_v5(namespace, name) of the extension uuid-ossp, or with the function
// outbox_dispatch_id of the tables of package migrations.
//
// # Guarantees
//
// Equal input gives equal output on every platform and in every release. Different input has
// different encodings; their 122 hashed bits collide by accident with a probability of about
// n²/2¹²³ for n events. UUIDv5 is SHA-1: IDs are predictable and no secret, and an attacker who
// chooses names can aim for a collision. Content is therefore compared by a digest of its own,
// beside the ID.
//
// All functions are pure and safe for concurrent use.
package idgen
