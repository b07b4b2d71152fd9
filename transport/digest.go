package transport

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
)

// Digest is a digest of an event's content, for comparing two events with one dispatch ID. The zero
// value means that the digest is unknown.
type Digest [16]byte

// IsZero tells whether d is unknown.
func (d Digest) IsZero() bool { return d == Digest{} }

// Matches tells whether d and other may belong to the same content: they are equal, or one of them
// is unknown, as with a publisher that sends no digest.
func (d Digest) Matches(other Digest) bool {
	return d == other || d.IsZero() || other.IsZero()
}

// String returns d in hexadecimal.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// UnmarshalText reads 32 hexadecimal digits.
func (d *Digest) UnmarshalText(text []byte) error {
	var sum Digest
	if len(text) != hex.EncodedLen(len(sum)) {
		return errors.New("not 32 hexadecimal digits")
	}
	if _, err := hex.Decode(sum[:], text); err != nil {
		return errors.New("not 32 hexadecimal digits")
	}
	*d = sum
	return nil
}

// ContentDigest returns the digest of e's content: topic, key, type, schema version, content type,
// payload and the user's headers. It leaves out times, correlation and trace context, since they
// differ when an event is written again. It is the first half of the SHA-256 of these parts as
// netstrings in that order, the headers as names and values by ascending name.
func ContentDigest(e *Event) Digest {
	h := sha256.New()
	buf := make([]byte, 0, 256)
	part := func(s string) {
		buf = strconv.AppendInt(buf[:0], int64(len(s)), 10)
		buf = append(buf, ':')
		buf = append(buf, s...)
		buf = append(buf, ',')
		h.Write(buf)
	}
	part(e.Topic)
	part(e.Key)
	part(e.Type)
	part(strconv.Itoa(e.SchemaVersion))
	part(e.ContentType)
	buf = strconv.AppendInt(buf[:0], int64(len(e.Payload)), 10)
	h.Write(append(buf, ':'))
	h.Write(e.Payload)
	h.Write([]byte{','})
	names := make([]string, 0, len(e.Headers))
	for name := range e.Headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		part(name)
		part(e.Headers[name])
	}
	var d Digest
	var sum [sha256.Size]byte
	copy(d[:], h.Sum(sum[:0]))
	return d
}
