// Package idgen computes dispatch IDs: UUIDv5 values that name one event of
// one source for ever.
//
// A dispatch ID is computed from who emitted an event, at which version, and
// at which position within that version. The same event therefore gets the
// same ID however often the code that emits it is run, which is what lets an
// outbox ignore a repeated write and an inbox ignore a repeated delivery.
//
// There are three kinds:
//
//   - [Of] names an event of an aggregate or a process at a version;
//   - [OfKey] names an event of a request that carries an idempotency key;
//   - [Child] names what a handler emits while it handles another event.
//
// # Format
//
// The format is public and versioned, so that other languages and plain SQL
// can compute the same values. Version 1 is:
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
// Netstrings (D. J. Bernstein, https://cr.yp.to/proto/netstrings.txt) carry
// their own length, so no two different lists of parts encode alike, whatever
// bytes the parts hold. Nothing is normalised: strings that look the same and
// have different bytes are different. A future version gets another namespace
// and never changes what version 1 yields.
//
// A shard is the first byte of the SHA-256 of the key, modulo [Shards]; an
// event without a key takes the last byte of its dispatch ID instead.
//
// testdata/vectors.json holds test vectors for both. Parts that are valid
// UTF-8 without NUL can be reproduced in PostgreSQL, in a database with the
// encoding UTF8, with uuid_generate_v5(namespace, name) of the uuid-ossp extension, or with the
// function outbox_dispatch_id, which comes with the tables of package migrations.
//
// # Guarantees
//
// Equal input gives equal output on every platform and in every release.
// Different input has different encodings; their 122 hashed bits collide by
// accident with a probability of about n²/2¹²³ for n events. UUIDv5 is SHA-1:
// IDs are predictable and no secret, and whoever may choose names can aim for a
// collision. Content is therefore compared by a digest of its own, beside the ID.
//
// All functions are pure and safe for concurrent use.
package idgen
