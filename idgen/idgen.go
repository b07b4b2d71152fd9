package idgen

import (
	"crypto/sha1" //nolint:gosec // UUIDv5 is defined over SHA-1; see the package comment for its limits.
	"crypto/sha256"
	"strconv"

	"github.com/google/uuid"
)

// Namespace is the UUID namespace of version 1 of the format: the UUIDv5 of
// "https://github.com/boxpair/boxpair/dispatch/v1" in the URL namespace.
var Namespace = uuid.MustParse("05950bf3-f160-5df3-9801-c223cd9631d3")

// Shards is the number of shards over which keys are spread. It is part of the format and never
// changes.
const Shards = 64

// The kinds of dispatch IDs, as written in front of the encoded parts.
const (
	kindOf    = "of"
	kindKey   = "key"
	kindChild = "child"
)

// nameSize is the size of the stack buffers, in which most encoded names fit.
const nameSize = 256

// Of returns the dispatch ID of the event at position index, from 0, among the events that source
// emitted at version. The producer is the name of the service, so that two services may both have a
// source "order-42".
func Of(producer, source string, version int64, index int) uuid.UUID {
	var buf [nameSize]byte
	name := appendString(buf[:0], kindOf)
	name = appendString(name, producer)
	name = appendString(name, source)
	name = appendInt(name, version)
	name = appendInt(name, int64(index))
	return newV5(name)
}

// OfKey returns the dispatch ID of the event at position index, from 0, among the events that
// source emitted for the request with the given idempotency key.
func OfKey(producer, source, idempotencyKey string, index int) uuid.UUID {
	var buf [nameSize]byte
	name := appendString(buf[:0], kindKey)
	name = appendString(name, producer)
	name = appendString(name, source)
	name = appendString(name, idempotencyKey)
	name = appendInt(name, int64(index))
	return newV5(name)
}

// Child returns the dispatch ID of the event at position index, from 0, among the events that
// consumer emits while it handles the dispatch cause. A repeated run of the handler gives equal
// IDs, so whole chains are deterministic.
func Child(consumer string, cause uuid.UUID, index int) uuid.UUID {
	var buf [nameSize]byte
	var text [36]byte
	encodeUUID(&text, cause)
	name := appendString(buf[:0], kindChild)
	name = appendString(name, consumer)
	name = appendBytes(name, text[:])
	name = appendInt(name, int64(index))
	return newV5(name)
}

// Shard returns the shard of an event, in [0, Shards). Events of one key share a shard; the shard
// of an event without a key follows from its dispatch ID.
func Shard(key string, id uuid.UUID) int {
	if key == "" {
		return int(id[15]) % Shards
	}
	var buf [nameSize]byte
	sum := sha256.Sum256(append(buf[:0], key...))
	return int(sum[0]) % Shards
}

func appendString(dst []byte, s string) []byte {
	dst = strconv.AppendInt(dst, int64(len(s)), 10)
	dst = append(dst, ':')
	dst = append(dst, s...)
	return append(dst, ',')
}

func appendBytes(dst, b []byte) []byte {
	dst = strconv.AppendInt(dst, int64(len(b)), 10)
	dst = append(dst, ':')
	dst = append(dst, b...)
	return append(dst, ',')
}

func appendInt(dst []byte, n int64) []byte {
	var buf [20]byte
	return appendBytes(dst, strconv.AppendInt(buf[:0], n, 10))
}

// newV5 is uuid.NewSHA1 without its allocations: the hash runs over one buffer.
func newV5(name []byte) uuid.UUID {
	var buf [16 + nameSize]byte
	data := append(buf[:0], Namespace[:]...)
	data = append(data, name...)
	sum := sha1.Sum(data) //nolint:gosec // see the import
	var id uuid.UUID
	copy(id[:], sum[:])
	id[6] = id[6]&0x0f | 0x50
	id[8] = id[8]&0x3f | 0x80
	return id
}

func encodeUUID(dst *[36]byte, id uuid.UUID) {
	const digits = "0123456789abcdef"
	i := 0
	for n, b := range id {
		if n == 4 || n == 6 || n == 8 || n == 10 {
			dst[i] = '-'
			i++
		}
		dst[i], dst[i+1] = digits[b>>4], digits[b&0x0f]
		i += 2
	}
}
